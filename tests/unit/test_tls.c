/* SPDX-License-Identifier: MIT */
#include "io/tls.h"

/*
 * Connections with TLS against a blocking server in a thread, with certificates made here.
 * What certificates are refused is tested from outside (tests/e2e/test_tls.py).
 */

#include <errno.h>
#include <openssl/pem.h>
#include <openssl/ssl.h>
#include <openssl/x509v3.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/mem.h"
#include "cmocka_all.h"
#include "io/conn.h"
#include "io_rig.h"

#define BIG ((size_t)6 << 20)

static struct loop *loop;
static EVP_PKEY *key;
static X509 *cert;
static char ca_file[] = "/tmp/incipit-tls-XXXXXX";

/* ---- certificates ------------------------------------------------------------------ */

static int make_certificate(void **state)
{
    (void)state;
    key = EVP_EC_gen("P-256");
    cert = X509_new();
    X509_set_version(cert, 2);
    ASN1_INTEGER_set(X509_get_serialNumber(cert), 1);
    X509_gmtime_adj(X509_getm_notBefore(cert), -60);
    X509_gmtime_adj(X509_getm_notAfter(cert), 3600);
    X509_set_pubkey(cert, key);
    X509_NAME *name = X509_get_subject_name(cert);
    X509_NAME_add_entry_by_txt(name, "CN", MBSTRING_ASC, (const unsigned char *)"test",
                               -1, -1, 0);
    X509_set_issuer_name(cert, name);
    X509_EXTENSION *names = X509V3_EXT_conf_nid(NULL, NULL, NID_subject_alt_name,
                                                "DNS:engine.test,IP:127.0.0.1");
    X509_add_ext(cert, names, -1);
    X509_EXTENSION_free(names);
    X509_sign(cert, key, EVP_sha256());
    FILE *f = fdopen(mkstemp(ca_file), "w");
    PEM_write_X509(f, cert);
    fclose(f);
    return 0;
}

static int drop_certificate(void **state)
{
    (void)state;
    unlink(ca_file);
    X509_free(cert);
    EVP_PKEY_free(key);
    return 0;
}

/* ---- the other side ---------------------------------------------------------------- */

struct server {
    SSL_CTX *ctx;
    pthread_t thread;
    int listening, connections;
    unsigned short port;
    void (*serve)(struct server *s, SSL *ssl, int fd);
    int max_version; /* 0: any */
    bool was_resumed, said_end;
    struct buf got;
};

static void *run_server(void *arg)
{
    struct server *s = arg;
    for (int i = 0; i < s->connections; i++) {
        const int fd = accept(s->listening, NULL, NULL);
        SSL *ssl = SSL_new(s->ctx);
        SSL_set_fd(ssl, fd);
        if (SSL_accept(ssl) == 1) {
            s->was_resumed = SSL_session_reused(ssl);
            s->serve(s, ssl, fd);
        }
        SSL_free(ssl);
        close(fd);
    }
    return NULL;
}

static void start_server(struct server *s, int connections,
                         void (*serve)(struct server *s, SSL *ssl, int fd))
{
    s->ctx = SSL_CTX_new(TLS_server_method());
    SSL_CTX_use_certificate(s->ctx, cert);
    SSL_CTX_use_PrivateKey(s->ctx, key);
    if (s->max_version)
        SSL_CTX_set_max_proto_version(s->ctx, s->max_version);
    s->listening = rig_listen(4, &s->port);
    s->connections = connections;
    s->serve = serve;
    pthread_create(&s->thread, NULL, run_server, s);
}

static void end_server(struct server *s)
{
    pthread_join(s->thread, NULL);
    close(s->listening);
    SSL_CTX_free(s->ctx);
    buf_free(&s->got);
}

/* ---- our side ---------------------------------------------------------------------- */

struct owner {
    struct conn *conn;
    char told[64];
    struct buf data;
    enum conn_event stop_at;
    size_t stop_bytes;
    bool keep;
};

