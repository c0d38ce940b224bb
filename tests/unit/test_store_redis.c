/* SPDX-License-Identifier: MIT */
#include "store/store.h"

#include <hiredis/hiredis.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/buf.h"
#include "base/clock.h"
#include "base/mem.h"
#include "cmocka_all.h"
#include "io/conn.h"
#include "io/listener.h"
#include "store_rig.h"

/*
 * The shared tier against a Redis of a few lines that can be told to misbehave. It runs
 * on the loop of the test; what a real one does is seen in tests/e2e/test_redis.py.
 */

enum twist {
    NONE,
    SILENT,  /* questions are not answered, greetings are */
    CUTS,    /* it ends the connection instead of an answer */
    GARBAGE, /* an answer that is not the protocol */
    UNASKED, /* two answers to one question */
    ODD,     /* a number instead of bytes */
    ENDLESS, /* more than was asked for */
    FULL     /* no writes */
};

#define KEYS_MAX 64

struct pair {
    char *key, *value;
    size_t len;
};

static struct fake {
    struct listener *listener;
    enum twist twist;
    struct pair pairs[KEYS_MAX];
    size_t n_pairs;
    struct client *clients;
    unsigned n_blocks; /* commands about blocks */
} fake;

struct client {
    struct client *next;
    struct conn *conn;
    redisReader *reader;
};

static struct store_rig rig;
static struct store_redis_options redis;
static char where[300], *key_file;

static const struct hash128 model = {0xa, 1};

/* ---- the server -------------------------------------------------------------------- */

static struct pair *find(const char *key)
{
    for (size_t i = 0; i < fake.n_pairs; i++)
        if (strcmp(fake.pairs[i].key, key) == 0)
            return &fake.pairs[i];
    return NULL;
}

static void drop(struct pair *p)
{
    free(p->key);
    free(p->value);
    *p = fake.pairs[--fake.n_pairs];
}

static void say(struct client *c, const char *text)
{
    conn_write(c->conn, slice_of(text));
}

static void set(struct client *c, const char *key, const redisReply *value, bool nx)
{
    struct pair *p = find(key);
    if (fake.twist == FULL) {
        say(c, "-OOM command not allowed when used memory > 'maxmemory'.\r\n");
        return;
    }
    if (p && nx) {
        say(c, "$-1\r\n");
        return;
    }
    if (p)
        drop(p);
    assert_true(fake.n_pairs < KEYS_MAX);
    fake.pairs[fake.n_pairs++] =
        (struct pair){mem_strdup(key), mem_dup(value->str, value->len), value->len};
    say(c, "+OK\r\n");
}

static void get(struct client *c, const char *key)
{
    const struct pair *p = find(key);
    struct buf b = {0};
    if (p) {
        buf_printf(&b, "$%zu\r\n", p->len);
        buf_append(&b, p->value, p->len);
    }
    buf_append_str(&b, p ? "\r\n" : "$-1\r\n");
    conn_write(c->conn, buf_slice(&b));
    buf_free(&b);
}

/* False where the connection is gone. */
static bool misbehave(struct client *c)
{
    switch (fake.twist) {
    case CUTS:
        conn_close(c->conn);
        c->conn = NULL;
        return false;
    case GARBAGE:
        say(c, "HTTP/1.1 400 Bad Request\r\n\r\n");
        break;
    case UNASKED:
        say(c, "+OK\r\n+OK\r\n");
        break;
    case ODD:
        say(c, ":7\r\n");
        break;
    case ENDLESS: {
        char *much = mem_zalloc(1 << 20);
        say(c, "+");
        conn_write(c->conn, slice_make(memset(much, 'x', 1 << 20), 1 << 20));
        free(much);
        break;
    }
    default:
        break;
    }
    return true;
}

