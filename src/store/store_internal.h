/* SPDX-License-Identifier: MIT */
#ifndef INCIPIT_STORE_STORE_INTERNAL_H
#define INCIPIT_STORE_STORE_INTERNAL_H

/*
 * What the files of the block store share (store.c draws how they hang together):
 *
 *     store.c         the public functions        store_block.c  a block and its bytes
 *     store_put.c     blocks in                   store_get.c    blocks out
 *     store_lane.c    one thing at a time a name  store_map.c    blocks by name
 *     store_ram.c     tier: RAM                   store_dir.c    tier: a directory
 *     store_scan.c    recovery and pruning        store_file.c   files, without symlinks
 *     store_redis.c   tier: Redis (store_redis.h) store_link.c   a connection to it
 *     store_models.c  what is shared there        store_key.c    the key of the chains
 */

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/stat.h>

#include "base/err.h"
#include "base/hash128.h"
#include "base/list.h"
#include "base/slice.h"
#include "base/trouble.h"
#include "io/workers.h"
#include "prefix/chain.h"
#include "store/store.h"

struct store_name {
    struct hash128 fingerprint, hash;
};

/* ---- store_block.c: blocks --------------------------------------------------------- */

#define STORE_BLOCK_HEAD 96 /* bytes before the token ids */
#define STORE_BLOCK_TAIL 16 /* the checksum at the end */

/* Size of a block's file, which is also what it counts in RAM. */
uint64_t store_block_bytes(const struct store_head *h);

/* Reads the fixed part of a file of `size` bytes. Nothing in `h` is out of bounds then,
 * and the sizes in it add up to `size`. */
int store_block_read_head(const unsigned char bytes[STORE_BLOCK_HEAD], uint64_t size,
                          struct store_head *h, struct err *e);

/* True where the checksum of the fixed part and the token ids behind it is right. */
bool store_block_head_ok(const unsigned char *bytes, const struct store_head *h);

/* A block whose bytes (all of the file) are for the caller to fill; then _adopt() takes
 * the checksum at their end as the block's. It is not verified yet. */
struct store_block *store_block_blank(const struct store_head *h, unsigned char **bytes);
void store_block_adopt(struct store_block *b);

/* All bytes of the file. */
struct slice store_block_file(const struct store_block *b);

static inline struct store_name store_name_of(const struct store_block *b)
{
    return (struct store_name){b->head.fingerprint, b->head.hash};
}

/* ---- store_map.c: a hash table by name --------------------------------------------- */

struct store_map_node {
    struct store_map_node *next;
    struct store_name name;
};

struct store_map {
    struct store_map_node **slots;
    size_t n_slots, n;
};

struct store_map_node *store_map_find(const struct store_map *m,
                                      const struct store_name *name);
void store_map_add(struct store_map *m, struct store_map_node *node);
void store_map_remove(struct store_map *m, struct store_map_node *node);
void store_map_free(struct store_map *m); /* the table, not the nodes */

/* ---- tiers ------------------------------------------------------------------------- */

/*
 * A place for blocks. RAM answers at once and is for the loop alone; a slow tier is
 * called on workers, several calls at a time, but one at a time for each name (lanes).
 */
struct store_tier;

struct store_tier_ops {
    /* Takes a reference or writes the block. A block that is there already is fine.
     * ERR_LIMIT: does not fit. ERR_IO: not now. */
    int (*put)(struct store_tier *t, struct store_block *b, struct err *e);

    /* One reference, marked as used. RAM does not verify (hashing is for workers); a
     * slow tier does. ERR_NOT_FOUND; ERR_CHECKSUM: was damaged and is gone; ERR_IO. */
    int (*get)(struct store_tier *t, const struct store_name *name,
               struct store_block **b, struct err *e);

    /* Marks as used without reading; NULL where get() is all there is. */
    void (*touch)(struct store_tier *t, const struct store_name *name);

    void (*drop)(struct store_tier *t, const struct store_name *name);
    void (*close)(struct store_tier *t);
};

struct store_tier {
    const struct store_tier_ops *ops;
    atomic_uint_fast64_t blocks, bytes;
};

struct store_tier *store_ram_open(uint64_t budget);

/* ---- store_lane.c: order of work on one name --------------------------------------- */

