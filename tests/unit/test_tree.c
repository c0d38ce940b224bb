/* SPDX-License-Identifier: MIT */
#include "prefix/tree.h"

/*
 * Promises of the tree one by one. A sequence is written as a word: each letter is a
 * block of BT tokens, and its chain hash is real.
 */

#include <malloc.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/mem.h"
#include "cmocka_all.h"
#include "prefix/chain.h"

#define BT 4
#define MAX 2048

static struct chain_key key;
static const struct hash128 root = {7, 7};

/* The last word that was spelled. */
static struct hash128 chain[MAX + 1];
static uint32_t tokens[(MAX + 1) * BT];

static struct tree_sequence spell(const char *word, uint32_t tail_tokens)
{
    size_t n = strlen(word);
    assert_true(n <= MAX);
    for (size_t i = 0; i <= n; i++)
        for (size_t k = 0; k < BT; k++)
            tokens[i * BT + k] = i < n ? (uint32_t)(word[i] * 10) + (uint32_t)k : 9999;
    chain_blocks(&key, root, tokens, n * BT, BT, chain);
    chain[n] = chain_block(&key, n ? chain[n - 1] : root, tokens + n * BT, tail_tokens);
    return (struct tree_sequence){.chain = chain,
                                  .n = n,
                                  .tokens = tokens,
                                  .tail_tokens = tail_tokens,
                                  .token_bytes = 1};
}

static struct tree *new_tree(uint64_t max_blocks, uint64_t max_bytes)
{
    unsigned char bytes[CHAIN_KEY_BYTES] = {1, 2, 3};
    chain_key_init(&key, bytes);
    return tree_new(&(struct tree_options){.block_tokens = BT,
                                           .max_blocks = max_blocks,
                                           .max_bytes = max_bytes,
                                           .keep_tokens = true});
}

static void check(const struct tree *t)
{
    char why[128];
    if (!tree_check(t, why, sizeof(why)))
        fail_msg("%s", why);
}

static size_t insert(struct tree *t, const char *word, struct tree_mark *m)
{
    struct tree_sequence s = spell(word, 0);
    size_t n = tree_insert(t, &s, m);
    check(t);
    return n;
}

static size_t match(struct tree *t, const char *word)
{
    spell(word, 0);
    return tree_match(t, chain, strlen(word), tokens, NULL);
}

static struct tree_stats stats(const struct tree *t)
{
    struct tree_stats st;
    tree_stats(t, &st);
    return st;
}

static void clear_and_free(struct tree *t, struct tree_mark *m)
{
    tree_mark_clear(t, m);
    check(t);
    tree_free(t);
}

/* ---- matching ---------------------------------------------------------------------- */

static void test_tree_empty_knows_nothing(void **state)
{
    (void)state;
    struct tree *t = new_tree(0, 0);
    struct tree_mark m = {0};
    assert_int_equal(match(t, "abc"), 0);
    assert_int_equal(tree_match(t, NULL, 0, NULL, &m), 0);
    assert_null(m.node);
    assert_int_equal(insert(t, "", &m), 0);
    assert_null(m.node);
    assert_int_equal(tree_mark_blocks(&m) + tree_mark_tokens(&m), 0);
    tree_touch(t, &m);
    tree_pin(t, &m);
    assert_false(m.pinned);
    tree_drop(t, &m);
    assert_int_equal(tree_shrink(t, 0, 0), 0);
    clear_and_free(t, &m);
}

static void test_tree_match_stops_at_first_missing_block(void **state)
{
    (void)state;
    struct tree *t = new_tree(0, 0);
    assert_int_equal(insert(t, "abcdef", NULL), 6);
    assert_int_equal(insert(t, "abcxyz", NULL), 3);
    for (size_t n = 0; n <= 6; n++) {
        char word[8] = "abcdef";
        word[n] = n < 6 ? '?' : '\0';
        assert_int_equal(match(t, word), n);
    }
    assert_int_equal(match(t, "abcxyz"), 6);
    assert_int_equal(match(t, "abcxef"), 4);
    assert_int_equal(match(t, "abcdefg"), 6);
    assert_int_equal(match(t, "bcdef"), 0);
    assert_int_equal(stats(t).blocks, 9);
    tree_free(t);
}

