/* SPDX-License-Identifier: MIT */
#include "prefix/tree.h"

/*
 * The block tree with a million blocks, next to the plain way to do it: a hash table of
 * blocks with an LRU list, every block looked up and touched by itself. Both run in the
 * same process over the same prompts, so the ratio holds on a busy machine too.
 *
 *     chats     500 system prompts, chats of several turns below each
 *     sessions  500 long sessions of 2,000 blocks that grew in steps
 *     comb      every block of a path has a second child: one block a node, the worst
 *
 * Each figure is the median of single calls (p50), with the 99th percentile beside it.
 */

#include <malloc.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/mem.h"
#include "base/quantile.h"
#include "prefix/chain.h"

#define BLOCK_TOKENS 64
#define BLOCKS 1000000
#define LONG 2000 /* blocks of a long prompt */
#define SESSIONS 500
#define CALLS 1000

static uint64_t random_state = 88172645463325252u;

static uint64_t next_random(void)
{
    random_state ^= random_state << 13;
    random_state ^= random_state >> 7;
    random_state ^= random_state << 17;
    return random_state;
}

static double now_us(void)
{
    struct timespec ts;
    clock_gettime(CLOCK_MONOTONIC, &ts);
    return (double)ts.tv_sec * 1e6 + (double)ts.tv_nsec / 1e3;
}

/* Hashes of a path without hashing anything: the tree does not know the difference. */
static struct hash128 step(struct hash128 h, uint64_t what)
{
    h.lo = (h.lo + what + 1) * UINT64_C(0x9e3779b97f4a7c15);
    h.lo ^= h.lo >> 29;
    h.hi = h.hi * 5 + h.lo;
    return h;
}

static void extend(struct hash128 *chain, size_t from, size_t to, uint64_t what)
{
    for (size_t i = from; i < to; i++)
        chain[i] = step(i ? chain[i - 1] : (struct hash128){1, 1}, what + i);
}

/* ---- the plain way ----------------------------------------------------------------- */

struct entry {
    struct hash128 hash;
    uint32_t older, newer;
};

/* Slots hold numbers of entries; entry 0 heads the list. */
struct flat {
    uint32_t *slot;
    struct entry *e;
    uint32_t mask, n, max;
};

static struct flat flat_new(uint32_t max)
{
    struct flat f = {.max = max, .mask = 1};
    while (f.mask < max * 2)
        f.mask *= 2;
    f.slot = mem_zalloc(f.mask * sizeof(*f.slot));
    f.e = mem_zalloc((max + 1) * sizeof(*f.e));
    f.mask--;
    return f;
}

static void flat_free(struct flat *f)
{
    free(f->slot);
    free(f->e);
}

static uint32_t flat_find(const struct flat *f, struct hash128 h)
{
    for (uint32_t i = (uint32_t)h.lo & f->mask; f->slot[i]; i = (i + 1) & f->mask)
        if (hash128_eq(f->e[f->slot[i]].hash, h))
            return f->slot[i];
    return 0;
}

static void flat_unlink(struct flat *f, uint32_t n)
{
    f->e[f->e[n].older].newer = f->e[n].newer;
    f->e[f->e[n].newer].older = f->e[n].older;
}

static void flat_push(struct flat *f, uint32_t n)
{
    f->e[n].newer = 0;
    f->e[n].older = f->e[0].older;
    f->e[f->e[0].older].newer = n;
    f->e[0].older = n;
}

static void flat_remove(struct flat *f, uint32_t n)
{
    uint32_t hole = (uint32_t)f->e[n].hash.lo & f->mask;
    while (f->slot[hole] != n)
        hole = (hole + 1) & f->mask;
    for (uint32_t i = (hole + 1) & f->mask; f->slot[i]; i = (i + 1) & f->mask) {
        uint32_t home = (uint32_t)f->e[f->slot[i]].hash.lo & f->mask;
        if (((i - home) & f->mask) < ((i - hole) & f->mask))
            continue;
        f->slot[hole] = f->slot[i];
        hole = i;
    }
    f->slot[hole] = 0;
    flat_unlink(f, n);
}

static void flat_add(struct flat *f, struct hash128 h)
{
    uint32_t n = f->n < f->max ? ++f->n : f->e[0].newer;
    if (f->e[n].hash.lo)
        flat_remove(f, n);
    f->e[n].hash = h;
    uint32_t i = (uint32_t)h.lo & f->mask;
    while (f->slot[i])
        i = (i + 1) & f->mask;
    f->slot[i] = n;
    flat_push(f, n);
}

static size_t flat_match(const struct flat *f, const struct hash128 *chain, size_t n)
{
    size_t i = 0;
    while (i < n && flat_find(f, chain[i]))
        i++;
    return i;
}

