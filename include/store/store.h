/* SPDX-License-Identifier: MIT */
#ifndef INCIPIT_STORE_STORE_H
#define INCIPIT_STORE_STORE_H

/*
 * The block store: KV rows of token blocks, in RAM and in a directory (docs/store.md).
 *
 * A block is named by (fingerprint, chain hash): the fingerprint covers model identity
 * and row layout, the chain hash everything before the block. Its rows are immutable, in
 * the order of proto/slotfile.h. Which blocks exist and which go is decided by the block
 * tree; the store keeps and drops what it is told. RAM is a cache over the directory (or
 * the only tier where no directory is configured), LRU within its own byte budget.
 *
 * Never a wrong byte: each block carries an XXH3-128 checksum over header, tokens and
 * rows. It is verified every time rows are read, in RAM as on disk; a damaged file is
 * moved to `damaged/` (an operator may want to look), counted, and never offered again.
 * Files are written under a temporary name and renamed: after a crash a block is whole
 * or absent.
 *
 * Threads: all functions are for the loop; file work runs on workers. Callbacks come from
 * the loop, never from inside the call. What is asked for about one block happens in the
 * order of the calls: a drop behind a put that is still being written ends with the block
 * gone, a put behind a drop with the block there.
 */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"
#include "base/hash128.h"
#include "io/workers.h"

#define STORE_MAX_BLOCK_BYTES ((uint64_t)1 << 30)
#define STORE_MAX_BLOCK_TOKENS 4096

struct store;

/* The shared tier; {0}: there is none. Texts are copied. */
struct store_redis_options {
    struct loop *loop;
    const char *where;          /* "HOST:PORT" or "unix:/path" */
    unsigned db;                /* number of the database there */
    const char *user;           /* NULL: the default one */
    const char *password;       /* NULL: none is asked for */
    const char *prefix;         /* of its keys */
    uint64_t ttl_ms;            /* that a value lives behind its last use; 0: for ever */
    uint64_t timeout_ms;        /* of one exchange; see store_link.h */
    uint64_t max_waiting_bytes; /* of blocks on their way there */
};

struct store_options {
    const char *dir;      /* NULL: RAM only */
    const char *key_file; /* of the secret key; NULL: the one in `dir` */
    uint64_t ram_bytes;   /* budget of the RAM tier */
    struct store_redis_options redis;
};

/* "redis://HOST:PORT/DB" or "unix:/path" into `where` and `db`. */
int store_redis_url(const char *url, char where[256], unsigned *db, struct err *e);

/* Name of a block and what a recovery needs to put it back into the tree. */
struct store_head {
    struct hash128 fingerprint;
    struct hash128 hash, parent; /* parent: chain hash before it, or the root's hash */
    uint32_t index;              /* number of full blocks before it */
    uint32_t n_tokens;
    uint64_t rows_bytes;
};

/*
 * Rows of one block, shared by reference. `rows` and `tokens` are read-only for everyone
 * and may be read by worker threads while a reference is held. Counting is atomic.
 */
struct store_block {
    struct store_head head;
    const uint32_t *tokens;
    const unsigned char *rows;
    struct hash128 checksum;
    int64_t used_s; /* from store_scan(): wall clock when it was last used */
};

/* A new block with one reference; the caller fills tokens and rows (returned through the
 * pointers), then seals it: computes the checksum. 1 … STORE_MAX_BLOCK_TOKENS tokens. For
 * any thread. */
struct store_block *store_block_new(const struct store_head *head, uint32_t **tokens,
                                    unsigned char **rows);
void store_block_seal(struct store_block *b);
struct store_block *store_block_get(struct store_block *b);
void store_block_put(struct store_block *b); /* NULL is allowed */

/* True where the checksum is right. For any thread. */
bool store_block_verify(const struct store_block *b);

/*
 * Opens (creates) the store. `dir` is locked: a second gateway on it is ERR_REFUSED, and
 * so is a directory that others may write to (who can write blocks can change answers).
 * Its parent must exist. What is in it is looked at afterwards, in the background: see
 * store_recovers(). NULL: see `e`.
 */
struct store *store_open(const struct store_options *o, struct workers *w, struct err *e);

/* Waits for nothing: store_part(), then flush the workers. NULL is allowed. */
void store_close(struct store *s);

/* Before the workers are flushed: parts with the shared tier (what waits for it is told
 * that it is not there), and ends what goes through the directory: a scan that is under
 * way finds nothing then, and deletes nothing. */
void store_part(struct store *s);

/* Something is on its way to the shared tier. */
bool store_busy(const struct store *s);

/*
 * The secret key of the hash chains, kept in the directory (`key`, mode 0600) or made
 * anew for a RAM store. 32 bytes.
 */
const unsigned char *store_key(const struct store *s);

/*
 * Puts blocks in (sealed; the store takes its own references). `done` (may be NULL) tells
 * how many are where they are kept for good: in the directory, or in RAM where there is
 * none. They can be read at once. A full or broken disk keeps them in RAM only (logged
 * once, counted) and is no error. A name that is there already keeps its block.
 */
typedef void (*store_put_cb)(void *arg, size_t n_stored);
void store_put(struct store *s, struct store_block *const *blocks, size_t n,
               store_put_cb done, void *arg);

/*
 * Gets n blocks, in order, verified. On success err is NULL and the callback owns one
 * reference to each of `blocks` (the array is the store's, alive during the call). On
 * failure `good` tells how many leading blocks were fine (they are handed over as well);
 * the one behind is missing (ERR_NOT_FOUND), was damaged and is gone (ERR_CHECKSUM), or
 * could not be read now (ERR_IO).
 */
typedef void (*store_get_cb)(void *arg, struct store_block **blocks, size_t good,
                             const struct err *err);