static void answer(struct client *c, const redisReply *command)
{
    const char *name = command->element[0]->str;
    const char *key = command->elements > 1 ? command->element[1]->str : "";
    const redisReply *last = command->element[command->elements - 1];
    fake.n_blocks += strstr(key, ":b:") != NULL;
    if (strcmp(name, "PING") == 0)
        say(c, "+PONG\r\n");
    else if (strcmp(name, "GET") == 0 && fake.twist != NONE && fake.twist != FULL)
        misbehave(c);
    else if (strcmp(name, "GET") == 0)
        get(c, key);
    else if (strcmp(name, "SET") == 0 && strcmp(last->str, "NX") == 0)
        set(c, key, command->element[2], true);
    else if (strcmp(name, "SET") == 0)
        set(c, key, last, false);
    else if (strcmp(name, "TOUCH") == 0)
        say(c, find(key) ? ":1\r\n" : ":0\r\n");
    else if (strcmp(name, "DEL") == 0) {
        if (find(key))
            drop(find(key));
        say(c, ":1\r\n");
    } else {
        fail_msg("command %s", name);
    }
}

static void on_client(void *arg, struct conn *conn, enum conn_event event)
{
    struct client *c = arg;
    void *command = NULL;
    if (event == CONN_CLOSED || event == CONN_FAILED) {
        conn_close(conn);
        c->conn = NULL;
    }
    if (event != CONN_DATA)
        return;
    const struct slice in = conn_input(conn);
    redisReaderFeed(c->reader, in.ptr, in.len);
    conn_consume(conn, in.len);
    while (c->conn && redisReaderGetReply(c->reader, &command) == REDIS_OK && command) {
        answer(c, command);
        freeReplyObject(command);
    }
}

static void on_accept(void *arg, int fd)
{
    struct client *c = mem_zalloc(sizeof(*c));
    (void)arg;
    c->conn = conn_accepted(rig.loop, fd, on_client, c);
    c->reader = redisReaderCreate();
    c->next = fake.clients;
    fake.clients = c;
}

static void stop_fake(void)
{
    listener_close(fake.listener);
    for (struct client *c = fake.clients, *next; c; c = next) {
        next = c->next;
        conn_close(c->conn);
        redisReaderFree(c->reader);
        free(c);
    }
    while (fake.n_pairs)
        drop(&fake.pairs[0]);
    fake = (struct fake){0};
}

/* ---- set-up and waiting ------------------------------------------------------------ */

static int set_up(void **state)
{
    struct addr at;
    (void)state;
    store_rig_up(&rig, 2);
    snprintf(where, sizeof(where), "unix:%s/redis", rig.root);
    key_file = mem_printf("%s/key", rig.root);
    assert_int_equal(addr_resolve(&at, where, NULL), 0);
    fake.listener = listener_open(rig.loop, &at, on_accept, NULL, NULL);
    assert_non_null(fake.listener);
    redis = (struct store_redis_options){.loop = rig.loop,
                                         .where = where,
                                         .prefix = "test",
                                         .timeout_ms = 2000,
                                         .max_waiting_bytes = 1 << 20};
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    stop_fake();
    free(key_file);
    store_rig_down(&rig);
    return 0;
}

static struct store_redis_stats stats(const struct store *s)
{
    struct store_redis_stats n;
    store_redis_stats(s, &n);
    return n;
}

static void stop(void *arg)
{
    loop_stop(arg);
}

/* The loop for a millisecond: what waits must not keep a core busy. */
static void turn(void)
{
    struct loop_timer t = {0};
    timer_init(&t, rig.loop, stop, rig.loop);
    timer_start(&t, 1);
    loop_run(rig.loop);
    timer_fini(&t);
}

