/* SPDX-License-Identifier: MIT */
#include "store/store.h"

/*
 *      put ──► RAM tier (at once)          get ──► RAM tier ── found ──► worker: verify
 *       └────► lane ──► worker: write       └────► lane ──► worker: read, verify ──► RAM
 *     drop ──► RAM tier (at once)
 *       └────► lane ──► worker: delete
 *
 * The directory is the truth, RAM a cache over it; without a directory RAM is all there
 * is. Everything about one name that touches the slow tier goes through its lane in the
 * order in which it was asked for, so a drop behind a pending write wins, and so does a
 * put behind a drop. What has been read comes into RAM unless a drop waits behind it.
 *
 * A call for many blocks becomes one op for each; the last one to finish calls back.
 */

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

#include "base/log.h"
#include "base/mem.h"
#include "store_internal.h"

#define MAX_UNWRITTEN_BYTES ((uint64_t)2 << 30) /* more waits for no disk: RAM only */
#define SCAN_BATCH 256                          /* blocks told in one turn of the loop */
#define MAX_NOTE_BYTES 4096

struct note {
    struct list link;
    char *name, *value;
};

struct store {
    struct workers *workers;
    struct store_lanes lanes;
    struct store_tier *ram;
    struct store_dir *dir;   /* NULL: RAM only */
    struct store_tier *slow; /* the directory's, or NULL */
    unsigned char key[CHAIN_KEY_BYTES];
    struct list notes; /* without a directory */
    uint64_t unwritten_bytes;
    bool write_broken; /* the last write failed, and that was logged */
    struct store_stats count;
};

static void nothing(void *arg)
{
    (void)arg;
}

/* Calls cb(arg) later, from the loop. */
static void defer(struct store *s, void (*cb)(void *arg), void *arg)
{
    workers_submit(s->workers, nothing, cb, arg);
}

/* ---- opening and closing ----------------------------------------------------------- */

static bool make_key(struct store *s, struct err *e)
{
    if (getrandom(s->key, sizeof s->key, 0) == sizeof s->key)
        return true;
    err_errno(e, "no random bytes for a key");
    return false;
}

struct store *store_open(const struct store_options *o, struct workers *w, struct err *e)
{
    struct store *s = mem_zalloc(sizeof *s);
    s->workers = w;
    s->lanes.workers = w;
    list_init(&s->notes);
    if (o->dir) {
        s->dir = store_dir_open(o->dir, e);
        if (s->dir)
            memcpy(s->key, s->dir->key, sizeof s->key);
    }
    if (o->dir ? !s->dir : !make_key(s, e)) {
        free(s);
        return NULL;
    }
    s->slow = s->dir ? &s->dir->tier : NULL;
    s->ram = store_ram_open(o->ram_bytes);
    return s;
}

static void free_note(struct note *n)
{
    list_del(&n->link);
    free(n->name);
    free(n->value);
    free(n);
}

void store_close(struct store *s)
{
    if (!s)
        return;
    assert(s->lanes.map.n == 0); /* the workers were flushed */
    store_map_free(&s->lanes.map);
    while (!list_empty(&s->notes))
        free_note(LIST_ENTRY(s->notes.next, struct note, link));
    s->ram->ops->close(s->ram);
    if (s->slow)
        s->slow->ops->close(s->slow);
    free(s);
}

const unsigned char *store_key(const struct store *s)
{
    return s->key;
}

/* ---- foreign blocks ---------------------------------------------------------------- */

/* From now on blocks of this fingerprint are ours. */
static void claim(struct store *s, struct hash128 fingerprint)
{
    for (size_t i = 0; s->dir && i < s->dir->n_folders; i++)
        if (hash128_eq(s->dir->folders[i].fingerprint, fingerprint))
            s->dir->folders[i].claimed = true;
}

uint64_t store_foreign_bytes(const struct store *s)
{
    uint64_t bytes = 0;
    for (size_t i = 0; s->dir && i < s->dir->n_folders; i++)
        bytes += s->dir->folders[i].claimed ? 0 : s->dir->folders[i].bytes;
    return bytes;
}

struct prune {
    struct store *s;
    struct store_folder *folders;
    size_t n;
    uint64_t keep_bytes;
};

static void run_prune(void *arg)
{
    struct prune *p = arg;
    store_scan_prune(p->s->dir, p->folders, p->n, p->keep_bytes);
}

