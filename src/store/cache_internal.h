/* SPDX-License-Identifier: MIT */
#ifndef INCIPIT_STORE_CACHE_INTERNAL_H
#define INCIPIT_STORE_CACHE_INTERNAL_H

/*
 * What the files of the cache share:
 *
 *     cache.c          opening, reading, writing        cache_recover.c  after a restart
 */

#include "prefix/chain.h"
#include "store/cache.h"
#include "store/prompt_log.h"

/*
 * The `state` of a tree block: which fingerprint it belongs to (so that an evicted block
 * can be dropped from the store by name) and how far it is.
 *
 *      31                8 7          0
 *     | fingerprint number | cache_state |       number 0: not ours yet
 */
#define CACHE_STATE(fp, s) ((uint32_t)(fp) << 8 | (uint32_t)(s))
#define CACHE_STATE_OF(b) ((enum cache_state)((b)->state & 0xff))
#define CACHE_MODEL_OF(b) ((b)->state >> 8)

struct cache_recovery;

struct cache_model {
    struct hash128 fingerprint;
    uint64_t token_bytes;
    struct cache_recovery *recovery; /* under way, or NULL */
};

struct cache {
    struct cache_options o;
    struct chain_key key;
    struct tree *tree;
    struct index *index;
    struct store *store;
    struct workers *workers;
    struct prompt_log *log;
    struct cache_model *models; /* number n is models[n - 1] */
    size_t n_models;
    uint64_t foreign_kept; /* what pruning was told to leave, the last time */
    struct cache_share_stats shared;
};

/* Number of a fingerprint, 0 where it is new. */
uint32_t cache_model_number(const struct cache *c, struct hash128 fingerprint);

/* Foreign blocks go where ours need their room in the budget. */
void cache_make_room(struct cache *c, struct hash128 fingerprint);

/* A block of this model was evicted while its recovery was under way. */
void cache_recovery_evicted(struct cache_recovery *a, struct hash128 hash);

#endif