#define UNTIL(condition)                                                                 \
    do {                                                                                 \
        const uint64_t end_us = clock_mono_us() + 20000000;                              \
        while (!(condition)) {                                                           \
            if (clock_mono_us() > end_us)                                                \
                fail_msg("waited in vain for %s", #condition);                           \
            turn();                                                                      \
        }                                                                                \
    } while (0)

static unsigned n_compared; /* notes */

static bool same_text(const char *ours, const char *theirs)
{
    n_compared++;
    return strcmp(ours, theirs) == 0;
}

static struct store *open_with(const char *note)
{
    struct err e = {0};
    const struct store_options o = {
        .key_file = key_file, .ram_bytes = 1 << 20, .redis = redis};
    struct store *s = store_open(&o, rig.workers, &e);
    if (!s)
        fail_msg("%s", e.text);
    UNTIL(stats(s).state == STORE_REDIS_UP);
    const unsigned before = n_compared;
    store_vouch(s, model, note, same_text);
    UNTIL(n_compared > before);
    store_rig_settle(&rig);
    return s;
}

static void close_store(struct store *s)
{
    store_part(s);
    store_rig_settle(&rig);
    store_close(s);
}

#define N_TOKENS 16
#define ROWS 4096

static struct store_block *block_of(uint64_t n)
{
    const struct store_head h = {
        .fingerprint = model, .hash = {n, 1}, .n_tokens = N_TOKENS, .rows_bytes = ROWS};
    uint32_t *tokens;
    unsigned char *rows;
    struct store_block *b = store_block_new(&h, &tokens, &rows);
    for (uint32_t i = 0; i < N_TOKENS; i++)
        tokens[i] = (uint32_t)n + i;
    memset(rows, (int)n, ROWS);
    store_block_seal(b);
    return b;
}

static void put(struct store *s, uint64_t n)
{
    struct store_block *b = block_of(n);
    store_put(s, &b, 1, NULL, NULL);
    store_block_put(b);
}

static bool answered;
static int answer_code;
static size_t answer_good;

static void on_got(void *arg, struct store_block **blocks, size_t good,
                   const struct err *err)
{
    const uint64_t *n = arg;
    answered = true;
    answer_good = good;
    answer_code = err ? err->code : 0;
    if (good)
        assert_int_equal(blocks[0]->rows[ROWS - 1], (unsigned char)*n);
    for (size_t i = 0; i < good; i++)
        store_block_put(blocks[i]);
}

static int get_block(struct store *s, uint64_t n)
{
    const struct hash128 hash = {n, 1};
    answered = false;
    store_get(s, model, &hash, 1, on_got, &n);
    UNTIL(answered);
    return answer_good ? 0 : answer_code;
}

static void put_and_wait(struct store *s, uint64_t n)
{
    const uint64_t before = stats(s).puts;
    put(s, n);
    UNTIL(stats(s).puts > before);
}

/* ---- tests ------------------------------------------------------------------------- */

static void test_store_redis_shares_blocks(void **state)
{
    (void)state;
    struct store *one = open_with("same"), *two = open_with("same");
    struct store_stats n;
    put_and_wait(one, 1);
    assert_int_equal(get_block(two, 1), 0);
    store_stats(two, &n);
    assert_int_equal(n.redis_hits, 1);
    assert_int_equal(stats(two).gets, 1);
    assert_int_equal(get_block(two, 1), 0); /* from RAM now */
    store_stats(two, &n);
    assert_int_equal(n.ram_hits, 1);
    assert_int_equal(get_block(two, 2), ERR_NOT_FOUND);
    assert_int_equal(stats(two).missing, 1);
    close_store(one);
    close_store(two);
}

static void test_store_redis_other_notes_share_nothing(void **state)
{
    (void)state;
    struct store *one = open_with("these answers"), *two = open_with("other answers");
    put_and_wait(one, 1);
    put(two, 2);
    assert_int_equal(stats(two).skipped, 1);
    const unsigned before = fake.n_blocks;
    assert_true(before > 0);
    assert_int_equal(get_block(two, 1), ERR_NOT_FOUND);
    assert_int_equal(fake.n_blocks, before);
    close_store(one);
    close_store(two);
}

static void test_store_redis_dropping_here_leaves_it_there(void **state)
{
    (void)state;
    struct store *s = open_with("same");
    put_and_wait(s, 1);
    store_drop(s, model, (struct hash128){1, 1});
    assert_int_equal(get_block(s, 1), 0);
    store_forget(s, model, (struct hash128){1, 1});
    UNTIL(!store_busy(s));
    assert_int_equal(get_block(s, 1), ERR_NOT_FOUND);
    close_store(s);
}

static void test_store_redis_damaged_values_are_deleted(void **state)
{
    (void)state;
    struct store *s = open_with("same");
    put_and_wait(s, 1);
    store_drop(s, model, (struct hash128){1, 1});
    const size_t n_pairs = fake.n_pairs;
    struct pair *p = &fake.pairs[n_pairs - 1];
    p->value[p->len / 2] ^= 1;
    assert_int_equal(get_block(s, 1), ERR_CHECKSUM);
    assert_int_equal(stats(s).errors[STORE_REDIS_DAMAGED], 1);
    UNTIL(fake.n_pairs == n_pairs - 1);
    assert_int_equal(get_block(s, 1), ERR_NOT_FOUND);
    assert_int_equal(stats(s).state, STORE_REDIS_UP);
    close_store(s);
}

static void test_store_redis_trouble_is_not_there_and_ends(void **state)
{
    static const struct {
        enum twist twist;
        enum store_redis_error kind;
    } rows[] = {{SILENT, STORE_REDIS_TIMEOUT},   {CUTS, STORE_REDIS_CLOSED},
                {GARBAGE, STORE_REDIS_PROTOCOL}, {UNASKED, STORE_REDIS_PROTOCOL},
                {ODD, STORE_REDIS_PROTOCOL},     {ENDLESS, STORE_REDIS_PROTOCOL}};
    (void)state;
    redis.timeout_ms = 200;
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        struct store *s = open_with("same"); /* a new one tries again soon */
        const uint64_t before = stats(s).errors[rows[i].kind];
        put_and_wait(s, i + 1);
        store_drop(s, model, (struct hash128){i + 1, 1});
        fake.twist = rows[i].twist;
        const int code = get_block(s, i + 1);
        if (code != ERR_NOT_FOUND && rows[i].twist != ENDLESS)
            fail_msg("row %zu: %d", i, code);
        UNTIL(stats(s).errors[rows[i].kind] > before);
        fake.twist = NONE;
        UNTIL(stats(s).state == STORE_REDIS_UP && stats(s).models == 1);
        assert_int_equal(get_block(s, i + 1), 0);
        close_store(s);
    }
}

