/* SPDX-License-Identifier: MIT */
#include "store/cache.h"

#include <fcntl.h>
#include <semaphore.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "base/mem.h"
#include "cmocka_all.h"
#include "store_rig.h"

#define BT 16
#define TOKEN_BYTES 8

static struct store_rig rig;
static struct cache *cache;
static struct cache_options options;
static char *dir;

static const struct hash128 model_a = {0xa, 1}, model_b = {0xb, 2};

static uint32_t tenant; /* whose the sequences are */

static int set_up(void **state)
{
    (void)state;
    store_rig_up(&rig, 2);
    tenant = 0;
    dir = mem_printf("%s/store", rig.root);
    options = (struct cache_options){.block_tokens = BT,
                                     .max_bytes = 1 << 30,
                                     .index_bytes = 1 << 20,
                                     .store = {.dir = dir, .ram_bytes = 1 << 20}};
    return 0;
}

static void close_cache(void)
{
    store_rig_settle(&rig);
    cache_close(cache);
    cache = NULL;
}

static int tear_down(void **state)
{
    (void)state;
    close_cache();
    free(dir);
    store_rig_down(&rig);
    return 0;
}

/* ---- opening and attaching --------------------------------------------------------- */

static size_t attached;
static bool is_attached;

static void on_attached(void *arg, size_t n_blocks)
{
    assert_ptr_equal(arg, &rig);
    assert_false(is_attached);
    attached = n_blocks;
    is_attached = true;
}

static size_t attach(struct hash128 model)
{
    is_attached = false;
    cache_attach(cache, model, TOKEN_BYTES, on_attached, &rig);
    store_rig_settle(&rig);
    assert_true(is_attached);
    return attached;
}

static void open_cache(void)
{
    struct err e = {0};
    cache = cache_open(&options, rig.workers, &e);
    if (!cache)
        fail_msg("%s", e.text);
}

/* Opens and attaches model a; returns the blocks that were there. */
static size_t open_a(void)
{
    open_cache();
    return attach(model_a);
}

static size_t reopen_a(void)
{
    close_cache();
    return open_a();
}

static struct store_stats stats(void)
{
    struct store_stats s;
    store_stats(cache_store(cache), &s);
    return s;
}

static uint64_t tree_blocks(void)
{
    struct tree_stats s;
    tree_stats(cache_tree(cache), &s);
    return s.blocks;
}

/* ---- sequences --------------------------------------------------------------------- */

/* Tokens of a sequence: the first `common` are those of family 0. */
struct text {
    uint32_t family, common, n;
};

static uint32_t token_at(struct text t, uint32_t i)
{
    return (i < t.common ? 0 : t.family * 100000) + i;
}

static void fill(struct text t, uint32_t *tokens)
{
    for (uint32_t i = 0; i < t.n; i++)
        tokens[i] = token_at(t, i);
}

/* As a driver makes it: the model is part of the root. */
static struct hash128 root_of(struct hash128 model)
{
    return cache_root(cache, model, tenant,
                      slice_make((const char *)&tenant, sizeof(tenant)));
}

#define MAX_TOKENS 512

/* A sequence of a model: hashes of full blocks, and of the tail behind them. */
struct sequence {
    struct hash128 model, chain[MAX_TOKENS / BT + 1];
    uint32_t tokens[MAX_TOKENS], n_tokens, tail;
    size_t n_full;
};

static struct sequence sequence_of(struct hash128 model, struct text t)
{
    struct sequence s = {.model = model, .n_tokens = t.n, .tail = t.n % BT};
    assert_true(t.n <= MAX_TOKENS);
    fill(t, s.tokens);
    s.n_full = chain_blocks(cache_key(cache), root_of(model), s.tokens, t.n, BT, s.chain);
    if (s.tail)
        s.chain[s.n_full] = chain_block(cache_key(cache),
                                        s.n_full ? s.chain[s.n_full - 1] : root_of(model),
                                        s.tokens + s.n_full * BT, s.tail);
    return s;
}

static unsigned char row_byte(const struct sequence *s, uint32_t token, size_t at)
{
    return (unsigned char)(s->model.lo * 31 + s->tokens[token] * 7 + at);
}

static struct store_block *block_of(const struct sequence *s, size_t i)
{
    const uint32_t n = i < s->n_full ? BT : s->tail;
    const struct store_head head = {.fingerprint = s->model,
                                    .hash = s->chain[i],
                                    .parent = i ? s->chain[i - 1] : root_of(s->model),
                                    .index = (uint32_t)i,
                                    .n_tokens = n,
                                    .rows_bytes = n * TOKEN_BYTES};
    uint32_t *tokens;
    unsigned char *rows;
    struct store_block *b = store_block_new(&head, &tokens, &rows);
    memcpy(tokens, s->tokens + i * BT, n * sizeof(*tokens));
    for (uint32_t k = 0; k < n * TOKEN_BYTES; k++)
        rows[k] = row_byte(s, (uint32_t)i * BT + k / TOKEN_BYTES, k % TOKEN_BYTES);
    store_block_seal(b);
    return b;
}

static size_t insert(const struct sequence *s, struct tree_mark *m)
{
    const struct tree_sequence t = {.chain = s->chain,
                                    .n = s->n_full,
                                    .tokens = s->tokens,
                                    .tail_tokens = s->tail,
                                    .token_bytes = TOKEN_BYTES,
                                    .owner = tenant};
    return cache_insert(cache, s->model, &t, m);
}

/* Inserts a sequence and has what is new stored; returns how many blocks. */
static size_t put_soon(struct hash128 model, struct text t)
{
    const struct sequence s = sequence_of(model, t);
    struct tree_mark m = {0};
    struct store_block *blocks[MAX_TOKENS / BT + 1];
    const size_t n = insert(&s, &m);
    const size_t first = tree_mark_blocks(&m) - n;
    for (size_t i = 0; i < n; i++)
        blocks[i] = block_of(&s, first + i);
    cache_put(cache, &m, blocks, n);
    assert_null(m.node);
    return n;
}

/* … and waits until it is. */
static size_t put(struct hash128 model, struct text t)
{
    const size_t n = put_soon(model, t);
    store_rig_settle(&rig);
    return n;
}

/* The place of a sequence, its tail included. */
static void find(const struct sequence *s, struct tree_mark *m)
{
    tree_match(cache_tree(cache), s->chain, s->n_full, s->tokens, m);
    if (s->tail && tree_mark_blocks(m) == s->n_full)
        tree_mark_down(cache_tree(cache), m, s->n_tokens);
}

static uint32_t restorable(struct hash128 model, struct text t, uint32_t most)
{
    const struct sequence s = sequence_of(model, t);
    struct tree_mark m = {0};
    find(&s, &m);
    const uint32_t n = cache_restorable(cache, &m, most);
    tree_mark_clear(cache_tree(cache), &m);
    return n;
}

/* ---- fetching ---------------------------------------------------------------------- */

static struct sequence fetching;
static uint32_t fetched;
static int fetch_error;
static bool is_fetched;