/* Shared starts of a block less a token, a block, a block and a token. */
static void test_tree_shares_whole_blocks_only(void **state)
{
    (void)state;
    struct tree *t = new_tree(0, 0);
    insert(t, "abc", NULL);
    for (uint32_t shared = BT - 1; shared <= BT + 1; shared++) {
        struct hash128 other[3];
        spell("abc", 0);
        for (uint32_t i = shared; i < 3 * BT; i++)
            tokens[i] += 100000;
        chain_blocks(&key, root, tokens, sizeof(other) / sizeof(other[0]) * BT, BT,
                     other);
        assert_int_equal(tree_match(t, other, 3, tokens, NULL), shared / BT);
    }
    tree_free(t);
}

static void test_tree_every_length_of_a_long_prompt_matches(void **state)
{
    (void)state;
    static char word[1500];
    struct tree *t = new_tree(0, 0);
    for (size_t i = 0; i + 1 < sizeof(word); i++)
        word[i] = (char)('a' + i * 7 % 26);
    assert_int_equal(insert(t, word, NULL), 1499);
    assert_int_equal(stats(t).nodes, (1499 + TREE_RUN_MAX - 1) / TREE_RUN_MAX);
    for (size_t n = 0; n < 1499; n++) {
        char was = word[n];
        word[n] = '!';
        assert_int_equal(match(t, word), n);
        word[n] = was;
    }
    tree_free(t);
}

static void test_tree_roots_have_nothing_to_do_with_each_other(void **state)
{
    (void)state;
    struct tree *t = new_tree(0, 0);
    struct hash128 other[3];
    insert(t, "abc", NULL);
    chain_blocks(&key, (struct hash128){8, 8}, tokens, 3 * BT, BT, other);
    assert_int_equal(tree_match(t, other, 3, tokens, NULL), 0);
    tree_insert(t, &(struct tree_sequence){.chain = other, .n = 3, .tokens = tokens},
                NULL);
    assert_int_equal(tree_match(t, other, 3, tokens, NULL), 3);
    assert_int_equal(stats(t).blocks, 6);
    check(t);
    tree_free(t);
}

static void test_tree_fan_out_of_thousands(void **state)
{
    (void)state;
    struct tree *t = new_tree(0, 0);
    struct hash128 two[2];
    uint32_t ids[2 * BT] = {0};
    for (uint32_t i = 0; i < 9000; i++) {
        ids[BT] = i;
        chain_blocks(&key, root, ids, 2 * BT, BT, two);
        struct tree_sequence s = {.chain = two, .n = 2, .tokens = ids};
        assert_int_equal(tree_insert(t, &s, NULL), i ? 1 : 2);
    }
    check(t);
    for (uint32_t i = 0; i < 9000; i += 7) {
        ids[BT] = i;
        chain_blocks(&key, root, ids, 2 * BT, BT, two);
        assert_int_equal(tree_match(t, two, 2, ids, NULL), 2);
    }
    assert_int_equal(stats(t).nodes, 9001);
    tree_free(t);
}

/* ---- tails ------------------------------------------------------------------------- */

static void test_tree_a_tail_ends_a_sequence(void **state)
{
    (void)state;
    struct tree *t = new_tree(0, 0);
    struct tree_mark m = {0};
    struct tree_sequence s = spell("ab", 3);
    assert_int_equal(tree_insert(t, &s, &m), 3);
    assert_int_equal(tree_mark_blocks(&m), 3);
    assert_int_equal(tree_mark_tokens(&m), 2 * BT + 3);
    assert_int_equal(stats(t).tokens, 2 * BT + 3);
    assert_int_equal(stats(t).bytes, 2 * BT + 3);
    assert_int_equal(tree_insert(t, &s, NULL), 0);

    assert_int_equal(insert(t, "abc", NULL), 1); /* beside the tail, not behind it */
    assert_int_equal(tree_mark_blocks(&m), 3);
    s = spell("ab", 2);
    assert_int_equal(tree_insert(t, &s, NULL), 1);
    assert_int_equal(stats(t).blocks, 5);
    assert_int_equal(match(t, "abc"), 3);
    s = spell("", 1);
    tree_mark_clear(t, &m);
    assert_int_equal(tree_insert(t, &s, &m), 1);
    assert_int_equal(tree_mark_tokens(&m), 1);
    clear_and_free(t, &m);
}

/* ---- hashes prove nothing ---------------------------------------------------------- */