static void on_conn(void *arg, struct conn *c, enum conn_event event)
{
    struct owner *o = arg;
    const size_t n = strlen(o->told);
    if (event != CONN_DATA || n == 0 || o->told[n - 1] != 'D')
        o->told[n] = "CDRFXE!"[event];
    assert_true(n < sizeof(o->told) - 2);
    if (event == CONN_DATA && !o->keep) {
        buf_append_slice(&o->data, conn_input(c));
        conn_consume(c, conn_input(c).len);
    }
    if (event == o->stop_at || (o->stop_bytes && buf_len(&o->data) >= o->stop_bytes))
        loop_stop(loop);
}

static struct addr address_of(unsigned short port)
{
    struct addr a;
    char text[32];
    snprintf(text, sizeof(text), "127.0.0.1:%u", port);
    assert_int_equal(addr_resolve(&a, text, NULL), 0);
    return a;
}

static struct tls *new_tls(const char *name)
{
    const struct tls_options o = {.name = name, .ca_file = ca_file};
    struct err e = {0};
    struct tls *t = tls_new(&o, &e);
    if (!t)
        fail_msg("%s", e.text);
    return t;
}

static void connect_to(struct owner *o, unsigned short port, struct tls *t,
                       uint64_t timeout_ms)
{
    const struct addr to = address_of(port);
    *o = (struct owner){.stop_at = CONN_FAILED};
    o->conn = conn_connect_tls(loop, &to, t, timeout_ms, on_conn, o);
}

static void run_until(struct owner *o, enum conn_event event)
{
    o->stop_at = event;
    loop_run(loop);
    o->stop_at = CONN_FAILED;
}

static void run_until_bytes(struct owner *o, size_t n)
{
    o->stop_bytes = n;
    if (buf_len(&o->data) < n)
        loop_run(loop);
    o->stop_bytes = 0;
}

static void disown(struct owner *o)
{
    conn_close(o->conn);
    buf_free(&o->data);
}

static int up(void **state)
{
    const int rc = rig_up(state);
    loop = *state;
    return rc;
}

/* ---- data -------------------------------------------------------------------------- */

/* Sends all back, and then says that this was it. */
static void echo(struct server *s, SSL *ssl, int fd)
{
    char bytes[20000];
    (void)fd;
    while (buf_len(&s->got) < BIG) {
        const int n = SSL_read(ssl, bytes, sizeof(bytes));
        if (n <= 0)
            return;
        buf_append(&s->got, bytes, (size_t)n);
    }
    for (size_t at = 0; at < BIG;) {
        const int n = SSL_write(ssl, buf_slice(&s->got).ptr + at, (int)(BIG - at));
        if (n <= 0)
            return;
        at += (size_t)n;
    }
    SSL_shutdown(ssl);
    s->said_end = SSL_read(ssl, bytes, sizeof(bytes)) == 0 &&
                  (SSL_get_shutdown(ssl) & SSL_RECEIVED_SHUTDOWN);
}

static void check_bytes(struct buf *b, const char *want)
{
    assert_int_equal(buf_len(b), BIG);
    assert_memory_equal(buf_slice(b).ptr, want, BIG);
}

static void send_and_get_back(int max_version)
{
    struct server s = {.max_version = max_version};
    struct owner o;
    struct tls *t = new_tls("engine.test");
    char *bytes = mem_alloc(BIG);
    rig_pattern(bytes, BIG, 0);
    start_server(&s, 1, echo);
    connect_to(&o, s.port, t, 5000);
    conn_write(o.conn, SLICE_LIT("")); /* nothing, before there is a connection */
    conn_cork(o.conn);
    conn_write(o.conn, slice_make(bytes, 10));
    conn_write_borrowed(o.conn, slice_make(bytes + 10, 30000));
    run_until(&o, CONN_CONNECTED);
    conn_uncork(o.conn);
    conn_write_borrowed(o.conn, slice_make(bytes + 30010, BIG - 30010));
    run_until(&o, CONN_FLUSHED);
    assert_int_equal(conn_bytes_out(o.conn), BIG);
    run_until(&o, CONN_ENDED);
    assert_int_equal(conn_error(o.conn), 0);
    assert_string_equal(conn_why(o.conn), "");
    check_bytes(&o.data, bytes);
    assert_int_equal(conn_bytes_in(o.conn), BIG);
    disown(&o);
    check_bytes(&s.got, bytes);
    end_server(&s);
    assert_true(s.said_end);
    free(bytes);
    tls_free(t);
}

