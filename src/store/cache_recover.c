/* SPDX-License-Identifier: MIT */
#include "cache_internal.h"

/*
 * After a restart: the blocks of a fingerprint go back into the tree, leaf by leaf, each
 * with all before it, and the prompts of `prompts.log` find their places again.
 *
 *     workers: heads of files ──► list ──► worker: prompts.log ──► phases ──► done
 *
 * There may be a million blocks and requests to serve beside them, so each phase goes
 * through the list in bounded turns of the loop. What has room is chosen first, from the
 * most recently used leaf on, and put in afterwards, from the least recently used one on:
 * so nothing has to be evicted for what comes later. Other models live on meanwhile and
 * may evict what is already in; whatever stands behind such a block cannot be reached any
 * more and is dropped.
 */

#include <stdlib.h>
#include <string.h>

#include "base/mem.h"

#define TURN_WORK 4096 /* blocks looked at in one turn of the loop, or one sequence */
#define DROP_WORK 8    /* what dropping one costs, counted so */
#define NONE SIZE_MAX

struct found {
    struct store_head head;
    uint32_t *tokens;
    int64_t used_s; /* by the wall clock */
    size_t parent;  /* index in the list, NONE at a root */
    bool whole;     /* its parent is there, or none is needed */
    bool tried;     /* choose() has been there */
    bool kept;      /* there is room for it */
    bool has_child; /* that is kept */
    bool gone;      /* dropped from the store */
};

struct waiter {
    struct list link;
    void (*done)(void *arg, size_t n_blocks);
    void *arg;
};

struct cache_recovery {
    struct cache *c;
    uint32_t model;
    struct list waiters;
    struct found *v; /* in the order of the store: parents first, oldest leaves first */
    size_t n, cap;
    size_t *table; /* open addressing: chain hash → index + 1 */
    size_t table_size;
    struct prompt_record *prompts;
    size_t n_prompts;
    size_t *prompt_table; /* hash of a boundary → index of its oldest record + 1 */
    size_t prompt_table_size;
    uint64_t room_blocks, room_bytes;
    size_t phase, at; /* where the next turn goes on */
};

/* ---- finding ----------------------------------------------------------------------- */

/* Place of a hash in the table: its own, or the empty one where it would go. */
static size_t *found_slot(const struct cache_recovery *a, struct hash128 hash)
{
    size_t i = (size_t)hash.lo & (a->table_size - 1);
    while (a->table[i] && !hash128_eq(a->v[a->table[i] - 1].head.hash, hash))
        i = (i + 1) & (a->table_size - 1);
    return &a->table[i];
}

static size_t find(const struct cache_recovery *a, struct hash128 hash)
{
    const size_t at = a->table ? *found_slot(a, hash) : 0;
    return at ? at - 1 : NONE;
}

static void make_table(struct cache_recovery *a)
{
    a->table_size = 16;
    while (a->table_size < a->n * 2)
        a->table_size *= 2;
    a->table = mem_zalloc(a->table_size * sizeof(*a->table));
}

static void drop(struct cache_recovery *a, struct found *f)
{
    if (!f->gone)
        store_drop(a->c->store, f->head.fingerprint, f->head.hash);
    f->gone = true;
}

void cache_recovery_evicted(struct cache_recovery *a, struct hash128 hash)
{
    const size_t at = find(a, hash);
    if (at != NONE)
        a->v[at].gone = true;
}

/* ---- phases ------------------------------------------------------------------------ */

/* A step of a phase at a->at. Returns what it cost, 0 behind the last one. */
typedef size_t (*phase_fn)(struct cache_recovery *a);

static size_t fill_table(struct cache_recovery *a)
{
    if (a->at == a->n)
        return 0;
    *found_slot(a, a->v[a->at].head.hash) = a->at + 1;
    a->at++;
    return 1;
}

static size_t link_parent(struct cache_recovery *a)
{
    const uint32_t bt = a->c->o.block_tokens;
    if (a->at == a->n)
        return 0;
    struct found *f = &a->v[a->at++];
    const struct store_head *h = &f->head;
    f->parent = h->index ? find(a, h->parent) : NONE;
    f->whole = h->n_tokens <= bt;
    if (h->index)
        f->whole = f->whole && f->parent != NONE &&
                   a->v[f->parent].head.index + 1 == h->index &&
                   a->v[f->parent].head.n_tokens == bt;
    return 1;
}