static void on_fetched(void *arg, struct store_block **blocks, size_t n,
                       const struct err *err)
{
    assert_ptr_equal(arg, &fetching);
    fetched = 0;
    for (size_t i = 0; i < n; i++) {
        const struct store_block *b = blocks[i];
        assert_memory_equal(b->tokens, fetching.tokens + fetched,
                            b->head.n_tokens * sizeof(uint32_t));
        for (uint32_t k = 0; k < b->head.n_tokens * TOKEN_BYTES; k++)
            assert_int_equal(b->rows[k], row_byte(&fetching, fetched + k / TOKEN_BYTES,
                                                  k % TOKEN_BYTES));
        fetched += b->head.n_tokens;
        store_block_put(blocks[i]);
    }
    fetch_error = err ? err->code : 0;
    is_fetched = true;
}

/* Fetches at most so many tokens and checks every byte; returns how many came. */
static uint32_t fetch(struct hash128 model, struct text t, uint32_t most)
{
    struct tree_mark m = {0};
    fetching = sequence_of(model, t);
    find(&fetching, &m);
    is_fetched = false;
    cache_fetch(cache, model, &m, most, on_fetched, &fetching);
    tree_mark_clear(cache_tree(cache), &m);
    assert_false(is_fetched); /* never from inside */
    store_rig_settle(&rig);
    assert_true(is_fetched);
    return fetched;
}

static void assert_fetched(struct hash128 model, struct text t, uint32_t tokens)
{
    assert_int_equal(fetch(model, t, UINT32_MAX), tokens);
    assert_int_equal(fetch_error, 0);
}

/* File of block `i` of a sequence. */
static char *file_of(struct hash128 model, struct text t, size_t i)
{
    char hex[HASH128_HEX];
    const struct sequence s = sequence_of(model, t);
    return store_rig_find(dir, hash128_hex(s.chain[i], hex));
}

static bool on_disk(struct hash128 model, struct text t, size_t i)
{
    char *path = file_of(model, t, i);
    const bool there = path && !strstr(path, "/damaged/");
    free(path);
    return there;
}

/* Its files were last used long ago: clocks of files do not tell what just happened. */
static void make_old(struct text t)
{
    const struct timespec long_ago[2] = {{.tv_sec = 1000}, {.tv_sec = 1000}};
    for (size_t i = 0; i < (t.n + BT - 1) / BT; i++) {
        char *path = file_of(model_a, t, i);
        assert_int_equal(utimensat(AT_FDCWD, path, long_ago, 0), 0);
        free(path);
    }
}

static const struct text one = {1, 0, 5 * BT}, short_tail = {2, 0, 3 * BT + 5},
                         other = {3, 2 * BT, 4 * BT};

/* ---- in one life ------------------------------------------------------------------- */

static void test_blocks_can_be_restored_when_they_are_stored(void **state)
{
    (void)state;
    open_a();
    const struct sequence s = sequence_of(model_a, one);
    struct tree_mark m = {0};
    assert_int_equal(insert(&s, &m), 5);
    assert_int_equal(restorable(model_a, one, UINT32_MAX), 0); /* nobody has the rows */
    struct store_block *blocks[5];
    for (size_t i = 0; i < 5; i++)
        blocks[i] = block_of(&s, i);
    cache_put(cache, &m, blocks, 5);
    assert_int_equal(restorable(model_a, one, UINT32_MAX), 5 * BT); /* RAM has them */
    assert_fetched(model_a, one, 5 * BT);
    assert_int_equal(stats().disk_blocks, 5);
}

static void test_restorable_is_whole_blocks(void **state)
{
    (void)state;
    open_a();
    put(model_a, one);
    assert_int_equal(restorable(model_a, one, 1), BT);
    assert_int_equal(restorable(model_a, one, 2 * BT), 2 * BT);
    assert_int_equal(restorable(model_a, one, 2 * BT + 1), 3 * BT);
    assert_int_equal(restorable(model_a, one, 0), 0);
    assert_int_equal(fetch(model_a, one, 2 * BT + 1), 3 * BT);
    assert_int_equal(fetch(model_a, one, 0), 0);
    assert_int_equal(fetch_error, 0);
}

static void test_shared_start_is_kept_once(void **state)
{
    (void)state;
    const struct text first = {0, 0, 4 * BT};
    open_a();
    assert_int_equal(put(model_a, first), 4);
    assert_int_equal(put(model_a, other), 2);
    assert_int_equal(put(model_a, other), 0);
    assert_int_equal(tree_blocks(), 6);
    assert_int_equal(stats().disk_blocks, 6);
    assert_fetched(model_a, first, 4 * BT);
    assert_fetched(model_a, other, 4 * BT);
}

static void test_short_tail_is_a_block_as_well(void **state)
{
    (void)state;
    open_a();
    assert_int_equal(put(model_a, short_tail), 4);
    assert_fetched(model_a, short_tail, 3 * BT + 5);
    const struct text tiny = {9, 0, 3};
    assert_int_equal(put(model_a, tiny), 1);
}

static void test_without_a_folder_ram_is_all_there_is(void **state)
{
    (void)state;
    options.store.dir = NULL;
    open_a();
    put(model_a, one);
    assert_fetched(model_a, one, 5 * BT);
    assert_int_equal(stats().disk_blocks, 0);
    assert_int_equal(reopen_a(), 0);
    assert_int_equal(restorable(model_a, one, UINT32_MAX), 0);
}

static void test_evicted_blocks_leave_the_store(void **state)
{
    (void)state;
    const struct text a = {1, 0, 2 * BT}, b = {2, 0, 2 * BT}, c = {3, 0, 2 * BT};
    options.max_blocks = 4;
    open_a();
    put(model_a, a);
    put(model_a, b);
    assert_fetched(model_a, a, 2 * BT); /* so b is the older one */
    put(model_a, c);
    assert_int_equal(tree_blocks(), 4);
    assert_int_equal(stats().disk_blocks, 4);
    assert_false(on_disk(model_a, b, 0));
    assert_false(on_disk(model_a, b, 1));
    assert_fetched(model_a, a, 2 * BT);
    assert_fetched(model_a, c, 2 * BT);
    assert_int_equal(restorable(model_a, b, UINT32_MAX), 0);
}

static void test_what_is_being_fetched_is_not_evicted(void **state)
{
    (void)state;
    const struct text a = {1, 0, 2 * BT}, b = {2, 0, 2 * BT};
    struct tree_mark m = {0};
    options.max_blocks = 2;
    options.store.ram_bytes = 0;
    open_a();
    put(model_a, a);
    fetching = sequence_of(model_a, a);
    find(&fetching, &m);
    is_fetched = false;
    cache_fetch(cache, model_a, &m, UINT32_MAX, on_fetched, &fetching);
    tree_mark_clear(cache_tree(cache), &m);
    assert_int_equal(put(model_a, b), 0); /* no room while a is pinned */
    store_rig_settle(&rig);
    assert_true(is_fetched);
    assert_int_equal(fetched, 2 * BT);
    assert_int_equal(put(model_a, b), 2);
}

