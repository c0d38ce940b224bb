/* SPDX-License-Identifier: MIT */
#ifndef INCIPIT_STORE_CACHE_H
#define INCIPIT_STORE_CACHE_H

/*
 * What the gateway knows and keeps, in one place: block tree, prompt index and block
 * store, and the rules that hold them together:
 *
 * - the tree decides what exists and what goes; what it evicts is dropped from the store;
 * - a block may be restored only when the store has confirmed it (CACHE_STORED);
 * - a block that the store finds damaged or missing leaves the tree with all behind it,
 *   one that it cannot read just now does not;
 * - the prompt index is written to `prompts.log` beside the blocks, so that after a
 *   restart a prompt finds its blocks by text again; whatever of that file does not check
 *   out is skipped (it costs hits, never a wrong answer).
 *
 * For the loop's thread.
 */

#include <stdint.h>

#include "base/err.h"
#include "io/workers.h"
#include "prefix/chain.h"
#include "prefix/index.h"
#include "prefix/tree.h"
#include "store/store.h"

struct cache;

struct cache_options {
    uint32_t block_tokens;
    uint64_t max_blocks, max_bytes; /* of the tree: what is kept over all tiers */
    uint64_t index_bytes;
    unsigned protect_percent; /* for blocks that were asked for again (prefix/tree.h) */
    uint64_t max_pinned;      /* bytes of all pins together */
    struct store_options store;
};

enum cache_state { CACHE_NEW, CACHE_WRITING, CACHE_STORED };

struct cache *cache_open(const struct cache_options *o, struct workers *w, struct err *e);
void cache_close(struct cache *c); /* flush the workers first */

const struct chain_key *cache_key(const struct cache *c);
struct tree *cache_tree(struct cache *c);
struct index *cache_index(struct cache *c);
struct store *cache_store(struct cache *c);
uint32_t cache_block_tokens(const struct cache *c);

/*
 * Takes a model in: recovers its blocks and prompts from the store, in many short turns
 * of the loop, then calls done; meanwhile nothing of it can be inserted. What there is no
 * room for is dropped, the least recently used first. Attaching a fingerprint again is
 * cheap (done is called from inside then); while the first is under way it waits for
 * that. token_bytes: KV bytes of one token; 0 where a block is a whole state that cannot
 * be cut: these stand at the root, each for a text of its own, in the size of one block
 * of tokens.
 */
void cache_attach(struct cache *c, struct hash128 fingerprint, uint64_t token_bytes,
                  void (*done)(void *arg, size_t n_blocks), void *arg);

/*
 * True while the directory is counted, a model taken in or what is foreign pruned, all of
 * it in the background. While it is counted or taken in, new blocks take only room that
 * is free for certain (cache_insert() inserts fewer), so the budget holds, and what has
 * to go for want of room is chosen when all is known. What is about everything that is
 * stored (flush, drop) is right only afterwards: cache_when_recovered() calls from the
 * loop then.
 */
bool cache_recovers(const struct cache *c);
void cache_when_recovered(struct cache *c, void (*cb)(void *arg), void *arg);

/* Tokens of the leading stored blocks of the path to `m`, at most `max_tokens` rounded up
 * to a whole block. */
uint32_t cache_restorable(struct cache *c, const struct tree_mark *m,
                          uint32_t max_tokens);

/* Fetches these leading blocks, verified. The callback owns the references; it gets fewer
 * tokens than asked where blocks were damaged or missing (they have left the tree then),
 * or could not be read. */
typedef void (*cache_fetch_cb)(void *arg, struct store_block **blocks, size_t n,
                               const struct err *err);
void cache_fetch(struct cache *c, struct hash128 fingerprint, const struct tree_mark *m,
                 uint32_t max_tokens, cache_fetch_cb done, void *arg);

/*
 * Whose text it is: a tenant is named by the 32 bits that people see of it; 0 is nobody.
 * The root of each chain of blocks carries its tenant in its upper 32 bits, so that it is
 * known of every block, also after a restart. `what` is all that keeps chains apart
 * besides the model: the whole name of the tenant, salts, adapters.
 */
struct hash128 cache_root(const struct cache *c, struct hash128 fingerprint,
                          uint32_t tenant, struct slice what);

/* How long blocks stay without being used, in seconds; 0: no limit. Of tenants that are
 * not listed it is ttl_s. To be called before the first cache_attach(), and again where
 * they change. Tenants whose times were the same share an order of use: where they differ
 * then, blocks that are there keep the longest of their new times. */
struct cache_lifetime {
    uint32_t tenant, ttl_s;
};
void cache_lifetimes(struct cache *c, uint32_t ttl_s, const struct cache_lifetime *v,
                     size_t n);

/*
 * The owner's clocks, told every second or so, first before the first cache_attach().
 * Lets go what is too old, in bounded portions: true asks to be called again soon. Only
 * monotonic time counts while the gateway runs; of the time that it did not run no more
 * than half of the shortest lifetime counts, so that a wall clock that was set wrong does
 * not delete everything (cache_clock.c).
 */
bool cache_tick(struct cache *c, uint64_t mono_s, int64_t wall_s);

/*
 * Forgets what is known and kept of a tenant, of everybody (CACHE_EVERYBODY), or of all
 * texts that begin with the n pieces `v`, and what nothing else shares of these: text,
 * blocks, files, lines of prompts.log; of whole states all that the tenant of `v` has,
 * for they do not show with which text they begin. In bounded turns, when recoveries are
 * over; done is told how much it was when all of it is gone. What was put in meanwhile
 * may stay. Blocks of models that nobody attached are left, but for CACHE_EVERYBODY.
 */