static void test_store_redis_full_is_still_read(void **state)
{
    (void)state;
    struct store *s = open_with("same");
    put_and_wait(s, 1);
    store_drop(s, model, (struct hash128){1, 1});
    fake.twist = FULL;
    put(s, 2);
    UNTIL(stats(s).state == STORE_REDIS_READ_ONLY);
    assert_int_equal(stats(s).errors[STORE_REDIS_FULL], 1);
    assert_int_equal(stats(s).skipped, 1);
    assert_int_equal(get_block(s, 1), 0);
    put(s, 3);
    assert_int_equal(stats(s).skipped, 2);
    fake.twist = NONE;
    UNTIL(stats(s).state == STORE_REDIS_UP);
    put_and_wait(s, 4);
    close_store(s);
}

static void test_store_redis_what_waits_is_bounded(void **state)
{
    (void)state;
    struct store_block *b = block_of(1);
    const uint64_t bytes = 96 + 4 * N_TOKENS + ROWS + 16;
    store_block_put(b);
    redis.max_waiting_bytes = bytes; /* one fits, and none beside it */
    struct store *s = open_with("same");
    put(s, 1);
    put(s, 2);
    assert_int_equal(stats(s).skipped, 1);
    UNTIL(stats(s).puts == 1 && !store_busy(s));
    put_and_wait(s, 3);
    close_store(s);
    redis.max_waiting_bytes = bytes - 1;
    s = open_with("same");
    put(s, 4);
    assert_int_equal(stats(s).skipped, 1);
    close_store(s);
}