/* ---- after a restart --------------------------------------------------------------- */

static void test_blocks_come_back_after_a_restart(void **state)
{
    (void)state;
    open_a();
    put(model_a, one);
    put(model_a, short_tail);
    put(model_a, (struct text){0, 0, 4 * BT});
    put(model_a, other);
    assert_int_equal(reopen_a(), 5 + 4 + 4 + 2);
    assert_fetched(model_a, one, 5 * BT);
    assert_fetched(model_a, short_tail, 3 * BT + 5);
    assert_fetched(model_a, other, 4 * BT);
    assert_int_equal(put(model_a, other), 0);
    char why[200];
    if (!tree_check(cache_tree(cache), why, sizeof(why)))
        fail_msg("%s", why);
}

static void test_attaching_again_finds_nothing_new(void **state)
{
    (void)state;
    open_a();
    put(model_a, one);
    assert_int_equal(reopen_a(), 5);
    assert_int_equal(attach(model_a), 0);
    assert_int_equal(tree_blocks(), 5);
    assert_fetched(model_a, one, 5 * BT);
}

static void test_smaller_budget_after_a_restart_drops_the_rest(void **state)
{
    (void)state;
    const struct text later = {4, 0, 2 * BT};
    open_a();
    put(model_a, one);
    put(model_a, later);
    make_old(one);
    close_cache();
    options.max_blocks = 3;
    assert_true(open_a() <= 3);
    store_rig_settle(&rig);
    assert_int_equal(stats().disk_blocks, tree_blocks());
    assert_fetched(model_a, later, 2 * BT);
}

static void test_sequence_larger_than_the_budget_keeps_its_start(void **state)
{
    (void)state;
    open_a();
    put(model_a, one);
    close_cache();
    options.max_blocks = 2;
    assert_int_equal(open_a(), 2);
    store_rig_settle(&rig);
    assert_int_equal(stats().disk_blocks, 2);
    assert_int_equal(fetch(model_a, one, UINT32_MAX), 2 * BT);
}

static void test_block_behind_a_missing_one_is_not_recovered(void **state)
{
    (void)state;
    open_a();
    put(model_a, one);
    char *path = file_of(model_a, one, 2);
    close_cache();
    assert_int_equal(unlink(path), 0);
    assert_int_equal(open_a(), 2);
    assert_fetched(model_a, one, 2 * BT);
    free(path);
}

/* Puts the files of a sequence from block `first` on there, for the next start. */
static void plant(const struct sequence *s, size_t first, time_t used)
{
    for (size_t i = first; i < s->n_full + (s->tail > 0); i++) {
        struct store_block *b = block_of(s, i);
        store_rig_plant(dir, b, used);
        store_block_put(b);
    }
}

static void test_start_shared_by_the_oldest_and_the_newest_survives(void **state)
{
    (void)state;
    const struct text oldest = {1, 2 * BT, 4 * BT}, middle = {2, 0, 4 * BT},
                      newest = {3, 2 * BT, 4 * BT};
    open_a();
    const struct sequence a = sequence_of(model_a, oldest),
                          b = sequence_of(model_a, middle),
                          c = sequence_of(model_a, newest);
    plant(&a, 0, 1000);
    plant(&b, 0, 2000);
    plant(&c, 2, 3000);
    close_cache();
    options.max_blocks = 4;
    assert_int_equal(open_a(), 4);
    assert_fetched(model_a, newest, 4 * BT);
    assert_int_equal(stats().disk_blocks, 4);
    assert_false(on_disk(model_a, oldest, 3));
    assert_false(on_disk(model_a, middle, 0));
}

static size_t n_attached;

static void count_attached(void *arg, size_t n_blocks)
{
    assert_ptr_equal(arg, &rig);
    assert_int_equal(n_blocks, 5);
    n_attached++;
}

static void test_attaching_while_it_is_recovered_waits(void **state)
{
    (void)state;
    open_a();
    put(model_a, one);
    close_cache();
    open_cache();
    n_attached = 0;
    for (int i = 0; i < 3; i++)
        cache_attach(cache, model_a, TOKEN_BYTES, count_attached, &rig);
    assert_int_equal(n_attached, 0);
    store_rig_settle(&rig);
    assert_int_equal(n_attached, 3);
    assert_int_equal(tree_blocks(), 5);
}

/* Families of sequences of 32 blocks that part in the last one. */
enum { FAMILIES = 10, LEAVES = 300, DEPTH = MAX_TOKENS / BT };

static struct sequence leaf_of(uint32_t family, uint32_t leaf)
{
    struct sequence s = sequence_of(model_a, (struct text){family, 0, MAX_TOKENS});
    s.tokens[MAX_TOKENS - 1] = 7000000 + leaf;
    s.chain[DEPTH - 1] =
        chain_block(cache_key(cache), s.chain[DEPTH - 2], s.tokens + MAX_TOKENS - BT, BT);
    return s;
}

/* Half of the first family is the oldest of all, the other half the newest. */
static void plant_families(void)
{
    for (uint32_t i = 0; i < FAMILIES; i++)
        for (uint32_t k = 0; k < LEAVES; k++) {
            const struct sequence s = leaf_of(i + 1, k);
            const time_t used = i == 0 && k >= LEAVES / 2 ? 1000000 : i * LEAVES + k;
            plant(&s, k ? DEPTH - 1 : 0, used);
        }
}

enum { ALL_BLOCKS = FAMILIES * (DEPTH - 1 + LEAVES) };

/* What comes between two turns: sees what the last one did, or does something itself. */
static uint64_t blocks_before, most_in_a_turn;
static uint32_t n_turns;
static bool others_live;

static void between_turns(void *arg)
{
    (void)arg;
    const uint64_t now = tree_blocks();
    if (now > blocks_before && now - blocks_before > most_in_a_turn)
        most_in_a_turn = now - blocks_before;
    if (now > blocks_before)
        n_turns++;
    if (others_live && now) {
        const struct text t = {100 + n_turns, 0, MAX_TOKENS};
        const struct sequence s = sequence_of(model_b, t);
        struct tree_mark m = {0};
        insert(&s, &m);
        tree_mark_clear(cache_tree(cache), &m);
    }
    blocks_before = tree_blocks();
    if (!is_attached)
        loop_defer(rig.loop, between_turns, NULL);
}

static void recover_families(void)
{
    open_cache();
    plant_families();
    options.max_blocks = ALL_BLOCKS;
    close_cache();
    open_cache();
    attach(model_b);
    blocks_before = most_in_a_turn = n_turns = 0;
    is_attached = false;
    cache_attach(cache, model_a, TOKEN_BYTES, on_attached, &rig);
    loop_defer(rig.loop, between_turns, NULL);
    store_rig_settle(&rig);
    assert_true(is_attached);
}