static void test_tls_bytes_go_both_ways(void **state)
{
    (void)state;
    send_and_get_back(0);
    send_and_get_back(TLS1_2_VERSION);
}

static void send_pattern(struct server *s, SSL *ssl, int fd)
{
    (void)fd;
    char *bytes = mem_alloc(BIG);
    char c;
    rig_pattern(bytes, BIG, 0);
    for (size_t at = 0; at < BIG; at += 12345) /* records of an odd size */
        SSL_write(ssl, bytes + at, at + 12345 < BIG ? 12345 : (int)(BIG - at));
    s->said_end = SSL_read(ssl, &c, 1) == 0;
    free(bytes);
}

/* What does not fit stays in the middle of a record, of which the kernel knows nothing. */
static void test_tls_a_small_input_buffer_gets_every_byte(void **state)
{
    (void)state;
    static const size_t limits[] = {1000, 12345, 16384, 65536};
    char *bytes = mem_alloc(BIG);
    rig_pattern(bytes, BIG, 0);
    for (size_t i = 0; i < sizeof(limits) / sizeof(limits[0]); i++) {
        struct server s = {0};
        struct owner o;
        struct tls *t = new_tls("engine.test");
        start_server(&s, 1, send_pattern);
        connect_to(&o, s.port, t, 5000);
        conn_set_input_max(o.conn, limits[i]);
        run_until_bytes(&o, BIG);
        check_bytes(&o.data, bytes);
        disown(&o);
        end_server(&s);
        assert_true(s.said_end); /* close_notify, not just a FIN */
        tls_free(t);
    }
    free(bytes);
}

static void send_two_records(struct server *s, SSL *ssl, int fd)
{
    char c;
    (void)fd;
    SSL_write(ssl, "first second", 12);
    s->said_end = SSL_read(ssl, &c, 1) == 0;
}

static void test_tls_rest_of_a_record_waits_for_resume(void **state)
{
    (void)state;
    struct server s = {0};
    struct owner o;
    struct tls *t = new_tls("engine.test");
    start_server(&s, 1, send_two_records);
    connect_to(&o, s.port, t, 5000);
    conn_set_input_max(o.conn, 6);
    o.keep = true;
    run_until(&o, CONN_DATA);
    conn_pause(o.conn);
    conn_consume(o.conn, 6);
    assert_true(rig_idle(loop, 60) < 30); /* waits, and does not spin */
    assert_int_equal(conn_input(o.conn).len, 0);
    assert_true(conn_stale(o.conn)); /* there is something that nobody has read */
    o.keep = false;
    conn_set_input_max(o.conn, 100);
    conn_resume(o.conn);
    run_until_bytes(&o, 6);
    assert_memory_equal(buf_slice(&o.data).ptr, "second", 6);
    assert_true(rig_idle(loop, 60) < 30);
    disown(&o);
    end_server(&s);
    tls_free(t);
}

/* ---- ends -------------------------------------------------------------------------- */

static void cut_off(struct server *s, SSL *ssl, int fd)
{
    (void)s;
    SSL_write(ssl, "half", 4);
    shutdown(fd, SHUT_WR);
    char c;
    while (recv(fd, &c, 1, 0) > 0)
        ;
}

static void test_tls_FIN_without_its_own_end_is_an_error_behind_the_data(void **state)
{
    (void)state;
    struct server s = {0};
    struct owner o;
    struct tls *t = new_tls("engine.test");
    start_server(&s, 1, cut_off);
    connect_to(&o, s.port, t, 5000);
    run_until(&o, CONN_ENDED);
    assert_int_equal(buf_len(&o.data), 4);
    assert_int_equal(conn_error(o.conn), EPROTO);
    assert_non_null(strstr(conn_why(o.conn), "close_notify"));
    assert_string_equal(o.told, "CDXE");
    assert_true(rig_idle(loop, 60) < 30);
    disown(&o);
    end_server(&s);
    tls_free(t);
}

