/* SPDX-License-Identifier: MIT */
#include "prefix/tree.h"

/*
 * Random operations on the tree and on a model of it that is as plain as can be: a flat
 * array of blocks, each with its parent and the time of its last use. After every step
 * the tree checks itself, and everything that can be asked is compared, evictions in
 * their exact order included. Seeds are fixed and printed with a failure.
 */

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "cmocka_all.h"

#define BLOCK_TOKENS 4
#define MODEL_BLOCKS 4096
#define MARKS 24
#define HOLDERS 5
#define POOL 24
#define ORDERS 3
#define MAX_LEN 800
#define LOG 8192

struct setup {
    const char *name;
    uint64_t max_blocks, max_bytes;
    unsigned steps;
    unsigned max_len;  /* of a sequence, in blocks */
    unsigned alphabet; /* choices for the next block: few make much sharing */
    bool keep_tokens;
    unsigned protect; /* percent */
};

static const struct setup setups[] = {
    {"crowded", 40, 0, 4000, 12, 2, true, 0},
    {"roomy", 400, 0, 1500, 30, 3, true, 0},
    {"bytes", 0, 700, 3000, 20, 2, false, 0},
    {"both", 60, 120, 3000, 16, 2, true, 0},
    {"tiny", 3, 0, 2000, 8, 2, true, 0},
    {"long runs", 2000, 0, 500, MAX_LEN, 1, false, 0}, /* longer than a node may be */
    {"protected", 60, 120, 3000, 16, 2, true, 80},
    {"long protected", 2000, 0, 500, MAX_LEN, 1, false, 50},
    {"half", 40, 0, 4000, 12, 3, true, 50},
};

struct block {
    bool alive, pinned, stays; /* pinned, stays (pinned or in use): scratch */
    int parent;                /* -1: none */
    struct hash128 hash;
    bool hit;
    uint32_t n_tokens, state, owner, order, used;
    uint64_t size, stamp;
};

struct place {
    int block; /* -1: nowhere */
    bool pinned;
};

struct gone {
    uint64_t lo;
    uint32_t state;
    bool evicted;
};

/* A sequence: what each block says, and a tail. */
struct seq {
    unsigned n, tail;
    unsigned char said[MAX_LEN + 1];
};

struct bench {
    const struct setup *su;
    unsigned seed, step;
    uint64_t random, clock;
    uint32_t now;

    struct tree *tree;
    struct tree_mark mark[MARKS];
    struct gone tree_log[LOG];
    size_t n_tree_log;

    struct block b[MODEL_BLOCKS];
    int top; /* no block was ever at or behind this one */
    struct place at[MARKS], tip[HOLDERS];
    struct gone model_log[LOG];
    size_t n_model_log;

    struct seq pool[POOL];
    struct hash128 chain[MAX_LEN + 1];
    uint32_t tokens[(MAX_LEN + 1) * BLOCK_TOKENS];
};

static uint64_t next(struct bench *x)
{
    x->random ^= x->random << 13;
    x->random ^= x->random >> 7;
    x->random ^= x->random << 17;
    return x->random * UINT64_C(0x2545f4914f6cdd1d) >> 11;
}

static unsigned below(struct bench *x, unsigned n)
{
    return (unsigned)(next(x) % n);
}

#define REQUIRE(x, cond, ...)                                                            \
    do {                                                                                 \
        if (!(cond)) {                                                                   \
            print_error("%s, seed %u, step %u: ", (x)->su->name, (x)->seed, (x)->step);  \
            fail_msg(__VA_ARGS__);                                                       \
        }                                                                                \
    } while (0)

/* ---- sequences --------------------------------------------------------------------- */