static void test_recovery_takes_many_short_turns(void **state)
{
    (void)state;
    others_live = false;
    recover_families();
    assert_int_equal(attached, ALL_BLOCKS);
    assert_true(n_turns >= 20);
    assert_true(most_in_a_turn <= 400);
}

/* In the tree if, and only if, in the directory. */
static void test_others_may_evict_while_it_recovers(void **state)
{
    (void)state;
    size_t n_there = 0, n_cut_off = 0;
    others_live = true;
    recover_families();
    store_rig_settle(&rig);
    for (uint32_t i = 0; i < FAMILIES; i++)
        for (uint32_t k = 0; k < LEAVES; k++) {
            char hex[HASH128_HEX];
            const struct sequence s = leaf_of(i + 1, k);
            char *path =
                store_rig_block_path(dir, model_a, hash128_hex(s.chain[DEPTH - 1], hex));
            struct tree_mark m = {0};
            tree_match(cache_tree(cache), s.chain, DEPTH, s.tokens, &m);
            const bool there = tree_mark_blocks(&m) == DEPTH;
            assert_int_equal(cache_restorable(cache, &m, UINT32_MAX),
                             tree_mark_tokens(&m));
            assert_int_equal(access(path, F_OK) == 0, there);
            n_there += there;
            n_cut_off += i == 0 && k >= LEAVES / 2 && !there;
            tree_mark_clear(cache_tree(cache), &m);
            free(path);
        }
    assert_true(n_there > LEAVES);
    assert_true(n_cut_off > 0); /* the newest leaves lost their start */
    char why[200];
    if (!tree_check(cache_tree(cache), why, sizeof(why)))
        fail_msg("%s", why);
}

/* Bytes of a full block: its rows, and its file. */
static const uint64_t block = BT * TOKEN_BYTES;
static const uint64_t file = 96 + 4 * BT + BT * TOKEN_BYTES + 16;

/* Model b, beside 100 blocks of model a that are foreign and half of what fits. */
static void open_half_full(void)
{
    open_a();
    for (uint32_t i = 0; i < 20; i++)
        put(model_a, (struct text){i + 1, 0, 5 * BT});
    close_cache();
    options.max_bytes = 2 * 100 * file;
    open_cache();
    attach(model_b);
}

/* While a model is read, another takes the room that is free for certain and no more: the
 * budget holds, and nothing goes before all is known. */
static void test_budget_holds_while_a_model_is_read(void **state)
{
    const uint32_t deep = MAX_TOKENS / BT;
    struct tree_stats ts;
    (void)state;
    open_half_full();
    const uint64_t room = options.max_bytes - 100 * file;
    for (uint32_t i = 0; i < 40; i++)
        put(model_b, (struct text){i + 1, 0, 5 * BT});
    const uint64_t left = room / block - 200;
    assert_in_range(left, deep + 1, 2 * deep - 1);
    is_attached = false;
    cache_attach(cache, model_a, TOKEN_BYTES, on_attached, &rig);
    assert_true(cache_recovers(cache));
    for (uint32_t i = 0; i < 3; i++) {
        const struct sequence s =
            sequence_of(model_b, (struct text){200 + i, 0, MAX_TOKENS});
        struct tree_mark m = {0};
        const size_t n = insert(&s, &m);
        assert_int_equal(n, i == 0 ? deep : i == 1 ? left - deep : 0);
        tree_mark_clear(cache_tree(cache), &m);
    }
    store_rig_settle(&rig);
    assert_true(is_attached);
    tree_stats(cache_tree(cache), &ts);
    assert_int_equal(ts.evicted, 0);
    assert_int_equal(ts.blocks, 100 + 200 + left);
    assert_int_equal(stats().disk_blocks, 300);
    const struct text later = {300, 0, MAX_TOKENS};
    assert_int_equal(put(model_b, later), deep); /* as ever */
}

/* ---- pruning while much comes ------------------------------------------------------- */

static sem_t gate;

static void wait_at_the_gate(void *arg)
{
    (void)arg;
    sem_wait(&gate);
}

static void went_through(void *arg)
{
    (void)arg;
}

/* What is put while a pruning waits for its turn is seen when that has ended, also where
 * nothing is put behind it. */
static void test_budget_holds_when_much_comes_while_it_prunes(void **state)
{
    const uint32_t deep = MAX_TOKENS / BT;
    struct tree_stats ts;
    (void)state;
    open_half_full();
    const uint64_t foreign = store_foreign_bytes(cache_store(cache));
    assert_int_equal(foreign, 100 * file); /* half of the budget may stay */
    const uint32_t fit = (uint32_t)((options.max_bytes - foreign) / (deep * block));
    for (uint32_t i = 0; i < fit; i++)
        put(model_b, (struct text){i + 1, 0, MAX_TOKENS});
    assert_int_equal(store_foreign_bytes(cache_store(cache)), foreign);
    sem_init(&gate, 0, 0);
    for (unsigned i = 0; i < workers_threads(rig.workers); i++)
        workers_submit(rig.workers, wait_at_the_gate, went_through, NULL);
    for (uint32_t i = 0; i < 4; i++) /* the first one asks for room */
        put_soon(model_b, (struct text){100 + i, 0, MAX_TOKENS});
    for (unsigned i = 0; i < workers_threads(rig.workers); i++)
        sem_post(&gate);
    store_rig_settle(&rig);
    sem_destroy(&gate);
    tree_stats(cache_tree(cache), &ts);
    assert_int_equal(ts.blocks, (fit + 4) * deep);
    assert_in_range(ts.bytes + store_foreign_bytes(cache_store(cache)), 0,
                    options.max_bytes);
}

/* ---- who waits ---------------------------------------------------------------------- */

static size_t known_then;

static void note_known(void *arg)
{
    (void)arg;
    assert_true(is_attached);
    known_then = tree_blocks();
}

static void test_what_is_about_all_waits_for_recoveries(void **state)
{
    (void)state;
    open_a();
    put(model_a, one);
    close_cache();
    open_cache();
    is_attached = false;
    known_then = 0;
    cache_attach(cache, model_a, TOKEN_BYTES, on_attached, &rig);
    cache_when_recovered(cache, note_known, NULL);
    store_rig_settle(&rig);
    assert_int_equal(known_then, 5);
}

static void test_stop_while_it_recovers_loses_nothing(void **state)
{
    (void)state;
    open_a();
    put(model_a, one);
    put(model_a, short_tail);
    close_cache();
    open_cache();
    is_attached = false;
    cache_attach(cache, model_a, TOKEN_BYTES, on_attached, &rig);
    cache_part(cache);
    store_rig_settle(&rig);
    assert_true(is_attached);
    assert_int_equal(reopen_a(), 9);
}

/* ---- models ------------------------------------------------------------------------ */

static void test_models_do_not_mix(void **state)
{
    (void)state;
    open_a();
    attach(model_b);
    put(model_a, one);
    assert_int_equal(restorable(model_b, one, UINT32_MAX), 0);
    assert_int_equal(put(model_b, one), 5); /* the same tokens, rows of its own */
    assert_fetched(model_a, one, 5 * BT);
    assert_fetched(model_b, one, 5 * BT);
    assert_int_equal(stats().disk_blocks, 10);
}

