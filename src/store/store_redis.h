/* SPDX-License-Identifier: MIT */
#ifndef INCIPIT_STORE_REDIS_H
#define INCIPIT_STORE_REDIS_H

/*
 * The shared tier: blocks, and small values beside them, in a Redis or Valkey server that
 * several gateways use (docs/store.md has the keys and values).
 *
 * Three links to it (store_link.h), so that nothing waits behind something slower:
 *
 *     ASK    questions that a request waits for, small
 *     READ   blocks that a request waits for
 *     WRITE  errands, which nobody waits for: new blocks and values, "was used"
 *
 * One breaker for all: a failure of any link closes all of them, everything is answered
 * with "not there" at once, and from time to time they are opened again. A server that
 * takes no writes (full, a replica) is still read from; whether it takes them again is
 * asked with a small value. Each change of state is logged once.
 *
 * For the loop's thread.
 */

#include "store_internal.h"
#include "store_link.h"

#define STORE_REDIS_BLOCK 'b'    /* kinds of keys */
#define STORE_REDIS_SEQUENCE 's' /* cache_sequence.h */
#define STORE_REDIS_PLACE 'p'

struct store_redis;

/* `missing` is told of blocks that were wanted (store_redis_want) and are not there. */
typedef void (*store_redis_missing_cb)(void *arg, const struct store_name *name);
struct store_redis *store_redis_open(const struct store_redis_options *o,
                                     struct workers *w, store_redis_missing_cb missing,
                                     void *arg);

/* Answers what waits with "not there", inside the call. NULL is allowed. */
void store_redis_close(struct store_redis *r);

/* False: asking is of no use now. */
bool store_redis_up(const struct store_redis *r);

/*
 * Nothing of a model is shared before it is known to be the one that others mean by its
 * fingerprint: see store_vouch(). Then it has a name there, of the fingerprint and of
 * what was compared, which is part of all its keys.
 */
void store_redis_vouch(struct store_redis *r, struct hash128 fingerprint,
                       const char *note, store_same_cb same);
bool store_redis_shares(const struct store_redis *r, struct hash128 fingerprint,
                        struct hash128 *name);

/* Up, and shared. */
bool store_redis_can(struct store_redis *r, struct hash128 fingerprint);

const char *store_redis_prefix(const struct store_redis *r);

/* Errands under way. */
bool store_redis_busy(const struct store_redis *r);

/* What it counts. */
struct store_redis_stats *store_redis_count(struct store_redis *r);

/* ---- blocks ------------------------------------------------------------------------ */

/* Writes a block there, later; where too much waits it is skipped and counted. */
void store_redis_put(struct store_redis *r, struct store_block *b);

/* Marks a block as used; one that is not there any more is put there again. */
void store_redis_touch(struct store_redis *r, struct store_block *b);

/* The same for a block whose bytes are not at hand. */
void store_redis_want(struct store_redis *r, const struct store_name *name);

/*
 * Asks for a block. False: it cannot be asked now and the callback is not called. The
 * callback owns the answer; NULL: there is none. Its bytes are for store_redis_block().
 */
bool store_redis_get(struct store_redis *r, const struct store_name *name,
                     store_link_cb cb, void *arg);

/* The verified block that is in an answer; for workers. */
int store_redis_block(const struct redisReply *answer, const struct store_name *name,
                      struct store_block **b, struct err *e);

/* A block that came from there was right: counts as used. */
void store_redis_got(struct store_redis *r, struct store_block *b);

/* A value did not check out: it is deleted there. */
void store_redis_damaged(struct store_redis *r, char kind, const struct store_name *n);

/* ---- small values, for the cache --------------------------------------------------- */

/* PREFIX:MODEL:kind:HASH */
void store_redis_key(const struct store_redis *r, char kind, const struct store_name *n,
                     struct buf *out);

/* Writes a small value, as an errand. Takes nothing over. */
void store_redis_set(struct store_redis *r, char kind, const struct store_name *n,
                     struct slice value);
void store_redis_delete(struct store_redis *r, char kind, const struct store_name *n);

/* Asks, as an errand, whether a small value should be written again: it is not there, or
 * has lived half of its time. It counts as used. Stale is false as well where the answer
 * does not come. Returns false, and calls nobody, where nothing could be written. */
typedef void (*store_redis_stale_cb)(void *arg, bool stale);
bool store_redis_check(struct store_redis *r, char kind, const struct store_name *n,
                       store_redis_stale_cb cb, void *arg);

/* A question of the caller's on the link ASK (bytes taken over), as store_redis_get().
 * An answer of another type than REDIS_REPLY_… ends the connection. */
bool store_redis_ask(struct store_redis *r, struct store_command *c, int type,
                     uint64_t max_bytes, store_link_cb cb, void *arg);

/* An answer was not one to its question in another way. */
void store_redis_reject(struct store_redis *r, const char *why);

/* ---- store_models.c: which models are shared, and under which names ---------------- */

void store_models_vouch(struct list *models, struct store_redis *r,
                        struct hash128 fingerprint, const char *note, store_same_cb same,
                        uint64_t now_us);
void store_models_ask(struct list *models); /* about all of them */
bool store_models_find(const struct list *models, struct hash128 fingerprint,
                       struct hash128 *name);

/* As _find(); asks again where that was long ago. */
bool store_models_fresh(struct list *models, struct hash128 fingerprint, uint64_t now_us);
size_t store_models_shared(const struct list *models); /* how many */
void store_models_free(struct list *models);           /* no answers are under way */

#endif
