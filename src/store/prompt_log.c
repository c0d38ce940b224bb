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
#include "base/clock.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/trouble.h"
#include "prefix/chain.h"

struct prompt_log {
    char *dir, *path, *older;
    uint64_t max_bytes; /* of one generation */
    struct workers *workers;
    struct buf pending;
    struct buf written; /* what the worker writes */
    bool writing;       /* a worker is at it, and `fd` and `written` are its own: what
                           comes meanwhile waits, to keep the order */
    int fd;             /* -1: not writable */
    struct trouble trouble;
};

/* ---- records ----------------------------------------------------------------------- */

static uint32_t record_sum(const unsigned char *r)
{
    const struct slice s = slice_make((const char *)r, PROMPT_LOG_RECORD - 4);
    return (uint32_t)chain_checksum(s).lo;
}

void prompt_log_encode(const struct prompt_record *r,
                       unsigned char out[PROMPT_LOG_RECORD])
{
    memcpy(out, &r->boundary.hash, 16);
    memcpy(out + 16, &r->boundary.parent, 16);
    memcpy(out + 32, &r->boundary.check, 8);
    memcpy(out + 40, &r->boundary.low, 4);
    memcpy(out + 44, &r->boundary.high, 4);
    memcpy(out + 48, &r->boundary.reach, 4);
    memcpy(out + 52, &r->block, 16);
    memcpy(out + 68, &r->n_blocks, 4);
    memset(out + 72, 0, 4);
    const uint32_t sum = record_sum(out);
    memcpy(out + PROMPT_LOG_RECORD - 4, &sum, 4);
}

bool prompt_log_decode(const unsigned char bytes[PROMPT_LOG_RECORD],
                       struct prompt_record *r)
{
    uint32_t zero, sum;
    memcpy(&zero, bytes + 72, 4);
    memcpy(&sum, bytes + PROMPT_LOG_RECORD - 4, 4);
    if (zero || sum != record_sum(bytes))
        return false;
    memcpy(&r->boundary.hash, bytes, 16);
    memcpy(&r->boundary.parent, bytes + 16, 16);
    memcpy(&r->boundary.check, bytes + 32, 8);
    memcpy(&r->boundary.low, bytes + 40, 4);
    memcpy(&r->boundary.high, bytes + 44, 4);
    memcpy(&r->boundary.reach, bytes + 48, 4);
    memcpy(&r->block, bytes + 52, 16);
    memcpy(&r->n_blocks, bytes + 68, 4);
    return true;
}

/* ---- reading ----------------------------------------------------------------------- */

struct records {
    struct prompt_record *v;
    size_t n, cap;
};