static void test_tls_FIN_while_paused_is_told_at_once(void **state)
{
    (void)state;
    struct server s = {0};
    struct owner o;
    struct tls *t = new_tls("engine.test");
    start_server(&s, 1, cut_off);
    connect_to(&o, s.port, t, 5000);
    conn_pause(o.conn);
    run_until(&o, CONN_CLOSED);
    assert_string_equal(o.told, "CX");
    conn_resume(o.conn);
    run_until(&o, CONN_ENDED);
    assert_int_equal(buf_len(&o.data), 4);
    disown(&o);
    end_server(&s);
    tls_free(t);
}

static void reset(struct server *s, SSL *ssl, int fd)
{
    const struct linger now = {.l_onoff = 1};
    (void)s;
    SSL_write(ssl, "half", 4);
    setsockopt(fd, SOL_SOCKET, SO_LINGER, &now, sizeof(now));
}

static void test_tls_reset_is_an_error(void **state)
{
    (void)state;
    struct server s = {0};
    struct owner o;
    struct tls *t = new_tls("engine.test");
    start_server(&s, 1, reset);
    connect_to(&o, s.port, t, 5000);
    run_until(&o, CONN_ENDED);
    assert_int_equal(conn_error(o.conn), ECONNRESET);
    disown(&o);
    end_server(&s);
    tls_free(t);
}

/* ---- handshakes -------------------------------------------------------------------- */

static void fails_with(unsigned short port, struct tls *t, uint64_t timeout_ms, int error,
                       const char *why)
{
    struct owner o;
    connect_to(&o, port, t, timeout_ms);
    conn_write(o.conn, SLICE_LIT("never seen"));
    run_until(&o, CONN_FAILED);
    assert_string_equal(o.told, "!");
    assert_int_equal(conn_error(o.conn), error);
    if (!strstr(conn_why(o.conn), why))
        fail_msg("\"%s\" does not say \"%s\"", conn_why(o.conn), why);
    assert_true(rig_idle(loop, 30) < 20);
    disown(&o);
}

static void test_tls_handshake_that_nobody_answers_ends_in_time(void **state)
{
    (void)state;
    unsigned short port;
    struct tls *t = new_tls("engine.test");
    const int listening = rig_listen(1, &port);
    fails_with(port, t, 50, ETIMEDOUT, "handshake took too long");
    close(listening);
    tls_free(t);
}

static void *accept_and_say(void *arg)
{
    const int fd = accept(*(int *)arg, NULL, NULL);
    char bytes[2000];
    ssize_t n = recv(fd, bytes, sizeof(bytes), 0);
    while (n > 0 && send(fd, "HTTP/1.1 400 Bad Request\r\n\r\n", 28, MSG_NOSIGNAL) > 0)
        n = recv(fd, bytes, sizeof(bytes), 0);
    close(fd);
    return NULL;
}

static void test_tls_service_without_TLS_is_told_as_one(void **state)
{
    (void)state;
    unsigned short port;
    pthread_t thread;
    struct tls *t = new_tls("engine.test");
    int listening = rig_listen(1, &port);
    pthread_create(&thread, NULL, accept_and_say, &listening);
    fails_with(port, t, 5000, EPROTO, "does it speak http:// there?");
    pthread_join(thread, NULL);
    close(listening);
    tls_free(t);
}

static void *accept_and_close(void *arg)
{
    const int fd = accept(*(int *)arg, NULL, NULL);
    char bytes[2000];
    const ssize_t n = recv(fd, bytes, sizeof(bytes), 0); /* or the close is a reset */
    close(fd);
    return n > 0 ? arg : NULL;
}

static void test_tls_handshake_that_is_cut_off_fails(void **state)
{
    (void)state;
    unsigned short port;
    pthread_t thread;
    struct tls *t = new_tls("engine.test");
    int listening = rig_listen(1, &port);
    pthread_create(&thread, NULL, accept_and_close, &listening);
    fails_with(port, t, 5000, EPROTO, "during the TLS handshake");
    pthread_join(thread, NULL);
    close(listening);
    tls_free(t);
}