/* A pooled sequence, cut somewhere, with something new behind it. */
static struct seq *make_sequence(struct bench *x)
{
    struct seq *from = &x->pool[below(x, POOL)], *s = &x->pool[below(x, POOL)];
    unsigned keep = below(x, 4) == 0 ? from->n : below(x, from->n + 1);
    memmove(s->said, from->said, sizeof(s->said));
    unsigned room = x->su->max_len - keep;
    s->n = keep + (room ? below(x, room + 1) : 0);
    for (unsigned i = keep; i <= s->n; i++)
        s->said[i] = (unsigned char)below(x, x->su->alphabet);
    if (keep == 0 && s->n > 0 && below(x, 4) == 0)
        s->said[0] = (unsigned char)(100 + below(x, 4)); /* another root */
    s->tail = below(x, 3) == 0 ? 1 + below(x, BLOCK_TOKENS - 1) : 0;
    return s;
}

static struct hash128 mix(struct hash128 parent, uint64_t what)
{
    uint64_t lo = (parent.lo + what + 1) * UINT64_C(0x9e3779b97f4a7c15);
    return (struct hash128){.lo = lo ^ lo >> 29, .hi = lo * 3 ^ parent.hi};
}

/* Fills x->chain and x->tokens. */
static struct tree_sequence spell(struct bench *x, const struct seq *s)
{
    struct hash128 h = {1, 1};
    for (unsigned i = 0; i <= s->n; i++) {
        h = mix(h, i < s->n ? s->said[i] : 1000u + 10u * s->tail + s->said[i]);
        x->chain[i] = h;
        for (unsigned k = 0; k < BLOCK_TOKENS; k++)
            x->tokens[i * BLOCK_TOKENS + k] = s->said[i] * 10u + k;
    }
    return (struct tree_sequence){.chain = x->chain,
                                  .n = s->n,
                                  .tokens = below(x, 4) ? x->tokens : NULL,
                                  .tail_tokens = s->tail,
                                  .token_bytes = below(x, 4),
                                  .owner = below(x, 3),
                                  .order = below(x, ORDERS)};
}

/* ---- the model --------------------------------------------------------------------- */

static int child_of(const struct bench *x, int parent, struct hash128 hash)
{
    for (int i = 0; i < x->top; i++)
        if (x->b[i].alive && x->b[i].parent == parent && hash128_eq(x->b[i].hash, hash))
            return i;
    return -1;
}

static int newest_child(const struct bench *x, int parent)
{
    int best = -1;
    for (int i = 0; i < x->top; i++)
        if (x->b[i].alive && x->b[i].parent == parent &&
            (best < 0 || x->b[i].stamp > x->b[best].stamp))
            best = i;
    return best;
}

static size_t depth_of(const struct bench *x, int i)
{
    size_t n = 0;
    for (; i >= 0; i = x->b[i].parent)
        n++;
    return n;
}

static size_t tokens_to(const struct bench *x, int i)
{
    size_t n = 0;
    for (; i >= 0; i = x->b[i].parent)
        n += x->b[i].n_tokens;
    return n;
}

/* Blocks that the prefixes of both have in common. */
static size_t depth_shared(const struct bench *x, int a, int b)
{
    size_t depth_a = depth_of(x, a), depth_b = depth_of(x, b);
    for (; depth_a > depth_b; depth_a--)
        a = x->b[a].parent;
    for (; depth_b > depth_a; depth_b--)
        b = x->b[b].parent;
    for (; a != b; depth_a--) {
        a = x->b[a].parent;
        b = x->b[b].parent;
    }
    return depth_a;
}

static void hit(struct bench *x, int i)
{
    for (; i >= 0; i = x->b[i].parent)
        x->b[i].hit = x->su->protect > 0;
}

static void use(struct bench *x, int i)
{
    for (; i >= 0; i = x->b[i].parent) {
        x->b[i].stamp = ++x->clock;
        x->b[i].used = x->now;
    }
}

static bool protects(const struct bench *x)
{
    uint64_t blocks = 0, bytes = 0;
    for (int i = 0; i < x->top; i++) {
        const bool kept = x->b[i].alive && x->b[i].hit && !x->b[i].pinned;
        blocks += kept;
        bytes += kept ? x->b[i].size : 0;
    }
    return x->su->protect &&
           (!x->su->max_blocks || blocks * 100 <= x->su->max_blocks * x->su->protect) &&
           (!x->su->max_bytes || bytes * 100 <= x->su->max_bytes * x->su->protect);
}

