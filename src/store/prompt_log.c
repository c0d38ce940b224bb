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
#include "base/list.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/trouble.h"
#include "prefix/chain.h"

struct prompt_log {
    char *dir, *path, *older;
    uint64_t max_bytes; /* of one generation */
    struct workers *workers;
    struct buf pending;
    struct buf written;    /* what the worker writes */
    bool writing;          /* a worker is at it, and `fd` and `written` are its own: what
                           comes meanwhile waits, to keep the order */
    int fd;                /* -1: not writable */
    uint32_t file, opened; /* number of the file: for the loop, for the worker */
    struct trouble trouble;
    struct list forgets; /* struct forget: wait for their turn */
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
    memcpy(out + 72, &r->boundary.owner, 4);
    const uint32_t sum = record_sum(out);
    memcpy(out + PROMPT_LOG_RECORD - 4, &sum, 4);
}

bool prompt_log_decode(const unsigned char bytes[PROMPT_LOG_RECORD],
                       struct prompt_record *r)
{
    uint32_t sum;
    memcpy(&sum, bytes + PROMPT_LOG_RECORD - 4, 4);
    if (sum != record_sum(bytes))
        return false;
    memcpy(&r->boundary.hash, bytes, 16);
    memcpy(&r->boundary.parent, bytes + 16, 16);
    memcpy(&r->boundary.check, bytes + 32, 8);
    memcpy(&r->boundary.low, bytes + 40, 4);
    memcpy(&r->boundary.high, bytes + 44, 4);
    memcpy(&r->boundary.reach, bytes + 48, 4);
    memcpy(&r->block, bytes + 52, 16);
    memcpy(&r->n_blocks, bytes + 68, 4);
    memcpy(&r->boundary.owner, bytes + 72, 4);
    return true;
}

/* ---- reading ----------------------------------------------------------------------- */

struct records {
    struct prompt_record *v;
    size_t n, cap;
};

static void add_record(struct records *out, const unsigned char bytes[PROMPT_LOG_RECORD])
{
    if (out->n == out->cap) {
        out->cap = out->cap ? 2 * out->cap : 256;
        out->v = mem_rearray(out->v, out->cap, sizeof(*out->v));
    }
    out->n += prompt_log_decode(bytes, &out->v[out->n]);
}

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
        while (fread(bytes, 1, sizeof(bytes), f) == sizeof(bytes))
            add_record(out, bytes);
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
    l->opened++;
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
    list_init(&l->forgets);
    open_file(l);
    l->file = l->opened;
    return l;
}

uint32_t prompt_log_file(const struct prompt_log *l)
{
    return l->file;
}

/* ---- writing ----------------------------------------------------------------------- */

static void put_record(struct buf *out, const struct prompt_record *r)
{
    prompt_log_encode(r, (unsigned char *)buf_reserve(out, PROMPT_LOG_RECORD));
    buf_commit(out, PROMPT_LOG_RECORD);
}

void prompt_log_add(struct prompt_log *l, const struct prompt_record *r)
{
    put_record(&l->pending, r);
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
    l->file = l->opened;
    prompt_log_flush(l);
}

/* Hands what waits over to the worker that is about to start. */
static void take_pending(struct prompt_log *l)
{
    const struct buf spare = l->written;
    l->written = l->pending;
    l->pending = spare;
    l->writing = true;
}

static void start_forget(struct prompt_log *l);

void prompt_log_flush(struct prompt_log *l)
{
    if (l->writing)
        return;
    if (!list_empty(&l->forgets)) {
        start_forget(l);
        return;
    }
    if (!buf_len(&l->pending))
        return;
    take_pending(l);
    workers_submit(l->workers, run_append, on_appended, l);
}

/* ---- forgetting -------------------------------------------------------------------- */

struct forget {
    struct list link;
    struct prompt_log *log;
    struct prompt_log_forget what;
    size_t cap; /* of what.gone, sorted or in order of arrival behind n_sorted */
    size_t n_sorted;
    void (*done)(void *arg);
    void *arg;
};

static int by_hash(const void *x, const void *y)
{
    return memcmp(x, y, sizeof(struct hash128));
}

static bool is_gone(const struct forget *f, struct hash128 hash)
{
    if (f->n_sorted && bsearch(&hash, f->what.gone, f->n_sorted, sizeof(hash), by_hash))
        return true;
    for (size_t i = f->n_sorted; i < f->what.n_gone; i++)
        if (hash128_eq(f->what.gone[i], hash))
            return true;
    return false;
}

static void note_gone(struct forget *f, struct hash128 hash)
{
    if (f->what.n_gone == f->cap) {
        f->cap = f->cap ? 2 * f->cap : 64;
        f->what.gone = mem_rearray(f->what.gone, f->cap, sizeof(hash));
    }
    f->what.gone[f->what.n_gone++] = hash;
    if (f->what.n_gone - f->n_sorted < 256)
        return;
    qsort(f->what.gone, f->what.n_gone, sizeof(hash), by_hash);
    f->n_sorted = f->what.n_gone;
}

static bool forgets(struct forget *f, const struct prompt_record *r)
{
    const uint32_t owner = f->what.owner;
    if (owner == INDEX_ANY_OWNER || (owner && owner == r->boundary.owner) ||
        is_gone(f, r->boundary.hash))
        return true;
    if (!f->what.n_gone || !is_gone(f, r->boundary.parent))
        return false;
    note_gone(f, r->boundary.hash); /* what continues it comes later */
    return true;
}

/* What is left of both files, and of what waited to be written, becomes one new one. */
static void run_forget(void *arg)
{
    struct forget *f = arg;
    struct prompt_log *l = f->log;
    struct records all = {0};
    load_file(l->dir, "prompts.log.1", &all);
    load_file(l->dir, "prompts.log", &all);
    const struct slice waited = buf_slice(&l->written);
    for (size_t at = 0; at < waited.len; at += PROMPT_LOG_RECORD)
        add_record(&all, (const unsigned char *)waited.ptr + at);
    buf_clear(&l->written);
    for (size_t i = 0; i < all.n; i++)
        if (!forgets(f, &all.v[i]))
            put_record(&l->written, &all.v[i]);
    free(all.v);
    /* Better without than with what was to be forgotten: first the old ones go. */
    if (l->fd >= 0)
        close(l->fd);
    unlink(l->path);
    unlink(l->older);
    open_file(l);
    write_out(l, buf_slice(&l->written));
}

static void on_forgotten(void *arg)
{
    struct forget *f = arg;
    struct prompt_log *l = f->log;
    buf_clear(&l->written);
    l->writing = false;
    f->done(f->arg);
    free(f->what.gone);
    free(f);
    prompt_log_flush(l);
}

static void start_forget(struct prompt_log *l)
{
    struct forget *f = LIST_ENTRY(l->forgets.next, struct forget, link);
    list_del(&f->link);
    take_pending(l);
    workers_submit(l->workers, run_forget, on_forgotten, f);
}

void prompt_log_forget(struct prompt_log *l, const struct prompt_log_forget *what,
                       void (*done)(void *arg), void *arg)
{
    struct forget *f = mem_zalloc(sizeof(*f));
    f->log = l;
    f->what = *what;
    f->cap = what->n_gone;
    f->done = done;
    f->arg = arg;
    list_push_back(&l->forgets, &f->link);
    prompt_log_flush(l);
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
