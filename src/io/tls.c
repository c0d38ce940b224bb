/* SPDX-License-Identifier: MIT */
#include "io/tls.h"

/*
 *     conn ──► tls_send ──► records of 16 KiB ──► OpenSSL ──► bio_write ──► send()
 *     conn ◄── tls_recv ◄── one record at a time ◄── OpenSSL ◄── bio_read ◄── recv()
 *
 * The socket is reached through a BIO of our own: OpenSSL's uses write(), which would end
 * the process (SIGPIPE) where the peer has gone. OpenSSL reads no further than the record
 * under way, so what the kernel still has wakes the loop as without TLS.
 */

#include <errno.h>
#include <openssl/err.h>
#include <openssl/ssl.h>
#include <openssl/x509v3.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#include "base/buf.h"
#include "base/mem.h"
#include "tls_stream.h"

#define RECORD_BYTES ((size_t)16 << 10)
#define WHY_BYTES 280
#define NAMES_SHOWN 4

struct tls {
    SSL_CTX *ctx;
    BIO_METHOD *socket;
    SSL_SESSION *session; /* the newest that a new connection may resume */
    char *name;
    bool verify;
};

struct tls_stream {
    struct tls *t;
    SSL *ssl;
    int fd;
    int error; /* of the socket */
    bool at_eof, wants_write, shaken;
    char why[WHY_BYTES];
};

/* ---- why a certificate is not taken ------------------------------------------------ */

/* Names in certificates are anybody's bytes. */
static void put_plain(struct buf *out, const char *text, size_t len)
{
    for (size_t i = 0; i < len; i++)
        buf_append_char(out, text[i] >= ' ' && text[i] <= '~' ? text[i] : '?');
}

static void put_address(struct buf *out, const ASN1_OCTET_STRING *ip)
{
    const unsigned char *b = ASN1_STRING_get0_data(ip);
    const int len = ASN1_STRING_length(ip);
    for (int i = 0; len == 4 && i < 4; i++)
        buf_printf(out, "%s%u", i ? "." : "", b[i]);
    for (int i = 0; len == 16 && i < 16; i += 2)
        buf_printf(out, "%s%x", i ? ":" : "", (unsigned)(b[i] << 8 | b[i + 1]));
}

static void put_common_name(struct buf *out, const X509_NAME *name)
{
    const int at = X509_NAME_get_index_by_NID(name, NID_commonName, -1);
    const ASN1_STRING *s =
        at < 0 ? NULL : X509_NAME_ENTRY_get_data(X509_NAME_get_entry(name, at));
    if (s)
        put_plain(out, (const char *)ASN1_STRING_get0_data(s),
                  (size_t)ASN1_STRING_length(s));
    else
        buf_append_str(out, "nobody by name");
}

/* "a.example, 10.0.0.1": what a certificate is for. */
static void put_names(struct buf *out, const X509 *cert)
{
    GENERAL_NAMES *names = X509_get_ext_d2i(cert, NID_subject_alt_name, NULL, NULL);
    const int n = names ? sk_GENERAL_NAME_num(names) : 0;
    for (int i = 0; i < n && i < NAMES_SHOWN; i++) {
        int kind;
        const ASN1_STRING *s =
            GENERAL_NAME_get0_value(sk_GENERAL_NAME_value(names, i), &kind);
        buf_append_str(out, i ? ", " : "");
        if (kind == GEN_IPADD)
            put_address(out, s);
        else if (kind == GEN_DNS || kind == GEN_EMAIL || kind == GEN_URI)
            put_plain(out, (const char *)ASN1_STRING_get0_data(s),
                      (size_t)ASN1_STRING_length(s));
    }
    if (n > NAMES_SHOWN)
        buf_append_str(out, ", …");
    if (n == 0)
        put_common_name(out, X509_get_subject_name(cert));
    GENERAL_NAMES_free(names);
}

static void put_time(struct buf *out, const ASN1_TIME *at)
{
    struct tm tm = {0};
    char text[32] = "?";
    if (ASN1_TIME_to_tm(at, &tm))
        strftime(text, sizeof(text), "%Y-%m-%d %H:%M UTC", &tm);
    buf_append_str(out, text);
}

