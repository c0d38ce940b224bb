/* SPDX-License-Identifier: MIT */
#include "store_redis.h"

/*
 *                    on_ready × 3                     a write is refused
 *     DOWN ─(retry)───────────────────► UP ─────────────────────────────► READ_ONLY
 *       ▲                               │ ▲───────(retry: a small one is taken)──┘ │
 *       └───── any link fails ──────────┴──────────────────────────────────────────┘
 *
 * Errands wait in two queues, blocks before the small values that lead to them, and are
 * sent a few megabytes at a time: blocks are written out of their own memory, and what
 * has not been sent yet can still be dropped.
 */

#include <assert.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "base/mem.h"
#include "base/units.h"

#define FIRST_RETRY_MS 250
#define MAX_RETRY_MS 5000
#define STEADY_US 10000000                    /* up for so long: begin to count anew */
#define SENT_BYTES ((uint64_t)4 << 20)        /* errands that are sent, not answered */
#define MAX_VALUE_BYTES ((uint64_t)512 << 20) /* Redis takes no more */
#define ERRAND_BYTES 512                      /* that an errand counts at least */

enum { ASK, READ, WRITE, N_LINKS };

enum errand_kind { PUT, SET, TOUCH, WANT, DELETE, CHECK, PROBE };

struct errand {
    struct list link;
    struct store_redis *r;
    enum errand_kind kind;
    struct store_command command;
    struct store_block *block; /* of PUT and TOUCH */
    struct store_name name;    /* of WANT */
    uint64_t bytes;
    store_redis_stale_cb cb; /* of CHECK */
    void *arg;
};

struct store_redis {
    struct store_redis_options o;
    store_redis_missing_cb on_missing;
    void *arg;
    char *where, *user, *password, *prefix;
    struct store_link *links[N_LINKS];
    struct loop_timer retry;
    uint64_t retry_ms, up_us;
    bool told;                  /* that it is down */
    struct list blocks, values; /* errands that wait */
    uint64_t sent_bytes;
    struct loop_timer pump;
    struct list models; /* what is shared under which name: store_models.c */
    struct store_redis_stats n;
};

const char *store_redis_state_name(enum store_redis_state s)
{
    static const char *const names[] = {"off", "down", "read-only", "up"};
    assert(s <= STORE_REDIS_UP);
    return names[s];
}

const char *store_redis_error_name(enum store_redis_error e)
{
    static const char *const names[] = {
#define X(code, name) [code] = name,
        STORE_REDIS_ERRORS(X)
#undef X
    };
    assert(e < STORE_REDIS_ERROR_KINDS);
    return names[e];
}

/* ---- errands: waiting -------------------------------------------------------------- */

static void free_errand(struct errand *x)
{
    x->r->n.waiting_bytes -= x->bytes;
    buf_free(&x->command.bytes);
    store_block_put(x->block);
    free(x);
}

static void drop_waiting(struct list *queue)
{
    while (!list_empty(queue)) {
        struct errand *x = LIST_ENTRY(queue->next, struct errand, link);
        list_del(&x->link);
        x->r->n.skipped += x->kind == PUT;
        if (x->cb)
            x->cb(x->arg, false);
        free_errand(x);
    }
}

static void pump_soon(struct store_redis *r);

static void add_errand(struct store_redis *r, struct errand *x)
{
    x->bytes = ERRAND_BYTES + buf_len(&x->command.bytes) + x->command.body.len;
    r->n.waiting_bytes += x->bytes;
    const bool first = x->kind == PUT || x->kind == DELETE; /* in their order */
    list_push_back(first ? &r->blocks : &r->values, &x->link);
    pump_soon(r);
}

static struct errand *new_errand(struct store_redis *r, enum errand_kind kind)
{
    struct errand *x = mem_zalloc(sizeof(*x));
    x->r = r;
    x->kind = kind;
    return x;
}

static bool has_room(const struct store_redis *r, uint64_t bytes)
{
    return r->n.waiting_bytes + bytes <= r->o.max_waiting_bytes;
}

/* ---- the breaker ------------------------------------------------------------------- */