static void test_only_attached_models_are_known(void **state)
{
    (void)state;
    open_a();
    attach(model_b);
    put(model_a, one);
    put(model_b, short_tail);
    close_cache();
    open_cache();
    assert_int_equal(attach(model_b), 4);
    assert_int_equal(restorable(model_a, one, UINT32_MAX), 0);
    assert_fetched(model_b, short_tail, 3 * BT + 5);
    assert_int_equal(attach(model_a), 4 + 5); /* all that is known now */
    assert_fetched(model_a, one, 5 * BT);
}

static void test_block_is_asked_for_under_its_model(void **state)
{
    (void)state;
    struct tree_mark m = {0};
    open_a();
    attach(model_b);
    put(model_a, one);
    fetching = sequence_of(model_a, one);
    find(&fetching, &m);
    is_fetched = false;
    cache_fetch(cache, model_b, &m, UINT32_MAX, on_fetched, &fetching);
    tree_mark_clear(cache_tree(cache), &m);
    store_rig_settle(&rig);
    assert_int_equal(fetched, 0);
    assert_int_equal(fetch_error, ERR_NOT_FOUND);
}

static void test_eviction_drops_the_block_of_the_right_model(void **state)
{
    (void)state;
    const struct text two = {1, 0, 2 * BT};
    options.max_blocks = 2;
    open_a();
    attach(model_b);
    put(model_a, two);
    put(model_b, two);
    assert_int_equal(stats().disk_blocks, 2);
    assert_fetched(model_b, two, 2 * BT);
}

/* ---- damage ------------------------------------------------------------------------ */

static void test_damaged_block_leaves_with_all_behind_it(void **state)
{
    (void)state;
    options.store.ram_bytes = 0;
    open_a();
    put(model_a, one);
    char *path = file_of(model_a, one, 2);
    store_rig_flip(path, -3);
    assert_int_equal(fetch(model_a, one, UINT32_MAX), 2 * BT); /* the good ones come */
    assert_int_equal(fetch_error, ERR_CHECKSUM);
    assert_int_equal(restorable(model_a, one, UINT32_MAX), 2 * BT);
    assert_int_equal(tree_blocks(), 2);
    store_rig_settle(&rig);
    for (size_t i = 2; i < 5; i++)
        assert_false(on_disk(model_a, one, i));
    assert_int_equal(put(model_a, one), 3); /* and may come again */
    assert_fetched(model_a, one, 5 * BT);
    free(path);
}

static void test_missing_block_leaves_with_all_behind_it(void **state)
{
    (void)state;
    options.store.ram_bytes = 0;
    open_a();
    put(model_a, one);
    char *path = file_of(model_a, one, 0);
    assert_int_equal(unlink(path), 0);
    assert_int_equal(fetch(model_a, one, UINT32_MAX), 0);
    assert_int_equal(fetch_error, ERR_NOT_FOUND);
    assert_int_equal(tree_blocks(), 0);
    assert_int_equal(put(model_a, one), 5);
    free(path);
}

static void test_damage_of_a_shared_block_is_found_by_two_at_once(void **state)
{
    (void)state;
    struct tree_mark m = {0};
    options.store.ram_bytes = 0;
    open_a();
    put(model_a, one);
    char *path = file_of(model_a, one, 1);
    store_rig_flip(path, -1);
    fetching = sequence_of(model_a, one);
    find(&fetching, &m);
    cache_fetch(cache, model_a, &m, UINT32_MAX, on_fetched, &fetching);
    cache_fetch(cache, model_a, &m, UINT32_MAX, on_fetched, &fetching);
    tree_mark_clear(cache_tree(cache), &m);
    store_rig_settle(&rig);
    assert_int_equal(fetched, BT);
    assert_int_equal(tree_blocks(), 1);
    assert_fetched(model_a, one, BT);
    free(path);
}

static void test_block_that_cannot_be_read_now_stays(void **state)
{
    (void)state;
    char hex[HASH128_HEX];
    options.store.ram_bytes = 0;
    open_a();
    put(model_a, one);
    char *folder = mem_printf("%s/blocks/%s", dir, hash128_hex(model_a, hex));
    char *away = mem_printf("%s/away", rig.root);
    assert_int_equal(rename(folder, away), 0);
    assert_int_equal(symlink(away, folder), 0); /* the store follows no links */
    assert_int_equal(fetch(model_a, one, UINT32_MAX), 0);
    assert_int_equal(fetch_error, ERR_IO);
    assert_int_equal(unlink(folder), 0);
    assert_int_equal(rename(away, folder), 0);
    assert_fetched(model_a, one, 5 * BT);
    free(folder);
    free(away);
}

/* ---- prompts ----------------------------------------------------------------------- */

#define SHARING 100 /* families from here on begin with the same two pieces */

/* A text of n pieces, each of BT tokens and 64 bytes. */
static void pieces_of(uint64_t family, struct piece *v, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        const uint64_t f = family > SHARING && i < 2 ? SHARING : family;
        v[i] = (struct piece){.hash = {f * 1000 + i, 1},
                              .check = f * 77 + i,
                              .end_bytes = (i + 1) * 64,
                              .ends_part = i + 1 == n};
    }
}

static void learn(struct text t, uint64_t family, size_t n)
{
    struct piece v[32];
    struct tree_mark m = {0};
    const struct sequence s = sequence_of(model_a, t);
    pieces_of(family, v, n);
    find(&s, &m);
    const struct index_lesson lesson = {.v = v,
                                        .n = n,
                                        .n_prompt = n,
                                        .prompt_tokens = t.n,
                                        .total_tokens = t.n,
                                        .end = &m,
                                        .owner = tenant};
    cache_learn(cache, model_a, &lesson);
    tree_mark_clear(cache_tree(cache), &m);
    store_rig_settle(&rig);
}

/* Tokens that the store would restore for a text; its known pieces in `known`. */
static uint32_t restorable_by_text(uint64_t family, size_t n, size_t *known)
{
    struct piece v[32];
    struct index_hit hit = {0};
    pieces_of(family, v, n);
    index_find(cache_index(cache), v, n, &hit);
    *known = hit.n_pieces;
    const uint32_t tokens = cache_restorable(cache, &hit.at, hit.high);
    tree_mark_clear(cache_tree(cache), &hit.at);
    return tokens;
}

static void assert_text(uint64_t family, size_t n, uint32_t tokens)
{
    size_t known;
    assert_int_equal(restorable_by_text(family, n, &known), tokens);
    assert_int_equal(known, n);
}

static void test_prompt_finds_its_blocks_after_a_restart(void **state)
{
    (void)state;
    open_a();
    put(model_a, one);
    learn(one, 7, 5);
    assert_text(7, 5, 5 * BT);
    reopen_a();
    assert_text(7, 5, 5 * BT);
    size_t known;
    assert_true(restorable_by_text(7, 2, &known) >= 2 * BT); /* about that many */
    assert_int_equal(known, 2);
}