static void test_tree_a_collision_ends_the_match(void **state)
{
    (void)state;
    struct tree *t = new_tree(0, 0);
    struct tree_mark m = {0};
    insert(t, "abcd", NULL);
    struct tree_sequence s = spell("abcdef", 0);
    tokens[2 * BT + 1] ^= 1; /* the same hashes of other tokens */
    assert_int_equal(tree_match(t, s.chain, s.n, s.tokens, &m), 2);
    assert_int_equal(tree_mark_blocks(&m), 2);
    assert_int_equal(stats(t).collisions, 1);
    assert_int_equal(tree_match(t, s.chain, s.n, NULL, NULL), 4); /* nothing to compare */

    tree_mark_clear(t, &m);
    assert_int_equal(tree_insert(t, &s, &m), 0);
    assert_int_equal(tree_mark_blocks(&m), 2);
    assert_int_equal(stats(t).collisions, 2);
    assert_int_equal(stats(t).blocks, 4);
    tokens[2 * BT + 1] ^= 1;
    tokens[0] ^= 1; /* at the first block of the first node */
    tree_mark_clear(t, &m);
    assert_int_equal(tree_insert(t, &s, &m), 0);
    assert_null(m.node);
    clear_and_free(t, &m);
}

static void test_tree_a_tail_is_not_taken_for_a_block(void **state)
{
    (void)state;
    struct tree *t = tree_new(&(struct tree_options){.block_tokens = BT});
    struct hash128 same[2] = {{1, 1}, {2, 2}};
    struct tree_sequence tail = {.chain = same, .n = 1, .tail_tokens = 2};
    struct tree_sequence block = {.chain = same, .n = 2};
    assert_int_equal(tree_insert(t, &tail, NULL), 2);
    assert_int_equal(tree_match(t, same, 2, NULL, NULL), 1);
    assert_int_equal(tree_insert(t, &block, NULL), 0);
    assert_int_equal(stats(t).collisions, 2);
    tail.tail_tokens = 3;
    assert_int_equal(tree_insert(t, &tail, NULL), 0);
    check(t);
    tree_free(t);
}

static void test_tree_the_same_hash_below_another_parent_is_another_block(void **state)
{
    (void)state;
    struct tree *t = tree_new(&(struct tree_options){.block_tokens = BT});
    const struct hash128 a[] = {{1, 0}, {3, 0}, {5, 0}}, b[] = {{2, 0}, {3, 0}, {6, 0}};
    tree_insert(t, &(struct tree_sequence){.chain = a, .n = 3}, NULL);
    tree_insert(t, &(struct tree_sequence){.chain = b, .n = 3}, NULL);
    tree_insert(t, &(struct tree_sequence){.chain = a, .n = 1}, NULL); /* splits */
    tree_insert(t, &(struct tree_sequence){.chain = b, .n = 1}, NULL);
    check(t);
    assert_int_equal(stats(t).nodes, 4);
    assert_int_equal(tree_match(t, a, 3, NULL, NULL), 3);
    assert_int_equal(tree_match(t, b, 3, NULL, NULL), 3);
    tree_free(t);
}

static void test_tree_unknown_tokens_are_believed(void **state)
{
    (void)state;
    struct tree *t = new_tree(0, 0);
    struct tree_sequence s = spell("abc", 0);
    s.tokens = NULL;
    assert_int_equal(tree_insert(t, &s, NULL), 3);
    assert_int_equal(stats(t).token_id_bytes, 0);
    tokens[0] ^= 1;
    assert_int_equal(tree_match(t, chain, 3, tokens, NULL), 3);
    check(t);
    tree_free(t);
}

/* ---- budgets ----------------------------------------------------------------------- */

static void test_tree_a_small_budget_keeps_the_leading_part(void **state)
{
    (void)state;
    struct tree *t = new_tree(3, 0);
    struct tree_mark m = {0};
    insert(t, "xyz", NULL);
    assert_int_equal(insert(t, "abcdef", &m), 3);
    assert_int_equal(tree_mark_blocks(&m), 3);
    assert_int_equal(match(t, "abcdef"), 3);
    assert_int_equal(match(t, "xyz"), 0);
    assert_int_equal(insert(t, "abcdef", NULL), 0);
    clear_and_free(t, &m);
}