/* As it was inserted: a whole state has a little less for each of its words. */
static uint64_t token_bytes(const struct store_head *h)
{
    return (h->rows_bytes + h->n_tokens - 1) / h->n_tokens;
}

/* Takes the room for a block; once there was too little, nothing older is kept. */
static bool take_room(struct cache_recovery *a, const struct found *f)
{
    const uint64_t bytes = token_bytes(&f->head) * f->head.n_tokens;
    if (a->room_blocks == 0 || a->room_bytes < bytes) {
        a->room_blocks = 0;
        return false;
    }
    a->room_blocks--;
    a->room_bytes -= bytes;
    return true;
}

/* Path from the first block that was not tried to `leaf`, into a new array. */
static size_t *untried_path(struct cache_recovery *a, size_t leaf, size_t *n)
{
    size_t i = leaf;
    for (*n = 0; i != NONE && !a->v[i].tried; i = a->v[i].parent) {
        a->v[i].tried = true;
        ++*n;
    }
    size_t *path = mem_array(*n + 1, sizeof(*path));
    i = leaf;
    for (size_t k = *n; k-- > 0; i = a->v[i].parent)
        path[k] = i;
    return path;
}

/* Keeps the path to a block as far as there is room. */
static size_t keep_path(struct cache_recovery *a, size_t leaf)
{
    size_t n;
    if (a->v[leaf].tried)
        return 1;
    size_t *path = untried_path(a, leaf, &n);
    for (size_t i = 0; i < n; i++) {
        struct found *f = &a->v[path[i]];
        const bool reachable = f->parent == NONE || a->v[f->parent].kept;
        if (!f->whole || !reachable || !take_room(a, f))
            break;
        f->kept = true;
        if (f->parent != NONE)
            a->v[f->parent].has_child = true;
    }
    free(path);
    return n;
}

/* From the newest to the oldest. */
static size_t choose(struct cache_recovery *a)
{
    return a->at == a->n ? 0 : keep_path(a, a->n - ++a->at);
}

/* One that this phase has not seen. Pins may be taken away between two turns, so a number
 * would not tell where it was. */
static struct cache_pin *next_pin(struct cache_recovery *a)
{
    struct cache *c = a->c;
    for (size_t i = 0; i < c->pins.n; i++) {
        struct cache_pin *p = c->pins.v[i];
        if (p->phase != a->phase &&
            hash128_eq(p->fingerprint, c->models[a->model - 1].fingerprint)) {
            p->phase = a->phase;
            return p;
        }
    }
    return NULL;
}

/* The deepest block of a pin that is there; of those that are kept where that counts. */
static size_t end_of_pin(const struct cache_recovery *a, const struct cache_pin *p,
                         bool kept)
{
    for (size_t i = p->n; i-- > 0;) {
        const size_t at = p->v[i].n_blocks ? find(a, p->v[i].block) : NONE;
        if (at != NONE && (!kept || a->v[at].kept))
            return at;
    }
    return NONE;
}

/* Before all others: what there is no room for any more, it is not they. */
static size_t choose_pin(struct cache_recovery *a)
{
    const struct cache_pin *p = next_pin(a);
    const size_t end = p ? end_of_pin(a, p, false) : NONE;
    return !p ? 0 : end == NONE ? 1 : keep_path(a, end);
}

/* Drops what stands behind the first block of the path that is gone; false: none is. */
static bool drop_cut_off(struct cache_recovery *a, size_t leaf)
{
    size_t first_gone = NONE;
    for (size_t i = leaf; i != NONE; i = a->v[i].parent)
        if (a->v[i].gone)
            first_gone = i;
    if (first_gone == NONE)
        return false;
    for (size_t i = leaf; i != first_gone; i = a->v[i].parent)
        drop(a, &a->v[i]);
    return true;
}