static void put_refusal(struct buf *out, const char *name, int error, int depth,
                        const X509 *cert)
{
    buf_printf(out, "the certificate %s %s ", depth ? "of an authority for" : "of", name);
    switch (error) {
    case X509_V_ERR_HOSTNAME_MISMATCH:
    case X509_V_ERR_IP_ADDRESS_MISMATCH:
        buf_append_str(out, "is for ");
        put_names(out, cert);
        buf_printf(out, ", not for %s", name);
        break;
    case X509_V_ERR_CERT_HAS_EXPIRED:
        buf_append_str(out, "has expired: ");
        put_time(out, X509_get0_notAfter(cert));
        break;
    case X509_V_ERR_CERT_NOT_YET_VALID:
        buf_append_str(out, "is not valid yet: ");
        put_time(out, X509_get0_notBefore(cert));
        break;
    case X509_V_ERR_DEPTH_ZERO_SELF_SIGNED_CERT:
        buf_append_str(out, "vouches for itself only; to trust it give it as CA file");
        break;
    case X509_V_ERR_SELF_SIGNED_CERT_IN_CHAIN:
    case X509_V_ERR_UNABLE_TO_GET_ISSUER_CERT:
    case X509_V_ERR_UNABLE_TO_GET_ISSUER_CERT_LOCALLY:
    case X509_V_ERR_UNABLE_TO_VERIFY_LEAF_SIGNATURE:
        buf_append_str(out, "is signed by an authority that is not trusted here (");
        put_common_name(out, X509_get_issuer_name(cert));
        buf_append_str(out, "); to trust it give it as CA file");
        break;
    default:
        buf_printf(out, "is not taken: %s", X509_verify_cert_error_string(error));
    }
}

static int on_verified(int ok, X509_STORE_CTX *store)
{
    SSL *ssl = X509_STORE_CTX_get_ex_data(store, SSL_get_ex_data_X509_STORE_CTX_idx());
    struct tls_stream *s = SSL_get_app_data(ssl);
    const X509 *cert = X509_STORE_CTX_get_current_cert(store);
    struct buf text = {0};
    if (ok || s->why[0])
        return ok;
    put_refusal(&text, s->t->name, X509_STORE_CTX_get_error(store),
                X509_STORE_CTX_get_error_depth(store), cert);
    snprintf(s->why, sizeof(s->why), "%.*s", (int)buf_len(&text), buf_slice(&text).ptr);
    buf_free(&text);
    return 0;
}

/* ---- the socket -------------------------------------------------------------------- */

static int bio_write(BIO *b, const char *bytes, int n)
{
    struct tls_stream *s = BIO_get_data(b);
    ssize_t sent;
    BIO_clear_retry_flags(b);
    do
        sent = send(s->fd, bytes, (size_t)n, MSG_DONTWAIT | MSG_NOSIGNAL);
    while (sent < 0 && errno == EINTR);
    if (sent < 0 && errno == EAGAIN)
        BIO_set_retry_write(b);
    else if (sent < 0)
        s->error = errno;
    return (int)sent;
}

static int bio_read(BIO *b, char *bytes, int n)
{
    struct tls_stream *s = BIO_get_data(b);
    ssize_t got;
    BIO_clear_retry_flags(b);
    do
        got = recv(s->fd, bytes, (size_t)n, MSG_DONTWAIT);
    while (got < 0 && errno == EINTR);
    if (got < 0 && errno == EAGAIN)
        BIO_set_retry_read(b);
    else if (got < 0)
        s->error = errno;
    s->at_eof |= got == 0;
    return (int)got;
}

static long bio_ctrl(BIO *b, int what, long number, void *pointer)
{
    const struct tls_stream *s = BIO_get_data(b);
    (void)number;
    (void)pointer;
    return what == BIO_CTRL_FLUSH || (what == BIO_CTRL_EOF && s->at_eof);
}

static BIO_METHOD *new_socket_method(void)
{
    BIO_METHOD *m = BIO_meth_new(BIO_TYPE_SOURCE_SINK, "socket without signals");
    BIO_meth_set_write(m, bio_write);
    BIO_meth_set_read(m, bio_read);
    BIO_meth_set_ctrl(m, bio_ctrl);
    return m;
}

static BIO *new_bio(struct tls_stream *s)
{
    BIO *b = BIO_new(s->t->socket);
    BIO_set_data(b, s);
    BIO_set_init(b, 1);
    return b;
}

/* ---- settings ---------------------------------------------------------------------- */

/* What OpenSSL said last. */
static const char *reason(void)
{
    const char *text = ERR_reason_error_string(ERR_peek_last_error());
    return text ? text : "no reason given";
}

static int load_authorities(SSL_CTX *ctx, const char *file, struct err *e)
{
    if (!file || !*file)
        return SSL_CTX_set_default_verify_paths(ctx)
                   ? 0
                   : err_set(e, ERR_IO, "the system's certificate authorities: %s",
                             reason());
    if (SSL_CTX_load_verify_locations(ctx, file, NULL))
        return 0;
    return err_set(e, ERR_INVALID, "the CA file %s cannot be used (PEM certificates): %s",
                   file, reason());
}

