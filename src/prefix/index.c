/* SPDX-License-Identifier: MIT */

/*
 * One entry for each known boundary; entries form the tree of the known texts:
 *
 *     buckets (by hash) ──▶ entry ──▶ entry with the same bucket
 *
 *     entry 0: the start of all texts                 LRU: 0 ⇄ newest ⇄ … ⇄ oldest ⇄ 0
 *       ├─ S ── S1 ─┬─ a ── a1                             S S1 b b1 a a1
 *       │           └─ b ── b1  (used last)
 *       └─ T                                          the mark of each entry stands in
 *                                                     the block tree, where it fell to
 *                                                     if its block was evicted
 *
 * Whoever touches an entry touches all before it, last to first. So a parent is always
 * newer than its children, the oldest entry has none, and no entry is ever without its
 * parent: that is what makes the known boundaries of a prompt a prefix.
 *
 * Entries are addressed by number and never move (marks are linked by address): one array
 * of the size of the budget, of which the system hands out pages as they are used.
 */

#include <assert.h>
#include <stdlib.h>

#include "base/mem.h"
#include "index_internal.h"

#define USUAL_DENSITY 0.25 /* tokens per byte, before anything was counted */

/* With its share of the buckets: there are at most two to an entry. */
#define ENTRY_BYTES (sizeof(struct index_entry) + 2 * sizeof(uint32_t))
_Static_assert(ENTRY_BYTES <= 128, "an entry is small");

struct index *index_new(uint64_t max_bytes, struct tree *t)
{
    struct index *ix = mem_zalloc(sizeof(*ix));
    uint64_t cap = max_bytes / ENTRY_BYTES, buckets = 1;
    cap = cap < 2 ? 1 : cap - 1; /* the start takes a place as well */
    if (cap > INT32_MAX)
        cap = INT32_MAX;
    while (buckets < cap)
        buckets *= 2;
    ix->tree = t;
    ix->cap = (uint32_t)cap;
    ix->mask = (uint32_t)(buckets - 1);
    ix->entries = mem_array(cap + 1, sizeof(*ix->entries));
    ix->buckets = mem_zalloc(buckets * sizeof(*ix->buckets));
    ix->entries[INDEX_START] = (struct index_entry){.held = 0};
    ix->density = USUAL_DENSITY;
    return ix;
}

void index_free(struct index *ix)
{
    if (!ix)
        return;
    for (uint32_t id = ix->entries[INDEX_START].older; id != INDEX_START;
         id = ix->entries[id].older)
        if (ix->tree)
            tree_mark_clear(ix->tree, &ix->entries[id].mark);
    free(ix->entries);
    free(ix->buckets);
    free(ix);
}

/* ---- order of use ------------------------------------------------------------------ */

static void lru_remove(struct index *ix, uint32_t id)
{
    struct index_entry *e = &ix->entries[id];
    ix->entries[e->newer].older = e->older;
    ix->entries[e->older].newer = e->newer;
}

/* Right behind `at` in age; behind the start, that is the newest of all. */
static void lru_insert(struct index *ix, uint32_t id, uint32_t at)
{
    struct index_entry *e = &ix->entries[id];
    e->newer = at;
    e->older = ix->entries[at].older;
    ix->entries[e->older].newer = id;
    ix->entries[at].older = id;
}

/* Makes an entry and all before it the newest, last one first. */
static void touch(struct index *ix, uint32_t id)
{
    if (id == ix->tip)
        return;
    ix->tip = id;
    for (; id != INDEX_START; id = ix->entries[id].parent) {
        lru_remove(ix, id);
        lru_insert(ix, id, INDEX_START);
    }
}

/* ---- entries ----------------------------------------------------------------------- */

static uint32_t *bucket_of(struct index *ix, struct hash128 hash)
{
    return &ix->buckets[hash.lo & ix->mask];
}

uint32_t index_lookup(struct index *ix, const struct piece *p)
{
    for (uint32_t id = *bucket_of(ix, p->hash); id; id = ix->entries[id].next) {
        const struct index_entry *e = &ix->entries[id];
        if (!hash128_eq(e->hash, p->hash))
            continue;
        if (e->check == p->check)
            return id;
        ix->check_failures++;
    }
    return INDEX_START;
}

static void family_join(struct index *ix, uint32_t id, uint32_t parent)
{
    struct index_entry *e = &ix->entries[id], *p = &ix->entries[parent];
    e->parent = parent;
    e->elder = p->child;
    e->younger = INDEX_START;
    if (p->child)
        ix->entries[p->child].younger = id;
    p->child = id;
}

static void family_leave(struct index *ix, uint32_t id)
{
    struct index_entry *e = &ix->entries[id];
    if (e->younger)
        ix->entries[e->younger].elder = e->elder;
    else
        ix->entries[e->parent].child = e->elder;
    if (e->elder)
        ix->entries[e->elder].younger = e->younger;
}

static void remove_leaf(struct index *ix, uint32_t id)
{
    struct index_entry *e = &ix->entries[id];
    uint32_t *at = bucket_of(ix, e->hash);
    assert(id != INDEX_START && e->child == INDEX_START);
    while (*at != id)
        at = &ix->entries[*at].next;
    *at = e->next;
    lru_remove(ix, id);
    family_leave(ix, id);
    if (ix->tip == id)
        ix->tip = e->parent;
    if (ix->tree)
        tree_mark_clear(ix->tree, &e->mark);
    e->next = ix->free;
    ix->free = id;
    ix->n--;
}

/* An entry and all behind it, leaves first, at most `max`. Returns how many. */
static size_t remove_some(struct index *ix, uint32_t top, size_t max)
{
    size_t n = 0;
    for (uint32_t id = top, parent; n < max; id = parent) {
        while (ix->entries[id].child)
            id = ix->entries[id].child;
        parent = ix->entries[id].parent;
        remove_leaf(ix, id);
        n++;
        if (id == top)
            break;
    }
    return n;
}