/* Inserts the sequence that ends with block `leaf`. */
static void insert_found(struct cache_recovery *a, size_t leaf)
{
    struct cache *c = a->c;
    const uint32_t bt = c->o.block_tokens;
    const struct store_head *end = &a->v[leaf].head;
    const size_t n = (size_t)end->index + 1;
    struct hash128 *chain = mem_array(n, sizeof(*chain));
    uint32_t *tokens = mem_array(n * bt, sizeof(*tokens));
    uint32_t tenant = 0;
    for (size_t i = n, at = leaf; i-- > 0; at = a->v[at].parent) {
        const struct found *f = &a->v[at];
        chain[i] = f->head.hash;
        tenant = cache_root_tenant(f->head.parent);
        memcpy(tokens + i * bt, f->tokens, f->head.n_tokens * sizeof(*tokens));
    }
    const bool tail = end->n_tokens < bt;
    struct tree_mark m = {0};
    const struct tree_sequence s = {.chain = chain,
                                    .n = tail ? n - 1 : n,
                                    .tokens = tokens,
                                    .tail_tokens = tail ? end->n_tokens : 0,
                                    .token_bytes = token_bytes(end),
                                    .owner = tenant,
                                    .order = cache_order_of(c, tenant, a->model)};
    tree_now(c->tree, cache_clock_at(&c->clock, a->v[leaf].used_s));
    tree_insert(c->tree, &s, &m);
    tree_now(c->tree, c->clock.now_s);
    tree_walk(c->tree, &m, cache_mark_stored, &a->model);
    /* What the tree has no room for (others are pinned) is of no use in the store. */
    for (size_t i = n, at = leaf; i-- > tree_mark_blocks(&m); at = a->v[at].parent)
        drop(a, &a->v[at]);
    tree_mark_clear(c->tree, &m);
    free(chain);
    free(tokens);
}

static size_t put_in(struct cache_recovery *a)
{
    if (a->at == a->n)
        return 0;
    const size_t i = a->at++;
    if (!a->v[i].kept) {
        drop(a, &a->v[i]);
        return DROP_WORK;
    }
    if (a->v[i].has_child)
        return 1;
    if (!drop_cut_off(a, i))
        insert_found(a, i);
    return (size_t)a->v[i].head.index + 1;
}

/* From the last full block on to the short one behind it: matching knows full blocks
 * only. Where several follow it is the newest, which covers as much. */
static void step_to_tail(struct cache *c, struct tree_mark *m, uint32_t n_tokens)
{
    tree_mark_down(c->tree, m, tree_mark_tokens(m) + n_tokens);
}

static bool has_place(const struct cache_recovery *a, const struct prompt_record *r)
{
    const size_t i = find(a, r->block);
    return i != NONE && a->v[i].kept && a->v[i].head.index + 1 == r->n_blocks;
}

/* The place of a logged boundary: a path to its block. False where it is not known. */
static bool find_place(struct cache_recovery *a, const struct prompt_record *r,
                       struct tree_mark *m)
{
    size_t i = find(a, r->block);
    if (!has_place(a, r))
        return false;
    const uint32_t last_tokens = a->v[i].head.n_tokens;
    struct hash128 *chain = mem_array(r->n_blocks, sizeof(*chain));
    for (uint32_t left = r->n_blocks; left > 0; i = a->v[i].parent)
        chain[--left] = a->v[i].head.hash;
    if (tree_match(a->c->tree, chain, r->n_blocks, NULL, m) + 1 == r->n_blocks)
        step_to_tail(a->c, m, last_tokens);
    free(chain);
    return m->node != NULL;
}

static size_t put_in_pin(struct cache_recovery *a)
{
    struct cache_pin *p = next_pin(a);
    const size_t end = p ? end_of_pin(a, p, true) : NONE;
    if (end == NONE)
        return p != NULL;
    const struct prompt_record r = {.block = a->v[end].head.hash,
                                    .n_blocks = a->v[end].head.index + 1};
    if (!drop_cut_off(a, end))
        insert_found(a, end);
    if (!p->at.node && find_place(a, &r, &p->at))
        tree_pin(a->c->tree, &p->at);
    return r.n_blocks;
}

static size_t place_pin(struct cache_recovery *a)
{
    const struct cache_pin *p = next_pin(a);
    if (p)
        cache_pins_import(a->c, p);
    return p ? p->n : 0;
}

static size_t *record_slot(const struct cache_recovery *a, struct hash128 hash)
{
    size_t i = (size_t)hash.lo & (a->prompt_table_size - 1);
    while (a->prompt_table[i] &&
           !hash128_eq(a->prompts[a->prompt_table[i] - 1].boundary.hash, hash))
        i = (i + 1) & (a->prompt_table_size - 1);
    return &a->prompt_table[i];
}