struct store_lane;
struct store_lanes {
    struct workers *workers;
    struct store_map map;
};

struct store_op {
    struct list link;
    struct store_lanes *lanes;
    struct store_lane *lane;
    struct store_name name;
    bool drops; /* the block will be gone afterwards */

    void (*start)(struct store_op *op); /* on the loop, when its turn has come; or NULL */
    void (*run)(struct store_op *op);   /* on a worker */

    /* On the loop; may free it. False: it is not over and keeps its turn; what it waits
     * for calls store_lane_again(). */
    bool (*done)(struct store_op *op);
};

/* Runs the op when all ops of its name that entered before are done. */
void store_lane_enter(struct store_lanes *l, struct store_op *op);

/* Runs it at once, beside whatever is under way. */
void store_lane_pass(struct store_lanes *l, struct store_op *op);

/* Runs an op whose done() said that it is not over. */
void store_lane_again(struct store_op *op);

/* True while a drop of this name waits behind `op`. */
bool store_lane_drop_follows(const struct store_op *op);

/* ---- store_file.c: files, without following symlinks ------------------------------- */

#define STORE_FILE_HASH 36 /* "<32 hex>.kv" and a NUL */

/* Opens the folder `name` in `at`, making it (mode 0700) if asked to. -1: see errno. */
int store_file_folder(int at, const char *name, bool make);

/* Reads at most `max` bytes of a regular file. Bytes read, or -1: see errno. */
int64_t store_file_read_small(int at, const char *name, void *out, size_t max);

/* Reads exactly n bytes. Where the file ends before, errno is ENODATA. */
bool store_file_read(int fd, void *out, size_t n);

/* Why that failed: ERR_CHECKSUM where the file ends before, so that it is damaged; ERR_IO
 * where it may be read the next time. */
int store_file_read_failed(struct err *e);

/* Writes a new file (0600) under a name of its own in `tmp`, syncs it if asked to, and
 * moves it to `name` in `to`. On failure nothing is left behind, and errno tells why. */
struct store_file_target {
    int tmp, to;
    const char *name;
    uint64_t number; /* a different one for each file being written */
    bool sync;
};
bool store_file_write(const struct store_file_target *t, struct slice bytes);

/* Deletes all files in a folder. */
void store_file_clear(int folder);

/* Calls fn for each entry that is not hidden, in no order. False: there may be more. */
typedef void (*store_file_fn)(void *arg, int folder, const char *name);
bool store_file_each(int folder, store_file_fn fn, void *arg);

/* ---- store_dir.c: the directory ---------------------------------------------------- */

/* What was found of one fingerprint when the directory was opened. */
struct store_folder {
    struct hash128 fingerprint;
    uint64_t bytes;
    bool claimed; /* somebody here uses it: no longer foreign */
};

#define STORE_MAX_UNDONE 1024 /* more are left for the next start */

struct store_dir {
    struct store_tier tier;
    char *path;
    int root, lock, blocks, tmp, damaged, notes;
    pthread_mutex_t mutex; /* for remaking folders, and for `undone` */
    struct store_name undone[STORE_MAX_UNDONE]; /* could not be deleted */
    size_t n_undone;
    unsigned char key[CHAIN_KEY_BYTES];
    int64_t opened_ns; /* wall clock */
    atomic_uint_fast64_t next_file, n_damaged, n_kept, n_orphans;
    struct store_folder *folders; /* the loop's */
    size_t n_folders;
};

struct store_dir *store_dir_open(const char *path, struct err *e);

/* Opens the directory of a store as it is: takes no lock and makes nothing. -1: see e. */
int store_dir_peek(const char *path, struct err *e);

/* The key in the directory `root`. ERR_NOT_FOUND: there is none. `path` is for errors. */
int store_dir_read_key(int root, const char *path, unsigned char key[CHAIN_KEY_BYTES],
                       struct err *e);

/* Puts another key in the place of that of a directory without blocks. */
int store_dir_adopt_key(struct store_dir *d, const unsigned char key[CHAIN_KEY_BYTES],
                        struct err *e);

/* True where a file has the name of this block; sets when it was last used. */
bool store_dir_has(struct store_dir *d, const struct store_name *name);
void store_dir_set_used(struct store_dir *d, const struct store_name *name,
                        int64_t used_ns);