static void test_prompt_finds_its_short_tail_after_a_restart(void **state)
{
    (void)state;
    open_a();
    put(model_a, short_tail);
    learn(short_tail, 8, 4);
    assert_text(8, 4, 3 * BT + 5);
    reopen_a();
    assert_text(8, 4, 3 * BT + 5);
}

static void test_prompt_that_grew_is_found_whole_after_a_restart(void **state)
{
    (void)state;
    open_a();
    put(model_a, (struct text){1, 0, 2 * BT});
    learn((struct text){1, 0, 2 * BT}, 7, 2);
    put(model_a, one);
    learn(one, 7, 5);
    reopen_a();
    assert_text(7, 5, 5 * BT);
}

static void test_start_that_was_learned_without_blocks_is_found(void **state)
{
    (void)state;
    const struct text second = {2, 2 * BT, 5 * BT};
    struct piece v[5];
    open_a();
    pieces_of(SHARING + 1, v, 5);
    const struct index_lesson by_text = {
        .v = v, .n = 5, .n_prompt = 5, .prompt_tokens = 5 * BT};
    cache_learn(cache, model_a, &by_text); /* its slot was not saved */
    put(model_a, second);
    learn(second, SHARING + 2, 5);
    reopen_a();
    assert_text(SHARING + 2, 5, 5 * BT);
}

static void test_shared_start_is_found_when_the_first_prompt_is_gone(void **state)
{
    (void)state;
    const struct text first = {1, 2 * BT, 5 * BT}, second = {2, 2 * BT, 5 * BT};
    open_a();
    put(model_a, first);
    learn(first, SHARING + 1, 5);
    put(model_a, second);
    learn(second, SHARING + 2, 5);
    for (size_t i = 2; i < 5; i++) {
        char *path = file_of(model_a, first, i);
        assert_int_equal(unlink(path), 0);
        free(path);
    }
    reopen_a();
    assert_text(SHARING + 2, 5, 5 * BT);
    size_t known;
    restorable_by_text(SHARING + 1, 5, &known);
    assert_int_equal(known, 2);
}

static void test_prompt_whose_blocks_are_gone_restores_nothing(void **state)
{
    (void)state;
    open_a();
    put(model_a, one);
    learn(one, 7, 5);
    for (size_t i = 0; i < 5; i++) {
        char *path = file_of(model_a, one, i);
        unlink(path);
        free(path);
    }
    reopen_a();
    size_t known;
    assert_int_equal(restorable_by_text(7, 5, &known), 0);
}

static void test_damaged_prompt_log_costs_hits_and_no_more(void **state)
{
    (void)state;
    open_a();
    put(model_a, one);
    learn(one, 7, 5);
    close_cache();
    char *path = mem_printf("%s/prompts.log", dir);
    for (long at = 0; at < 400; at += 80)
        store_rig_flip(path, at);
    assert_int_equal(open_a(), 5);
    size_t known;
    assert_int_equal(restorable_by_text(7, 5, &known), 0);
    assert_int_equal(known, 0);
    assert_fetched(model_a, one, 5 * BT);
    free(path);
}

/* ---- how long they stay ------------------------------------------------------------ */

static uint64_t mono_s;
static int64_t wall_s; /* files have the real clock */

static void lives(uint32_t ttl_s, uint32_t ttl_of_7)
{
    const struct cache_lifetime seven = {7, ttl_of_7};
    cache_lifetimes(cache, ttl_s, &seven, ttl_of_7 > 0);
}

static void pass(uint32_t seconds)
{
    mono_s += seconds;
    wall_s += seconds;
    while (cache_tick(cache, mono_s, wall_s))
        ;
    store_rig_settle(&rig);
}

static void open_with_ttl(uint32_t ttl_s, uint32_t ttl_of_7)
{
    open_cache();
    lives(ttl_s, ttl_of_7);
    pass(0);
    attach(model_a);
}

/* A stop and a start; the wall clock says that so much has passed. */
static void stop_for(int64_t seconds, uint32_t ttl_s)
{
    wall_s += seconds;
    mono_s += 1000; /* another boot */
    close_cache();
    open_with_ttl(ttl_s, 0);
}

static void now_it_is(void)
{
    mono_s = 5000;
    wall_s = (int64_t)time(NULL);
}

static void test_blocks_go_when_their_time_is_over(void **state)
{
    (void)state;
    now_it_is();
    open_with_ttl(100, 0);
    put(model_a, one);
    pass(60);
    put(model_a, other);
    pass(39);
    assert_int_equal(restorable(model_a, one, UINT32_MAX), 5 * BT);
    pass(1);
    assert_int_equal(restorable(model_a, one, UINT32_MAX), 0);
    assert_int_equal(restorable(model_a, other, UINT32_MAX), 4 * BT);
    assert_int_equal(stats().disk_blocks, 4);
    pass(60);
    assert_int_equal(tree_blocks(), 0);
    assert_int_equal(stats().disk_blocks, 0);
}

static void test_what_is_used_stays(void **state)
{
    (void)state;
    now_it_is();
    open_with_ttl(100, 0);
    put(model_a, one);
    for (int i = 0; i < 5; i++) {
        pass(80);
        assert_fetched(model_a, one, 5 * BT);
    }
    pass(99);
    assert_int_equal(tree_blocks(), 5);
    pass(1);
    assert_int_equal(tree_blocks(), 0);
}

static void test_without_a_time_nothing_goes(void **state)
{
    (void)state;
    now_it_is();
    open_with_ttl(0, 0);
    put(model_a, one);
    pass(1000000000);
    assert_int_equal(tree_blocks(), 5);
}

static void test_tenants_have_times_of_their_own(void **state)
{
    (void)state;
    now_it_is();
    open_with_ttl(0, 10);
    put(model_a, one);
    tenant = 7;
    put(model_a, one);
    assert_int_equal(tree_blocks(), 10);
    pass(10);
    assert_int_equal(restorable(model_a, one, UINT32_MAX), 0);
    tenant = 0;
    assert_int_equal(restorable(model_a, one, UINT32_MAX), 5 * BT);
}

static void test_another_time_holds_for_what_is_there(void **state)
{
    (void)state;
    now_it_is();
    open_with_ttl(100, 10);
    put(model_a, one);
    tenant = 7;
    put(model_a, one);
    lives(20, 300); /* the other way round */
    pass(19);
    assert_int_equal(tree_blocks(), 10);
    pass(1);
    assert_int_equal(restorable(model_a, one, UINT32_MAX), 5 * BT);
    tenant = 0;
    assert_int_equal(restorable(model_a, one, UINT32_MAX), 0);
    lives(20, 0); /* now as all others */
    pass(0);
    assert_int_equal(tree_blocks(), 0);
}