/* Last to first, as the tree does it. */
static void flat_use(struct flat *f, const struct hash128 *chain, size_t n)
{
    for (size_t i = n; i-- > 0;) {
        uint32_t e = flat_find(f, chain[i]);
        if (e) {
            flat_unlink(f, e);
            flat_push(f, e);
        } else {
            flat_add(f, chain[i]);
        }
    }
}

/* ---- filling ----------------------------------------------------------------------- */

struct both {
    struct tree *t;
    struct flat f;
    size_t used; /* bytes, by the allocator's own account */
};

static struct both both_new(void)
{
    struct both b = {.used = mallinfo2().uordblks + mallinfo2().hblkhd};
    b.t = tree_new(
        &(struct tree_options){.block_tokens = BLOCK_TOKENS, .max_blocks = BLOCKS});
    return b;
}

static void both_measure(struct both *b, const char *shape)
{
    struct tree_stats st;
    tree_stats(b->t, &st);
    b->used = mallinfo2().uordblks + mallinfo2().hblkhd - b->used;
    printf("%-9s %8llu blocks %7llu nodes  %5.1f bytes a block (allocator says %.1f)\n",
           shape, (unsigned long long)st.blocks, (unsigned long long)st.nodes,
           (double)st.index_bytes / (double)st.blocks,
           (double)b->used / (double)st.blocks);
}

static void both_free(struct both *b)
{
    tree_free(b->t);
    if (b->f.e)
        flat_free(&b->f);
}

static size_t add(struct both *b, const struct hash128 *chain, size_t n, uint32_t tail)
{
    struct tree_sequence s = {.chain = chain, .n = n, .tail_tokens = tail};
    return tree_insert(b->t, &s, NULL);
}

/* One chat: a system prompt of 40 to 120 blocks, 2 to 9 turns of 4 to 13 blocks. */
static void one_chat(struct both *b, struct hash128 *chain, uint64_t chat)
{
    uint64_t system = next_random() % 500;
    size_t n = 40 + system % 81;
    extend(chain, 0, n, system << 32);
    for (uint64_t turns = 2 + next_random() % 8; turns > 0; turns--) {
        size_t more = 4 + next_random() % 10;
        extend(chain, n, n + more + 1, (chat + 1) << 40);
        n += more;
        add(b, chain, n, 1 + (uint32_t)(next_random() % (BLOCK_TOKENS - 1)));
    }
}

static void chats(void)
{
    struct both b = both_new();
    struct hash128 chain[512];
    struct tree_stats st = {0};
    for (uint64_t chat = 0; st.blocks < BLOCKS; chat++) {
        one_chat(&b, chain, chat);
        tree_stats(b.t, &st);
    }
    both_measure(&b, "chats");
    both_free(&b);
}

/* ---- timing ------------------------------------------------------------------------ */

struct times {
    struct quantile tree, flat;
};

static void print_times(const char *what, struct times *v)
{
    double tree = quantile_get(&v->tree, 0.5), flat = quantile_get(&v->flat, 0.5);
    printf("%-34s %9.2f %9.2f %11.2f %9.2f %8.1fx\n", what, tree,
           quantile_get(&v->tree, 0.99), flat, quantile_get(&v->flat, 0.99), flat / tree);
    memset(v, 0, sizeof(*v));
}

#define TIME(q, ...)                                                                     \
    do {                                                                                 \
        double start = now_us();                                                         \
        __VA_ARGS__;                                                                     \
        quantile_add(q, now_us() - start);                                               \
    } while (0)

static volatile size_t sink;

static void time_match(struct both *b, struct hash128 (*prompt)[LONG], size_t n)
{
    static struct times v;
    for (size_t i = 0; i < CALLS; i++) {
        const struct hash128 *c = prompt[next_random() % n];
        TIME(&v.tree, sink = tree_match(b->t, c, LONG, NULL, NULL));
        TIME(&v.flat, sink = flat_match(&b->f, c, LONG));
    }
    print_times("match", &v);
}

static void time_match_touch(struct both *b, struct hash128 (*prompt)[LONG], size_t n)
{
    static struct times v;
    for (size_t i = 0; i < CALLS; i++) {
        const struct hash128 *c = prompt[next_random() % n];
        struct tree_mark m = {0};
        TIME(&v.tree, sink = tree_match(b->t, c, LONG, NULL, &m); tree_touch(b->t, &m));
        TIME(&v.flat, sink = flat_match(&b->f, c, LONG); flat_use(&b->f, c, sink));
        tree_mark_clear(b->t, &m);
    }
    print_times("match and touch", &v);
}

/* Both are full: each new block evicts one. New sessions, so nothing is shared. */
static void time_insert_evict(struct both *b, const char *what)
{
    static struct times v;
    struct hash128 *chain = mem_array(LONG, sizeof(*chain));
    for (size_t i = 0; i < CALLS / 4; i++) {
        extend(chain, 0, LONG, next_random());
        TIME(&v.tree, add(b, chain, LONG, 0));
        TIME(&v.flat, flat_use(&b->f, chain, LONG));
    }
    print_times(what, &v);
    free(chain);
}