static void fall(const struct bench *x, struct place *p, int i)
{
    if (p->block == i)
        p->block = x->b[i].parent;
    if (p->block < 0)
        p->pinned = false;
}

static void remove_block(struct bench *x, int i, bool evicted)
{
    x->model_log[x->n_model_log++] =
        (struct gone){x->b[i].hash.lo, x->b[i].state, evicted};
    x->b[i].alive = false;
    for (int m = 0; m < MARKS; m++)
        fall(x, &x->at[m], i);
    for (int id = 0; id < HOLDERS; id++)
        fall(x, &x->tip[id], i);
}

/* Marks what pins keep, and the path to `in_use`. */
static void find_what_stays(struct bench *x, int in_use)
{
    for (int i = 0; i < x->top; i++)
        x->b[i].stays = x->b[i].pinned = false;
    for (int i = in_use; i >= 0; i = x->b[i].parent)
        x->b[i].stays = true;
    for (int m = 0; m < MARKS; m++)
        for (int i = x->at[m].pinned ? x->at[m].block : -1; i >= 0; i = x->b[i].parent)
            x->b[i].stays = x->b[i].pinned = true;
}

/* A new sequence takes nothing from what is protected. */
static void keep_protected(struct bench *x)
{
    const bool protected = protects(x);
    for (int i = 0; protected && i < x->top; i++)
        x->b[i].stays |= x->b[i].alive && x->b[i].hit;
}

/* The block that goes next, of one order or of all (-1); -1: none may. */
static int next_to_go(const struct bench *x, int order)
{
    int oldest[2] = {-1, -1};
    for (int i = 0; i < x->top; i++) {
        const struct block *b = &x->b[i];
        int *best = &oldest[b->hit];
        if (b->alive && !b->stays && (order < 0 || b->order == (uint32_t)order) &&
            (*best < 0 || b->stamp < x->b[*best].stamp))
            *best = i;
    }
    if (oldest[0] < 0 || oldest[1] < 0)
        return oldest[oldest[0] < 0];
    const bool hit_is_older = x->b[oldest[1]].stamp < x->b[oldest[0]].stamp;
    return oldest[hit_is_older && (order >= 0 || !protects(x))];
}

static void add_up(const struct bench *x, bool only_what_stays, uint64_t *blocks,
                   uint64_t *bytes)
{
    *blocks = *bytes = 0;
    for (int i = 0; i < x->top; i++) {
        if (x->b[i].alive && (!only_what_stays || x->b[i].stays)) {
            *blocks += 1;
            *bytes += x->b[i].size;
        }
    }
}

/* Evicts by age until that fits; false when nothing is left that may go. */
static bool evict_until(struct bench *x, uint64_t max_blocks, uint64_t max_bytes)
{
    for (;;) {
        uint64_t blocks, bytes;
        add_up(x, false, &blocks, &bytes);
        if (blocks <= max_blocks && bytes <= max_bytes)
            return true;
        const int oldest = next_to_go(x, -1);
        if (oldest < 0)
            return false;
        remove_block(x, oldest, true);
    }
}

static int model_match(const struct bench *x, const struct tree_sequence *s, size_t total,
                       size_t *depth)
{
    int at = -1, child;
    *depth = 0;
    while (*depth < total && (child = child_of(x, at, s->chain[*depth])) >= 0) {
        at = child;
        ++*depth;
    }
    return at;
}

static int add_block(struct bench *x, int parent, const struct tree_sequence *s, size_t i)
{
    int slot = 0;
    while (x->b[slot].alive)
        slot++;
    REQUIRE(x, slot < MODEL_BLOCKS - 1, "the model is too small");
    x->top = slot < x->top ? x->top : slot + 1;
    uint32_t n_tokens = i < s->n ? BLOCK_TOKENS : s->tail_tokens;
    x->b[slot] = (struct block){.alive = true,
                                .parent = parent,
                                .hash = s->chain[i],
                                .n_tokens = n_tokens,
                                .owner = parent < 0 ? s->owner : x->b[parent].owner,
                                .order = parent < 0 ? s->order : x->b[parent].order,
                                .size = n_tokens * s->token_bytes};
    return slot;
}

