/* SPDX-License-Identifier: MIT */
#include "store_internal.h"

/*
 * Tier directory (docs/store.md):
 *
 *     DIR/key                       secret of the hash chains, 32 bytes
 *     DIR/lock                      held by the one gateway that works here
 *     DIR/blocks/FINGERPRINT/HH/HASH.kv
 *     DIR/damaged/                  what did not check out, for a person to look at
 *     DIR/notes/NAME                small values
 *     DIR/tmp/                      files being written; a start removes older ones
 *
 * HH are the first two digits of HASH, so that no folder gets a hundred thousand files.
 * A file appears under its name when it is complete and on disk, and is never changed.
 * Its modification time is when it was last used: that is all of the LRU that has to
 * survive a restart, and no index has to be kept in step with the files.
 */

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/random.h>
#include <time.h>
#include <unistd.h>

#include "base/log.h"
#include "base/mem.h"

#define KEEP_DAMAGED 64  /* files put aside at most; later ones are deleted */
#define TOUCH_AFTER_S 60 /* a use is written down when the last one is older */

static struct store_dir *dir_of(struct store_tier *t)
{
    return LIST_ENTRY(t, struct store_dir, tier);
}

static void file_name(const struct store_name *name, char out[STORE_FILE_HASH])
{
    char hex[HASH128_HEX];
    snprintf(out, STORE_FILE_HASH, "%s.kv", hash128_hex(name->hash, hex));
}

/* The folder that a block's file is in. -1: see errno. */
static int open_shard(const struct store_dir *d, const struct store_name *name, bool make)
{
    char hex[HASH128_HEX];
    const int folder =
        store_file_folder(d->blocks, hash128_hex(name->fingerprint, hex), make);
    if (folder < 0)
        return -1;
    hash128_hex(name->hash, hex)[2] = '\0';
    const int shard = store_file_folder(folder, hex, make);
    const int why = errno;
    close(folder);
    errno = why;
    return shard;
}

/* ---- taking files away ------------------------------------------------------------- */

static uint64_t size_of(int folder, const char *file)
{
    struct stat st;
    return fstatat(folder, file, &st, AT_SYMLINK_NOFOLLOW) == 0 && S_ISREG(st.st_mode)
               ? (uint64_t)st.st_size
               : 0;
}

/* A file that stays would count against the budget, and nobody know of it. */
static void add_undone(struct store_dir *d, const struct store_name *name)
{
    pthread_mutex_lock(&d->mutex);
    if (d->n_undone < STORE_MAX_UNDONE)
        d->undone[d->n_undone++] = *name;
    pthread_mutex_unlock(&d->mutex);
}

/* It is wanted again. */
static void forget_undone(struct store_dir *d, const struct store_name *name)
{
    pthread_mutex_lock(&d->mutex);
    for (size_t i = d->n_undone; i-- > 0;)
        if (hash128_eq(d->undone[i].hash, name->hash) &&
            hash128_eq(d->undone[i].fingerprint, name->fingerprint))
            d->undone[i] = d->undone[--d->n_undone];
    pthread_mutex_unlock(&d->mutex);
}

static bool take_undone(struct store_dir *d, struct store_name *name)
{
    pthread_mutex_lock(&d->mutex);
    const bool found = d->n_undone > 0;
    if (found)
        *name = d->undone[--d->n_undone];
    pthread_mutex_unlock(&d->mutex);
    return found;
}

bool store_dir_unlink(struct store_dir *d, int shard, const struct store_name *name)
{
    char file[STORE_FILE_HASH];
    file_name(name, file);
    const struct store_hold hold = store_count_hold(d, name);
    const uint64_t bytes = size_of(shard, file);
    const bool gone = unlinkat(shard, file, 0) == 0;
    const int why = errno;
    if (gone && hold.counts)
        store_count_remove(d, bytes);
    store_count_release(&hold);
    if (!gone && why != ENOENT && why != EISDIR)
        add_undone(d, name);
    return gone;
}

void store_dir_set_aside(struct store_dir *d, int shard, const struct store_name *name,
                         const char *why)
{
    char file[STORE_FILE_HASH], hex[HASH128_HEX], aside[HASH128_HEX + STORE_FILE_HASH];
    file_name(name, file);
    snprintf(aside, sizeof aside, "%s-%s", hash128_hex(name->fingerprint, hex), file);
    const struct store_hold hold = store_count_hold(d, name);
    const uint64_t bytes = size_of(shard, file);
    bool gone = false;
    if (atomic_fetch_add(&d->n_kept, 1) < KEEP_DAMAGED)
        gone = renameat(shard, file, d->damaged, aside) == 0;
    if (!gone)
        gone = unlinkat(shard, file, 0) == 0;
    if (gone && hold.counts)
        store_count_remove(d, bytes);
    store_count_release(&hold);
    d->n_damaged++;
    log_event(LOG_WARN, "block-damaged", "file", "%s", aside, "why", "%s", why, NULL);
}