static void test_tree_budgets_are_exact(void **state)
{
    (void)state;
    struct tree *t = new_tree(6, 6 * BT);
    insert(t, "abc", NULL);
    insert(t, "xyz", NULL);
    assert_int_equal(stats(t).evicted, 0); /* full to the last block and byte */
    insert(t, "abcd", NULL);
    assert_int_equal(stats(t).evicted, 1);
    assert_int_equal(match(t, "xyz"), 2);
    assert_int_equal(match(t, "abcd"), 4);
    insert(t, "q", NULL);
    assert_int_equal(match(t, "xyz"), 1);
    tree_free(t);

    t = new_tree(0, 2 * BT + 2);
    assert_int_equal(insert(t, "abc", NULL), 2);
    struct tree_sequence s = spell("ab", 2);
    assert_int_equal(tree_insert(t, &s, NULL), 1); /* the tail fits exactly */
    assert_int_equal(stats(t).bytes, 2 * BT + 2);
    assert_int_equal(stats(t).evicted, 0);
    tree_free(t);
}

static void test_tree_evicts_nothing_for_a_block_that_cannot_fit(void **state)
{
    (void)state;
    struct tree *t = new_tree(0, 10 * BT);
    insert(t, "abcdef", NULL);
    struct tree_sequence s = spell("xy", 0);
    s.token_bytes = 11;
    assert_int_equal(tree_insert(t, &s, NULL), 0);
    assert_int_equal(match(t, "abcdef"), 6);
    tree_free(t);
}

static void test_tree_oldest_leaf_goes_first_block_by_block(void **state)
{
    (void)state;
    struct tree *t = new_tree(0, 0);
    insert(t, "abcd", NULL);
    insert(t, "abxy", NULL);
    insert(t, "ab", NULL);
    static const struct {
        size_t old, young;
    } left[] = {{3, 4}, {2, 4}, {2, 3}, {2, 2}, {1, 1}, {0, 0}};
    for (uint64_t i = 0; i < 6; i++) {
        assert_int_equal(tree_shrink(t, UINT64_MAX, 5 - i), 1);
        check(t);
        assert_int_equal(match(t, "abcd"), left[i].old);
        assert_int_equal(match(t, "abxy"), left[i].young);
    }
    assert_int_equal(stats(t).nodes, 0);
    tree_free(t);
}

/* ---- pins -------------------------------------------------------------------------- */

static void test_tree_pinned_block_and_all_before_it_stay(void **state)
{
    (void)state;
    struct tree *t = new_tree(8, 0);
    struct tree_mark m = {0};
    insert(t, "abcdef", NULL);
    spell("abcd", 0);
    tree_match(t, chain, 4, tokens, &m);
    tree_pin(t, &m);
    check(t);
    for (char c = 'g'; c <= 'z'; c++) {
        char word[] = {c, c, c, c, c, '\0'};
        assert_int_equal(insert(t, word, NULL), 4); /* 8 − 4 pinned */
        assert_int_equal(match(t, "abcdef"), 4);
    }
    assert_int_equal(tree_shrink(t, 0, 0), 4);
    assert_int_equal(match(t, "abcd"), 4);
    tree_unpin(t, &m);
    check(t);
    assert_int_equal(tree_shrink(t, UINT64_MAX, 1), 3);
    assert_int_equal(tree_mark_blocks(&m), 1);
    clear_and_free(t, &m);
}

static void test_tree_released_place_goes_in_its_turn(void **state)
{
    (void)state;
    struct tree *t = new_tree(4, 0);
    struct tree_mark a = {0}, b = {0};
    insert(t, "a", &a);
    insert(t, "b", &b);
    insert(t, "c", NULL);
    insert(t, "d", NULL);
    tree_pin(t, &a);
    tree_pin(t, &b);
    insert(t, "e", NULL);
    assert_int_equal(match(t, "c"), 0);
    tree_unpin(t, &b); /* newer than a, older than d */
    insert(t, "f", NULL);
    assert_int_equal(match(t, "b"), 0);
    assert_int_equal(match(t, "d"), 1);
    tree_unpin(t, &a);
    insert(t, "g", NULL);
    assert_int_equal(match(t, "a"), 0);
    assert_int_equal(match(t, "d"), 1);
    assert_null(a.node);
    assert_null(b.node);
    tree_free(t);
}