static size_t model_insert(struct bench *x, const struct tree_sequence *s, int *end)
{
    uint64_t max_blocks = x->su->max_blocks ? x->su->max_blocks : UINT64_MAX;
    uint64_t max_bytes = x->su->max_bytes ? x->su->max_bytes : UINT64_MAX;
    uint64_t blocks, bytes, more = 0, more_bytes = 0;
    size_t known, total = s->n + (s->tail_tokens > 0);
    int at = model_match(x, s, total, &known);
    hit(x, at);
    find_what_stays(x, at);
    keep_protected(x);
    add_up(x, true, &blocks, &bytes);
    for (size_t i = known; i < total; i++) {
        uint64_t size = (i < s->n ? BLOCK_TOKENS : s->tail_tokens) * s->token_bytes;
        if (blocks + more + 1 > max_blocks || bytes + more_bytes + size > max_bytes)
            break;
        more++;
        more_bytes += size;
    }
    bool fits = evict_until(x, max_blocks - more, max_bytes - more_bytes);
    REQUIRE(x, fits, "the model does not add up");
    for (size_t i = known; i < known + more; i++)
        at = add_block(x, at, s, i);
    use(x, at);
    *end = at;
    return more;
}

static void model_drop(struct bench *x, int top)
{
    int last;
    do { /* leaves first, so that marks fall the whole way */
        last = top;
        for (int child; (child = newest_child(x, last)) >= 0;)
            last = child;
        remove_block(x, last, false);
    } while (last != top);
}

/* ---- operations on both ------------------------------------------------------------ */

static void set_mark(struct bench *x, int m, int block)
{
    x->at[m] = (struct place){block, false};
}

static void op_insert(struct bench *x, int m)
{
    struct tree_sequence s = spell(x, make_sequence(x));
    int end;
    tree_mark_clear(x->tree, &x->mark[m]);
    set_mark(x, m, -1);
    size_t want = model_insert(x, &s, &end);
    size_t got = tree_insert(x->tree, &s, &x->mark[m]);
    set_mark(x, m, end);
    REQUIRE(x, got == want, "inserted %zu blocks, want %zu", got, want);
}

static void op_match(struct bench *x, int m)
{
    struct tree_sequence s = spell(x, make_sequence(x));
    size_t want;
    tree_mark_clear(x->tree, &x->mark[m]);
    size_t got = tree_match(x->tree, s.chain, s.n, s.tokens, &x->mark[m]);
    set_mark(x, m, model_match(x, &s, s.n, &want));
    REQUIRE(x, got == want, "matched %zu blocks, want %zu", got, want);
}

static void op_touch(struct bench *x, int m)
{
    tree_touch(x->tree, &x->mark[m]);
    hit(x, x->at[m].block);
    use(x, x->at[m].block);
}

/* At most four pins, or budgets would never do anything. */
static void op_time(struct bench *x, int m)
{
    (void)m;
    x->now += below(x, 3);
    tree_now(x->tree, x->now);
}

static void op_expire(struct bench *x, int m)
{
    const unsigned order = below(x, ORDERS);
    const uint32_t age = below(x, 200), until = x->now > age ? x->now - age : 0;
    const size_t most = below(x, 20);
    size_t want = 0;
    int next;
    (void)m;
    for (find_what_stays(x, -1); want < most && (next = next_to_go(x, (int)order)) >= 0 &&
                                 x->b[next].used <= until;
         want++)
        remove_block(x, next, true);
    const size_t got = tree_expire(x->tree, order, until, most);
    REQUIRE(x, got == want, "%zu blocks expired, want %zu", got, want);
}