/* They are in one order of use: the longest of the new times. */
static void test_times_that_part_leave_what_is_there_the_longest(void **state)
{
    (void)state;
    now_it_is();
    open_with_ttl(100, 100);
    put(model_a, one);
    tenant = 7;
    put(model_a, one);
    lives(10, 50);
    pass(49);
    assert_int_equal(tree_blocks(), 10);
    pass(1);
    assert_int_equal(tree_blocks(), 0);
    tenant = 0;
    put(model_a, one); /* what is new has its own */
    pass(10);
    assert_int_equal(tree_blocks(), 0);
}

static void test_expiring_is_done_in_portions(void **state)
{
    (void)state;
    now_it_is();
    open_with_ttl(10, 0);
    for (uint32_t i = 1; i <= 20; i++)
        put(model_a, (struct text){i, 0, MAX_TOKENS});
    const uint64_t before = tree_blocks();
    mono_s += 10;
    assert_true(cache_tick(cache, mono_s, wall_s));
    assert_int_equal(tree_blocks(), before - 256);
    pass(0);
    assert_int_equal(tree_blocks(), 0);
}

static void test_what_is_being_fetched_does_not_expire(void **state)
{
    (void)state;
    struct tree_mark m = {0};
    now_it_is();
    options.store.ram_bytes = 0;
    open_with_ttl(10, 0);
    put(model_a, one);
    fetching = sequence_of(model_a, one);
    find(&fetching, &m);
    is_fetched = false;
    cache_fetch(cache, model_a, &m, UINT32_MAX, on_fetched, &fetching);
    tree_mark_clear(cache_tree(cache), &m);
    mono_s += 1000;
    assert_false(cache_tick(cache, mono_s, wall_s));
    assert_int_equal(tree_blocks(), 5);
    store_rig_settle(&rig);
    assert_int_equal(fetched, 5 * BT);
    pass(0);
    assert_int_equal(tree_blocks(), 0);
}

static void test_ages_go_on_over_a_stop(void **state)
{
    (void)state;
    now_it_is();
    open_with_ttl(100, 0);
    put(model_a, one);
    pass(40);
    stop_for(20, 100);
    assert_int_equal(tree_blocks(), 5);
    pass(30);
    assert_int_equal(tree_blocks(), 5);
    pass(20); /* the note is not quite up to date */
    assert_int_equal(tree_blocks(), 0);
}

static void test_clock_set_far_ahead_deletes_nothing_at_once(void **state)
{
    (void)state;
    now_it_is();
    open_with_ttl(100, 0);
    put(model_a, one);
    pass(20);
    stop_for(365 * 86400, 100);
    assert_int_equal(tree_blocks(), 5);
    pass(20);
    assert_int_equal(tree_blocks(), 5);
    pass(40);
    assert_int_equal(tree_blocks(), 0);
}

static void test_clock_set_back_keeps_nothing_for_ever(void **state)
{
    (void)state;
    now_it_is();
    open_with_ttl(100, 0);
    put(model_a, one);
    pass(20);
    stop_for(-365 * 86400, 100);
    assert_int_equal(tree_blocks(), 5);
    pass(100);
    assert_int_equal(tree_blocks(), 0);
}

static void test_starts_again_and_again_keep_nothing_for_ever(void **state)
{
    (void)state;
    int n = 0;
    now_it_is();
    open_with_ttl(100, 0);
    put(model_a, one);
    for (; tree_blocks() && n < 50; n++) {
        pass(10);
        stop_for(n % 2 ? -100000 : 5, 100);
    }
    assert_in_range(n, 8, 15);
}

/* ---- forgetting -------------------------------------------------------------------- */

static size_t forgotten_prompts, forgotten_blocks;
static bool is_forgotten;

static void on_forgotten(void *arg, size_t n_prompts, size_t n_blocks)
{
    assert_ptr_equal(arg, &rig);
    forgotten_prompts = n_prompts;
    forgotten_blocks = n_blocks;
    is_forgotten = true;
}

static void forget(const struct cache_forget *what)
{
    char why[200];
    is_forgotten = false;
    cache_forget(cache, what, on_forgotten, &rig);
    assert_false(is_forgotten); /* never from inside */
    store_rig_settle(&rig);
    assert_true(is_forgotten);
    if (!tree_check(cache_tree(cache), why, sizeof(why)))
        fail_msg("%s", why);
}

static void assert_known(uint64_t family, size_t pieces, bool yes)
{
    size_t known;
    const uint32_t tokens = restorable_by_text(family, 5, &known);
    assert_int_equal(known, yes ? pieces : 0);
    assert_true(yes ? tokens >= BT : tokens == 0);
}

static void test_tenant_is_forgotten_and_others_are_not(void **state)
{
    (void)state;
    open_a();
    put(model_a, one);
    learn(one, 7, 5);
    tenant = 77;
    put(model_a, one);
    learn(one, 8, 5);
    forget(&(struct cache_forget){.tenant = 77});
    assert_int_equal(forgotten_prompts, 5);
    assert_int_equal(forgotten_blocks, 5);
    for (int life = 0; life < 2; life++) {
        assert_known(8, 5, false);
        assert_known(7, 5, true);
        assert_int_equal(stats().disk_blocks, 5);
        reopen_a();
    }
}

static void test_tenant_is_known_after_a_restart(void **state)
{
    (void)state;
    open_a();
    tenant = 77;
    put(model_a, one);
    learn(one, 8, 5);
    reopen_a();
    assert_known(8, 5, true);
    forget(&(struct cache_forget){.tenant = 77});
    assert_int_equal(forgotten_blocks, 5);
    assert_int_equal(stats().disk_blocks, 0);
    reopen_a();
    assert_known(8, 5, false);
}

static void test_everything_is_forgotten(void **state)
{
    (void)state;
    struct stat st;
    open_a();
    put(model_a, one);
    put(model_a, short_tail);
    learn(one, 7, 5);
    forget(&(struct cache_forget){.tenant = CACHE_EVERYBODY});
    assert_int_equal(tree_blocks(), 0);
    assert_int_equal(stats().disk_blocks, 0);
    char *path = mem_printf("%s/prompts.log", dir);
    assert_int_equal(stat(path, &st), 0);
    assert_int_equal(st.st_size, 0);
    free(path);
    assert_int_equal(put(model_a, one), 5); /* and it goes on */
    learn(one, 7, 5);
    reopen_a();
    assert_known(7, 5, true);
}

