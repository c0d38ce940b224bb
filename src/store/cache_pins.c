/* SPDX-License-Identifier: MIT */
#include "cache_internal.h"

/*
 * Pins: a pinned mark in the tree for each, the records that find it by text, and the
 * file that brings both back after a restart.
 *
 *     text ──record──► boundary (index) ──► mark ──pinned──► blocks: root … end of start
 *
 * The tree keeps the blocks. The boundaries are kept by using them whenever the index has
 * let go of half of what it holds: so they are never the oldest.
 */

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/log.h"
#include "base/mem.h"

#define MAX_FILE ((off_t)256 << 20)

/* ---- the file ---------------------------------------------------------------------- */

struct writing {
    struct cache *c;
    char *path, *fresh;
    struct buf bytes;
    int error;
};

static bool write_whole(int fd, struct slice s)
{
    while (s.len) {
        const ssize_t n = write(fd, s.ptr, s.len);
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            return false;
        s = slice_make(s.ptr + n, s.len - (size_t)n);
    }
    return true;
}

static void run_write(void *arg)
{
    struct writing *w = arg;
    unlink(w->fresh);
    const int fd =
        open(w->fresh, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
    const bool good =
        fd >= 0 && write_whole(fd, buf_slice(&w->bytes)) && fdatasync(fd) == 0;
    if (!good || rename(w->fresh, w->path) != 0) {
        w->error = errno;
        unlink(w->fresh);
    }
    if (fd >= 0)
        close(fd);
}

static void keep(struct cache *c);

static void on_written(void *arg)
{
    struct writing *w = arg;
    struct cache *c = w->c;
    if (w->error)
        log_event(LOG_WARN, "pins-not-written", "error", "%s", strerror(w->error), NULL);
    free(w->path);
    free(w->fresh);
    buf_free(&w->bytes);
    free(w);
    c->pins.writing = false;
    if (c->pins.dirty)
        keep(c);
}

/* Has the file replaced by what is pinned now, one writer at a time. */
static void keep(struct cache *c)
{
    if (!c->pins.path)
        return;
    c->pins.dirty = c->pins.writing;
    if (c->pins.writing)
        return;
    struct writing *w = mem_zalloc(sizeof(*w));
    w->c = c;
    w->path = mem_strdup(c->pins.path);
    w->fresh = mem_printf("%s.new", c->pins.path);
    cache_pinfile_write(&c->pins, &w->bytes);
    c->pins.writing = true;
    workers_submit(c->workers, run_write, on_written, w);
}

/* 1 with all of the file in `out`; 0 where there is none. */
static int read_file(const char *path, struct buf *out, struct err *e)
{
    struct stat st;
    const int fd = open(path, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
    if (fd < 0)
        return errno == ENOENT ? 0 : err_errno(e, "opening it");
    int rc = 1;
    if (fstat(fd, &st) != 0 || !S_ISREG(st.st_mode) || st.st_size > MAX_FILE) {
        rc = err_set(e, ERR_FORMAT, "it is no regular file of at most 256 MiB");
    } else {
        const size_t size = (size_t)st.st_size;
        const ssize_t n = read(fd, buf_reserve(out, size + 1), size);
        if (n == (ssize_t)size)
            buf_commit(out, size);
        else
            rc = err_errno(e, "reading it");
    }
    close(fd);
    return rc;
}

static void free_pin(struct cache *c, struct cache_pin *p)
{
    tree_mark_clear(c->tree, &p->at);
    free(p->v);
    free(p);
}

static void free_all(struct cache *c)
{
    for (size_t i = 0; i < c->pins.n; i++)
        free_pin(c, c->pins.v[i]);
    free(c->pins.v);
    c->pins.v = NULL;
    c->pins.n = 0;
}

void cache_pins_open(struct cache *c)
{
    struct buf bytes = {0};
    struct err e = {0};
    if (!c->o.store.dir)
        return;
    c->pins.path = mem_printf("%s/pins", c->o.store.dir);
    const int rc = read_file(c->pins.path, &bytes, &e);
    if (rc < 0 || (rc == 1 && cache_pinfile_read(&c->pins, buf_slice(&bytes), &e) != 0)) {
        char *aside = mem_printf("%s.damaged", c->pins.path);
        log_event(LOG_WARN, "pins-damaged", "why", "%s", e.text, "kept_as", "%s",
                  "pins.damaged", NULL);
        if (rename(c->pins.path, aside) != 0)
            log_event(LOG_WARN, "pins-damaged", "error", "%s", strerror(errno), NULL);
        free(aside);
        free_all(c);
    }
    buf_free(&bytes);
}

void cache_pins_close(struct cache *c)
{
    free_all(c);
    free(c->pins.path);
}

/* ---- what pins weigh --------------------------------------------------------------- */

struct weight {
    struct hash128 hash;
    uint64_t bytes;
};

struct weights {
    struct weight *v;
    size_t n, cap;
};

static bool add_weight(void *arg, struct tree_block *b, size_t depth)
{
    struct weights *w = arg;
    (void)depth;
    if (w->n == w->cap) {
        w->cap = w->cap ? 2 * w->cap : 256;
        w->v = mem_rearray(w->v, w->cap, sizeof(*w->v));
    }
    w->v[w->n++] = (struct weight){b->hash, b->size_bytes};
    return true;
}

static int by_hash(const void *a, const void *b)
{
    const struct hash128 x = ((const struct weight *)a)->hash;
    const struct hash128 y = ((const struct weight *)b)->hash;
    return x.hi != y.hi ? (x.hi < y.hi ? -1 : 1) : x.lo < y.lo ? -1 : x.lo > y.lo;
}

/* Bytes of what the pins hold, and of the path to `more`; without pin `except`. What is
 * shared counts once. Both may be NULL. */
static uint64_t weigh(struct cache *c, const struct tree_mark *more,
                      const struct cache_pin *except)
{
    struct weights w = {0};
    uint64_t sum = 0;
    for (size_t i = 0; i < c->pins.n; i++)
        if (c->pins.v[i] != except)
            tree_walk(c->tree, &c->pins.v[i]->at, add_weight, &w);
    if (more)
        tree_walk(c->tree, more, add_weight, &w);
    if (w.n)
        qsort(w.v, w.n, sizeof(*w.v), by_hash);
    for (size_t i = 0; i < w.n; i++)
        if (!i || !hash128_eq(w.v[i].hash, w.v[i - 1].hash))
            sum += w.v[i].bytes;
    free(w.v);
    return sum;
}

uint64_t cache_pinned_bytes(struct cache *c)
{
    return weigh(c, NULL, NULL);
}

/* ---- pinning ----------------------------------------------------------------------- */

/* The place that covers a start, where all of that is stored. */
static bool find_start(struct cache *c, const struct piece *v, size_t n,
                       struct tree_mark *at)
{
    struct index_hit hit = {0};
    index_find(c->index, v, n, &hit);
    const size_t blocks = (hit.high + c->o.block_tokens - 1) / c->o.block_tokens;
    if (blocks < tree_mark_blocks(&hit.at))
        tree_mark_up(c->tree, &hit.at, blocks);
    const size_t tokens = tree_mark_tokens(&hit.at);
    const bool whole = n && hit.n_pieces == n && tokens && tokens >= hit.low &&
                       cache_restorable(c, &hit.at, UINT32_MAX) == tokens;
    tree_mark_copy(c->tree, at, &hit.at);
    tree_mark_clear(c->tree, &hit.at);
    return whole;
}

bool cache_stored(struct cache *c, const struct piece *v, size_t n, uint32_t *tokens)
{
    struct tree_mark at = {0};
    const bool whole = find_start(c, v, n, &at);
    if (tokens)
        *tokens = (uint32_t)tree_mark_tokens(&at);
    tree_mark_clear(c->tree, &at);
    return whole;
}

bool cache_pin_name_ok(const char *name)
{
    static const char allowed[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
                                  "0123456789._:-";
    const size_t len = strlen(name);
    return len && len <= CACHE_PIN_NAME && strspn(name, allowed) == len;
}

static struct cache_pin *find_pin(const struct cache *c, struct hash128 fingerprint,
                                  const char *name)
{
    for (size_t i = 0; i < c->pins.n; i++)
        if (strcmp(c->pins.v[i]->name, name) == 0 &&
            hash128_eq(c->pins.v[i]->fingerprint, fingerprint))
            return c->pins.v[i];
    return NULL;
}

static void remove_pin(struct cache *c, const struct cache_pin *gone)
{
    size_t kept = 0;
    for (size_t i = 0; i < c->pins.n; i++)
        if (c->pins.v[i] != gone)
            c->pins.v[kept++] = c->pins.v[i];
        else
            free_pin(c, c->pins.v[i]);
    c->pins.n = kept;
}

static bool collect_hash(void *arg, struct tree_block *b, size_t depth)
{
    struct hash128 *chain = arg;
    chain[depth] = b->hash;
    return true;
}

static void note_records(struct cache *c, struct cache_pin *p, const struct piece *v,
                         size_t n)
{
    const size_t depth = tree_mark_blocks(&p->at);
    struct hash128 *chain = mem_array(depth + 1, sizeof(*chain));
    tree_walk(c->tree, &p->at, collect_hash, chain);
    p->v = mem_array(n, sizeof(*p->v));
    while (p->n < n && cache_record(c, &v[p->n], chain, depth, &p->v[p->n]))
        p->n++;
    free(chain);
}

static int may_pin(struct cache *c, const struct tree_mark *at, const char *name,
                   const struct cache_pin *old, struct err *e)
{
    const uint64_t after = weigh(c, at, old);
    if (after > c->o.max_pinned)
        return err_set(e, ERR_LIMIT,
                       "with \"%s\" %llu bytes would be pinned, at most %llu may be: see "
                       "store.max_pinned",
                       name, (unsigned long long)after,
                       (unsigned long long)c->o.max_pinned);
    if (!old && c->pins.n >= CACHE_MAX_PINS)
        return err_set(e, ERR_LIMIT, "there are %d pins already", CACHE_MAX_PINS);
    return 0;
}

int cache_pin(struct cache *c, struct hash128 fingerprint, const char *name,
              const struct piece *v, size_t n, bool public, struct err *e)
{
    struct tree_mark at = {0};
    struct cache_pin *old = find_pin(c, fingerprint, name);
    int rc = 0;
    if (!cache_pin_name_ok(name))
        return err_set(e, ERR_INVALID,
                       "a pin's name has 1 to %d letters, digits and . _ : -",
                       CACHE_PIN_NAME);
    if (!find_start(c, v, n, &at))
        rc = err_set(e, ERR_NOT_FOUND, "what \"%s\" would pin is not stored", name);
    else
        rc = may_pin(c, &at, name, old, e);
    if (rc == 0) {
        struct cache_pin *p = mem_zalloc(sizeof(*p));
        snprintf(p->name, sizeof(p->name), "%s", name);
        p->fingerprint = fingerprint;
        p->hits = old ? old->hits : 0;
        p->public = public;
        tree_mark_copy(c->tree, &p->at, &at);
        tree_pin(c->tree, &p->at);
        p->n_blocks = tree_mark_blocks(&at);
        p->tokens = (uint32_t)tree_mark_tokens(&at);
        note_records(c, p, v, n);
        if (old)
            remove_pin(c, old);
        c->pins.v = mem_rearray(c->pins.v, c->pins.n + 1, sizeof(struct cache_pin *));
        c->pins.v[c->pins.n++] = p;
        keep(c);
    }
    tree_mark_clear(c->tree, &at);
    return rc;
}

bool cache_unpin(struct cache *c, const char *name)
{
    const size_t had = c->pins.n;
    for (size_t i = c->pins.n; i-- > 0;)
        if (strcmp(c->pins.v[i]->name, name) == 0)
            remove_pin(c, c->pins.v[i]);
    if (c->pins.n < had)
        keep(c);
    return c->pins.n < had;
}

static bool is_whole(struct cache *c, const struct cache_pin *p)
{
    return tree_mark_blocks(&p->at) == p->n_blocks &&
           cache_restorable(c, &p->at, UINT32_MAX) == tree_mark_tokens(&p->at);
}

bool cache_pin_whole(struct cache *c, struct hash128 fingerprint, const char *name)
{
    const struct cache_pin *p = find_pin(c, fingerprint, name);
    return p && is_whole(c, p);
}

static bool add_bytes(void *arg, struct tree_block *b, size_t depth)
{
    uint64_t *sum = arg;
    (void)depth;
    *sum += b->size_bytes;
    return true;
}

bool cache_pin_view(struct cache *c, size_t i, struct cache_pin_view *out)
{
    if (i >= c->pins.n)
        return false;
    const struct cache_pin *p = c->pins.v[i];
    *out = (struct cache_pin_view){.name = p->name,
                                   .fingerprint = p->fingerprint,
                                   .attached = cache_model_number(c, p->fingerprint),
                                   .whole = is_whole(c, p),
                                   .public = p->public,
                                   .tokens = (uint32_t)tree_mark_tokens(&p->at),
                                   .hits = p->hits};
    tree_walk(c->tree, &p->at, add_bytes, &out->bytes);
    return true;
}

/* ---- being found ------------------------------------------------------------------- */

static bool is_piece(const struct prompt_record *r, const struct piece *p)
{
    return hash128_eq(r->boundary.hash, p->hash) && r->boundary.check == p->check;
}

/* The last piece of a start closes its part; a prompt whose part goes on there shares
 * the one before. Returns how many it shares: all, all but one, or none. */
static size_t begins_with(const struct cache_pin *p, const struct piece *v, size_t n)
{
    for (size_t k = p->n; k && k + 1 >= p->n; k--)
        if (k <= n && is_piece(&p->v[k - 1], &v[k - 1]))
            return k;
    return 0;
}

void cache_pin_hit(struct cache *c, const struct piece *v, size_t n, int64_t cached)
{
    for (size_t i = 0; i < c->pins.n; i++) {
        struct cache_pin *p = c->pins.v[i];
        if (cached > 0 && cached + 2 * (int64_t)c->o.block_tokens > (int64_t)p->tokens &&
            begins_with(p, v, n))
            p->hits++;
    }
}

static bool is_public(const struct cache_pin *p, struct hash128 fingerprint)
{
    return p->public && hash128_eq(p->fingerprint, fingerprint);
}

size_t cache_public_find(struct cache *c, struct hash128 fingerprint,
                         const struct piece *v, size_t n, struct tree_mark *at,
                         uint32_t *low)
{
    const struct cache_pin *best = NULL;
    size_t most = 0;
    for (size_t i = 0; i < c->pins.n; i++) {
        const struct cache_pin *p = c->pins.v[i];
        const size_t common = is_public(p, fingerprint) ? begins_with(p, v, n) : 0;
        if (common > most) {
            most = common;
            best = p;
        }
    }
    if (!best)
        return 0;
    const struct prompt_record *end = &best->v[most - 1];
    tree_mark_copy(c->tree, at, &best->at);
    if (end->n_blocks < tree_mark_blocks(at))
        tree_mark_up(c->tree, at, end->n_blocks);
    *low = end->boundary.low;
    return most;
}

size_t cache_public_pieces(const struct cache *c, struct hash128 fingerprint)
{
    size_t most = 0;
    for (size_t i = 0; i < c->pins.n; i++)
        if (is_public(c->pins.v[i], fingerprint) && c->pins.v[i]->n > most)
            most = c->pins.v[i]->n;
    return most;
}

void cache_pins_import(struct cache *c, const struct cache_pin *p)
{
    struct tree_mark m = {0};
    for (size_t i = 0; i < p->n; i++) {
        const size_t blocks = p->v[i].n_blocks;
        tree_mark_copy(c->tree, &m, &p->at);
        if (blocks < tree_mark_blocks(&m))
            tree_mark_up(c->tree, &m, blocks);
        if (m.node)
            index_import(c->index, &p->v[i].boundary, &m);
    }
    tree_mark_clear(c->tree, &m);
}

static void touch(struct cache *c, const struct cache_pin *p)
{
    const struct prompt_record *last = &p->v[p->n - 1];
    const struct piece piece = {.hash = last->boundary.hash,
                                .check = last->boundary.check};
    if (p->at.node && !index_touch(c->index, &piece))
        cache_pins_import(c, p);
}

void cache_pins_refresh(struct cache *c)
{
    struct index_stats s;
    index_stats(c->index, &s);
    if (s.evicted - c->pins.evicted <= s.entries / 2)
        return;
    c->pins.evicted = s.evicted;
    for (size_t i = 0; i < c->pins.n; i++)
        touch(c, c->pins.v[i]);
}

/* ---- dropping ---------------------------------------------------------------------- */

struct shared {
    const struct hash128 *chain;
    size_t n, common;
};

static bool count_shared(void *arg, struct tree_block *b, size_t depth)
{
    struct shared *s = arg;
    if (depth >= s->n || !hash128_eq(s->chain[depth], b->hash))
        return false;
    s->common = depth + 1 > s->common ? depth + 1 : s->common;
    return true;
}

/* Blocks from the root that other pins have as well. */
static size_t kept_by_others(struct cache *c, const struct cache_pin *p)
{
    struct shared s = {.n = tree_mark_blocks(&p->at)};
    struct hash128 *chain = mem_array(s.n + 1, sizeof(*chain));
    tree_walk(c->tree, &p->at, collect_hash, chain);
    s.chain = chain;
    for (size_t i = 0; i < c->pins.n; i++)
        if (c->pins.v[i] != p)
            tree_walk(c->tree, &c->pins.v[i]->at, count_shared, &s);
    free(chain);
    return s.common;
}

static uint64_t blocks_now(struct cache *c)
{
    struct tree_stats s;
    tree_stats(c->tree, &s);
    return s.blocks;
}

int cache_drop(struct cache *c, const char *name, size_t *n_blocks, struct err *e)
{
    const uint64_t before = blocks_now(c);
    bool found = false;
    for (size_t i = c->pins.n; i-- > 0;) {
        struct cache_pin *p = c->pins.v[i];
        struct tree_mark m = {0};
        if (strcmp(p->name, name) != 0)
            continue;
        const size_t shared = kept_by_others(c, p);
        found = true;
        tree_mark_copy(c->tree, &m, &p->at);
        remove_pin(c, p);
        if (tree_mark_blocks(&m) > shared) {
            tree_mark_up(c->tree, &m, shared + 1);
            tree_drop(c->tree, &m);
        }
        tree_mark_clear(c->tree, &m);
    }
    if (!found)
        return err_set(e, ERR_NOT_FOUND, "there is no pin \"%.64s\"", name);
    *n_blocks = (size_t)(before - blocks_now(c));
    keep(c);
    return 0;
}

size_t cache_flush(struct cache *c)
{
    return tree_shrink(c->tree, 0, 0);
}