static void never(struct server *s, SSL *ssl, int fd)
{
    (void)s;
    (void)ssl;
    (void)fd;
}

static void test_tls_certificate_of_another_is_refused_by_name(void **state)
{
    (void)state;
    struct server s = {0};
    struct tls *t = new_tls("other.test");
    start_server(&s, 1, never);
    fails_with(s.port, t, 5000, EPROTO,
               "the certificate of other.test is for engine.test, 127.0.0.1, not for "
               "other.test");
    end_server(&s);
    tls_free(t);
}

static void test_tls_older_than_1_2_is_refused(void **state)
{
    (void)state;
    struct server s = {.max_version = TLS1_1_VERSION};
    struct tls *t = new_tls("engine.test");
    start_server(&s, 1, never);
    fails_with(s.port, t, 5000, EPROTO, "TLS");
    end_server(&s);
    tls_free(t);
}

static void test_tls_may_be_closed_while_it_shakes_hands(void **state)
{
    (void)state;
    struct owner o;
    unsigned short port;
    struct tls *t = new_tls("engine.test");
    const int listening = rig_listen(4, &port);
    for (int i = 0; i < 3; i++) {
        connect_to(&o, port, t, 5000);
        conn_write(o.conn, SLICE_LIT("never sent"));
        rig_idle(loop, 10); /* its first word is out */
        if (i == 0)
            conn_close(o.conn);
        else if (i == 1)
            conn_abort(o.conn);
        else
            conn_close_gently(o.conn, 1000);
        rig_idle(loop, 5);
        assert_string_equal(o.told, "");
    }
    close(listening);
    tls_free(t);
}

static void ask_to_renegotiate(struct server *s, SSL *ssl, int fd)
{
    char c;
    (void)s;
    (void)fd;
    SSL_write(ssl, "x", 1);
    SSL_renegotiate(ssl);
    SSL_do_handshake(ssl); /* asks; what the other side sends next is its answer */
    while (SSL_read(ssl, &c, 1) > 0)
        ;
}

static void test_tls_renegotiation_is_refused(void **state)
{
    (void)state;
    struct server s = {.max_version = TLS1_2_VERSION};
    struct owner o;
    struct tls *t = new_tls("engine.test");
    start_server(&s, 1, ask_to_renegotiate);
    connect_to(&o, s.port, t, 5000);
    run_until(&o, CONN_ENDED);
    assert_int_equal(buf_len(&o.data), 1);
    disown(&o);
    pthread_join(s.thread, NULL);
    assert_int_equal(SSL_CTX_sess_accept_good(s.ctx), 1);
    assert_int_equal(SSL_CTX_sess_accept_renegotiate(s.ctx), 1); /* asked for */
    close(s.listening);
    SSL_CTX_free(s.ctx);
    tls_free(t);
}

/* ---- pools ------------------------------------------------------------------------- */

static void answer_once(struct server *s, SSL *ssl, int fd)
{
    char c;
    (void)fd;
    SSL_write(ssl, "x", 1);
    s->said_end = SSL_read(ssl, &c, 1) == 0; /* until the other side ends */
}

/* The tickets of TLS 1.3 come behind the handshake, and are no data. */
static void resume(int max_version)
{
    struct server s = {.max_version = max_version};
    struct tls *t = new_tls("127.0.0.1");
    start_server(&s, 2, answer_once);
    for (int i = 0; i < 2; i++) {
        struct owner o;
        connect_to(&o, s.port, t, 5000);
        run_until_bytes(&o, 1);
        assert_false(conn_stale(o.conn));
        disown(&o);
        if (i == 1)
            end_server(&s);
    }
    assert_true(s.was_resumed);
    assert_true(s.said_end);
    tls_free(t);
}

static void test_tls_next_connection_resumes_the_session(void **state)
{
    (void)state;
    resume(0);
    resume(TLS1_2_VERSION);
}