/* A key that is locked with a password is an error, and asks nobody. */
static int no_password(char *buf, int size, int writing, void *arg)
{
    (void)buf;
    (void)size;
    (void)writing;
    (void)arg;
    return 0;
}

static int load_own(SSL_CTX *ctx, const struct tls_options *o, struct err *e)
{
    const bool cert = o->cert_file && *o->cert_file, key = o->key_file && *o->key_file;
    if (!cert && !key)
        return 0;
    if (!cert || !key)
        return err_set(e, ERR_INVALID,
                       "a client certificate needs its key, and a key its "
                       "certificate: one of both files is missing");
    SSL_CTX_set_default_passwd_cb(ctx, no_password);
    if (SSL_CTX_use_certificate_chain_file(ctx, o->cert_file) != 1)
        return err_set(e, ERR_INVALID, "the certificate file %s cannot be used (PEM): %s",
                       o->cert_file, reason());
    if (SSL_CTX_use_PrivateKey_file(ctx, o->key_file, SSL_FILETYPE_PEM) != 1 ||
        SSL_CTX_check_private_key(ctx) != 1)
        return err_set(
            e, ERR_INVALID,
            "the key file %s cannot be used (PEM, without password, for %s): %s",
            o->key_file, o->cert_file, reason());
    return 0;
}

static int on_new_session(SSL *ssl, SSL_SESSION *session)
{
    struct tls *t = SSL_CTX_get_app_data(SSL_get_SSL_CTX(ssl));
    SSL_SESSION_free(t->session);
    t->session = session;
    return 1; /* it is ours now */
}

static int set_up(struct tls *t, const struct tls_options *o, struct err *e)
{
    static const unsigned char alpn[] = "\x08http/1.1";
    if (!t->ctx || !t->socket)
        return err_set(e, ERR_IO, "TLS cannot be had: %s", reason());
    SSL_CTX_set_app_data(t->ctx, t);
    SSL_CTX_set_min_proto_version(t->ctx, TLS1_2_VERSION);
    SSL_CTX_set_options(t->ctx, SSL_OP_NO_RENEGOTIATION | SSL_OP_NO_COMPRESSION);
    SSL_CTX_set_mode(t->ctx, SSL_MODE_ENABLE_PARTIAL_WRITE |
                                 SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER |
                                 SSL_MODE_RELEASE_BUFFERS);
    SSL_CTX_set_session_cache_mode(t->ctx, SSL_SESS_CACHE_CLIENT |
                                               SSL_SESS_CACHE_NO_INTERNAL_STORE);
    SSL_CTX_sess_set_new_cb(t->ctx, on_new_session);
    SSL_CTX_set_alpn_protos(t->ctx, alpn, sizeof(alpn) - 1);
    if (t->verify)
        SSL_CTX_set_verify(t->ctx, SSL_VERIFY_PEER, on_verified);
    if (t->verify && load_authorities(t->ctx, o->ca_file, e) != 0)
        return e->code;
    return load_own(t->ctx, o, e);
}

struct tls *tls_new(const struct tls_options *o, struct err *e)
{
    struct err why = {0};
    struct tls *t = mem_zalloc(sizeof(*t));
    ERR_clear_error();
    t->name = mem_strdup(o->name);
    t->verify = !o->no_verify;
    t->ctx = SSL_CTX_new(TLS_client_method());
    t->socket = new_socket_method();
    if (set_up(t, o, &why) == 0)
        return t;
    err_set(e, why.code, "%s", why.text);
    tls_free(t);
    return NULL;
}

void tls_free(struct tls *t)
{
    if (!t)
        return;
    SSL_SESSION_free(t->session);
    SSL_CTX_free(t->ctx);
    BIO_meth_free(t->socket);
    free(t->name);
    free(t);
}

/* ---- a stream ---------------------------------------------------------------------- */

static void set_name(struct tls_stream *s)
{
    X509_VERIFY_PARAM *param = SSL_get0_param(s->ssl);
    if (X509_VERIFY_PARAM_set1_ip_asc(param, s->t->name))
        return; /* an address: there is no SNI for those */
    SSL_set_hostflags(s->ssl, X509_CHECK_FLAG_NO_PARTIAL_WILDCARDS);
    SSL_set1_host(s->ssl, s->t->name);
    SSL_set_tlsext_host_name(s->ssl, s->t->name);
}

struct tls_stream *tls_begin(struct tls *t, int fd)
{
    struct tls_stream *s = mem_zalloc(sizeof(*s));
    s->t = t;
    s->fd = fd;
    s->ssl = SSL_new(t->ctx);
    if (!s->ssl)
        abort(); /* out of memory, as base/mem.h says it */
    SSL_set_app_data(s->ssl, s);
    BIO *b = new_bio(s);
    SSL_set_bio(s->ssl, b, b);
    set_name(s);
    if (t->session)
        SSL_set_session(s->ssl, t->session);
    SSL_set_connect_state(s->ssl);
    ERR_clear_error();
    return s;
}