static void on_pruned(void *arg)
{
    struct prune *p = arg;
    struct store_dir *d = p->s->dir;
    for (size_t i = 0; i < p->n; i++)
        for (size_t j = 0; j < d->n_folders; j++)
            if (hash128_eq(d->folders[j].fingerprint, p->folders[i].fingerprint))
                d->folders[j].bytes = p->folders[i].bytes;
    free(p->folders);
    free(p);
}

void store_prune_foreign(struct store *s, struct hash128 fingerprint, uint64_t keep_bytes)
{
    if (!s->dir)
        return;
    struct prune *p = mem_zalloc(sizeof *p);
    claim(s, fingerprint);
    p->s = s;
    p->keep_bytes = keep_bytes;
    p->folders = mem_array(s->dir->n_folders + 1, sizeof *p->folders);
    for (size_t i = 0; i < s->dir->n_folders; i++)
        if (!s->dir->folders[i].claimed)
            p->folders[p->n++] = s->dir->folders[i];
    workers_submit(s->workers, run_prune, on_pruned, p);
}

/* ---- putting ----------------------------------------------------------------------- */

struct batch {
    struct store *s;
    size_t left, stored;
    store_put_cb done;
    void *arg;
};

struct write_op {
    struct store_op op;
    struct store *s;
    struct batch *batch;
    struct store_block *block;
    int rc;
    struct err err;
};

static void finish_batch(void *arg)
{
    struct batch *p = arg;
    if (p->done)
        p->done(p->arg, p->stored);
    free(p);
}

static void run_write(struct store_op *op)
{
    struct write_op *w = LIST_ENTRY(op, struct write_op, op);
    w->rc = w->s->slow->ops->put(w->s->slow, w->block, &w->err);
}

/* A full disk says so once, and once more when it works again. */
static void note_write(struct store *s, int rc, const struct err *e)
{
    if (rc) {
        s->count.write_errors++;
        if (!s->write_broken)
            log_event(LOG_WARN, "store-write-failed", "error", "%s", e->text, NULL);
    } else if (s->write_broken) {
        log_event(LOG_INFO, "store-write-works", NULL);
    }
    s->write_broken = rc != 0;
}

static void on_written(struct store_op *op)
{
    struct write_op *w = LIST_ENTRY(op, struct write_op, op);
    struct batch *p = w->batch;
    note_write(w->s, w->rc, &w->err);
    w->s->unwritten_bytes -= store_block_bytes(&w->block->head);
    p->stored += w->rc == 0;
    store_block_put(w->block);
    free(w);
    if (--p->left == 0)
        finish_batch(p);
}

static struct store_name name_of(const struct store_block *b)
{
    return (struct store_name){b->head.fingerprint, b->head.hash};
}

static void start_write(struct store *s, struct store_block *b, struct batch *p)
{
    struct write_op *w = mem_zalloc(sizeof *w);
    w->op.name = name_of(b);
    w->op.run = run_write;
    w->op.done = on_written;
    w->s = s;
    w->batch = p;
    w->block = store_block_get(b);
    s->unwritten_bytes += store_block_bytes(&b->head);
    p->left++;
    store_lane_enter(&s->lanes, &w->op);
}

static bool too_much_unwritten(const struct store *s, const struct store_block *b)
{
    return s->unwritten_bytes + store_block_bytes(&b->head) > MAX_UNWRITTEN_BYTES;
}

void store_put(struct store *s, struct store_block *const *blocks, size_t n,
               store_put_cb done, void *arg)
{
    struct batch *p = mem_zalloc(sizeof *p);
    *p = (struct batch){.s = s, .done = done, .arg = arg};
    s->count.puts += n;
    for (size_t i = 0; i < n; i++) {
        const int rc = s->ram->ops->put(s->ram, blocks[i], NULL);
        claim(s, blocks[i]->head.fingerprint);
        if (!s->slow)
            p->stored += rc == 0;
        else if (too_much_unwritten(s, blocks[i]))
            s->count.write_errors++;
        else
            start_write(s, blocks[i], p);
    }
    if (p->left == 0)
        defer(s, finish_batch, p);
}

/* ---- getting ----------------------------------------------------------------------- */

struct get {
    struct store *s;
    size_t n, left;
    struct store_block **blocks;
    struct err *errs; /* of each block */
    store_get_cb done;
    void *arg;
};

