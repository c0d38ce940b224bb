/* SPDX-License-Identifier: MIT */
#include "store/prompt_log.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/log.h"
#include "base/mem.h"
#include "prefix/chain.h"

#define RECORD 80

struct prompt_log {
    char *path, *older;
    uint64_t max_bytes; /* of one generation */
    struct workers *workers;
    struct buf pending;
    bool writing; /* a worker is at it: what comes meanwhile waits, to keep the order */
    int fd;       /* -1: not writable */
};

/* Appending is done by one job at a time on a worker; it owns its bytes. */
struct append {
    struct prompt_log *log;
    int fd;
    struct buf bytes;
};

static void open_file(struct prompt_log *l)
{
    struct stat st;
    l->fd = open(l->path, O_RDWR | O_CREAT | O_APPEND | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (l->fd < 0 || fstat(l->fd, &st) != 0) {
        log_event(LOG_WARN, "prompt-log", "error", "%s", strerror(errno), NULL);
        return;
    }
    /* A write that was torn must not put the records behind it out of step. */
    if (st.st_size % RECORD && ftruncate(l->fd, st.st_size - st.st_size % RECORD) != 0)
        log_event(LOG_WARN, "prompt-log", "error", "%s", strerror(errno), NULL);
}

struct prompt_log *prompt_log_open(const char *dir, uint64_t max_bytes, struct workers *w)
{
    struct prompt_log *l = mem_zalloc(sizeof(*l));
    l->path = mem_printf("%s/prompts.log", dir);
    l->older = mem_printf("%s/prompts.log.1", dir);
    l->max_bytes = max_bytes / 2;
    l->workers = w;
    open_file(l);
    return l;
}

static void write_all(int fd, struct slice s)
{
    struct stat st;
    if (fd < 0 || fstat(fd, &st) != 0)
        return;
    const ssize_t n = write(fd, s.ptr, s.len);
    if (n >= 0 && (size_t)n < s.len && ftruncate(fd, st.st_size) != 0)
        return; /* the next open cuts it */
}

void prompt_log_close(struct prompt_log *l)
{
    if (!l)
        return;
    assert(!l->writing);
    write_all(l->fd, buf_slice(&l->pending));
    buf_free(&l->pending);
    if (l->fd >= 0)
        close(l->fd);
    free(l->path);
    free(l->older);
    free(l);
}

static uint32_t record_sum(const unsigned char *r)
{
    return (uint32_t)chain_checksum(slice_make((const char *)r, RECORD - 4)).lo;
}

void prompt_log_add(struct prompt_log *l, const struct index_record *r,
                    struct hash128 block, uint32_t n_blocks)
{
    unsigned char v[RECORD];
    memcpy(v, &r->hash, 16);
    memcpy(v + 16, &r->parent, 16);
    memcpy(v + 32, &r->check, 8);
    memcpy(v + 40, &r->low, 4);
    memcpy(v + 44, &r->high, 4);
    memcpy(v + 48, &r->reach, 4);
    memcpy(v + 52, &block, 16);
    memcpy(v + 68, &n_blocks, 4);
    memset(v + 72, 0, 4);
    const uint32_t sum = record_sum(v);
    memcpy(v + RECORD - 4, &sum, 4);
    buf_append(&l->pending, v, RECORD);
}

static void run_append(void *arg)
{
    struct append *a = arg;
    write_all(a->fd, buf_slice(&a->bytes));
    close(a->fd);
}

static void on_appended(void *arg)
{
    struct append *a = arg;
    struct prompt_log *l = a->log;
    buf_free(&a->bytes);
    free(a);
    l->writing = false;
    prompt_log_flush(l);
}

static void rotate(struct prompt_log *l)
{
    struct stat st;
    if (fstat(l->fd, &st) != 0 || (uint64_t)st.st_size < l->max_bytes)
        return;
    if (rename(l->path, l->older) != 0)
        return;
    close(l->fd);
    open_file(l);
}

void prompt_log_flush(struct prompt_log *l)
{
    if (l->fd < 0)
        buf_clear(&l->pending);
    if (l->writing || !buf_len(&l->pending))
        return;
    rotate(l);
    const int fd = l->fd < 0 ? -1 : dup(l->fd);
    if (fd < 0)
        return;
    struct append *a = mem_zalloc(sizeof(*a));
    a->log = l;
    a->fd = fd;
    l->writing = true;
    a->bytes = l->pending;
    l->pending = (struct buf){0};
    workers_submit(l->workers, run_append, on_appended, a);
}

static size_t replay_file(const char *path, struct index *ix, struct tree *t,
                          prompt_log_place place, void *arg)
{
    unsigned char v[RECORD];
    size_t n = 0;
    FILE *f = fopen(path, "rbe");
    if (!f)
        return 0;
    while (fread(v, 1, RECORD, f) == RECORD) {
        struct index_record r;
        struct hash128 block;
        struct tree_mark m = {0};
        uint32_t n_blocks, sum;
        memcpy(&sum, v + RECORD - 4, 4);
        if (sum != record_sum(v))
            continue;
        memcpy(&r.hash, v, 16);
        memcpy(&r.parent, v + 16, 16);
        memcpy(&r.check, v + 32, 8);
        memcpy(&r.low, v + 40, 4);
        memcpy(&r.high, v + 44, 4);
        memcpy(&r.reach, v + 48, 4);
        memcpy(&block, v + 52, 16);
        memcpy(&n_blocks, v + 68, 4);
        place(arg, block, n_blocks, &m);
        if (m.node)
            n += index_import(ix, &r, &m);
        tree_mark_clear(t, &m);
    }
    fclose(f);
    return n;
}

size_t prompt_log_replay(struct prompt_log *l, struct index *ix, struct tree *t,
                         prompt_log_place place, void *arg)
{
    const size_t older = replay_file(l->older, ix, t, place, arg);
    return older + replay_file(l->path, ix, t, place, arg);
}