static void load_file(const char *dir, const char *name, struct records *out)
{
    unsigned char bytes[PROMPT_LOG_RECORD];
    struct stat st;
    char *path = mem_printf("%s/%s", dir, name);
    const int fd = open(path, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
    FILE *f = fd < 0 ? NULL : fdopen(fd, "rb");
    free(path);
    if (!f) {
        if (fd >= 0)
            close(fd);
        return;
    }
    if (fstat(fd, &st) == 0 && S_ISREG(st.st_mode))
        while (fread(bytes, 1, sizeof(bytes), f) == sizeof(bytes)) {
            if (out->n == out->cap) {
                out->cap = out->cap ? 2 * out->cap : 256;
                out->v = mem_rearray(out->v, out->cap, sizeof(*out->v));
            }
            out->n += prompt_log_decode(bytes, &out->v[out->n]);
        }
    fclose(f);
}

size_t prompt_log_load(const char *dir, struct prompt_record **v)
{
    struct records r = {0};
    load_file(dir, "prompts.log.1", &r);
    load_file(dir, "prompts.log", &r);
    *v = r.v;
    return r.n;
}

struct reading {
    char *dir;
    struct prompt_record *v;
    size_t n;
    prompt_log_read_cb done;
    void *arg;
};

static void run_read(void *arg)
{
    struct reading *r = arg;
    r->n = prompt_log_load(r->dir, &r->v);
}

static void on_read(void *arg)
{
    struct reading *r = arg;
    r->done(r->arg, r->v, r->n);
    free(r->dir);
    free(r);
}

void prompt_log_read(struct prompt_log *l, prompt_log_read_cb done, void *arg)
{
    struct reading *r = mem_zalloc(sizeof(*r));
    r->dir = mem_strdup(l->dir);
    r->done = done;
    r->arg = arg;
    workers_submit(l->workers, run_read, on_read, r);
}

/* ---- opening ----------------------------------------------------------------------- */

static void complain(struct prompt_log *l)
{
    if (trouble_begins(&l->trouble, clock_mono_us()))
        log_event(LOG_WARN, "prompt-log-failed", "error", "%s", strerror(errno), NULL);
}

static void give_up(struct prompt_log *l)
{
    complain(l);
    if (l->fd >= 0)
        close(l->fd);
    l->fd = -1;
}

/* A write that was torn must not put the records behind it out of step. */
static void cut_torn(struct prompt_log *l)
{
    struct stat st;
    if (fstat(l->fd, &st) != 0)
        give_up(l);
    else if (st.st_size % PROMPT_LOG_RECORD &&
             ftruncate(l->fd, st.st_size - st.st_size % PROMPT_LOG_RECORD) != 0)
        give_up(l);
}

static void open_file(struct prompt_log *l)
{
    l->fd = open(l->path, O_RDWR | O_CREAT | O_APPEND | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (l->fd < 0)
        give_up(l);
    else
        cut_torn(l);
}

struct prompt_log *prompt_log_open(const char *dir, uint64_t max_bytes, struct workers *w)
{
    struct prompt_log *l = mem_zalloc(sizeof(*l));
    l->dir = mem_strdup(dir);
    l->path = mem_printf("%s/prompts.log", dir);
    l->older = mem_printf("%s/prompts.log.1", dir);
    l->max_bytes = max_bytes / 2;
    l->workers = w;
    open_file(l);
    return l;
}

/* ---- writing ----------------------------------------------------------------------- */

void prompt_log_add(struct prompt_log *l, const struct prompt_record *r)
{
    prompt_log_encode(r, (unsigned char *)buf_reserve(&l->pending, PROMPT_LOG_RECORD));
    buf_commit(&l->pending, PROMPT_LOG_RECORD);
}

/* Somebody else may have taken the file away, or it could not be opened before. */
static void open_again(struct prompt_log *l)
{
    struct stat ours, there;
    if (l->fd >= 0 && fstat(l->fd, &ours) == 0 && lstat(l->path, &there) == 0 &&
        ours.st_ino == there.st_ino && ours.st_dev == there.st_dev)
        return;
    if (l->fd >= 0)
        close(l->fd);
    open_file(l);
}

static void rotate(struct prompt_log *l)
{
    struct stat st;
    if (l->fd < 0 || fstat(l->fd, &st) != 0 || (uint64_t)st.st_size < l->max_bytes)
        return;
    if (rename(l->path, l->older) != 0) {
        give_up(l); /* it would grow beyond its limit */
        return;
    }
    close(l->fd);
    open_file(l);
}

/* What does not fit whole (a full disk) is left out up to the last whole record. */
static void write_out(struct prompt_log *l, struct slice s)
{
    while (l->fd >= 0 && s.len) {
        const ssize_t n = write(l->fd, s.ptr, s.len);
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0) {
            complain(l);
            cut_torn(l);
            return;
        }
        s.ptr += n;
        s.len -= (size_t)n;
    }
    if (l->fd >= 0 && trouble_ends(&l->trouble, clock_mono_us()))
        log_event(LOG_INFO, "prompt-log-works", "failures", "%llu",
                  (unsigned long long)l->trouble.n, NULL);
}

static void run_append(void *arg)
{
    struct prompt_log *l = arg;
    open_again(l);
    rotate(l);
    write_out(l, buf_slice(&l->written));
}

static void on_appended(void *arg)
{
    struct prompt_log *l = arg;
    buf_clear(&l->written);
    l->writing = false;
    prompt_log_flush(l);
}

void prompt_log_flush(struct prompt_log *l)
{
    if (l->writing || !buf_len(&l->pending))
        return;
    const struct buf spare = l->written;
    l->written = l->pending;
    l->pending = spare;
    l->writing = true;
    workers_submit(l->workers, run_append, on_appended, l);
}

void prompt_log_close(struct prompt_log *l)
{
    if (!l)
        return;
    assert(!l->writing);
    write_out(l, buf_slice(&l->pending));
    buf_free(&l->pending);
    buf_free(&l->written);
    if (l->fd >= 0)
        close(l->fd);
    free(l->dir);
    free(l->path);
    free(l->older);
    free(l);
}