static bool has_reason(int code)
{
    return ERR_GET_REASON(ERR_peek_last_error()) == code;
}

static void note_why(struct tls_stream *s)
{
    const char *hint = "";
    if (s->why[0])
        return;
    if (s->at_eof) {
        snprintf(s->why, sizeof(s->why), "%s",
                 s->shaken ? "it was cut off: there was no end of TLS (close_notify)"
                           : "it closed the connection during the TLS handshake");
        return;
    }
    if (has_reason(SSL_R_WRONG_VERSION_NUMBER) && !s->shaken)
        hint = " (does it speak http:// there?)";
    else if (has_reason(SSL_R_UNSUPPORTED_PROTOCOL) ||
             has_reason(SSL_R_TLSV1_ALERT_PROTOCOL_VERSION))
        hint = " (TLS 1.2 or later is needed)";
    snprintf(s->why, sizeof(s->why), "TLS: %s%s", reason(), hint);
}

/* Turns what OpenSSL returned into what a system call would. */
static int end_of_call(struct tls_stream *s, int rc)
{
    const int what = SSL_get_error(s->ssl, rc);
    if (what == SSL_ERROR_ZERO_RETURN)
        return 0;
    if (what == SSL_ERROR_WANT_READ || what == SSL_ERROR_WANT_WRITE) {
        s->wants_write = what == SSL_ERROR_WANT_WRITE;
        errno = EAGAIN;
        return -1;
    }
    if (s->error) {
        errno = s->error;
    } else {
        note_why(s);
        errno = EPROTO;
    }
    return -1;
}

int tls_handshake(struct tls_stream *s)
{
    ERR_clear_error();
    const int rc = SSL_do_handshake(s->ssl);
    s->shaken = rc == 1;
    s->wants_write = false;
    if (s->shaken)
        return 0;
    if (end_of_call(s, rc) == 0) { /* an end before the beginning */
        s->at_eof = true;
        note_why(s);
        errno = EPROTO;
    }
    return -1;
}

ssize_t tls_recv(struct tls_stream *s, void *bytes, size_t n)
{
    s->wants_write = false;
    ERR_clear_error();
    const int got =
        SSL_read(s->ssl, bytes, n < RECORD_BYTES ? (int)n : (int)RECORD_BYTES);
    return got > 0 ? got : end_of_call(s, got);
}

/* The bytes of the pieces from `from` on, as far as they fit into a record. */
static int gather(unsigned char *record, const struct iovec *iov, int n, size_t from)
{
    size_t used = 0;
    for (int i = 0; i < n && used < RECORD_BYTES; i++) {
        if (from >= iov[i].iov_len) {
            from -= iov[i].iov_len;
            continue;
        }
        const size_t left = iov[i].iov_len - from, room = RECORD_BYTES - used;
        const size_t part = left < room ? left : room;
        memcpy(record + used, (const char *)iov[i].iov_base + from, part);
        used += part;
        from = 0;
    }
    return (int)used;
}

ssize_t tls_send(struct tls_stream *s, const struct iovec *iov, int n)
{
    unsigned char record[RECORD_BYTES];
    ssize_t sent = 0;
    for (int len; (len = gather(record, iov, n, (size_t)sent)) > 0;) {
        const bool wanted = s->wants_write;
        ERR_clear_error();
        const int rc = SSL_write(s->ssl, record, len);
        if (rc > 0) {
            sent += rc;
            continue;
        }
        const int end = end_of_call(s, rc);
        s->wants_write = wanted; /* that is about reading */
        return sent ? sent : end < 0 ? -1 : (errno = EPIPE, -1);
    }
    return sent;
}

bool tls_pending(const struct tls_stream *s)
{
    return SSL_pending(s->ssl) > 0;
}

bool tls_wants_write(const struct tls_stream *s)
{
    return s->wants_write;
}

bool tls_is_quiet(struct tls_stream *s)
{
    char byte;
    ERR_clear_error();
    const int rc = SSL_peek(s->ssl, &byte, 1);
    return rc <= 0 && end_of_call(s, rc) < 0 && errno == EAGAIN;
}

const char *tls_why(const struct tls_stream *s)
{
    return s->why;
}

void tls_say_end(struct tls_stream *s)
{
    ERR_clear_error();
    if (s->shaken && !s->why[0] && !s->error)
        SSL_shutdown(s->ssl);
}

void tls_end(struct tls_stream *s)
{
    if (!s)
        return;
    SSL_free(s->ssl);
    free(s);
}