static bool drop_one(struct store_dir *d, const struct store_name *name)
{
    const int shard = open_shard(d, name, false);
    if (shard < 0)
        return false;
    const bool gone = store_dir_unlink(d, shard, name);
    close(shard);
    return gone;
}

/* Deleting works again: the rest of what could not be deleted. */
static void dir_drop(struct store_tier *t, const struct store_name *name)
{
    struct store_dir *d = dir_of(t);
    struct store_name next = *name;
    while (drop_one(d, &next) && take_undone(d, &next))
        ;
}

/* ---- the folders ------------------------------------------------------------------- */

#define FOLDERS 4

struct folder {
    const char *name;
    int *fd;
};

static void list_folders(struct store_dir *d, struct folder out[FOLDERS])
{
    out[0] = (struct folder){"blocks", &d->blocks};
    out[1] = (struct folder){"tmp", &d->tmp};
    out[2] = (struct folder){"damaged", &d->damaged};
    out[3] = (struct folder){"notes", &d->notes};
}

static bool is_still_there(const struct store_dir *d, const struct folder *f)
{
    struct stat ours, there;
    return fstat(*f->fd, &ours) == 0 &&
           fstatat(d->root, f->name, &there, AT_SYMLINK_NOFOLLOW) == 0 &&
           ours.st_ino == there.st_ino && ours.st_dev == there.st_dev;
}

/* What others have removed while we run. The numbers of the descriptors stay: workers use
 * them. */
static bool remake_folders(struct store_dir *d)
{
    struct folder v[FOLDERS];
    bool ok = true;
    list_folders(d, v);
    pthread_mutex_lock(&d->mutex);
    for (size_t i = 0; ok && i < FOLDERS; i++) {
        if (is_still_there(d, &v[i]))
            continue;
        const int fd = store_file_folder(d->root, v[i].name, true);
        ok = fd >= 0 && dup3(fd, *v[i].fd, O_CLOEXEC) >= 0;
        const int why = errno;
        if (fd >= 0)
            close(fd);
        errno = why;
    }
    pthread_mutex_unlock(&d->mutex);
    return ok;
}

/* ---- writing ----------------------------------------------------------------------- */

/* Writes the use down where the last one is long ago. */
static void touch_file(int folder, const char *file, const struct stat *st)
{
    const struct timespec now[2] = {{.tv_nsec = UTIME_NOW}, {.tv_nsec = UTIME_NOW}};
    struct timespec clock;
    clock_gettime(CLOCK_REALTIME, &clock);
    /* A time that is yet to come is that of a clock that has been put right since. */
    if (st->st_mtim.tv_sec + TOUCH_AFTER_S <= clock.tv_sec ||
        st->st_mtim.tv_sec > clock.tv_sec + TOUCH_AFTER_S)
        utimensat(folder, file, now, AT_SYMLINK_NOFOLLOW);
}

/* The new file gets its name, and counts; so did what had the name before. */
static bool name_block(struct store_dir *d, const struct store_name *name,
                       const struct store_file_target *t, uint64_t size)
{
    struct stat old;
    const struct store_hold hold = store_count_hold(d, name);
    const bool there = fstatat(t->to, t->name, &old, AT_SYMLINK_NOFOLLOW) == 0;
    const bool ok = store_file_move(t);
    const int why = errno;
    if (ok && there && hold.counts)
        store_count_remove(d, S_ISREG(old.st_mode) ? (uint64_t)old.st_size : 0);
    if (ok && hold.counts)
        store_count_add(d, size);
    store_count_release(&hold);
    errno = why;
    return ok;
}

static bool write_block(struct store_dir *d, const struct store_name *name, int shard,
                        const char *file, const struct store_block *b)
{
    const struct store_file_target target = {
        .tmp = d->tmp,
        .to = shard,
        .name = file,
        .life = d->life,
        .number = atomic_fetch_add(&d->next_file, 1),
        .sync = true,
    };
    struct stat old;
    const uint64_t size = store_block_bytes(&b->head);
    if (fstatat(shard, file, &old, AT_SYMLINK_NOFOLLOW) == 0 && S_ISREG(old.st_mode) &&
        (uint64_t)old.st_size == size) {
        touch_file(shard, file, &old);
        return true;
    }
    return store_file_make(&target, store_block_file(b)) &&
           name_block(d, name, &target, size);
}