void store_get(struct store *s, struct hash128 fingerprint, const struct hash128 *hashes,
               size_t n, store_get_cb done, void *arg);

/*
 * What tells the model of a fingerprint from others that have the same: a note that is
 * compared with the one of the gateway that was first to share it. Until that has been
 * done, and where `same` says no, nothing of the model is read from or written to the
 * shared tier.
 */
typedef bool (*store_same_cb)(const char *ours, const char *theirs);
void store_vouch(struct store *s, struct hash128 fingerprint, const char *note,
                 store_same_cb same);

/* A block is in use: the shared tier is to have it, from here where it has lost it. */
void store_share(struct store *s, struct hash128 fingerprint, struct hash128 hash);

/* Drops a block from the tiers of this gateway; unknown names are fine. */
void store_drop(struct store *s, struct hash128 fingerprint, struct hash128 hash);

/* Drops it from the shared tier as well, and the sequence that ends with it. */
void store_forget(struct store *s, struct hash128 fingerprint, struct hash128 hash);

/*
 * Recovery: reads names and token ids of the blocks of one fingerprint (no rows), with
 * all workers, in slices of a few milliseconds. Tells them in turns of the loop, parents
 * before children, otherwise leaves in the order of their last use, oldest first. The
 * blocks passed have rows NULL and are borrowed for the call (no references). Damaged
 * ones are put aside, ones whose parents are missing deleted; both are counted.
 */
typedef void (*store_scan_cb)(void *arg,
                              const struct store_block *b); /* b NULL: the end */
void store_scan(struct store *s, struct hash128 fingerprint, store_scan_cb cb, void *arg);

/*
 * From opening on all files are counted in the background. Until that has ended
 * disk_blocks and disk_bytes, and what the next two say, are what was seen so far.
 */
bool store_counted(const struct store *s);

/* Bytes of blocks found in the directory whose fingerprint nobody has scanned or put to
 * since it was opened: they count against the disk budget until they are pruned. */
uint64_t store_foreign_bytes(const struct store *s);

/* Bytes of blocks of this fingerprint that were found. */
uint64_t store_found_bytes(const struct store *s, struct hash128 fingerprint);

/* Deletes foreign blocks, least recently used first, until at most `keep_bytes` remain;
 * never those of `fingerprint`. On a worker, when all is counted: store_foreign_bytes()
 * follows later. */
void store_prune_foreign(struct store *s, struct hash128 fingerprint,
                         uint64_t keep_bytes);

/* Something goes through the directory: it is counted, scanned or pruned. And a call from
 * the loop when that is over, or soon. */
bool store_recovers(const struct store *s);
void store_when_recovered(struct store *s, void (*cb)(void *arg), void *arg);

/* Small values beside the blocks (self-test results): name [a-z0-9-]{1,64}, at most 4096
 * bytes. Read and written at once, also on disk. */
bool store_note_get(const struct store *s, const char *name, char *out, size_t size);
void store_note_set(struct store *s, const char *name, const char *value);

/* Blocks, not calls, since the store was opened; the first five are what is there now. */
struct store_stats {
    uint64_t ram_blocks, ram_bytes, disk_blocks, disk_bytes;
    uint64_t unwritten_bytes; /* now on their way to the disk */
    uint64_t puts, gets, ram_hits, disk_hits, redis_hits, drops;
    uint64_t damaged;      /* checksum or format wrong: put aside */
    uint64_t missing;      /* asked for and not there */
    uint64_t write_errors; /* kept in RAM only */
    uint64_t read_errors;  /* the operating system could not, for now */
    uint64_t orphans;      /* deleted by a recovery: their parents were missing */
    uint64_t heads_read;   /* by recoveries */
    bool counting;         /* disk_blocks and disk_bytes are not complete yet */
};
void store_stats(const struct store *s, struct store_stats *out);

enum store_redis_state {
    STORE_REDIS_OFF, /* not configured */
    STORE_REDIS_DOWN,
    STORE_REDIS_READ_ONLY, /* it takes no writes: full, or a replica */
    STORE_REDIS_UP
};
const char *store_redis_state_name(enum store_redis_state s);

#define STORE_REDIS_ERRORS(X)                                                            \
    X(STORE_REDIS_CONNECT, "connect")   /* no such name, refused, late */                \
    X(STORE_REDIS_AUTH, "auth")         /* it does not know us */                        \
    X(STORE_REDIS_TIMEOUT, "timeout")   /* an answer was late */                         \
    X(STORE_REDIS_CLOSED, "closed")     /* it has gone */                                \
    X(STORE_REDIS_PROTOCOL, "protocol") /* no Redis, or not what was asked for */        \
    X(STORE_REDIS_REFUSED, "refused")   /* it said no */                                 \
    X(STORE_REDIS_FULL, "full")         /* it has no memory left */                      \
    X(STORE_REDIS_DAMAGED, "damaged")   /* a value did not check out, and was deleted */

enum store_redis_error {
#define X(code, name) code,
    STORE_REDIS_ERRORS(X)
#undef X
        STORE_REDIS_ERROR_KINDS
};
const char *store_redis_error_name(enum store_redis_error e);

struct store_redis_stats {
    enum store_redis_state state;
    uint64_t puts, put_bytes; /* blocks written there */
    uint64_t gets, get_bytes; /* blocks that came from there and were right */
    uint64_t missing;         /* blocks asked for and not there */
    uint64_t skipped;         /* blocks not written: too much waited, or it was not up */
    uint64_t values;          /* small values written there */
    uint64_t waiting_bytes;   /* on their way there now */
    uint64_t models;          /* that are shared: store_vouch() */
    uint64_t errors[STORE_REDIS_ERROR_KINDS];
};
void store_redis_stats(const struct store *s, struct store_redis_stats *out);

#endif