static void op_drop_owner(struct bench *x, int m)
{
    const uint32_t owner = below(x, 12); /* most times one that nobody is */
    (void)m;
    for (int i = 0; i < x->top; i++)
        if (x->b[i].alive && x->b[i].parent < 0 && x->b[i].owner == owner)
            model_drop(x, i);
    while (tree_drop_owner(x->tree, owner, 1 + below(x, 9)))
        ;
}

/* All of it, in portions. */
static void op_drop_some(struct bench *x, int m)
{
    const size_t depth = depth_of(x, x->at[m].block);
    if (below(x, 3) == 0)
        return;
    if (x->at[m].block >= 0)
        model_drop(x, x->at[m].block);
    while (depth && tree_mark_blocks(&x->mark[m]) == depth)
        tree_drop_some(x->tree, &x->mark[m], 1 + below(x, 9));
}

static void op_pin(struct bench *x, int m)
{
    int n = 0;
    for (int i = 0; i < MARKS; i++)
        n += x->at[i].pinned;
    if (n >= 4)
        return;
    tree_pin(x->tree, &x->mark[m]);
    x->at[m].pinned = x->at[m].block >= 0;
}

static void op_unpin(struct bench *x, int m)
{
    for (int i = 0; i < MARKS && !x->at[m].pinned; i++)
        m = (m + 1) % MARKS;
    tree_unpin(x->tree, &x->mark[m]);
    x->at[m].pinned = false;
}

static void op_drop(struct bench *x, int m)
{
    tree_drop(x->tree, &x->mark[m]);
    if (x->at[m].block >= 0)
        model_drop(x, x->at[m].block);
}

static void op_shrink(struct bench *x, int m)
{
    (void)m;
    uint64_t blocks, bytes;
    add_up(x, false, &blocks, &bytes);
    blocks = below(x, 20) == 0 ? 0 : blocks - blocks / (4 + below(x, 8));
    bytes = below(x, 2) ? UINT64_MAX : bytes - bytes / 10;
    find_what_stays(x, -1);
    size_t before = x->n_model_log;
    evict_until(x, blocks, bytes);
    size_t gone = tree_shrink(x->tree, bytes, blocks);
    REQUIRE(x, gone == x->n_model_log - before, "shrank by another number of blocks");
}

static void op_hold(struct bench *x, int m)
{
    unsigned id = below(x, HOLDERS);
    tree_hold(x->tree, id, &x->mark[m]);
    x->tip[id].block = x->at[m].block;
}

static void op_release(struct bench *x, int m)
{
    (void)m;
    unsigned id = below(x, HOLDERS);
    tree_release(x->tree, id);
    x->tip[id].block = -1;
}

static void op_up(struct bench *x, int m)
{
    size_t depth = depth_of(x, x->at[m].block);
    size_t to = depth ? below(x, (unsigned)depth + 1) : 0;
    tree_mark_up(x->tree, &x->mark[m], to);
    for (; depth > to; depth--)
        x->at[m].block = x->b[x->at[m].block].parent;
    x->at[m].pinned = x->at[m].pinned && x->at[m].block >= 0;
}

static void op_down(struct bench *x, int m)
{
    size_t want = tokens_to(x, x->at[m].block) + below(x, BLOCK_TOKENS * 12);
    size_t got = tree_mark_down(x->tree, &x->mark[m], want);
    int at = x->at[m].block, child;
    while (at >= 0 && tokens_to(x, at) < want && (child = newest_child(x, at)) >= 0)
        at = child;
    x->at[m].block = at;
    REQUIRE(x, got == tokens_to(x, at), "went down to another place");
}

static void op_copy(struct bench *x, int m)
{
    int to = (int)below(x, MARKS);
    if (to == m)
        return;
    tree_mark_copy(x->tree, &x->mark[to], &x->mark[m]);
    set_mark(x, to, x->at[m].block);
}

static bool set_state(void *arg, struct tree_block *b, size_t depth)
{
    (void)depth;
    b->state = *(uint32_t *)arg;
    return true;
}

static void op_state(struct bench *x, int m)
{
    uint32_t state = below(x, 1000);
    tree_walk(x->tree, &x->mark[m], set_state, &state);
    for (int i = x->at[m].block; i >= 0; i = x->b[i].parent)
        x->b[i].state = state;
}