#define CACHE_EVERYBODY UINT32_MAX
struct cache_forget {
    uint32_t tenant;       /* with v: not looked at */
    const struct piece *v; /* NULL: all of the tenant */
    size_t n;
};
typedef void (*cache_forget_cb)(void *arg, size_t n_prompts, size_t n_blocks);
void cache_forget(struct cache *c, const struct cache_forget *what, cache_forget_cb done,
                  void *arg);

/*
 * Inserts a sequence; blocks from *first on are new and belong to the caller to store
 * with cache_put(). `m` (clear) is set to its end and pinned until then. Its owner is the
 * tenant.
 */
size_t cache_insert(struct cache *c, struct hash128 fingerprint,
                    const struct tree_sequence *s, struct tree_mark *m);

/* Stores new blocks of the sequence that ends at `m`; they become restorable when
 * written. Takes the references over, unpins and clears `m`. */
void cache_put(struct cache *c, struct tree_mark *m, struct store_block **blocks,
               size_t n);

/* index_learn() and the entry in prompts.log. */
void cache_learn(struct cache *c, struct hash128 fingerprint,
                 const struct index_lesson *lesson);

/*
 * What other gateways know of a prompt: asks the shared tier, once, whether its text is
 * known deeper there than here, and puts what is found into tree and index. NULL where
 * there is nothing to ask; otherwise done is called from the loop, at the latest when the
 * timeout of the shared tier has passed. `v` stays alive until then.
 */
struct cache_question {
    struct hash128 fingerprint, root; /* root: of the chain of its blocks */
    const struct piece *v;            /* of the prompt */
    size_t n;
};
struct cache_discovery;
struct cache_discovery *cache_discover(struct cache *c, const struct cache_question *q,
                                       void (*done)(void *arg), void *arg);
void cache_discover_cancel(struct cache_discovery *d); /* NULL is allowed */

struct cache_share_stats {
    uint64_t asked;  /* prompts that others were asked about */
    uint64_t found;  /* of these, known there deeper than here, */
    uint64_t blocks; /* with so many blocks that are not here */
    uint64_t late;   /* no answer within the timeout */
};
void cache_share_stats(const struct cache *c, struct cache_share_stats *out);

/* store_part() of its store: before the workers are flushed. Ends recoveries. */
void cache_part(struct cache *c);

/*
 * Pins: starts of prompts that stay, with all before them, whatever else passes through.
 * A pin has a name, which is unique for each model. It survives restarts (the file
 * `pins`, docs/store.md) with what finds it by text. A damaged block makes it incomplete:
 * who wants it whole again computes it and pins it again.
 */
#define CACHE_PIN_NAME 64 /* bytes: letters, digits and . _ : - */
#define CACHE_MAX_PINS 1024

/* True for what a pin may be called. */
bool cache_pin_name_ok(const char *name);

/* True where all blocks of the start that ends with piece v[n-1] are stored. *tokens
 * (may be NULL): how many they hold. */
bool cache_stored(struct cache *c, const struct piece *v, size_t n, uint32_t *tokens);

/*
 * Pins such a start; `public`: for prompts of all tenants (cache_public_find()). A pin of
 * that name and model is replaced. ERR_INVALID: a bad name;
 * ERR_NOT_FOUND: it is not stored; ERR_LIMIT: there would be more bytes pinned than
 * max_pinned, or more than CACHE_MAX_PINS.
 */
int cache_pin(struct cache *c, struct hash128 fingerprint, const char *name,
              const struct piece *v, size_t n, bool public, struct err *e);

/*
 * The longest public start of a model that a prompt begins with: its pieces v, made as
 * for those who show nothing. Sets `at` (clear) to its end, and how many tokens of the
 * prompt are certain to be in it. Returns the number of its pieces, 0 for none.
 */
size_t cache_public_find(struct cache *c, struct hash128 fingerprint,
                         const struct piece *v, size_t n, struct tree_mark *at,
                         uint32_t *low);
/* Pieces of the longest of them, 0: there are none. */
size_t cache_public_pieces(const struct cache *c, struct hash128 fingerprint);

/* Takes the pins of that name away, of all models; they stay as long as other blocks
 * would. False where there is none. */
bool cache_unpin(struct cache *c, const char *name);

/* True where the pin is there and has all its blocks. */
bool cache_pin_whole(struct cache *c, struct hash128 fingerprint, const char *name);

struct cache_pin_view {
    const char *name;
    struct hash128 fingerprint;
    bool attached; /* its model is in use; else nothing more is known */
    bool whole, public;
    uint32_t tokens; /* of its blocks that are there */
    uint64_t bytes, hits;
};
/* Pin number i, in the order of pinning; false behind the last. */
bool cache_pin_view(struct cache *c, size_t i, struct cache_pin_view *out);

/* Bytes that pins hold; what several share counts once. */
uint64_t cache_pinned_bytes(struct cache *c);

/* A prompt ran of which the engine had `cached` tokens: pins that it begins with, and
 * that were reused but for a block or two, count a hit. */
void cache_pin_hit(struct cache *c, const struct piece *v, size_t n, int64_t cached);

/* Takes a pin away and drops its blocks, and all that continue them, as far as no other
 * pin has them; what a recovery has not brought yet stays. ERR_NOT_FOUND. Sets how many
 * blocks went. */
int cache_drop(struct cache *c, const char *name, size_t *n_blocks, struct err *e);

/* Drops all blocks that are neither pinned nor in use just now; returns how many. */
size_t cache_flush(struct cache *c);

#endif