static size_t fill_prompt_table(struct cache_recovery *a)
{
    if (a->at == a->n_prompts)
        return 0;
    size_t *slot = record_slot(a, a->prompts[a->at++].boundary.hash);
    if (!*slot)
        *slot = a->at;
    return 1;
}

/*
 * A boundary that many prompts share was written down with the blocks of the first of
 * them, which may be gone; without it all the others would be unknown. From the newest
 * record to the oldest, each lends the one before it a place on its own path.
 */
static size_t lend_place(struct cache_recovery *a)
{
    if (a->at == a->n_prompts)
        return 0;
    const struct prompt_record *r = &a->prompts[a->n_prompts - ++a->at];
    const size_t before =
        hash128_none(r->boundary.parent) ? 0 : *record_slot(a, r->boundary.parent);
    if (!before || !has_place(a, r) || has_place(a, &a->prompts[before - 1]))
        return 1;
    struct prompt_record *parent = &a->prompts[before - 1];
    const uint32_t bt = a->c->o.block_tokens, high = parent->boundary.high;
    uint32_t n = high / bt + (high % bt > 0);
    n = n < 1 ? 1 : n < r->n_blocks ? n : r->n_blocks;
    size_t i = find(a, r->block);
    while (a->v[i].head.index + 1 > n)
        i = a->v[i].parent;
    parent->block = a->v[i].head.hash;
    parent->n_blocks = n;
    return (size_t)r->n_blocks;
}

static size_t place_prompt(struct cache_recovery *a)
{
    struct tree_mark m = {0};
    if (a->at == a->n_prompts)
        return 0;
    const struct prompt_record *r = &a->prompts[a->at++];
    if (!find_place(a, r, &m))
        return 1;
    index_import(a->c->index, &r->boundary, &m);
    tree_mark_clear(a->c->tree, &m);
    return (size_t)r->n_blocks;
}

static size_t tell(struct cache_recovery *a)
{
    struct tree_stats ts;
    tree_stats(a->c->tree, &ts);
    struct cache_model *m = &a->c->models[a->model - 1];
    m->recovery = NULL;
    cache_make_room(a->c, m->fingerprint);
    while (!list_empty(&a->waiters)) {
        struct waiter *w = LIST_ENTRY(a->waiters.next, struct waiter, link);
        list_del(&w->link);
        w->done(w->arg, (size_t)ts.blocks);
        free(w);
    }
    cache_recovered(a->c);
    return 0;
}

static const phase_fn phases[] = {NULL /* what a pin has seen before the first one */,
                                  fill_table,
                                  link_parent,
                                  choose_pin,
                                  choose,
                                  put_in_pin,
                                  put_in,
                                  fill_prompt_table,
                                  lend_place,
                                  place_prompt,
                                  place_pin,
                                  tell};
#define LAST_PHASE (sizeof(phases) / sizeof(phases[0]) - 1)

static void nothing(void *arg)
{
    (void)arg;
}

/* On a worker: freeing the memory of a million blocks takes its time. */
static void run_free(void *arg)
{
    struct cache_recovery *a = arg;
    for (size_t i = 0; i < a->n; i++)
        free(a->v[i].tokens);
    free(a->v);
    free(a->table);
    free(a->prompt_table);
    free(a->prompts);
    free(a);
}

static void turn(void *arg)
{
    struct cache_recovery *a = arg;
    if (a->c->parted) /* nobody will ask for it */
        a->phase = LAST_PHASE;
    for (size_t work = 0; work < TURN_WORK && a->phase <= LAST_PHASE;) {
        const size_t cost = phases[a->phase](a);
        work += cost;
        if (!cost) {
            a->at = 0;
            a->phase++;
        }
    }
    if (a->phase <= LAST_PHASE)
        workers_submit(a->c->workers, nothing, turn, a);
    else
        workers_submit(a->c->workers, run_free, nothing, a);
}

/* ---- reading ----------------------------------------------------------------------- */

static void on_prompts(void *arg, struct prompt_record *v, size_t n)
{
    struct cache_recovery *a = arg;
    a->prompts = v;
    a->n_prompts = n;
    a->prompt_table_size = 16;
    while (a->prompt_table_size < n * 2)
        a->prompt_table_size *= 2;
    a->prompt_table = mem_zalloc(a->prompt_table_size * sizeof(*a->prompt_table));
    make_table(a);
    turn(a);
}