static const struct {
    void (*run)(struct bench *x, int m);
    unsigned weight;
} ops[] = {
    {op_insert, 40},   {op_match, 12},     {op_touch, 12},  {op_pin, 6},  {op_unpin, 5},
    {op_drop, 2},      {op_shrink, 2},     {op_hold, 5},    {op_up, 5},   {op_down, 5},
    {op_copy, 5},      {op_state, 4},      {op_release, 2}, {op_time, 8}, {op_expire, 4},
    {op_drop_some, 2}, {op_drop_owner, 1},
};

/* ---- comparing --------------------------------------------------------------------- */

struct walk {
    struct bench *x;
    size_t n;
    uint64_t lo[MAX_LEN + 1];
    uint32_t state[MAX_LEN + 1];
};

static bool note_block(void *arg, struct tree_block *b, size_t depth)
{
    struct walk *w = arg;
    REQUIRE(w->x, depth == w->n, "walked out of order");
    w->lo[w->n] = b->hash.lo;
    w->state[w->n++] = b->state;
    return true;
}

static void compare_mark(struct bench *x, int m)
{
    static struct walk w;
    const struct place *p = &x->at[m];
    w.x = x;
    w.n = 0;
    tree_walk(x->tree, &x->mark[m], note_block, &w);
    REQUIRE(x, w.n == depth_of(x, p->block), "mark %d is at another depth", m);
    REQUIRE(x, w.n == tree_mark_blocks(&x->mark[m]), "mark %d miscounts", m);
    REQUIRE(x, tokens_to(x, p->block) == tree_mark_tokens(&x->mark[m]),
            "mark %d miscounts tokens", m);
    REQUIRE(x, p->pinned == x->mark[m].pinned, "mark %d has another pin", m);
    for (int i = p->block; i >= 0; i = x->b[i].parent) {
        w.n--;
        REQUIRE(x, w.lo[w.n] == x->b[i].hash.lo, "mark %d is on another path", m);
        REQUIRE(x, w.state[w.n] == x->b[i].state, "mark %d has another state", m);
    }
}

static void compare_held(struct bench *x, int m)
{
    for (unsigned id = 0; id < HOLDERS; id++)
        REQUIRE(x,
                tree_held(x->tree, id, &x->mark[m]) ==
                    depth_shared(x, x->at[m].block, x->tip[id].block),
                "holder %u has another part of mark %d", id, m);
}

static int by_hash(const void *a, const void *b)
{
    const struct gone *p = a, *q = b;
    return p->lo < q->lo ? -1 : p->lo > q->lo;
}

/* Drops have no order between branches, evictions do. */
static void compare_logs(struct bench *x)
{
    REQUIRE(x, x->n_tree_log == x->n_model_log, "%zu blocks went, want %zu",
            x->n_tree_log, x->n_model_log);
    if (x->n_model_log && !x->model_log[0].evicted) {
        qsort(x->tree_log, x->n_tree_log, sizeof(struct gone), by_hash);
        qsort(x->model_log, x->n_model_log, sizeof(struct gone), by_hash);
    }
    for (size_t i = 0; i < x->n_model_log; i++) {
        const struct gone *got = &x->tree_log[i], *want = &x->model_log[i];
        REQUIRE(x, got->lo == want->lo, "block %zu of %zu to go was another one", i,
                x->n_model_log);
        REQUIRE(x, got->state == want->state && got->evicted == want->evicted,
                "a block went in another way");
    }
    x->n_tree_log = x->n_model_log = 0;
}