struct read_op {
    struct store_op op;
    struct get *get;
    size_t i;
    struct store_block *block; /* out of RAM, to be verified; then the result */
    bool bad_in_ram, from_slow;
    struct store_block *bad;
    struct err err;
};

static void finish_get(void *arg)
{
    struct get *g = arg;
    struct err e = {0};
    size_t good = 0;
    while (good < g->n && g->blocks[good])
        good++;
    if (good < g->n) {
        e = g->errs[good];
        err_wrap(&e, "block %zu of %zu", good + 1, g->n);
    }
    for (size_t i = good; i < g->n; i++)
        store_block_put(g->blocks[i]);
    g->done(g->arg, g->blocks, good, e.code ? &e : NULL);
    free(g->blocks);
    free(g->errs);
    free(g);
}

/* Its turn in the lane: what came before may have brought the block into RAM. */
static void start_read(struct store_op *op)
{
    struct read_op *r = LIST_ENTRY(op, struct read_op, op);
    struct store_tier *ram = r->get->s->ram;
    if (!r->block)
        ram->ops->get(ram, &op->name, &r->block, NULL);
}

static void run_read(struct store_op *op)
{
    struct read_op *r = LIST_ENTRY(op, struct read_op, op);
    struct store_tier *slow = r->get->s->slow;
    if (r->block && store_block_verify(r->block)) {
        if (slow)
            slow->ops->touch(slow, &op->name);
        return;
    }
    r->bad = r->block;
    r->block = NULL;
    if (slow)
        r->from_slow = slow->ops->get(slow, &op->name, &r->block, &r->err) == 0;
    else
        err_set(&r->err, r->bad ? ERR_CHECKSUM : ERR_NOT_FOUND, "%s",
                r->bad ? "was damaged in RAM" : "is not there");
}

/* A block that went bad in RAM leaves it, unless another one has taken its place. */
static void drop_bad(struct store *s, struct read_op *r)
{
    struct store_block *now = NULL;
    s->count.damaged++;
    log_event(LOG_ERROR, "block-damaged-in-ram", "bytes", "%llu",
              (unsigned long long)store_block_bytes(&r->bad->head), NULL);
    if (s->ram->ops->get(s->ram, &r->op.name, &now, NULL) == 0 && now == r->bad)
        s->ram->ops->drop(s->ram, &r->op.name);
    store_block_put(now);
    store_block_put(r->bad);
}

static void count_read(struct store *s, const struct read_op *r)
{
    s->count.disk_hits += r->from_slow;
    s->count.ram_hits += r->block && !r->from_slow;
    s->count.missing += r->err.code == ERR_NOT_FOUND;
    s->count.read_errors += r->err.code == ERR_IO;
}

static void on_read(struct store_op *op)
{
    struct read_op *r = LIST_ENTRY(op, struct read_op, op);
    struct get *g = r->get;
    if (r->bad)
        drop_bad(g->s, r);
    count_read(g->s, r);
    /* Outside a lane nothing tells whether it was dropped meanwhile. */
    if (r->from_slow && op->lane && !store_lane_drop_follows(op))
        g->s->ram->ops->put(g->s->ram, r->block, NULL);
    g->blocks[r->i] = r->block;
    g->errs[r->i] = r->err;
    free(r);
    if (--g->left == 0)
        finish_get(g);
}

static void start_get(struct get *g, size_t i, const struct store_name *name)
{
    struct store *s = g->s;
    struct read_op *r = mem_zalloc(sizeof *r);
    r->op.name = *name;
    r->op.start = start_read;
    r->op.run = run_read;
    r->op.done = on_read;
    r->get = g;
    r->i = i;
    g->left++;
    if (s->ram->ops->get(s->ram, name, &r->block, NULL) == 0)
        store_lane_pass(&s->lanes, &r->op);
    else
        store_lane_enter(&s->lanes, &r->op);
}

void store_get(struct store *s, struct hash128 fingerprint, const struct hash128 *hashes,
               size_t n, store_get_cb done, void *arg)
{
    struct get *g = mem_zalloc(sizeof *g);
    *g = (struct get){.s = s, .n = n, .done = done, .arg = arg};
    g->blocks = mem_zalloc((n + 1) * sizeof(struct store_block *));
    g->errs = mem_zalloc((n + 1) * sizeof *g->errs);
    s->count.gets += n;
    for (size_t i = 0; i < n; i++)
        start_get(g, i, &(struct store_name){fingerprint, hashes[i]});
    if (n == 0)
        defer(s, finish_get, g);
}

