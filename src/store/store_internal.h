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
 *     store_walk.c    all files, bit by bit       store_file.c   files, without symlinks
 *     store_count.c   how many there are          store_recover.c  what is there, told
 *     store_scan.c    heads, order, pruning
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

/* True where that failed because nothing of ours is there: nothing at all, or a link or a
 * file in the place of the folder. */
bool store_file_is_no_folder(int why);

/* Reads at most `max` bytes of a regular file. Bytes read, or -1: see errno. */
int64_t store_file_read_small(int at, const char *name, void *out, size_t max);

/* Reads exactly n bytes. Where the file ends before, errno is ENODATA. */
bool store_file_read(int fd, void *out, size_t n);

/* Reads at least n bytes, and at most `most`. Bytes read, or 0: as store_file_read(). */
size_t store_file_read_some(int fd, void *out, size_t n, size_t most);

/* Why that failed: ERR_CHECKSUM where the file ends before, so that it is damaged; ERR_IO
 * where it may be read the next time. */
int store_file_read_failed(struct err *e);

/* Writes a new file (0600) under a name of its own in `tmp`, syncs it if asked to, and
 * moves it to `name` in `to`. On failure nothing is left behind, and errno tells why. */
struct store_file_target {
    int tmp, to;
    const char *name;
    const char *life; /* of this process: what its files in `tmp` begin with */
    uint64_t number;  /* a different one for each file being written */
    bool sync;
};
#define STORE_FILE_LIFE 18 /* "<16 hex>-" and a NUL */
bool store_file_write(const struct store_file_target *t, struct slice bytes);

/* The two halves of that: the file in `tmp`, and its name. */
bool store_file_make(const struct store_file_target *t, struct slice bytes);
bool store_file_move(const struct store_file_target *t);

/* Deletes all files in a folder whose names do not begin so. */
void store_file_clear(int folder, const char *except);

/* The time that the file system gives to what is changed from now on. Files that were
 * changed before are older, or of the same moment where it knows none between. */
bool store_file_now(int fd, int64_t *ns);

/* Calls fn for each entry that is not hidden, in no order. False: there may be more. */
typedef void (*store_file_fn)(void *arg, int folder, const char *name);
bool store_file_each(int folder, store_file_fn fn, void *arg);

/* ---- store_dir.c: the directory ---------------------------------------------------- */

#define STORE_SHARDS 256 /* folders of a fingerprint, by the first byte of the hash */

static inline unsigned store_shard_of(struct hash128 hash)
{
    return (unsigned)(hash.hi >> 56);
}

/* How far the files of a shard are counted that were there when the directory was opened
 * (store_count.c). */
struct store_shard {
    enum { STORE_UNSEEN, STORE_LISTED, STORE_COUNTED } state;
    const struct hash128 *names; /* where it is listed: of all files, in order */
    size_t n, at;                /* names[at] is the next one to be looked at */
};

/* A fingerprint that had a folder when the directory was opened. */
struct store_folder {
    struct hash128 fingerprint;
    uint64_t bytes;             /* found; the loop's */
    bool claimed;               /* somebody here uses it: no longer foreign; the loop's */
    struct store_shard *shards; /* STORE_SHARDS of them, each under its lock */
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
    char life[STORE_FILE_LIFE];
    int64_t opened_ns; /* the file system's clock */
    atomic_uint_fast64_t next_file, n_damaged, n_kept, n_orphans, n_heads;
    struct store_folder *folders; /* stay where they are once it is open */
    size_t n_folders;
    pthread_rwlock_t shards_lock; /* held for writing: for all shards */
    pthread_mutex_t shard_locks[STORE_SHARDS];
    atomic_bool counted; /* all files are */
    atomic_bool stopped; /* the store is about to be closed: walks end early */
};

struct store_dir *store_dir_open(const char *path, struct err *e);

/* Opens the directory of a store as it is: takes no lock and makes nothing. -1: see e. */
int store_dir_peek(const char *path, struct err *e);

/* The key in the directory `root`. ERR_NOT_FOUND: there is none. `path` is for errors. */
int store_dir_read_key(int root, const char *path, unsigned char key[CHAIN_KEY_BYTES],
                       struct err *e);

/* True where there is a block of any model; goes through the names. */
bool store_dir_has_blocks(struct store_dir *d);

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

/* ---- store_walk.c: going through all files in the background ----------------------- */

/*
 * Workers go through the shards of some fingerprints, each with a walker of its own, in
 * slices of a few milliseconds: what else waits for a worker waits no longer than that.
 */