static void on_failed(void *arg, enum store_redis_error kind, const char *why)
{
    struct store_redis *r = arg;
    r->n.errors[kind]++;
    if (!r->told)
        log_event(LOG_WARN, "redis-down", "where", "%s", r->where, "kind", "%s",
                  store_redis_error_name(kind), "why", "%.160s", why, NULL);
    r->told = true;
    if (r->n.state != STORE_REDIS_DOWN && loop_now_us(r->o.loop) - r->up_us > STEADY_US)
        r->retry_ms = FIRST_RETRY_MS;
    r->n.state = STORE_REDIS_DOWN;
    for (int i = 0; i < N_LINKS; i++)
        store_link_close(r->links[i]);
    drop_waiting(&r->blocks);
    drop_waiting(&r->values);
    timer_start(&r->retry, r->retry_ms);
    r->retry_ms = r->retry_ms * 2 < MAX_RETRY_MS ? r->retry_ms * 2 : MAX_RETRY_MS;
}

static void on_ready(void *arg)
{
    struct store_redis *r = arg;
    for (int i = 0; i < N_LINKS; i++)
        if (!store_link_ready(r->links[i]))
            return;
    r->n.state = STORE_REDIS_UP;
    r->up_us = loop_now_us(r->o.loop);
    r->told = false;
    store_models_ask(&r->models);
    log_event(LOG_INFO, "redis-up", "where", "%s", r->where, NULL);
}

static void count_refused(struct store_redis *r, const char *why)
{
    r->n.errors[strncmp(why, "OOM", 3) ? STORE_REDIS_REFUSED : STORE_REDIS_FULL]++;
}

/* It takes no writes: for now, or until somebody does something about it. */
static void stop_writing(struct store_redis *r, const char *why)
{
    if (r->n.state == STORE_REDIS_UP)
        log_event(LOG_WARN, "redis-read-only", "where", "%s", r->where, "why", "%.160s",
                  why, NULL);
    r->n.state = STORE_REDIS_READ_ONLY;
    drop_waiting(&r->blocks);
    drop_waiting(&r->values);
    timer_start(&r->retry, r->retry_ms);
    r->retry_ms = r->retry_ms * 2 < MAX_RETRY_MS ? r->retry_ms * 2 : MAX_RETRY_MS;
}

static void note_taken(struct store_redis *r)
{
    if (r->n.state == STORE_REDIS_READ_ONLY)
        log_event(LOG_INFO, "redis-writes", "where", "%s", r->where, NULL);
    r->n.state = STORE_REDIS_UP;
    r->retry_ms = FIRST_RETRY_MS;
}

static void start_set(const struct store_redis *r, struct store_command *c,
                      struct slice key)
{
    store_command_start(c, r->o.ttl_ms ? "PSETEX" : "SET", r->o.ttl_ms ? 3 : 2);
    store_command_word(c, key);
    if (r->o.ttl_ms)
        store_command_number(c, r->o.ttl_ms);
}

static void probe(struct store_redis *r)
{
    struct buf key = {0};
    struct errand *x = new_errand(r, PROBE);
    buf_printf(&key, "%s:probe", r->prefix);
    start_set(r, &x->command, buf_slice(&key));
    store_command_word(&x->command, SLICE_LIT("1"));
    add_errand(r, x);
    buf_free(&key);
}

static void on_retry(void *arg)
{
    struct store_redis *r = arg;
    if (r->n.state == STORE_REDIS_READ_ONLY)
        probe(r);
    for (int i = 0; i < N_LINKS && r->n.state == STORE_REDIS_DOWN; i++)
        store_link_open(r->links[i]);
}

/* ---- errands: sent ----------------------------------------------------------------- */

static void succeed(struct errand *x, const struct redisReply *answer)
{
    struct store_redis *r = x->r;
    const bool there = answer->integer > 0;
    switch (x->kind) {
    case PUT:
        r->n.puts++;
        r->n.put_bytes += x->command.body.len;
        break;
    case SET:
        r->n.values++;
        break;
    case TOUCH:
        if (!there)
            store_redis_put(r, x->block);
        break;
    case WANT:
        if (!there)
            r->on_missing(r->arg, &x->name);
        break;
    case CHECK: /* without a time to live it is TOUCH that was asked */
        x->cb(x->arg,
              r->o.ttl_ms ? answer->integer < (long long)(r->o.ttl_ms / 2) : !there);
        break;
    case PROBE:
        note_taken(r);
        break;
    case DELETE:
        break;
    }
}

static bool writes(const struct errand *x)
{
    return x->kind == PUT || x->kind == SET || x->kind == PROBE;
}