static void on_found(void *arg, const struct store_block *b)
{
    struct cache_recovery *a = arg;
    if (!b) {
        if (a->c->log)
            prompt_log_read(a->c->log, on_prompts, a);
        else
            on_prompts(a, NULL, 0);
        return;
    }
    if (a->n == a->cap) {
        a->cap = a->cap ? a->cap * 2 : 64;
        a->v = mem_rearray(a->v, a->cap, sizeof(*a->v));
    }
    a->v[a->n++] = (struct found){.head = b->head,
                                  .used_s = b->used_s,
                                  .tokens = (uint32_t *)(void *)mem_dup(
                                      b->tokens, b->head.n_tokens * sizeof(uint32_t))};
}

static uint32_t add_model(struct cache *c, struct hash128 fingerprint,
                          uint64_t token_bytes)
{
    c->models = mem_rearray(c->models, c->n_models + 1, sizeof(*c->models));
    c->models[c->n_models++] =
        (struct cache_model){.fingerprint = fingerprint, .token_bytes = token_bytes};
    return (uint32_t)c->n_models;
}

static void add_waiter(struct cache_recovery *a, void (*done)(void *arg, size_t n_blocks),
                       void *arg)
{
    struct waiter *w = mem_zalloc(sizeof(*w));
    w->done = done;
    w->arg = arg;
    list_push_back(&a->waiters, &w->link);
}

static struct cache_recovery *start(struct cache *c, struct hash128 fingerprint,
                                    uint64_t token_bytes)
{
    struct cache_recovery *a = mem_zalloc(sizeof(*a));
    a->c = c;
    a->phase = 1;
    a->model = add_model(c, fingerprint, token_bytes);
    a->room_blocks = c->o.max_blocks ? c->o.max_blocks : UINT64_MAX;
    a->room_bytes = c->o.max_bytes ? c->o.max_bytes : UINT64_MAX;
    list_init(&a->waiters);
    c->models[a->model - 1].recovery = a;
    cache_prune(c, fingerprint, c->o.max_bytes / 2);
    store_scan(c->store, fingerprint, on_found, a);
    return a;
}

/* ---- who waits for all of it ------------------------------------------------------- */

struct patient {
    struct list link;
    struct cache *c;
    void (*cb)(void *arg);
    void *arg;
};

bool cache_models_recover(const struct cache *c)
{
    for (size_t i = 0; i < c->n_models; i++)
        if (c->models[i].recovery)
            return true;
    return false;
}

bool cache_recovers(const struct cache *c)
{
    return cache_models_recover(c) || store_recovers(c->store);
}

static void look_again(void *arg)
{
    struct patient *p = arg;
    if (cache_models_recover(p->c)) {
        list_push_back(&p->c->waiting, &p->link);
    } else if (store_recovers(p->c->store)) {
        store_when_recovered(p->c->store, look_again, p);
    } else {
        p->cb(p->arg);
        free(p);
    }
}

void cache_recovered(struct cache *c)
{
    struct list all;
    list_init(&all);
    while (!cache_models_recover(c) && !list_empty(&c->waiting)) {
        struct list *it = c->waiting.next;
        list_del(it);
        list_push_back(&all, it);
    }
    while (!list_empty(&all)) {
        struct list *it = all.next;
        list_del(it);
        workers_submit(c->workers, nothing, look_again,
                       LIST_ENTRY(it, struct patient, link));
    }
}

void cache_when_recovered(struct cache *c, void (*cb)(void *arg), void *arg)
{
    struct patient *p = mem_zalloc(sizeof(*p));
    list_init(&p->link);
    p->c = c;
    p->cb = cb;
    p->arg = arg;
    workers_submit(c->workers, nothing, look_again, p);
}

/* ---- attaching --------------------------------------------------------------------- */

void cache_attach(struct cache *c, struct hash128 fingerprint, uint64_t token_bytes,
                  void (*done)(void *arg, size_t n_blocks), void *arg)
{
    const uint32_t model = cache_model_number(c, fingerprint);
    if (model && !c->models[model - 1].recovery) {
        done(arg, 0);
        return;
    }
    add_waiter(model ? c->models[model - 1].recovery : start(c, fingerprint, token_bytes),
               done, arg);
}