/* Ten thousand single blocks, older than all else and pinned. */
static void pin_many(struct both *b, struct tree_mark *m, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        struct hash128 h = step((struct hash128){9, 9}, i);
        struct tree_sequence s = {.chain = &h, .n = 1};
        tree_insert(b->t, &s, &m[i]);
        tree_pin(b->t, &m[i]);
    }
}

static void fill_sessions(struct both *b, struct hash128 (*session)[LONG])
{
    for (size_t n = LONG / 25; n <= LONG; n += LONG / 25)
        for (size_t s = 0; s < SESSIONS; s++)
            add(b, session[s], n, 0);
    both_measure(b, "sessions");
    b->f = flat_new(BLOCKS);
    for (size_t s = 0; s < SESSIONS; s++)
        flat_use(&b->f, session[s], LONG);
}

static void print_head(void)
{
    printf("\nmicroseconds for 2,000 blocks           tree       p99   hash+list       "
           "p99\n");
}

/* Every block of a path gets a second child. */
static void comb(void)
{
    enum { PATHS = 50 };
    struct both b = both_new();
    struct hash128(*path)[LONG] = mem_array(PATHS, sizeof(*path));
    for (size_t p = 0; p < PATHS; p++) {
        extend(path[p], 0, LONG, p << 32);
        add(&b, path[p], LONG, 0);
        for (size_t i = 0; i < LONG; i++) {
            struct hash128 was = path[p][i];
            path[p][i] = step(was, 77);
            add(&b, path[p], i + 1, 0);
            path[p][i] = was;
        }
    }
    both_measure(&b, "comb");
    b.f = flat_new(BLOCKS);
    for (size_t p = 0; p < PATHS; p++)
        flat_use(&b.f, path[p], LONG);
    print_head();
    time_match(&b, path, PATHS);
    time_match_touch(&b, path, PATHS);
    free(path);
    both_free(&b);
}

static void sessions(void)
{
    enum { PINS = 10000 };
    struct hash128(*session)[LONG] = mem_array(SESSIONS, sizeof(*session));
    struct tree_mark *pin = mem_zalloc(PINS * sizeof(*pin));
    for (size_t s = 0; s < SESSIONS; s++)
        extend(session[s], 0, LONG, s << 32);
    struct both b = both_new();
    fill_sessions(&b, session);
    printf("\nmicroseconds for 2,000 blocks           tree       p99   hash+list       "
           "p99\n");
    time_match(&b, session, SESSIONS);
    time_match_touch(&b, session, SESSIONS);
    time_insert_evict(&b, "insert, each block evicts one");
    pin_many(&b, pin, PINS);
    time_insert_evict(&b, "the same beside 10,000 pins");
    for (size_t i = 0; i < PINS; i++)
        tree_mark_clear(b.t, &pin[i]);
    both_free(&b);
    free(pin);
    free(session);
}

/* With token ids: hashing a prompt, and comparing its ids with those kept. */
static void tokens(void)
{
    enum { PROMPTS = 20 };
    static struct quantile hash, compare;
    static struct hash128 chain[PROMPTS][LONG];
    uint32_t *ids = mem_array(PROMPTS * LONG * BLOCK_TOKENS, sizeof(*ids));
    struct chain_key key;
    struct tree *t = tree_new(
        &(struct tree_options){.block_tokens = BLOCK_TOKENS, .keep_tokens = true});
    chain_key_init(&key, (const unsigned char[CHAIN_KEY_BYTES]){1});
    for (size_t i = 0; i < PROMPTS * LONG * BLOCK_TOKENS; i++)
        ids[i] = (uint32_t)next_random() % 150000;
    for (size_t i = 0; i < CALLS; i++) {
        size_t p = next_random() % PROMPTS;
        const uint32_t *own = ids + p * LONG * BLOCK_TOKENS;
        TIME(&hash, chain_blocks(&key, (struct hash128){1, 1}, own, LONG * BLOCK_TOKENS,
                                 BLOCK_TOKENS, chain[p]));
        struct tree_sequence s = {.chain = chain[p], .n = LONG, .tokens = own};
        tree_insert(t, &s, NULL);
        TIME(&compare, sink = tree_match(t, chain[p], LONG, own, NULL));
    }
    printf("hash 128,000 token ids             %9.2f %9.2f\n", quantile_get(&hash, 0.5),
           quantile_get(&hash, 0.99));
    printf("match and compare 128,000 ids      %9.2f %9.2f\n",
           quantile_get(&compare, 0.5), quantile_get(&compare, 0.99));
    free(ids);
    tree_free(t);
}

int main(void)
{
    chats();
    sessions();
    tokens();
    comb();
    return 0;
}