static void compare(struct bench *x)
{
    char why[128];
    uint64_t blocks, bytes, tokens = 0;
    struct tree_stats st;
    REQUIRE(x, tree_check(x->tree, why, sizeof(why)), "%s", why);
    tree_stats(x->tree, &st);
    add_up(x, false, &blocks, &bytes);
    for (int i = 0; i < x->top; i++)
        tokens += x->b[i].alive ? x->b[i].n_tokens : 0;
    REQUIRE(x, st.blocks == blocks && st.bytes == bytes && st.tokens == tokens,
            "%llu blocks, want %llu", (unsigned long long)st.blocks,
            (unsigned long long)blocks);
    uint64_t n_hit = 0;
    find_what_stays(x, -1);
    for (int i = 0; i < x->top; i++)
        n_hit += x->b[i].alive && x->b[i].hit && !x->b[i].pinned;
    REQUIRE(x, st.hit_blocks == n_hit, "%llu blocks were hit, want %llu",
            (unsigned long long)st.hit_blocks, (unsigned long long)n_hit);
    REQUIRE(x, st.inserted - st.evicted - st.dropped == blocks, "counters do not add up");
    compare_logs(x);
    for (int m = 0; m < MARKS; m++) {
        compare_mark(x, m);
        compare_held(x, m);
    }
}

/* ---- running ----------------------------------------------------------------------- */

static void on_evict(void *arg, const struct tree_block *b, bool evicted)
{
    struct bench *x = arg;
    REQUIRE(x, x->n_tree_log < LOG, "more blocks go than there were");
    REQUIRE(x, !b->tokens || b->tokens[0] % 10 == 0, "token ids are damaged");
    x->tree_log[x->n_tree_log++] = (struct gone){b->hash.lo, b->state, evicted};
}

static void one_step(struct bench *x)
{
    unsigned total = 0, pick;
    for (size_t i = 0; i < sizeof(ops) / sizeof(ops[0]); i++)
        total += ops[i].weight;
    pick = below(x, total);
    size_t i = 0;
    while (pick >= ops[i].weight)
        pick -= ops[i++].weight;
    ops[i].run(x, (int)below(x, MARKS));
    compare(x);
}

static void run_model(const struct setup *su, unsigned seed)
{
    struct bench *x = mem_zalloc(sizeof(*x));
    x->su = su;
    x->seed = seed;
    x->random = seed * UINT64_C(0x9e3779b97f4a7c15) + 1;
    x->tree = tree_new(&(struct tree_options){.block_tokens = BLOCK_TOKENS,
                                              .max_bytes = su->max_bytes,
                                              .max_blocks = su->max_blocks,
                                              .keep_tokens = su->keep_tokens,
                                              .protect_percent = su->protect,
                                              .on_evict = on_evict,
                                              .arg = x});
    for (int m = 0; m < MARKS; m++)
        x->at[m].block = -1;
    for (int id = 0; id < HOLDERS; id++)
        x->tip[id].block = -1;
    for (x->step = 0; x->step < su->steps; x->step++)
        one_step(x);
    struct tree_stats st;
    tree_stats(x->tree, &st);
    print_message("%-9s seed %u: %llu inserted, %llu evicted, %llu dropped, %llu splits, "
                  "%llu merges\n",
                  su->name, seed, (unsigned long long)st.inserted,
                  (unsigned long long)st.evicted, (unsigned long long)st.dropped,
                  (unsigned long long)st.splits, (unsigned long long)st.merges);
    assert_true(st.splits > 0 && st.merges > 0 && st.dropped > 0 && st.collisions == 0);
    tree_free(x->tree);
    for (int m = 0; m < MARKS; m++)
        assert_null(x->mark[m].node); /* tree_free() left none dangling */
    free(x);
}

/* SEEDS=100 in the environment asks for more. */
static unsigned seeds_wanted(void)
{
    const char *n = getenv("SEEDS");
    return n ? (unsigned)strtoul(n, NULL, 10) : SANITIZED ? 1 : 3;
}

static void test_tree_behaves_like_a_flat_list_of_blocks(void **state)
{
    const unsigned seeds = seeds_wanted();
    (void)state;
    assert_true(seeds > 0);
    for (size_t i = 0; i < sizeof(setups) / sizeof(setups[0]); i++)
        for (unsigned seed = 1; seed <= seeds; seed++)
            run_model(&setups[i], seed);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_tree_behaves_like_a_flat_list_of_blocks),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
