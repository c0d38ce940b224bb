/* SPDX-License-Identifier: MIT */
#ifndef INCIPIT_STORE_CACHE_INTERNAL_H
#define INCIPIT_STORE_CACHE_INTERNAL_H

/*
 * What the files of the cache share:
 *
 *     cache.c         opening, reading, writing    cache_recover.c  after a restart
 *     cache_policy.c  how long blocks stay         cache_clock.c    what time it is
 *     cache_pins.c    what stays                   cache_pinfile.c  its file
 *     cache_forget.c  what is to be forgotten
 */

#include "base/buf.h"
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

/*
 * The store's own clock: seconds that it was in use. `points` tell for some of them what
 * the wall clock said, the last one for now; from these the age of a file follows.
 */
#define CACHE_CLOCK_POINTS 64
struct cache_clock {
    bool runs;
    uint32_t now_s;
    uint64_t mono_s; /* the owner's clock then */
    struct cache_clock_point {
        int64_t wall_s;
        uint32_t at_s;
    } points[CACHE_CLOCK_POINTS];
    size_t n_points;
};

/* Goes on from what the store has noted; half of `shortest_s` at most has passed since.
 * */
void cache_clock_start(struct cache_clock *k, const struct store *s, uint32_t shortest_s,
                       uint64_t mono_s, int64_t wall_s);
/* Moves on, and notes a point in the store from time to time. */
void cache_clock_tick(struct cache_clock *k, struct store *s, uint32_t shortest_s,
                      uint64_t mono_s, int64_t wall_s);
/* The store's time when the wall clock said that. */
uint32_t cache_clock_at(const struct cache_clock *k, int64_t wall_s);

/* An order of use of the tree: what has one model and one lifetime. */
struct cache_order {
    uint32_t model, ttl_s;
};

/* A pinned prompt start. Its records find it by text, whatever else is forgotten. */
struct cache_pin {
    char name[CACHE_PIN_NAME + 1];
    struct hash128 fingerprint;
    struct tree_mark at; /* pinned; nowhere while its model is not attached */
    bool public;
    size_t n_blocks; /* that it should have */
    uint32_t tokens; /* in these */
    uint64_t hits;
    size_t phase;            /* of its model's recovery that was here last */
    struct prompt_record *v; /* one a piece */
    size_t n;
};

struct cache_pins {
    struct cache_pin **v;
    size_t n;
    char *path;          /* of the file; NULL: RAM only */
    bool writing, dirty; /* a worker is at it; something has changed since */
    uint64_t evicted;    /* index entries, when the pins were touched last */
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
    uint64_t foreign_kept;   /* what pruning was told to leave, the last time */
    bool prune_awaited;      /* then it is looked whether that was enough, … */
    struct hash128 room_for; /* … for this model */
    bool parted;             /* about to be closed */
    struct list waiting;     /* for all recoveries to be over */
    struct cache_share_stats shared;
    bool forgetting; /* blocks that go now go from the shared tier as well */
    struct cache_clock clock;
    uint32_t ttl_s;
    struct cache_lifetime *lifetimes;
    size_t n_lifetimes;
    struct cache_order orders[TREE_ORDERS];
    unsigned n_orders;
    struct cache_pins pins;
};

/* The order of use for blocks of a tenant and a model (number). */
unsigned cache_order_of(struct cache *c, uint32_t tenant, uint32_t model);

uint32_t cache_root_tenant(struct hash128 root);

/* Number of a fingerprint, 0 where it is new. */
uint32_t cache_model_number(const struct cache *c, struct hash128 fingerprint);

/* For tree_walk(): new blocks belong to the model of this number (a uint32_t) and are
 * stored. */
bool cache_mark_stored(void *number, struct tree_block *b, size_t depth);
bool cache_is_whole(const struct cache *c, uint32_t model); /* its blocks are states */

/* Foreign blocks go where ours need their room in the budget; or until so many bytes of
 * them are left. */
void cache_make_room(struct cache *c, struct hash128 fingerprint);
void cache_prune(struct cache *c, struct hash128 fingerprint, uint64_t keep_bytes);

bool cache_models_recover(const struct cache *c);

/* A recovery is over: who waits for that. */
void cache_recovered(struct cache *c);

/* A block of this model was evicted while its recovery was under way. */
void cache_recovery_evicted(struct cache_recovery *a, struct hash128 hash);

/* What prompts.log and pins say of a boundary; `chain`: hashes of the blocks to the end
 * of its prompt. False where the boundary is not known. */
bool cache_record(struct cache *c, const struct piece *p, const struct hash128 *chain,
                  size_t n_chain, struct prompt_record *out);

/* cache_pins.c */
void cache_pins_open(struct cache *c); /* reads the file */
void cache_pins_close(struct cache *c);
/* Keeps the boundaries of pins from being the oldest of the index. */
void cache_pins_refresh(struct cache *c);
/* After a recovery: the boundaries of a pin that prompts.log no longer has. */
void cache_pins_import(struct cache *c, const struct cache_pin *p);

/* cache_pinfile.c: the file's bytes, and back; ERR_FORMAT or ERR_CHECKSUM. */
void cache_pinfile_write(const struct cache_pins *p, struct buf *out);
int cache_pinfile_read(struct cache_pins *p, struct slice bytes, struct err *e);

#endif