struct store_walk;
struct store_walker {
    struct store_walk *walk;
    struct store_name name; /* of the file that it is at; the fingerprint of the shard */
    unsigned shard;         /* its number */
    int folder;             /* -1: it is in none */
    struct hash128 *names;  /* of the files in it */
    size_t n, cap, at;
    bool over;
};

struct store_walk_ops {
    size_t walker_size; /* begins with a struct store_walker, else zeros */

    /* On workers. Beginning calls store_walk_find(), entering store_walk_list(). */
    void (*begin)(struct store_walk *walk);
    void (*enter)(struct store_walker *w);
    void (*file)(struct store_walker *w);
    void (*leave)(struct store_walker *w);

    /* On the loop: of each walker, which is freed then; then of all. */
    void (*take)(struct store_walker *w);
    void (*end)(struct store_walk *walk);
};

struct store_walk {
    const struct store_walk_ops *ops;
    struct store_dir *dir;
    struct workers *workers;
    struct hash128 *fingerprints; /* the walk's own from the start on */
    size_t n_fingerprints;
    void *arg;

    struct store_walk_unit { /* the shards that there are */
        struct hash128 fingerprint;
        unsigned shard;
    } * units;
    size_t n_units;
    atomic_size_t next; /* of them */
    atomic_bool unseen; /* a part could not be looked at */
    unsigned running;   /* walkers; the loop's */
};

/* `walk` has the fields before the empty line and lives until end(). */
void store_walk_start(struct store_walk *walk);

/* Finds the shards of all fingerprints. */
void store_walk_find(struct store_walk *walk);

/* Opens the shard that the walker is at and lists its files. */
void store_walk_list(struct store_walker *w);

/* "<32 hex>.kv" in the shard it belongs to; other names are not ours. */
bool store_walk_parse(const char *file, unsigned shard, struct hash128 *hash);

/* ---- store_count.c: how much there is ---------------------------------------------- */

/*
 * Files are counted once after opening, while others come and go. A change to a file of
 * this name counts at once where `counts` says so; else counting will see what has become
 * of it. Nothing is counted of the shard before the release.
 */
struct store_hold {
    struct store_dir *dir; /* NULL: nothing is locked, since all is counted */
    pthread_mutex_t *shard;
    bool counts;
};
struct store_hold store_count_hold(struct store_dir *d, const struct store_name *name);
void store_count_release(const struct store_hold *h);

void store_count_add(struct store_dir *d, uint64_t bytes);
void store_count_remove(struct store_dir *d, uint64_t bytes);

void store_count_init(struct store_dir *d);
void store_count_folders(struct store_dir *d); /* which fingerprints have one */
void store_count_free(struct store_dir *d);

/* Counts all files in the background. */
void store_count_start(struct store_dir *d, struct workers *w, void (*done)(void *arg),
                       void *arg);

/* ---- store_scan.c: heads, their order, pruning ------------------------------------- */

/* One file of blocks/: its shard's folder, name and state. False: there may be more. */
typedef void (*store_scan_fn)(void *arg, int shard, const struct store_name *name,
                              const struct stat *st);
bool store_scan_files(int blocks, struct hash128 fingerprint, store_scan_fn fn,
                      void *arg);

/* Head and token ids of one file into `bytes`, checked, and its state. ERR_NOT_FOUND: it
 * has gone; ERR_IO: it cannot be read now; others: it is damaged. */
#define STORE_SCAN_BYTES (STORE_BLOCK_HEAD + 4 * STORE_MAX_BLOCK_TOKENS)
int store_scan_head(int shard, const struct store_name *name,
                    unsigned char bytes[STORE_SCAN_BYTES], struct store_head *h,
                    struct stat *st, struct err *e);

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

/* Reads the heads of one fingerprint in the background, deletes what can never be
 * reached, and hands over the rest in order; done() frees it. */
void store_scan_start(struct store_dir *d, struct workers *w, struct hash128 fingerprint,
                      void (*done)(void *arg, struct store_scan_list *l), void *arg);
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
    unsigned walks;        /* through the files, that are under way */
    bool prune;            /* wanted, once all is counted */
    uint64_t prune_keep;   /* what is to be left then */
    struct list when_done; /* who waits for the walks */
};

/* Calls cb(arg) later, from the loop. */
void store_defer(struct store *s, void (*cb)(void *arg), void *arg);

/* Writes a block to the slow tier, behind what its lane has; for store_put.c and for what
 * came from the shared tier. `batch` may be NULL. False: too much waits. */
struct store_batch;
bool store_put_slow(struct store *s, struct store_block *b, struct store_batch *batch);

/* From now on blocks of this fingerprint are ours. */
void store_claim(struct store *s, struct hash128 fingerprint);

/* store_recover.c: counts what is there, and removes what a crash has left. */
void store_recover_start(struct store *s);

#endif