/* Two texts that share two pieces, and the blocks of these. */
static void test_start_is_forgotten_with_what_continues_it(void **state)
{
    (void)state;
    struct piece v[5];
    open_a();
    put(model_a, (struct text){1, 2 * BT, 5 * BT});
    learn((struct text){1, 2 * BT, 5 * BT}, 7, 5);
    pieces_of(7, v, 5);
    for (size_t i = 2; i < 5; i++)
        v[i].hash.lo += 500;
    put(model_a, (struct text){2, 2 * BT, 5 * BT});
    const struct sequence s = sequence_of(model_a, (struct text){2, 2 * BT, 5 * BT});
    struct tree_mark m = {0};
    find(&s, &m);
    cache_learn(cache, model_a,
                &(struct index_lesson){.v = v,
                                       .n = 5,
                                       .n_prompt = 5,
                                       .prompt_tokens = 5 * BT,
                                       .total_tokens = 5 * BT,
                                       .end = &m});
    tree_mark_clear(cache_tree(cache), &m);
    forget(&(struct cache_forget){.v = v, .n = 4});
    assert_int_equal(forgotten_prompts, 3); /* what only it had: pieces 2, 3 and 4 */
    for (int life = 0; life < 2; life++) {
        size_t known;
        restorable_by_text(7, 5, &known);
        if (life ==
            0) /* blocks just before it may go as well: where it starts is estimated */
            assert_int_equal(known, 5);
        struct index_hit hit = {0};
        index_find(cache_index(cache), v, 5, &hit);
        assert_in_range(hit.n_pieces, 0, 2);
        tree_mark_clear(cache_tree(cache), &hit.at);
        assert_true(restorable(model_a, (struct text){2, 2 * BT, 5 * BT}, UINT32_MAX) <=
                    2 * BT);
        reopen_a();
    }
}

static void test_what_is_being_fetched_is_forgotten_as_well(void **state)
{
    (void)state;
    struct tree_mark m = {0};
    options.store.ram_bytes = 0;
    open_a();
    put(model_a, one);
    fetching = sequence_of(model_a, one);
    find(&fetching, &m);
    is_fetched = false;
    cache_fetch(cache, model_a, &m, UINT32_MAX, on_fetched, &fetching);
    tree_mark_clear(cache_tree(cache), &m);
    forget(&(struct cache_forget){.tenant = CACHE_EVERYBODY});
    assert_true(is_fetched); /* whole, or an error: never other bytes */
    assert_int_equal(tree_blocks(), 0);
    assert_int_equal(stats().disk_blocks, 0);
}

static void test_what_is_being_written_is_forgotten_as_well(void **state)
{
    (void)state;
    open_a();
    const struct sequence s = sequence_of(model_a, one);
    struct tree_mark m = {0};
    struct store_block *blocks[5];
    insert(&s, &m);
    for (size_t i = 0; i < 5; i++)
        blocks[i] = block_of(&s, i);
    forget(&(struct cache_forget){.tenant = CACHE_EVERYBODY});
    cache_put(cache, &m, blocks, 5);
    store_rig_settle(&rig);
    assert_int_equal(tree_blocks(), 0);
    assert_int_equal(stats().disk_blocks, 0);
    assert_int_equal(reopen_a(), 0);
}

/* Random tenants, models and texts: what is found is one's own. */
static void test_no_block_crosses(void **state)
{
    (void)state;
    uint32_t random = 1;
    bool has[3][2][6] = {0};
    open_a();
    attach(model_b);
    for (int i = 0; i < 400; i++) {
        random = random * 1664525 + 1013904223;
        const uint32_t who = random >> 16 & 3, what = (random >> 18) % 6;
        const bool b = random >> 24 & 1;
        const struct hash128 model = b ? model_b : model_a;
        const struct text t = {what + 1, 0, 2 * BT};
        if (who == 3)
            continue;
        tenant = who * 1000;
        const uint32_t n = restorable(model, t, UINT32_MAX);
        assert_int_equal(n, has[who][b][what] ? 2 * BT : 0);
        if (n)
            assert_fetched(model, t, 2 * BT);
        if (random >> 25 & 1) {
            put(model, t);
            has[who][b][what] = true;
        } else if (tenant && (random >> 26) % 8 == 0) {
            forget(&(struct cache_forget){.tenant = tenant});
            memset(has[who], 0, sizeof(has[who]));
        }
    }
}

#define TEST(name) cmocka_unit_test_setup_teardown(test_##name, set_up, tear_down)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(blocks_can_be_restored_when_they_are_stored),
        TEST(restorable_is_whole_blocks),
        TEST(shared_start_is_kept_once),
        TEST(short_tail_is_a_block_as_well),
        TEST(without_a_folder_ram_is_all_there_is),
        TEST(evicted_blocks_leave_the_store),
        TEST(what_is_being_fetched_is_not_evicted),
        TEST(blocks_come_back_after_a_restart),
        TEST(attaching_again_finds_nothing_new),
        TEST(smaller_budget_after_a_restart_drops_the_rest),
        TEST(sequence_larger_than_the_budget_keeps_its_start),
        TEST(start_shared_by_the_oldest_and_the_newest_survives),
        TEST(attaching_while_it_is_recovered_waits),
        TEST(recovery_takes_many_short_turns),
        TEST(others_may_evict_while_it_recovers),
        TEST(budget_holds_while_a_model_is_read),
        TEST(budget_holds_when_much_comes_while_it_prunes),
        TEST(what_is_about_all_waits_for_recoveries),
        TEST(stop_while_it_recovers_loses_nothing),
        TEST(block_behind_a_missing_one_is_not_recovered),
        TEST(models_do_not_mix),
        TEST(only_attached_models_are_known),
        TEST(block_is_asked_for_under_its_model),
        TEST(eviction_drops_the_block_of_the_right_model),
        TEST(damaged_block_leaves_with_all_behind_it),
        TEST(missing_block_leaves_with_all_behind_it),
        TEST(damage_of_a_shared_block_is_found_by_two_at_once),
        TEST(block_that_cannot_be_read_now_stays),
        TEST(prompt_finds_its_blocks_after_a_restart),
        TEST(prompt_finds_its_short_tail_after_a_restart),
        TEST(prompt_that_grew_is_found_whole_after_a_restart),
        TEST(start_that_was_learned_without_blocks_is_found),
        TEST(shared_start_is_found_when_the_first_prompt_is_gone),
        TEST(prompt_whose_blocks_are_gone_restores_nothing),
        TEST(damaged_prompt_log_costs_hits_and_no_more),
        TEST(blocks_go_when_their_time_is_over),
        TEST(what_is_used_stays),
        TEST(without_a_time_nothing_goes),
        TEST(tenants_have_times_of_their_own),
        TEST(expiring_is_done_in_portions),
        TEST(another_time_holds_for_what_is_there),
        TEST(times_that_part_leave_what_is_there_the_longest),
        TEST(what_is_being_fetched_does_not_expire),
        TEST(ages_go_on_over_a_stop),
        TEST(clock_set_far_ahead_deletes_nothing_at_once),
        TEST(clock_set_back_keeps_nothing_for_ever),
        TEST(starts_again_and_again_keep_nothing_for_ever),
        TEST(tenant_is_forgotten_and_others_are_not),
        TEST(tenant_is_known_after_a_restart),
        TEST(everything_is_forgotten),
        TEST(start_is_forgotten_with_what_continues_it),
        TEST(what_is_being_fetched_is_forgotten_as_well),
        TEST(what_is_being_written_is_forgotten_as_well),
        TEST(no_block_crosses),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