/* Reads and verifies a block in its shard, and changes nothing. ERR_NOT_FOUND; ERR_IO:
 * not now; ERR_CHECKSUM: damaged. */
int store_dir_read(int shard, const struct store_name *name, struct store_block **b,
                   struct err *e);

bool store_dir_note_get(const struct store_dir *d, const char *name, char *out,
                        size_t size);
void store_dir_note_set(struct store_dir *d, const char *name, const char *value);

/* Moves a damaged file out of the way and says so. For workers. */
void store_dir_set_aside(struct store_dir *d, int shard, const struct store_name *name,
                         const char *why);

/* Deletes a block's file in its shard. False where it was not there, or could not be
 * deleted: that is done when deleting works again. For workers. */
bool store_dir_unlink(struct store_dir *d, int shard, const struct store_name *name);

/* ---- store_key.c: the secret of the hash chains ------------------------------------ */

int store_key_make(unsigned char key[CHAIN_KEY_BYTES], struct err *e);

/* From a file of its own, which only its owner can read; made where it does not exist. */
int store_key_load(const char *path, unsigned char key[CHAIN_KEY_BYTES], struct err *e);
int store_key_read(const char *path, unsigned char key[CHAIN_KEY_BYTES], struct err *e);

/* ---- store_scan.c: going through the directory ------------------------------------- */

/* One file of blocks/: its shard's folder, name and state. False: there may be more. */
typedef void (*store_scan_fn)(void *arg, int shard, const struct store_name *name,
                              const struct stat *st);
bool store_scan_files(int blocks, struct hash128 fingerprint, store_scan_fn fn,
                      void *arg);

/* Head and token ids of one file into `bytes`, checked. ERR_NOT_FOUND: it has gone;
 * ERR_IO: it cannot be read now; others: it is damaged. */
#define STORE_SCAN_BYTES (STORE_BLOCK_HEAD + 4 * STORE_MAX_BLOCK_TOKENS)
int store_scan_head(int shard, const struct store_name *name, const struct stat *st,
                    unsigned char bytes[STORE_SCAN_BYTES], struct store_head *h,
                    struct err *e);

/* Fingerprints that have a folder. */
void store_scan_folders(struct store_dir *d);

/* What a recovery found, in the order in which it is told. */
struct store_found {
    struct store_head head;
    uint32_t *tokens;
    int64_t used_ns; /* of the block, or of the least recently used one behind it */
    struct store_found *parent;
    bool whole; /* its parents are there, up to the root */
    bool fresh; /* written or used since the directory was opened */
};

struct store_scan_list {
    struct store_found *items;
    size_t n, cap;
    struct store_found **order; /* what is whole, as it is to be told */
    size_t n_order;
};

void store_scan_read(struct store_dir *d, struct hash128 fingerprint,
                     struct store_scan_list *out);
void store_scan_free(struct store_scan_list *l);

/* Deletes the least recently used blocks of these folders until `keep_bytes` remain;
 * updates their sizes. */
void store_scan_prune(struct store_dir *d, struct store_folder *folders, size_t n,
                      uint64_t keep_bytes);

/* ---- store.c: what its parts share ------------------------------------------------- */

struct store {
    struct workers *workers;
    struct store_lanes lanes;
    struct store_tier *ram;
    struct store_dir *dir;     /* NULL: RAM only */
    struct store_tier *slow;   /* the directory's, or NULL */
    struct store_redis *redis; /* the shared tier, or NULL */
    unsigned char key[CHAIN_KEY_BYTES];
    struct list notes; /* without a directory */
    uint64_t unwritten_bytes;
    struct trouble writing, reading;
    struct store_stats count;
};

/* Calls cb(arg) later, from the loop. */
void store_defer(struct store *s, void (*cb)(void *arg), void *arg);

/* Writes a block to the slow tier, behind what its lane has; for store_put.c and for what
 * came from the shared tier. `batch` may be NULL. False: too much waits. */
struct store_batch;
bool store_put_slow(struct store *s, struct store_block *b, struct store_batch *batch);

/* From now on blocks of this fingerprint are ours. */
void store_claim(struct store *s, struct hash128 fingerprint);

#endif