static void on_answered(void *arg, struct redisReply *answer)
{
    struct errand *x = arg;
    struct store_redis *r = x->r;
    const int wanted = writes(x) ? REDIS_REPLY_STATUS : REDIS_REPLY_INTEGER;
    const bool good = answer && answer->type == wanted;
    r->sent_bytes -= x->bytes;
    if (good)
        succeed(x, answer);
    else if (x->cb)
        x->cb(x->arg, false);
    r->n.skipped += !good && x->kind == PUT;
    if (answer && answer->type == REDIS_REPLY_ERROR) {
        count_refused(r, answer->str);
        if (x->kind == PROBE || (writes(x) && r->n.state == STORE_REDIS_UP))
            stop_writing(r, answer->str);
    } else if (answer && !good)
        store_link_reject(r->links[WRITE], "it answers a write with something else");
    free_errand(x);
    if (answer)
        freeReplyObject(answer);
    pump_soon(r);
}

static void send_next(struct store_redis *r, struct list *queue)
{
    struct errand *x = LIST_ENTRY(queue->next, struct errand, link);
    list_del(&x->link);
    r->sent_bytes += x->bytes;
    store_link_send(r->links[WRITE], &x->command, 0, on_answered, x);
}

static void on_pump(void *arg)
{
    struct store_redis *r = arg;
    while (store_link_ready(r->links[WRITE]) && r->sent_bytes < SENT_BYTES) {
        if (!list_empty(&r->blocks))
            send_next(r, &r->blocks);
        else if (!list_empty(&r->values))
            send_next(r, &r->values);
        else
            return;
    }
}

/* On the next turn: what is put in one go is sent in its order. */
static void pump_soon(struct store_redis *r)
{
    timer_start(&r->pump, 0);
}

/* ---- keys -------------------------------------------------------------------------- */

void store_redis_key(const struct store_redis *r, char kind, const struct store_name *n,
                     struct buf *out)
{
    char model[HASH128_HEX], hash[HASH128_HEX];
    struct hash128 shared = {0, 0};
    store_redis_shares(r, n->fingerprint, &shared);
    buf_printf(out, "%s:%s:%c:%s", r->prefix, hash128_hex(shared, model), kind,
               hash128_hex(n->hash, hash));
}

/* True where a value of this model may be written. */
static bool takes(const struct store_redis *r, const struct store_name *n)
{
    return r->n.state == STORE_REDIS_UP && store_redis_shares(r, n->fingerprint, NULL);
}

static void add_key(const struct store_redis *r, char kind, const struct store_name *n,
                    struct store_command *c)
{
    struct buf key = {0};
    store_redis_key(r, kind, n, &key);
    store_command_word(c, buf_slice(&key));
    buf_free(&key);
}

/* ---- writing ----------------------------------------------------------------------- */

void store_redis_put(struct store_redis *r, struct store_block *b)
{
    const struct slice file = store_block_file(b);
    const struct store_name name = store_name_of(b);
    struct buf key = {0};
    if (!takes(r, &name) || file.len > MAX_VALUE_BYTES || !has_room(r, file.len)) {
        r->n.skipped++;
        return;
    }
    struct errand *x = new_errand(r, PUT);
    x->block = store_block_get(b);
    store_redis_key(r, STORE_REDIS_BLOCK, &name, &key);
    start_set(r, &x->command, buf_slice(&key));
    store_command_body(&x->command, file);
    add_errand(r, x);
    buf_free(&key);
}

static void start_touch(const struct store_redis *r, const struct store_name *name,
                        struct store_command *c)
{
    store_command_start(c, r->o.ttl_ms ? "PEXPIRE" : "TOUCH", r->o.ttl_ms ? 2 : 1);
    add_key(r, STORE_REDIS_BLOCK, name, c);
    if (r->o.ttl_ms)
        store_command_number(c, r->o.ttl_ms);
}

void store_redis_touch(struct store_redis *r, struct store_block *b)
{
    const struct store_name name = store_name_of(b);
    if (!takes(r, &name) || !has_room(r, store_block_file(b).len))
        return;
    struct errand *x = new_errand(r, TOUCH);
    x->block = store_block_get(b);
    start_touch(r, &name, &x->command);
    add_errand(r, x);
}

void store_redis_want(struct store_redis *r, const struct store_name *name)
{
    if (!takes(r, name))
        return;
    struct errand *x = new_errand(r, WANT);
    x->name = *name;
    start_touch(r, name, &x->command);
    add_errand(r, x);
}

void store_redis_set(struct store_redis *r, char kind, const struct store_name *n,
                     struct slice value)
{
    struct buf key = {0};
    if (!takes(r, n) || !has_room(r, value.len))
        return;
    struct errand *x = new_errand(r, SET);
    store_redis_key(r, kind, n, &key);
    start_set(r, &x->command, buf_slice(&key));
    store_command_word(&x->command, value);
    add_errand(r, x);
    buf_free(&key);
}