static void test_tree_full_of_pins_takes_nothing(void **state)
{
    (void)state;
    struct tree *t = new_tree(3, 0);
    struct tree_mark m = {0}, twin = {0};
    insert(t, "abc", &m);
    tree_pin(t, &m);
    tree_mark_copy(t, &twin, &m);
    assert_false(twin.pinned);
    tree_pin(t, &twin);
    assert_int_equal(insert(t, "xyz", NULL), 0);
    assert_int_equal(insert(t, "abcd", NULL), 0);
    tree_mark_clear(t, &m);
    assert_int_equal(insert(t, "xyz", NULL), 0); /* each pin counts */
    tree_mark_clear(t, &twin);
    assert_int_equal(insert(t, "xyz", NULL), 3);
    clear_and_free(t, &m);
}

/* ---- places ------------------------------------------------------------------------ */

static void test_tree_marks_fall_back_when_their_block_goes(void **state)
{
    (void)state;
    struct tree *t = new_tree(0, 0);
    struct tree_mark m[6] = {0};
    insert(t, "abcd", NULL);
    insert(t, "abxy", NULL);
    for (size_t i = 0; i < 6; i++) {
        spell(i < 4 ? "abcd" : "abxy", 0);
        tree_match(t, chain, i < 4 ? i + 1 : i - 1, tokens, &m[i]);
    }
    static const size_t left[][6] = {{1, 2, 3, 3, 3, 4}, {1, 2, 2, 2, 3, 4},
                                     {1, 2, 2, 2, 3, 3}, {1, 2, 2, 2, 2, 2},
                                     {1, 1, 1, 1, 1, 1}, {0, 0, 0, 0, 0, 0}};
    for (uint64_t step = 0; step < 6; step++) {
        tree_shrink(t, UINT64_MAX, 5 - step);
        check(t);
        for (size_t i = 0; i < 6; i++)
            assert_int_equal(tree_mark_blocks(&m[i]), left[step][i]);
    }
    tree_free(t);
}

/* A run that was trimmed and grows again must not give marks their old depth back. */
static void test_tree_fallen_marks_stay_where_they_fell(void **state)
{
    (void)state;
    struct tree *t = new_tree(0, 0);
    struct tree_mark m = {0};
    insert(t, "abcdef", &m);
    tree_shrink(t, UINT64_MAX, 2);
    assert_int_equal(tree_mark_blocks(&m), 2);
    insert(t, "abxyz", NULL);
    assert_int_equal(stats(t).nodes, 1);
    assert_int_equal(tree_mark_blocks(&m), 2);
    clear_and_free(t, &m);
}

static void test_tree_mark_goes_down_the_newest_way(void **state)
{
    (void)state;
    struct tree *t = new_tree(0, 0);
    struct tree_mark m = {0}, nowhere = {0};
    insert(t, "abcd", NULL);
    insert(t, "abxyz", NULL);
    spell("a", 0);
    tree_match(t, chain, 1, tokens, &m);
    assert_int_equal(tree_mark_down(t, &m, BT), BT);
    assert_int_equal(tree_mark_down(t, &m, 2 * BT + 1), 3 * BT);
    tree_mark_up(t, &m, 2);
    insert(t, "abcd", NULL);
    assert_int_equal(tree_mark_down(t, &m, 100 * BT), 4 * BT);
    tree_mark_up(t, &m, 0);
    assert_null(m.node);
    assert_int_equal(tree_mark_down(t, &nowhere, 100), 0);
    assert_null(nowhere.node);
    tree_free(t);
}

struct dropped {
    size_t n, evicted;
};

static void on_evict(void *arg, const struct tree_block *b, bool evicted)
{
    struct dropped *d = arg;
    d->n++;
    d->evicted += evicted;
    assert_non_null(b->tokens);
}

static void test_tree_drop_takes_everything_behind_the_mark(void **state)
{
    (void)state;
    struct dropped d = {0, 0};
    struct tree *t = tree_new(&(struct tree_options){
        .block_tokens = BT, .keep_tokens = true, .on_evict = on_evict, .arg = &d});
    struct tree_mark at = {0}, behind = {0}, beside = {0};
    insert(t, "abcdef", NULL);
    insert(t, "abcdxy", &behind);
    insert(t, "abq", &beside);
    tree_pin(t, &behind);
    spell("abcd", 0);
    tree_match(t, chain, 4, tokens, &at);
    tree_drop(t, &at);
    check(t);
    assert_int_equal(d.n, 5);
    assert_int_equal(d.evicted, 0);
    assert_int_equal(stats(t).dropped, 5);
    assert_int_equal(tree_mark_blocks(&at), 3);
    assert_int_equal(tree_mark_blocks(&behind), 3);
    assert_true(behind.pinned);
    assert_int_equal(tree_mark_blocks(&beside), 3);
    assert_int_equal(tree_shrink(t, 0, 0), 1); /* q; the pin has fallen to c */
    assert_int_equal(match(t, "abc"), 3);
    tree_free(t);
    assert_null(behind.node);
}