static bool put_in_shard(struct store_dir *d, const struct store_name *name,
                         const struct store_block *b)
{
    char file[STORE_FILE_HASH];
    const int shard = open_shard(d, name, true);
    if (shard < 0)
        return false;
    file_name(name, file);
    const bool ok = write_block(d, name, shard, file, b);
    const int why = errno;
    close(shard);
    errno = why;
    return ok;
}

static int dir_put(struct store_tier *t, struct store_block *b, struct err *e)
{
    struct store_dir *d = dir_of(t);
    const struct store_name name = {b->head.fingerprint, b->head.hash};
    forget_undone(d, &name);
    bool ok = put_in_shard(d, &name, b);
    /* Pruning may have removed the empty folder, or others all of them. */
    if (!ok && errno == ENOENT && remake_folders(d))
        ok = put_in_shard(d, &name, b);
    return ok ? 0 : err_errno(e, "writing a block in %s", d->path);
}

/* ---- reading ----------------------------------------------------------------------- */

/* Reads and verifies what is in the open file. */
static int read_block(int fd, const struct stat *st, const struct store_name *name,
                      struct store_block **out, struct err *e)
{
    unsigned char head[STORE_BLOCK_HEAD], *bytes;
    struct store_head h;
    if (!S_ISREG(st->st_mode))
        return err_set(e, ERR_CHECKSUM, "not a file");
    if (!store_file_read(fd, head, sizeof head))
        return store_file_read_failed(e);
    if (store_block_read_head(head, (uint64_t)st->st_size, &h, e))
        return ERR_CHECKSUM;
    if (!hash128_eq(h.fingerprint, name->fingerprint) || !hash128_eq(h.hash, name->hash))
        return err_set(e, ERR_CHECKSUM, "holds another block");
    struct store_block *b = store_block_blank(&h, &bytes);
    memcpy(bytes, head, sizeof head);
    int rc = 0;
    if (!store_file_read(fd, bytes + sizeof head, (size_t)st->st_size - sizeof head))
        rc = store_file_read_failed(e);
    store_block_adopt(b);
    if (!rc && !store_block_verify(b))
        rc = err_set(e, ERR_CHECKSUM, "checksum is wrong");
    if (rc)
        store_block_put(b);
    else
        *out = b;
    return rc;
}