static uint32_t take_place(struct index *ix)
{
    if (ix->n == ix->cap) {
        remove_leaf(ix, ix->entries[INDEX_START].newer); /* the oldest */
        ix->evicted++;
    }
    ix->n++;
    const uint32_t id = ix->free;
    if (!id)
        return ++ix->made;
    ix->free = ix->entries[id].next;
    return id;
}

/* Next in age to its parent, whose path was touched last and does not fill the budget. */
static uint32_t add_entry(struct index *ix, const struct piece *p, uint32_t parent,
                          uint32_t owner)
{
    assert(parent == ix->tip);
    const uint32_t id = take_place(ix);
    uint32_t *bucket = bucket_of(ix, p->hash);
    assert(parent == ix->tip);
    ix->entries[id] = (struct index_entry){
        .hash = p->hash, .check = p->check, .next = *bucket, .owner = owner};
    *bucket = id;
    lru_insert(ix, id, parent);
    family_join(ix, id, parent);
    ix->tip = id;
    return id;
}

/* Number of leading pieces that are known, and the entry of the last of them. */
static size_t find_known(struct index *ix, const struct piece *v, size_t n,
                         uint32_t *last)
{
    size_t low = 0, high = n;
    *last = INDEX_START;
    while (low < high) {
        const size_t mid = low + (high - low) / 2;
        const uint32_t id = index_lookup(ix, &v[mid]);
        if (id) {
            *last = id;
            low = mid + 1;
        } else {
            high = mid;
        }
    }
    return low;
}

void index_find(struct index *ix, const struct piece *v, size_t n, struct index_hit *hit)
{
    uint32_t id;
    assert(hit->n_pieces == 0 && !hit->at.node);
    hit->n_pieces = find_known(ix, v, n, &id);
    if (!hit->n_pieces)
        return;
    const struct index_entry *e = &ix->entries[id];
    hit->low = e->bounds.low;
    hit->high = e->bounds.high;
    hit->reach = index_reach(e);
    hit->text_bytes = v[hit->n_pieces - 1].end_bytes;
    if (!ix->tree)
        return;
    tree_mark_copy(ix->tree, &hit->at, &e->mark);
    if (tree_mark_tokens(&hit->at) >= e->held) /* else another text may follow there */
        tree_mark_down(ix->tree, &hit->at, hit->reach);
}

uint32_t index_put_under(struct index *ix, const struct piece *p, uint32_t parent,
                         uint32_t owner)
{
    touch(ix, parent);
    if (ix->n == ix->cap && ix->entries[INDEX_START].newer == parent)
        return INDEX_START; /* its own path is all there is */
    return add_entry(ix, p, parent, owner);
}

void index_place(struct index *ix, struct index_entry *e, const struct tree_mark *at)
{
    const size_t tokens = tree_mark_tokens(at);
    tree_mark_copy(ix->tree, &e->mark, at);
    e->held = tokens < e->bounds.high ? UINT32_MAX : (uint32_t)tokens;
}

uint32_t index_lookup_hash(struct index *ix, struct hash128 hash)
{
    uint32_t id = *bucket_of(ix, hash);
    while (id && !hash128_eq(ix->entries[id].hash, hash))
        id = ix->entries[id].next;
    return id;
}

size_t index_take(struct index *ix, const struct index_lesson *l, size_t n, uint32_t *ids)
{
    uint32_t last;
    const size_t known = find_known(ix, l->v, n, &last);
    assert(n <= ix->cap);
    touch(ix, last);
    for (size_t i = known; i-- > 0; last = ix->entries[last].parent)
        ids[i] = last;
    for (size_t i = known; i < n; i++)
        ids[i] = add_entry(ix, &l->v[i], i ? ids[i - 1] : INDEX_START, l->owner);
    return known;
}

bool index_touch(struct index *ix, const struct piece *p)
{
    const uint32_t id = index_lookup(ix, p);
    if (id)
        touch(ix, id);
    return id != INDEX_START;
}

void index_forget(struct index *ix, const struct piece *v, size_t n, size_t from)
{
    while (index_forget_some(ix, v, n, from, SIZE_MAX))
        ;
}

size_t index_forget_some(struct index *ix, const struct piece *v, size_t n, size_t from,
                         size_t max)
{
    const uint32_t id = from < n ? index_lookup(ix, &v[from]) : INDEX_START;
    return id ? remove_some(ix, id, max) : 0;
}

size_t index_branch(struct index *ix, const struct piece *v, size_t n)
{
    uint32_t id;
    size_t known = find_known(ix, v, n, &id);
    for (; known > 1; known--) {
        const uint32_t parent = ix->entries[id].parent;
        if (ix->entries[id].elder || ix->entries[id].younger)
            return known - 1;
        id = parent;
    }
    return 0;
}

size_t index_drop_owner(struct index *ix, uint32_t owner, size_t max)
{
    size_t n = 0;
    for (uint32_t id = ix->entries[INDEX_START].child, elder; id && n < max; id = elder) {
        elder = ix->entries[id].elder;
        if (owner == INDEX_ANY_OWNER || ix->entries[id].owner == owner)
            n += remove_some(ix, id, max - n);
    }
    return n;
}

void index_stats(const struct index *ix, struct index_stats *out)
{
    *out = (struct index_stats){
        .entries = ix->n,
        .bytes = (ix->made + (uint64_t)1) * sizeof(*ix->entries) +
                 (ix->mask + (uint64_t)1) * sizeof(*ix->buckets),
        .evicted = ix->evicted,
        .check_failures = ix->check_failures,
    };
}