static void test_store_redis_closing_answers_what_waits(void **state)
{
    (void)state;
    struct store *s = open_with("same");
    const struct hash128 hash = {1, 1};
    uint64_t n = 1;
    fake.twist = SILENT;
    answered = false;
    store_get(s, model, &hash, 1, on_got, &n);
    UNTIL(workers_pending(rig.workers) == 0);
    assert_false(answered);
    close_store(s);
    assert_true(answered);
    assert_int_equal(answer_code, ERR_NOT_FOUND);
}

static void test_store_redis_url_forms(void **state)
{
    static const struct {
        const char *url, *where;
        unsigned db;
    } good[] = {{"redis://127.0.0.1:6379", "127.0.0.1:6379", 0},
                {"redis://cache:6379/", "cache:6379", 0},
                {"redis://[::1]:6379/12", "[::1]:6379", 12},
                {"unix:/run/redis.sock", "unix:/run/redis.sock", 0}};
    static const char *const bad[] = {"",
                                      "redis://",
                                      "redis://host",
                                      "redis://host:1/x",
                                      "redis://user:word@host:1",
                                      "rediss://host:1",
                                      "unix:run",
                                      "http://host:1"};
    char at[256];
    unsigned db;
    (void)state;
    for (size_t i = 0; i < sizeof(good) / sizeof(good[0]); i++) {
        assert_int_equal(store_redis_url(good[i].url, at, &db, NULL), 0);
        assert_string_equal(at, good[i].where);
        assert_int_equal(db, good[i].db);
    }
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++)
        if (store_redis_url(bad[i], at, &db, NULL) == 0)
            fail_msg("%s was taken", bad[i]);
}

static int open_code(void)
{
    const struct store_options o = {.key_file = key_file, .ram_bytes = 1 << 20};
    struct err e = {0};
    struct store *s = store_open(&o, rig.workers, &e);
    store_close(s);
    return e.code;
}

static void test_store_redis_key_file_is_made_kept_and_checked(void **state)
{
    const struct store_options o = {.key_file = key_file, .ram_bytes = 1 << 20};
    struct stat st;
    (void)state;
    struct store *one = store_open(&o, rig.workers, NULL);
    struct store *two = store_open(&o, rig.workers, NULL);
    assert_memory_equal(store_key(one), store_key(two), 32);
    store_close(one);
    store_close(two);
    assert_int_equal(stat(key_file, &st), 0);
    assert_int_equal(st.st_mode & 0777, 0600);
    assert_int_equal(st.st_size, 32);
    assert_int_equal(chmod(key_file, 0640), 0);
    assert_int_equal(open_code(), ERR_REFUSED);
    assert_int_equal(chmod(key_file, 0600), 0);
    assert_int_equal(open_code(), 0);
    FILE *f = fopen(key_file, "a");
    fputc('x', f);
    fclose(f);
    assert_int_equal(open_code(), ERR_FORMAT);
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)
    const struct CMUnitTest tests[] = {
        TEST(test_store_redis_shares_blocks),
        TEST(test_store_redis_other_notes_share_nothing),
        TEST(test_store_redis_dropping_here_leaves_it_there),
        TEST(test_store_redis_damaged_values_are_deleted),
        TEST(test_store_redis_trouble_is_not_there_and_ends),
        TEST(test_store_redis_full_is_still_read),
        TEST(test_store_redis_what_waits_is_bounded),
        TEST(test_store_redis_closing_answers_what_waits),
        TEST(test_store_redis_url_forms),
        TEST(test_store_redis_key_file_is_made_kept_and_checked),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