static void tickets_only(struct server *s, SSL *ssl, int fd)
{
    char c;
    (void)fd;
    SSL_read(ssl, &c, 1);
    SSL_new_session_ticket(ssl);
    SSL_write(ssl, "y", 1);
    SSL_new_session_ticket(ssl);
    SSL_do_handshake(ssl);
    s->said_end = SSL_read(ssl, &c, 1) == 0;
}

static void test_tls_ticket_in_the_socket_does_not_make_it_stale(void **state)
{
    (void)state;
    struct server s = {0};
    struct owner o;
    struct tls *t = new_tls("engine.test");
    start_server(&s, 1, tickets_only);
    connect_to(&o, s.port, t, 5000);
    conn_write(o.conn, SLICE_LIT("x"));
    run_until_bytes(&o, 1);
    for (int i = 0; i < 20; i++) { /* whenever the ticket comes */
        assert_false(conn_stale(o.conn));
        rig_idle(loop, 1);
    }
    assert_string_equal(o.told, "CFD");
    disown(&o);
    end_server(&s);
    tls_free(t);
}

static void test_tls_stale_sees_data_and_ends(void **state)
{
    (void)state;
    struct server s = {0};
    struct owner o;
    struct tls *t = new_tls("engine.test");
    start_server(&s, 1, cut_off);
    connect_to(&o, s.port, t, 5000);
    run_until(&o, CONN_CONNECTED);
    while (!conn_stale(o.conn)) /* without the loop */
        ;
    disown(&o);
    end_server(&s);
    tls_free(t);
}

/* ---- files ------------------------------------------------------------------------- */

static void test_tls_files_that_are_none_are_told(void **state)
{
    (void)state;
    static const struct {
        struct tls_options o;
        const char *says;
    } rows[] = {
        {{.name = "x", .ca_file = "/nowhere/ca"}, "the CA file /nowhere/ca"},
        {{.name = "x", .ca_file = "/dev/null"}, "the CA file /dev/null"},
        {{.name = "x", .cert_file = ca_file}, "one of both files is missing"},
        {{.name = "x", .key_file = ca_file}, "one of both files is missing"},
        {{.name = "x", .cert_file = "/nowhere/c", .key_file = ca_file},
         "the certificate file /nowhere/c"},
        {{.name = "x", .cert_file = ca_file, .key_file = ca_file}, "the key file"}};
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        struct err e = {0};
        assert_null(tls_new(&rows[i].o, &e));
        if (!strstr(e.text, rows[i].says))
            fail_msg("\"%s\" does not say \"%s\"", e.text, rows[i].says);
    }
    tls_free(NULL);
}

int main(void)
{
#define TEST(f) cmocka_unit_test_setup_teardown(f, up, rig_down)
    const struct CMUnitTest tests[] = {
        TEST(test_tls_bytes_go_both_ways),
        TEST(test_tls_a_small_input_buffer_gets_every_byte),
        TEST(test_tls_rest_of_a_record_waits_for_resume),
        TEST(test_tls_FIN_without_its_own_end_is_an_error_behind_the_data),
        TEST(test_tls_FIN_while_paused_is_told_at_once),
        TEST(test_tls_reset_is_an_error),
        TEST(test_tls_handshake_that_nobody_answers_ends_in_time),
        TEST(test_tls_service_without_TLS_is_told_as_one),
        TEST(test_tls_handshake_that_is_cut_off_fails),
        TEST(test_tls_certificate_of_another_is_refused_by_name),
        TEST(test_tls_older_than_1_2_is_refused),
        TEST(test_tls_may_be_closed_while_it_shakes_hands),
        TEST(test_tls_renegotiation_is_refused),
        TEST(test_tls_next_connection_resumes_the_session),
        TEST(test_tls_ticket_in_the_socket_does_not_make_it_stale),
        TEST(test_tls_stale_sees_data_and_ends),
        TEST(test_tls_files_that_are_none_are_told),
    };
    signal(SIGPIPE, SIG_IGN); /* of the servers here, which use write() */
    return cmocka_run_group_tests(tests, make_certificate, drop_certificate);
}