/* ---- dropping ---------------------------------------------------------------------- */

struct drop_op {
    struct store_op op;
    struct store *s;
};

static void run_drop(struct store_op *op)
{
    struct drop_op *d = LIST_ENTRY(op, struct drop_op, op);
    d->s->slow->ops->drop(d->s->slow, &op->name);
}

static void on_dropped(struct store_op *op)
{
    free(LIST_ENTRY(op, struct drop_op, op));
}

void store_drop(struct store *s, struct hash128 fingerprint, struct hash128 hash)
{
    const struct store_name name = {fingerprint, hash};
    s->count.drops++;
    s->ram->ops->drop(s->ram, &name);
    if (!s->slow)
        return;
    struct drop_op *d = mem_zalloc(sizeof *d);
    d->op.name = name;
    d->op.run = run_drop;
    d->op.done = on_dropped;
    d->op.drops = true;
    d->s = s;
    store_lane_enter(&s->lanes, &d->op);
}

/* ---- recovery ---------------------------------------------------------------------- */

struct scan {
    struct store *s;
    struct hash128 fingerprint;
    struct store_scan_list list;
    size_t told;
    store_scan_cb cb;
    void *arg;
};

static void run_scan(void *arg)
{
    struct scan *c = arg;
    if (c->s->dir)
        store_scan_read(c->s->dir, c->fingerprint, &c->list);
}

static void tell_some(void *arg)
{
    struct scan *c = arg;
    for (int i = 0; i < SCAN_BATCH && c->told < c->list.n_order; i++) {
        const struct store_found *f = c->list.order[c->told++];
        const struct store_block b = {.head = f->head, .tokens = f->tokens};
        c->cb(c->arg, &b);
    }
    if (c->told < c->list.n_order) {
        defer(c->s, tell_some, c);
        return;
    }
    c->cb(c->arg, NULL);
    store_scan_free(&c->list);
    free(c);
}

void store_scan(struct store *s, struct hash128 fingerprint, store_scan_cb cb, void *arg)
{
    struct scan *c = mem_zalloc(sizeof *c);
    *c = (struct scan){.s = s, .fingerprint = fingerprint, .cb = cb, .arg = arg};
    claim(s, fingerprint);
    workers_submit(s->workers, run_scan, tell_some, c);
}

/* ---- notes ------------------------------------------------------------------------- */

static bool good_note_name(const char *name)
{
    const size_t n = strlen(name);
    return n > 0 && n <= 64 && strspn(name, "abcdefghijklmnopqrstuvwxyz0123456789-") == n;
}

static struct note *find_note(const struct store *s, const char *name)
{
    LIST_EACH (it, &s->notes) {
        struct note *n = LIST_ENTRY(it, struct note, link);
        if (strcmp(n->name, name) == 0)
            return n;
    }
    return NULL;
}

bool store_note_get(const struct store *s, const char *name, char *out, size_t size)
{
    assert(good_note_name(name) && size > 0);
    if (s->dir)
        return store_dir_note_get(s->dir, name, out, size);
    const struct note *n = find_note(s, name);
    if (!n)
        return false;
    const size_t len = strnlen(n->value, size - 1);
    memcpy(out, n->value, len);
    out[len] = '\0';
    return true;
}

void store_note_set(struct store *s, const char *name, const char *value)
{
    assert(good_note_name(name) && strlen(value) <= MAX_NOTE_BYTES);
    if (s->dir) {
        store_dir_note_set(s->dir, name, value);
        return;
    }
    struct note *n = find_note(s, name);
    if (n)
        free_note(n);
    n = mem_zalloc(sizeof *n);
    n->name = mem_strdup(name);
    n->value = mem_strdup(value);
    list_push_back(&s->notes, &n->link);
}

/* ---- numbers ----------------------------------------------------------------------- */

void store_stats(const struct store *s, struct store_stats *out)
{
    *out = s->count;
    out->ram_blocks = s->ram->blocks;
    out->ram_bytes = s->ram->bytes;
    if (!s->dir)
        return;
    out->disk_blocks = s->dir->tier.blocks;
    out->disk_bytes = s->dir->tier.bytes;
    out->damaged += s->dir->n_damaged;
    out->orphans = s->dir->n_orphans;
}