struct visit {
    size_t n, stop_after;
};

static bool visit(void *arg, struct tree_block *b, size_t depth)
{
    struct visit *v = arg;
    assert_int_equal(depth, v->n);
    assert_true(hash128_eq(b->hash, chain[depth]));
    return ++v->n != v->stop_after;
}

static void test_tree_walk_goes_from_the_root_until_told(void **state)
{
    (void)state;
    struct tree *t = new_tree(0, 0);
    struct tree_mark m = {0};
    struct visit all = {0, 0}, some = {0, 3};
    insert(t, "abxy", NULL);
    insert(t, "abcdef", NULL);
    spell("abcde", 0);
    tree_match(t, chain, 5, tokens, &m);
    tree_walk(t, &m, visit, &all);
    assert_int_equal(all.n, 5);
    tree_walk(t, &m, visit, &some);
    assert_int_equal(some.n, 3);
    clear_and_free(t, &m);
}

static void test_tree_knows_what_holders_have(void **state)
{
    (void)state;
    struct tree *t = new_tree(0, 0);
    struct tree_mark long_one = {0}, other = {0};
    insert(t, "abcdef", &long_one);
    insert(t, "abxy", &other);
    tree_hold(t, 0, &long_one);
    tree_hold(t, TREE_HOLDERS - 1, &other);
    check(t);
    assert_int_equal(tree_held(t, 0, &long_one), 6);
    assert_int_equal(tree_held(t, 0, &other), 2);
    assert_int_equal(tree_held(t, TREE_HOLDERS - 1, &long_one), 2);
    assert_int_equal(tree_held(t, 5, &long_one), 0);
    tree_hold(t, 0, &other); /* and nothing else it had before */
    assert_int_equal(tree_held(t, 0, &long_one), 2);
    tree_shrink(t, UINT64_MAX, 1);
    check(t);
    assert_int_equal(tree_held(t, 0, &other), 1);
    tree_release(t, 0);
    assert_int_equal(tree_held(t, 0, &other), 0);
    tree_mark_clear(t, &other);
    clear_and_free(t, &long_one);
}

/* ---- its own bookkeeping ----------------------------------------------------------- */

static void test_tree_fragments_used_together_become_one_run(void **state)
{
    (void)state;
    struct tree *t = new_tree(0, 0);
    insert(t, "abcdefgh", NULL);
    insert(t, "abx", NULL);
    insert(t, "abcdy", NULL);
    insert(t, "abcdefz", NULL);
    insert(t, "abcdefgh", NULL);
    assert_int_equal(stats(t).nodes, 7);
    tree_shrink(t, UINT64_MAX, 8);
    assert_int_equal(match(t, "abcdefgh"), 8);
    assert_int_equal(stats(t).nodes, 4);
    insert(t, "abcdefgh", NULL);
    assert_int_equal(stats(t).nodes, 1);
    assert_int_equal(stats(t).merges, 3);
    tree_free(t);
}

static size_t resident_bytes(void)
{
    unsigned long pages = 0;
    FILE *f = fopen("/proc/self/statm", "r");
    assert_non_null(f);
    assert_int_equal(fscanf(f, "%*u %lu", &pages), 1);
    fclose(f);
    return pages * (size_t)sysconf(_SC_PAGESIZE);
}

/* Whether a large piece is mapped by itself depends on what was freed before. */
static size_t allocated_bytes(void)
{
    const struct mallinfo2 m = mallinfo2();
    return m.uordblks + m.hblkhd;
}

#define SYSTEM_BLOCKS 30
#define TAIL_BLOCKS 4

