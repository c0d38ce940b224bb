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
 * Where there is a shared tier (store_redis.h) a put also goes there, a get asks it last,
 * and a drop is no business of it.
 *
 * A call for many blocks becomes one op for each; the last one to finish calls back.
 */

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "base/mem.h"
#include "store_redis.h"

#define MAX_NOTE_BYTES 4096

struct note {
    struct list link;
    char *name, *value;
};

static void nothing(void *arg)
{
    (void)arg;
}

void store_defer(struct store *s, void (*cb)(void *arg), void *arg)
{
    workers_submit(s->workers, nothing, cb, arg);
}

/* ---- opening and closing ----------------------------------------------------------- */

static int load_key(struct store *s, const struct store_options *o, struct err *e)
{
    if (o->key_file)
        return store_key_load(o->key_file, s->key, e);
    if (!s->dir)
        return store_key_make(s->key, e);
    memcpy(s->key, s->dir->key, sizeof s->key);
    return 0;
}

static void on_read_again(void *arg, struct store_block **blocks, size_t good,
                          const struct err *err)
{
    (void)arg;
    (void)err;
    for (size_t i = 0; i < good; i++)
        store_block_put(blocks[i]);
}

/* A block that is not in the shared tier any more: reading it here puts it there. */
static void on_missing(void *arg, const struct store_name *name)
{
    store_get(arg, name->fingerprint, &name->hash, 1, on_read_again, NULL);
}

void store_vouch(struct store *s, struct hash128 fingerprint, const char *note,
                 store_same_cb same)
{
    if (s->redis)
        store_redis_vouch(s->redis, fingerprint, note, same);
}

void store_share(struct store *s, struct hash128 fingerprint, struct hash128 hash)
{
    if (s->redis)
        store_redis_want(s->redis, &(struct store_name){fingerprint, hash});
}

struct store *store_open(const struct store_options *o, struct workers *w, struct err *e)
{
    struct store *s = mem_zalloc(sizeof *s);
    s->workers = w;
    s->lanes.workers = w;
    list_init(&s->notes);
    list_init(&s->when_done);
    s->dir = o->dir ? store_dir_open(o->dir, e) : NULL;
    s->slow = s->dir ? &s->dir->tier : NULL;
    s->ram = store_ram_open(o->ram_bytes);
    if ((o->dir && !s->dir) || load_key(s, o, e) != 0) {
        store_close(s);
        return NULL;
    }
    if (o->redis.where)
        s->redis = store_redis_open(&o->redis, w, on_missing, s);
    if (s->dir)
        store_recover_start(s);
    return s;
}

void store_part(struct store *s)
{
    store_redis_close(s->redis);
    s->redis = NULL;
    if (s->dir)
        s->dir->stopped = true;
}

bool store_busy(const struct store *s)
{
    return s->redis && store_redis_busy(s->redis);
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
    store_part(s);
    assert(s->lanes.map.n == 0 && s->walks == 0); /* the workers were flushed */
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

static bool on_dropped(struct store_op *op)
{
    free(LIST_ENTRY(op, struct drop_op, op));
    return true;
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

void store_forget(struct store *s, struct hash128 fingerprint, struct hash128 hash)
{
    const struct store_name name = {fingerprint, hash};
    store_drop(s, fingerprint, hash);
    if (!s->redis)
        return;
    store_redis_delete(s->redis, STORE_REDIS_BLOCK, &name);
    store_redis_delete(s->redis, STORE_REDIS_SEQUENCE, &name);
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
    out->unwritten_bytes = s->unwritten_bytes;
    if (!s->dir)
        return;
    out->disk_blocks = s->dir->tier.blocks;
    out->disk_bytes = s->dir->tier.bytes;
    out->damaged += s->dir->n_damaged;
    out->orphans = s->dir->n_orphans;
    out->heads_read = s->dir->n_heads;
    out->counting = !s->dir->counted;
}

void store_redis_stats(const struct store *s, struct store_redis_stats *out)
{
    *out = s->redis ? *store_redis_count(s->redis) : (struct store_redis_stats){0};
}