/* The block and the state of its file. */
static int read_file(int shard, const struct store_name *name, struct store_block **b,
                     struct stat *st, struct err *e)
{
    char file[STORE_FILE_HASH];
    file_name(name, file);
    const int fd = openat(shard, file, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
    if (fd < 0 && errno == ENOENT)
        return err_set(e, ERR_NOT_FOUND, "is not there");
    if (fd < 0 && errno == ELOOP)
        return err_set(e, ERR_CHECKSUM, "is a symbolic link");
    if (fd < 0)
        return err_errno(e, "opening it");
    const int rc =
        fstat(fd, st) == 0 ? read_block(fd, st, name, b, e) : err_errno(e, "fstat");
    close(fd);
    return rc;
}

int store_dir_read(int shard, const struct store_name *name, struct store_block **b,
                   struct err *e)
{
    struct stat st;
    return read_file(shard, name, b, &st, e);
}

static int get_in_shard(struct store_dir *d, int shard, const struct store_name *name,
                        struct store_block **b, struct err *e)
{
    char file[STORE_FILE_HASH];
    struct stat st;
    struct err why = {0};
    const int rc = read_file(shard, name, b, &st, &why);
    file_name(name, file);
    if (rc == 0)
        touch_file(shard, file, &st);
    else if (rc == ERR_CHECKSUM)
        store_dir_set_aside(d, shard, name, why.text);
    return rc ? err_set(e, rc, "block in %s: %s", d->path, why.text) : 0;
}

static int dir_get(struct store_tier *t, const struct store_name *name,
                   struct store_block **b, struct err *e)
{
    struct store_dir *d = dir_of(t);
    const int shard = open_shard(d, name, false);
    if (shard < 0)
        return errno == ENOENT ? err_set(e, ERR_NOT_FOUND, "is not there")
                               : err_errno(e, "opening a folder in %s", d->path);
    const int rc = get_in_shard(d, shard, name, b, e);
    close(shard);
    return rc;
}

bool store_dir_has(struct store_dir *d, const struct store_name *name)
{
    char file[STORE_FILE_HASH];
    struct stat st;
    const int shard = open_shard(d, name, false);
    if (shard < 0)
        return false;
    file_name(name, file);
    const bool there = fstatat(shard, file, &st, AT_SYMLINK_NOFOLLOW) == 0;
    close(shard);
    return there;
}

void store_dir_set_used(struct store_dir *d, const struct store_name *name,
                        int64_t used_ns)
{
    const struct timespec used = {.tv_sec = used_ns / 1000000000,
                                  .tv_nsec = used_ns % 1000000000};
    const struct timespec times[2] = {used, used};
    char file[STORE_FILE_HASH];
    const int shard = open_shard(d, name, false);
    if (shard < 0)
        return;
    file_name(name, file);
    utimensat(shard, file, times, AT_SYMLINK_NOFOLLOW);
    close(shard);
}

static void dir_touch(struct store_tier *t, const struct store_name *name)
{
    char file[STORE_FILE_HASH];
    struct stat st;
    const int shard = open_shard(dir_of(t), name, false);
    if (shard < 0)
        return;
    file_name(name, file);
    if (fstatat(shard, file, &st, AT_SYMLINK_NOFOLLOW) == 0)
        touch_file(shard, file, &st);
    close(shard);
}

/* ---- notes ------------------------------------------------------------------------- */

bool store_dir_note_get(const struct store_dir *d, const char *name, char *out,
                        size_t size)
{
    const int64_t got = store_file_read_small(d->notes, name, out, size - 1);
    if (got < 0)
        return false;
    out[got] = '\0';
    return true;
}

void store_dir_note_set(struct store_dir *d, const char *name, const char *value)
{
    const struct store_file_target target = {
        .tmp = d->tmp,
        .to = d->notes,
        .name = name,
        .life = d->life,
        .number = atomic_fetch_add(&d->next_file, 1),
    };
    if (!store_file_write(&target, slice_of(value)))
        log_event(LOG_WARN, "note-not-written", "file", "%s", name, "error", "%s",
                  strerror(errno), NULL);
}

/* ---- opening and closing ----------------------------------------------------------- */

int store_dir_peek(const char *path, struct err *e)
{
    const int root = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    const int blocks = root < 0 ? -1 : store_file_folder(root, "blocks", false);
    if (blocks >= 0) {
        close(blocks);
        return root;
    }
    if (root < 0)
        err_errno(e, "cannot open the store's directory %s", path);
    else
        err_errno(e, "%s is no store's directory: %s/blocks", path, path);
    if (root >= 0)
        close(root);
    return -1;
}

static int open_root(struct store_dir *d, struct err *e)
{
    struct stat st;
    const bool made = mkdir(d->path, 0700) == 0;
    if (!made && errno != EEXIST)
        return err_errno(e, "cannot make the store's directory %s", d->path);
    d->root = open(d->path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (d->root < 0 || (made && fchmod(d->root, 0700) != 0) || fstat(d->root, &st) != 0)
        return err_errno(e, "cannot open the store's directory %s", d->path);
    if (st.st_mode & (S_IWGRP | S_IWOTH))
        return err_set(
            e, ERR_REFUSED,
            "others may write to the store's directory %s (chmod go-w, or name "
            "a folder inside it that does not exist yet)",
            d->path);
    if (st.st_uid != geteuid() && geteuid() != 0)
        return err_set(e, ERR_REFUSED, "the store's directory %s belongs to user %u",
                       d->path, (unsigned)st.st_uid);
    return 0;
}

static int take_lock(struct store_dir *d, struct err *e)
{
    d->lock = openat(d->root, "lock", O_RDWR | O_CREAT | O_NOFOLLOW | O_CLOEXEC, 0600);
    if (d->lock < 0)
        return err_errno(e, "cannot open %s/lock", d->path);
    if (flock(d->lock, LOCK_EX | LOCK_NB) == 0)
        return 0;
    return errno == EWOULDBLOCK
               ? err_set(e, ERR_REFUSED, "another gateway works in %s", d->path)
               : err_errno(e, "cannot lock %s/lock", d->path);
}

static int open_folders(struct store_dir *d, struct err *e)
{
    struct folder v[FOLDERS];
    list_folders(d, v);
    for (size_t i = 0; i < FOLDERS; i++) {
        *v[i].fd = store_file_folder(d->root, v[i].name, true);
        if (*v[i].fd < 0)
            return err_errno(e, "cannot open the folder %s/%s", d->path, v[i].name);
    }
    return 0;
}

/* The newest blocks may be lost with the power, their key must not: all of them need it.
 * So its name is synced as well. */
static int write_key(struct store_dir *d, struct err *e)
{
    const struct store_file_target target = {
        .tmp = d->tmp, .to = d->root, .name = "key", .life = d->life, .sync = true};
    if (!store_file_write(&target, slice_make((const char *)d->key, sizeof d->key)) ||
        fsync(d->root) != 0)
        return err_errno(e, "cannot write %s/key", d->path);
    return 0;
}

static int make_key(struct store_dir *d, struct err *e)
{
    if (getrandom(d->key, sizeof d->key, 0) != sizeof d->key)
        return err_errno(e, "no random bytes for a key");
    return write_key(d, e);
}

int store_dir_read_key(int root, const char *path, unsigned char key[CHAIN_KEY_BYTES],
                       struct err *e)
{
    unsigned char bytes[CHAIN_KEY_BYTES + 1];
    const int64_t got = store_file_read_small(root, "key", bytes, sizeof bytes);
    if (got < 0 && errno == ENOENT)
        return err_set(e, ERR_NOT_FOUND, "there is no %s/key", path);
    if (got < 0)
        return err_errno(e, "cannot read %s/key", path);
    if (got != CHAIN_KEY_BYTES)
        return err_set(
            e, ERR_FORMAT,
            "%s/key is not a key of %d bytes (without it the blocks are useless: "
            "put it back, or delete the directory)",
            path, CHAIN_KEY_BYTES);
    memcpy(key, bytes, CHAIN_KEY_BYTES);
    return 0;
}

static int load_key(struct store_dir *d, struct err *e)
{
    struct err why = {0};
    const int rc = store_dir_read_key(d->root, d->path, d->key, &why);
    if (rc == ERR_NOT_FOUND)
        return make_key(d, e);
    return rc ? err_set(e, rc, "%s", why.text) : 0;
}

int store_dir_adopt_key(struct store_dir *d, const unsigned char key[CHAIN_KEY_BYTES],
                        struct err *e)
{
    memcpy(d->key, key, sizeof d->key);
    return write_key(d, e);
}

static void see_block(void *arg, int shard, const struct store_name *name,
                      const struct stat *st)
{
    bool *seen = arg;
    (void)shard;
    (void)name;
    (void)st;
    *seen = true;
}

bool store_dir_has_blocks(struct store_dir *d)
{
    bool seen = false;
    for (size_t i = 0; i < d->n_folders && !seen; i++)
        store_scan_files(d->blocks, d->folders[i].fingerprint, see_block, &seen);
    return seen;
}

static void count_kept(void *arg, int folder, const char *name)
{
    struct store_dir *d = arg;
    (void)folder;
    (void)name;
    d->n_kept++;
}

static void dir_close(struct store_tier *t)
{
    struct store_dir *d = dir_of(t);
    const int fds[] = {d->blocks, d->tmp, d->damaged, d->notes, d->lock, d->root};
    for (size_t i = 0; i < sizeof fds / sizeof *fds; i++)
        if (fds[i] >= 0)
            close(fds[i]);
    pthread_mutex_destroy(&d->mutex);
    store_count_free(d);
    free(d->path);
    free(d);
}

/* Names in tmp/ that no other life has given, so that what those have left can be removed
 * while this one writes. */
static int choose_life(struct store_dir *d, struct err *e)
{
    uint64_t life;
    if (getrandom(&life, sizeof life, 0) != sizeof life)
        return err_errno(e, "no random bytes for a name");
    snprintf(d->life, sizeof d->life, "%016llx-", (unsigned long long)life);
    return 0;
}

/* Nothing here goes through the blocks: there may be a million. */
static int open_all(struct store_dir *d, struct err *e)
{
    int rc = open_root(d, e);
    if (!rc)
        rc = take_lock(d, e);
    if (!rc)
        rc = open_folders(d, e);
    if (!rc)
        rc = choose_life(d, e);
    if (rc)
        return rc;
    if (!store_file_now(d->tmp, &d->opened_ns))
        return err_errno(e, "cannot tell the time of %s/tmp", d->path);
    store_file_each(d->damaged, count_kept, d);
    store_count_folders(d);
    return load_key(d, e);
}

struct store_dir *store_dir_open(const char *path, struct err *e)
{
    static const struct store_tier_ops ops = {
        .put = dir_put,
        .get = dir_get,
        .touch = dir_touch,
        .drop = dir_drop,
        .close = dir_close,
    };
    struct store_dir *d = mem_zalloc(sizeof *d);
    d->tier.ops = &ops;
    d->path = mem_strdup(path);
    pthread_mutex_init(&d->mutex, NULL);
    store_count_init(d);
    d->root = d->lock = d->blocks = d->tmp = d->damaged = d->notes = -1;
    d->next_file = 1; /* 0 is the key's */
    if (open_all(d, e)) {
        dir_close(&d->tier);
        return NULL;
    }
    return d;
}