void store_redis_delete(struct store_redis *r, char kind, const struct store_name *n)
{
    if (!store_redis_can(r, n->fingerprint))
        return;
    struct errand *x = new_errand(r, DELETE);
    store_command_start(&x->command, "DEL", 1);
    add_key(r, kind, n, &x->command);
    add_errand(r, x);
}

bool store_redis_check(struct store_redis *r, char kind, const struct store_name *n,
                       store_redis_stale_cb cb, void *arg)
{
    if (!takes(r, n))
        return false;
    struct errand *x = new_errand(r, CHECK);
    x->cb = cb;
    x->arg = arg;
    store_command_start(&x->command, r->o.ttl_ms ? "PTTL" : "TOUCH", 1);
    add_key(r, kind, n, &x->command);
    add_errand(r, x);
    return true;
}

void store_redis_got(struct store_redis *r, struct store_block *b)
{
    r->n.gets++;
    r->n.get_bytes += store_block_bytes(&b->head);
    if (r->o.ttl_ms) /* otherwise reading was enough */
        store_redis_touch(r, b);
}

void store_redis_damaged(struct store_redis *r, char kind, const struct store_name *n)
{
    char hex[HASH128_HEX];
    r->n.errors[STORE_REDIS_DAMAGED]++;
    log_event(LOG_ERROR, "redis-damaged", "name", "%s", hash128_hex(n->hash, hex), NULL);
    store_redis_delete(r, kind, n);
}

/* ---- reading ----------------------------------------------------------------------- */

/* A question whose answer is of one type, or an error, or nothing. */
struct question {
    struct store_redis *r;
    int link, type;
    store_link_cb cb;
    void *arg;
};

static void on_answer(void *arg, struct redisReply *answer)
{
    struct question *q = arg;
    struct store_redis *r = q->r;
    const bool good = answer && answer->type == q->type;
    const bool odd = answer && !good && answer->type != REDIS_REPLY_NIL &&
                     answer->type != REDIS_REPLY_ERROR;
    if (answer && answer->type == REDIS_REPLY_ERROR)
        count_refused(r, answer->str);
    r->n.missing += answer && answer->type == REDIS_REPLY_NIL && q->link == READ;
    if (answer && !good) {
        freeReplyObject(answer);
        answer = NULL;
    }
    q->cb(q->arg, answer);
    if (odd)
        store_redis_reject(r, "it answers a question with something else");
    free(q);
}

static bool ask(struct store_command *c, struct question question, uint64_t max_bytes)
{
    struct store_redis *r = question.r;
    if (!store_redis_up(r)) {
        buf_free(&c->bytes);
        return false;
    }
    struct question *q = mem_alloc(sizeof(*q));
    *q = question;
    store_link_send(r->links[q->link], c, max_bytes, on_answer, q);
    return true;
}

bool store_redis_ask(struct store_redis *r, struct store_command *c, int type,
                     uint64_t max_bytes, store_link_cb cb, void *arg)
{
    return ask(c, (struct question){r, ASK, type, cb, arg}, max_bytes);
}

bool store_redis_get(struct store_redis *r, const struct store_name *name,
                     store_link_cb cb, void *arg)
{
    struct store_command c = {0};
    if (!store_redis_can(r, name->fingerprint))
        return false;
    store_command_start(&c, "GET", 1);
    add_key(r, STORE_REDIS_BLOCK, name, &c);
    return ask(&c, (struct question){r, READ, REDIS_REPLY_STRING, cb, arg},
               MAX_VALUE_BYTES);
}

void store_redis_reject(struct store_redis *r, const char *why)
{
    store_link_reject(r->links[ASK], why);
}

int store_redis_block(const struct redisReply *answer, const struct store_name *name,
                      struct store_block **b, struct err *e)
{
    const unsigned char *bytes = (const unsigned char *)answer->str;
    struct store_head h;
    unsigned char *copy;
    if (answer->len < STORE_BLOCK_HEAD ||
        store_block_read_head(bytes, answer->len, &h, NULL) != 0 ||
        !hash128_eq(h.fingerprint, name->fingerprint) || !hash128_eq(h.hash, name->hash))
        return err_set(e, ERR_CHECKSUM, "the value in Redis is not this block");
    struct store_block *block = store_block_blank(&h, &copy);
    memcpy(copy, bytes, answer->len);
    store_block_adopt(block);
    if (!store_block_verify(block)) {
        store_block_put(block);
        return err_set(e, ERR_CHECKSUM, "the value in Redis is damaged");
    }
    *b = block;
    return 0;
}

