/* SPDX-License-Identifier: MIT */

/* The curve is one pass; the block tree is asked for each size on its own. They agree. */

#include "prefix/curve.h"

#include <stdio.h>
#include <stdlib.h>

#include "base/draw.h"
#include "base/mem.h"
#include "cmocka_all.h"
#include "prefix/tree.h"

#define MAX_REQUEST 512

static uint64_t rng;

static uint64_t below(uint64_t n)
{
    return draw_next(&rng) % n;
}

/* An item stands for all before it: its name covers them. */
static size_t make_request(struct hash128 *items, size_t most, uint64_t kinds)
{
    const size_t n = 1 + below(most);
    uint64_t name = 1;
    for (size_t i = 0; i < n; i++) {
        name = (name ^ below(i % 3 ? 1 : kinds)) * 0x100000001b3u + i;
        items[i] = (struct hash128){.lo = name * 0x9e3779b97f4a7c15u, .hi = name};
    }
    return n;
}

static void test_curve_agrees_with_the_tree_at_each_size(void **state)
{
    static const size_t sizes[] = {1, 2, 7, 30, 100, 300, 1000, 5000};
    enum { N = sizeof(sizes) / sizeof(sizes[0]) };
    struct hash128 items[60];
    struct curve *c = curve_new(5000);
    struct tree *trees[N];
    double hits[N] = {0}, total = 0;
    (void)state;
    rng = 1;
    for (int k = 0; k < N; k++)
        trees[k] =
            tree_new(&(struct tree_options){.block_tokens = 16, .max_blocks = sizes[k]});
    for (int i = 0; i < 3000; i++) {
        const struct tree_sequence s = {.chain = items, .n = make_request(items, 60, 4)};
        total += (double)s.n;
        for (int k = 0; k < N; k++) {
            hits[k] += (double)tree_match(trees[k], s.chain, s.n, NULL, NULL);
            tree_insert(trees[k], &s, NULL);
        }
        curve_add(c, items, s.n, NULL);
    }
    assert_true(curve_total(c) == total);
    assert_int_equal(curve_items(c), 5000); /* more were there, and were forgotten */
    for (int k = 0; k < N; k++) {
        if (curve_hits(c, sizes[k]) != hits[k])
            fail_msg("%zu items: %g, the tree says %g", sizes[k], curve_hits(c, sizes[k]),
                     hits[k]);
        tree_free(trees[k]);
    }
    curve_free(c);
}

static void test_curve_never_falls(void **state)
{
    struct hash128 items[20];
    struct curve *c = curve_new(256);
    double before = 0;
    (void)state;
    rng = 2;
    for (int i = 0; i < 1000; i++)
        curve_add(c, items, make_request(items, 20, 3), NULL);
    for (size_t size = 0; size < 300; size++) {
        assert_true(curve_hits(c, size) >= before);
        before = curve_hits(c, size);
    }
    assert_true(before < curve_total(c));
    curve_free(c);
}

static void test_curve_weighs_items(void **state)
{
    const struct hash128 items[] = {{1, 1}, {2, 2}, {3, 3}};
    const double weights[] = {10, 20, 30};
    struct curve *c = curve_new(16);
    (void)state;
    assert_true(curve_add(c, items, 3, weights) == 0);
    assert_true(curve_add(c, items, 2, weights) == 30);
    assert_true(curve_total(c) == 90);
    assert_true(curve_hits(c, 0) == 0);
    assert_true(curve_hits(c, 1) == 10); /* the first item is the most recent */
    assert_true(curve_hits(c, 2) == 30);
    curve_free(c);
}

/* What is known counts up to the first item that is not. */
static void test_curve_counts_leading_items_only(void **state)
{
    const struct hash128 known[] = {{1, 1}, {2, 2}}, other[] = {{9, 9}, {2, 2}};
    struct curve *c = curve_new(16);
    (void)state;
    curve_add(c, known, 2, NULL);
    assert_true(curve_add(c, other, 2, NULL) == 0);
    assert_true(curve_hits(c, 16) == 0);
    curve_free(c);
}

static void test_curve_of_nothing(void **state)
{
    struct curve *c = curve_new(0);
    (void)state;
    assert_true(curve_total(c) == 0 && curve_hits(c, 100) == 0);
    assert_int_equal(curve_items(c), 0);
    assert_true(curve_add(c, NULL, 0, NULL) == 0);
    curve_free(c);
}

/* ---- a public trace: tests/data/traces/README.md ----------------------------------- */

/* "3-5,9" */
static size_t read_request(const char *p, struct hash128 *items)
{
    size_t n = 0;
    while (*p && *p != '\n') {
        char *end;
        uint64_t first = strtoull(p, &end, 10), last = first;
        assert_true(end > p);
        if (*end == '-')
            last = strtoull(end + 1, &end, 10);
        for (uint64_t id = first; id <= last; id++) {
            assert_true(n < MAX_REQUEST);
            items[n++] = (struct hash128){.lo = (id + 1) * 0x9e3779b97f4a7c15u, .hi = id};
        }
        p = *end == ',' ? end + 1 : end;
    }
    return n;
}

static void test_curve_of_a_trace_is_exact(void **state)
{
    static const struct {
        size_t items;
        const char *rate;
    } want[] = {{1000, "0.0445"},  {5859, "0.1361"},  {10000, "0.2116"},
                {30000, "0.3257"}, {50000, "0.3546"}, {100000, "0.3637"},
                {182790, "0.3664"}};
    struct hash128 items[MAX_REQUEST];
    struct curve *c = curve_new(182790);
    char *line = NULL, rate[16];
    size_t size = 0;
    FILE *f = fopen("tests/data/traces/mooncake_conversation.txt", "r");
    (void)state;
    assert_non_null(f);
    while (getline(&line, &size, f) > 0)
        curve_add(c, items, read_request(line, items), NULL);
    free(line);
    fclose(f);
    for (size_t i = 0; i < sizeof(want) / sizeof(want[0]); i++) {
        snprintf(rate, sizeof(rate), "%.4f",
                 curve_hits(c, want[i].items) / curve_total(c));
        assert_string_equal(rate, want[i].rate);
    }
    curve_free(c);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
#define TEST(name) cmocka_unit_test(test_curve_##name)
        TEST(agrees_with_the_tree_at_each_size),
        TEST(never_falls),
        TEST(weighs_items),
        TEST(counts_leading_items_only),
        TEST(of_nothing),
        TEST(of_a_trace_is_exact),
#undef TEST
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
