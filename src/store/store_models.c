/* SPDX-License-Identifier: MIT */
#include "store_redis.h"

/*
 * A fingerprint does not say all: what two engines answer may tell them apart where
 * their names are equal, and only the engine's driver can compare that (store_vouch()).
 * So the first gateway leaves a note, PREFIX:FINGERPRINT:note, and the others compare
 * theirs with it:
 *
 *     GET ─┬─ there: the same? ─┬─ yes: shared, under a name made of that note
 *          │                    └─ no: not shared
 *          └─ not there: SET … NX, and GET again
 *
 * The name holds the note, so nothing can be found that was written under another one,
 * also where the server has lost it meanwhile.
 */

#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "base/mem.h"

#define ASK_AGAIN_US ((uint64_t)60000000) /* the note is to live as long as it is used */
#define TRIES 3
#define MAX_NOTE_BYTES 8192

struct model {
    struct list link;
    struct store_redis *r;
    struct hash128 fingerprint, name;
    char *note;   /* ours */
    char *agreed; /* the one that is there, or was; NULL: none yet */
    store_same_cb same;
    bool shared, refused;
    bool asking;
    unsigned tries;
    uint64_t asked_us;
};

static struct model *find(const struct list *models, struct hash128 fingerprint)
{
    LIST_EACH (it, models) {
        struct model *m = LIST_ENTRY(it, struct model, link);
        if (hash128_eq(m->fingerprint, fingerprint))
            return m;
    }
    return NULL;
}

static void add_key(const struct model *m, struct store_command *c)
{
    char hex[HASH128_HEX];
    char *key = mem_printf("%s:%s:note", store_redis_prefix(m->r),
                           hash128_hex(m->fingerprint, hex));
    store_command_word(c, slice_of(key));
    free(key);
}

static struct hash128 make_name(const struct model *m)
{
    const struct slice parts[] = {{(const char *)&m->fingerprint, sizeof m->fingerprint},
                                  slice_of(m->agreed)};
    return chain_checksum_parts(parts, 2);
}

static void compare(struct model *m, struct slice there)
{
    char hex[HASH128_HEX];
    char *theirs = mem_dup(there.ptr, there.len);
    m->shared = m->same(m->note, theirs);
    if (m->shared) {
        free(m->agreed);
        m->agreed = theirs;
        m->name = make_name(m);
    } else {
        free(theirs);
        if (!m->refused)
            log_event(LOG_WARN, "redis-other-model", "fingerprint", "%s",
                      hash128_hex(m->fingerprint, hex), "why", "%s",
                      "its answers are not those of the engines that share it", NULL);
    }
    m->refused = !m->shared;
}

static void ask(struct model *m);

static void on_written(void *arg, struct redisReply *answer)
{
    struct model *m = arg;
    freeReplyObject(answer);
    m->asking = false;
    if (m->tries < TRIES) /* whoever was first: it is there now */
        ask(m);
}

/* Not there, or the link has ended: then writing is refused as well. */
static void write_note(struct model *m)
{
    struct store_command c = {0};
    store_command_start(&c, "SET", 3);
    add_key(m, &c);
    store_command_word(&c, slice_of(m->agreed ? m->agreed : m->note));
    store_command_word(&c, SLICE_LIT("NX"));
    m->asking =
        store_redis_ask(m->r, &c, REDIS_REPLY_STATUS, MAX_NOTE_BYTES, on_written, m);
}

static void on_note(void *arg, struct redisReply *answer)
{
    struct model *m = arg;
    m->asking = false;
    if (answer)
        compare(m, slice_make(answer->str, answer->len));
    else
        write_note(m);
    freeReplyObject(answer);
}

static void ask(struct model *m)
{
    struct store_command c = {0};
    if (m->asking)
        return;
    m->tries++;
    store_command_start(&c, "GET", 1);
    add_key(m, &c);
    m->asking = store_redis_ask(m->r, &c, REDIS_REPLY_STRING, MAX_NOTE_BYTES, on_note, m);
}

void store_models_vouch(struct list *models, struct store_redis *r,
                        struct hash128 fingerprint, const char *note, store_same_cb same,
                        uint64_t now_us)
{
    struct model *m = find(models, fingerprint);
    if (!m) {
        m = mem_zalloc(sizeof *m);
        m->r = r;
        m->fingerprint = fingerprint;
        list_push_back(models, &m->link);
    }
    free(m->note);
    m->note = mem_strdup(note);
    m->same = same;
    m->shared = m->refused = false; /* until it has been compared */
    m->tries = 0;
    m->asked_us = now_us; /* its first use need not ask again */
    ask(m);
}

void store_models_ask(struct list *models)
{
    LIST_EACH (it, models) {
        struct model *m = LIST_ENTRY(it, struct model, link);
        m->tries = 0;
        ask(m);
    }
}

bool store_models_find(const struct list *models, struct hash128 fingerprint,
                       struct hash128 *name)
{
    const struct model *m = find(models, fingerprint);
    if (!m || !m->shared)
        return false;
    if (name)
        *name = m->name;
    return true;
}

bool store_models_fresh(struct list *models, struct hash128 fingerprint, uint64_t now_us)
{
    struct model *m = find(models, fingerprint);
    if (m && now_us - m->asked_us > ASK_AGAIN_US) {
        m->asked_us = now_us;
        m->tries = 0;
        ask(m);
    }
    return m && m->shared;
}

size_t store_models_shared(const struct list *models)
{
    size_t n = 0;
    LIST_EACH (it, models)
        n += LIST_ENTRY(it, struct model, link)->shared;
    return n;
}

void store_models_free(struct list *models)
{
    while (!list_empty(models)) {
        struct model *m = LIST_ENTRY(models->next, struct model, link);
        list_del(&m->link);
        free(m->note);
        free(m->agreed);
        free(m);
    }
}