/* ---- life -------------------------------------------------------------------------- */

struct store_redis *store_redis_open(const struct store_redis_options *o,
                                     struct workers *w, store_redis_missing_cb missing,
                                     void *arg)
{
    struct store_redis *r = mem_zalloc(sizeof(*r));
    r->on_missing = missing;
    r->arg = arg;
    r->where = mem_strdup(o->where);
    r->user = mem_strdup(o->user ? o->user : "");
    r->password = mem_strdup(o->password ? o->password : "");
    r->prefix = mem_strdup(o->prefix);
    r->o = *o;
    list_init(&r->blocks);
    list_init(&r->values);
    list_init(&r->models);
    timer_init(&r->pump, o->loop, on_pump, r);
    timer_init(&r->retry, o->loop, on_retry, r);
    r->retry_ms = FIRST_RETRY_MS;
    r->n.state = STORE_REDIS_DOWN;
    const struct store_link_options lo = {.loop = o->loop,
                                          .workers = w,
                                          .where = r->where,
                                          .user = r->user,
                                          .password = r->password,
                                          .db = o->db,
                                          .timeout_ms = o->timeout_ms,
                                          .on_ready = on_ready,
                                          .on_failed = on_failed,
                                          .arg = r};
    for (int i = 0; i < N_LINKS; i++) {
        r->links[i] = store_link_new(&lo);
        store_link_open(r->links[i]);
    }
    return r;
}

void store_redis_close(struct store_redis *r)
{
    if (!r)
        return;
    r->n.state = STORE_REDIS_OFF;
    for (int i = 0; i < N_LINKS; i++)
        store_link_free(r->links[i]);
    drop_waiting(&r->blocks);
    drop_waiting(&r->values);
    store_models_free(&r->models);
    timer_fini(&r->pump);
    timer_fini(&r->retry);
    free(r->where);
    free(r->user);
    free(r->password);
    free(r->prefix);
    free(r);
}

bool store_redis_up(const struct store_redis *r)
{
    return r->n.state >= STORE_REDIS_READ_ONLY;
}

void store_redis_vouch(struct store_redis *r, struct hash128 fingerprint,
                       const char *note, store_same_cb same)
{
    store_models_vouch(&r->models, r, fingerprint, note, same, loop_now_us(r->o.loop));
}

bool store_redis_shares(const struct store_redis *r, struct hash128 fingerprint,
                        struct hash128 *name)
{
    return store_models_find(&r->models, fingerprint, name);
}

bool store_redis_can(struct store_redis *r, struct hash128 fingerprint)
{
    return store_redis_up(r) &&
           store_models_fresh(&r->models, fingerprint, loop_now_us(r->o.loop));
}

const char *store_redis_prefix(const struct store_redis *r)
{
    return r->prefix;
}

bool store_redis_busy(const struct store_redis *r)
{
    return r->n.waiting_bytes > 0;
}

struct store_redis_stats *store_redis_count(struct store_redis *r)
{
    r->n.models = store_models_shared(&r->models);
    return &r->n;
}

static bool read_db(const char *text, unsigned *db)
{
    uint64_t n = 0;
    if (*text && (!units_parse_count(text, &n) || n > INT32_MAX))
        return false;
    *db = (unsigned)n;
    return true;
}

int store_redis_url(const char *url, char where[256], unsigned *db, struct err *e)
{
    static const char scheme[] = "redis://";
    const bool tcp = strncmp(url, scheme, sizeof(scheme) - 1) == 0;
    const char *host = tcp ? url + sizeof(scheme) - 1 : url;
    const size_t len = tcp ? strcspn(host, "/") : strlen(host);
    *db = 0;
    if (strncmp(url, "rediss://", 9) == 0)
        return err_set(e, ERR_UNSUPPORTED,
                       "rediss:// (TLS) is not spoken: put a proxy in between");
    if (tcp && memchr(host, '@', len))
        return err_set(e, ERR_INVALID,
                       "user and password do not belong into the URL but into "
                       "store.redis.user and store.redis.password_file");
    if ((!tcp && strncmp(url, "unix:/", 6) != 0) || len == 0 || len >= 256 ||
        (tcp && (!memchr(host, ':', len) || (host[len] && !read_db(host + len + 1, db)))))
        return err_set(e, ERR_INVALID,
                       "\"%.100s\" is no address of a Redis server; allowed: "
                       "redis://HOST:PORT[/DB], unix:/path",
                       url);
    memcpy(where, host, len);
    where[len] = '\0';
    return 0;
}