/* Request i: the system prompt, or a part of it, and a tail that nobody else has. */
static void insert_unique(struct tree *t, uint32_t i)
{
    size_t shared = i % 16 == 0 ? i / 16 % SYSTEM_BLOCKS : SYSTEM_BLOCKS;
    struct tree_sequence s = {.chain = chain,
                              .n = shared + 1 + i % TAIL_BLOCKS,
                              .tokens = tokens,
                              .tail_tokens = i % BT,
                              .token_bytes = 1};
    for (size_t k = 0; k <= SYSTEM_BLOCKS + TAIL_BLOCKS; k++)
        for (size_t j = 0; j < BT; j++)
            tokens[k * BT + j] = (uint32_t)k + (k < shared ? 0 : 1000 * (i + 1));
    chain_blocks(&key, root, tokens, s.n * BT, BT, chain);
    chain[s.n] = chain_block(&key, chain[s.n - 1], tokens + s.n * BT, s.tail_tokens);
    tree_insert(t, &s, NULL);
}

static void test_tree_memory_follows_the_live_tree(void **state)
{
    (void)state;
    if (SANITIZED)
        skip();
    struct tree *t = new_tree(20000, 0);
    size_t empty = allocated_bytes();
    for (uint32_t i = 0; i < 50000; i++)
        insert_unique(t, i);
    size_t resident = resident_bytes();
    for (uint32_t i = 50000; i < 1000000; i++)
        insert_unique(t, i);
    size_t grown = resident_bytes() - resident;
    struct tree_stats st = stats(t);
    size_t used = allocated_bytes() - empty, counted = st.index_bytes + st.token_id_bytes;
    print_message(
        "%llu blocks: %zu bytes used, %zu counted; resident grew by %zu in 950,000 "
        "requests\n",
        (unsigned long long)st.blocks, used, counted, grown);
    assert_int_equal(st.blocks, 20000);
    assert_true((ssize_t)grown < 1 << 20);
    assert_in_range(used, counted * 98 / 100, counted * 102 / 100);
    check(t);

    tree_shrink(t, UINT64_MAX, SYSTEM_BLOCKS);
    insert_unique(t, TAIL_BLOCKS); /* touches the system prompt */
    tree_shrink(t, UINT64_MAX, SYSTEM_BLOCKS);
    assert_in_range(stats(t).nodes, 1, 2);
    assert_in_range(allocated_bytes() - empty, 0, 40000); /* and freed chunks */
    check(t);
    tree_free(t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_tree_empty_knows_nothing),
        cmocka_unit_test(test_tree_match_stops_at_first_missing_block),
        cmocka_unit_test(test_tree_shares_whole_blocks_only),
        cmocka_unit_test(test_tree_every_length_of_a_long_prompt_matches),
        cmocka_unit_test(test_tree_roots_have_nothing_to_do_with_each_other),
        cmocka_unit_test(test_tree_fan_out_of_thousands),
        cmocka_unit_test(test_tree_a_tail_ends_a_sequence),
        cmocka_unit_test(test_tree_a_collision_ends_the_match),
        cmocka_unit_test(test_tree_a_tail_is_not_taken_for_a_block),
        cmocka_unit_test(test_tree_the_same_hash_below_another_parent_is_another_block),
        cmocka_unit_test(test_tree_unknown_tokens_are_believed),
        cmocka_unit_test(test_tree_a_small_budget_keeps_the_leading_part),
        cmocka_unit_test(test_tree_budgets_are_exact),
        cmocka_unit_test(test_tree_evicts_nothing_for_a_block_that_cannot_fit),
        cmocka_unit_test(test_tree_oldest_leaf_goes_first_block_by_block),
        cmocka_unit_test(test_tree_pinned_block_and_all_before_it_stay),
        cmocka_unit_test(test_tree_released_place_goes_in_its_turn),
        cmocka_unit_test(test_tree_full_of_pins_takes_nothing),
        cmocka_unit_test(test_tree_marks_fall_back_when_their_block_goes),
        cmocka_unit_test(test_tree_fallen_marks_stay_where_they_fell),
        cmocka_unit_test(test_tree_mark_goes_down_the_newest_way),
        cmocka_unit_test(test_tree_drop_takes_everything_behind_the_mark),
        cmocka_unit_test(test_tree_walk_goes_from_the_root_until_told),
        cmocka_unit_test(test_tree_knows_what_holders_have),
        cmocka_unit_test(test_tree_fragments_used_together_become_one_run),
        cmocka_unit_test(test_tree_memory_follows_the_live_tree),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
