/* SPDX-License-Identifier: MIT */
#include "prefix/tree.h"

/*
 * Replays public traces through the tree and demands the hit rates of two independent
 * programs (tests/data/traces/README.md) to all four digits: leaf-first LRU is exact, at
 * every capacity. Runs from the top of the source tree, as all tests do.
 */

#include <stdio.h>
#include <stdlib.h>

#include "base/mem.h"
#include "cmocka_all.h"

#define BLOCK_TOKENS 512
#define PROTECT 30      /* percent, as the cache has it */
#define MAX_REQUEST 512 /* blocks; the longest of both traces has 374 */

struct trace {
    struct hash128 *chain; /* of all requests, one after the other */
    size_t *end;           /* of each request in `chain` */
    size_t n_blocks, n_requests;
};

static struct hash128 hash_of(uint64_t id)
{
    return (struct hash128){.lo = id + 1, .hi = ~id};
}

static void add_block(struct trace *tr, uint64_t id)
{
    if ((tr->n_blocks & (tr->n_blocks - 1)) == 0)
        tr->chain = mem_rearray(tr->chain, tr->n_blocks ? tr->n_blocks * 2 : 1,
                                sizeof(*tr->chain));
    tr->chain[tr->n_blocks++] = hash_of(id);
}

/* "3-5,9" */
static void add_request(struct trace *tr, const char *p)
{
    while (*p && *p != '\n') {
        char *end;
        uint64_t first = strtoull(p, &end, 10), last = first;
        assert_true(end > p);
        if (*end == '-')
            last = strtoull(end + 1, &end, 10);
        for (uint64_t id = first; id <= last; id++)
            add_block(tr, id);
        p = *end == ',' ? end + 1 : end;
    }
    tr->end = mem_rearray(tr->end, tr->n_requests + 1, sizeof(*tr->end));
    tr->end[tr->n_requests++] = tr->n_blocks;
}

static struct trace read_trace(const char *name)
{
    struct trace tr = {0};
    char path[128], *line = NULL;
    size_t size = 0;
    snprintf(path, sizeof(path), "tests/data/traces/%s", name);
    FILE *f = fopen(path, "r");
    if (!f)
        fail_msg("%s is not there: run this from the top of the source tree", path);
    while (getline(&line, &size, f) > 0)
        add_request(&tr, line);
    free(line);
    fclose(f);
    return tr;
}

static void free_trace(struct trace *tr)
{
    free(tr->chain);
    free(tr->end);
}

/* Hit rate with four digits. */
static void replay(const struct trace *tr, uint64_t capacity, char rate[16],
                   struct tree_stats *st)
{
    struct tree *t = tree_new(
        &(struct tree_options){.block_tokens = BLOCK_TOKENS, .max_blocks = capacity});
    size_t hits = 0, at = 0;
    for (size_t i = 0; i < tr->n_requests; at = tr->end[i++]) {
        struct tree_sequence s = {.chain = tr->chain + at, .n = tr->end[i] - at};
        size_t known = tree_match(t, s.chain, s.n, NULL, NULL);
        size_t fresh = tree_insert(t, &s, NULL);
        assert_true(s.n <= MAX_REQUEST && known + fresh == s.n);
        hits += known;
    }
    char why[128];
    if (!tree_check(t, why, sizeof(why)))
        fail_msg("capacity %llu: %s", (unsigned long long)capacity, why);
    tree_stats(t, st);
    snprintf(rate, 16, "%.4f", (double)hits / (double)tr->n_blocks);
    tree_free(t);
}

/* The same, each request followed by one that nobody asks again, of the same length and
 * with the same first block. Returns the hit rate of the trace's own requests. */
static double replay_with_one_offs(const struct trace *tr, uint64_t capacity,
                                   unsigned protect, bool one_offs)
{
    struct tree *t = tree_new(&(struct tree_options){.block_tokens = BLOCK_TOKENS,
                                                     .max_blocks = capacity,
                                                     .protect_percent = protect});
    struct hash128 once[MAX_REQUEST];
    uint64_t id = UINT64_C(1) << 40;
    size_t hits = 0, at = 0;
    for (size_t i = 0; i < tr->n_requests; at = tr->end[i++]) {
        struct tree_sequence s = {.chain = tr->chain + at, .n = tr->end[i] - at};
        hits += tree_match(t, s.chain, s.n, NULL, NULL);
        tree_insert(t, &s, NULL);
        for (size_t k = 0; k < s.n; k++)
            once[k] = k ? hash_of(id++) : s.chain[0];
        s.chain = once;
        if (one_offs)
            tree_insert(t, &s, NULL);
    }
    char why[128];
    if (!tree_check(t, why, sizeof(why)))
        fail_msg("capacity %llu: %s", (unsigned long long)capacity, why);
    tree_free(t);
    return (double)hits / (double)tr->n_blocks;
}

struct want {
    uint64_t capacity; /* 0: unlimited */
    const char *rate;
};

static void check_rates(const struct trace *tr, const struct want *want, size_t n,
                        uint64_t different)
{
    for (size_t i = 0; i < n; i++) {
        char rate[16];
        struct tree_stats st;
        replay(tr, want[i].capacity, rate, &st);
        print_message("capacity %6llu: hit rate %s, %llu nodes, %.1f bytes a block\n",
                      (unsigned long long)want[i].capacity, rate,
                      (unsigned long long)st.nodes,
                      (double)st.index_bytes / (double)st.blocks);
        assert_string_equal(rate, want[i].rate);
        assert_true(st.blocks == (want[i].capacity ? want[i].capacity : different) ||
                    (want[i].capacity > different && st.blocks == different));
        assert_true(st.collisions == 0 && st.inserted - st.evicted == st.blocks);
        assert_true(st.index_bytes < 96 * st.blocks);
    }
}

#define CHECK_RATES(tr, want, different)                                                 \
    check_rates(tr, want, sizeof(want) / sizeof((want)[0]), different)

static void test_tree_conversation_trace_hits_exactly(void **state)
{
    (void)state;
    static const struct want want[] = {
        {0, "0.3664"},     {1000, "0.0445"},  {5859, "0.1361"},   {10000, "0.2116"},
        {30000, "0.3257"}, {50000, "0.3546"}, {100000, "0.3637"},
    };
    struct trace tr = read_trace("mooncake_conversation.txt");
    assert_int_equal(tr.n_requests, 12031);
    assert_int_equal(tr.n_blocks, 288500);
    CHECK_RATES(&tr, want, 182790);
    free_trace(&tr);
}

static void test_tree_synthetic_trace_hits_exactly(void **state)
{
    (void)state;
    static const struct want want[] = {
        {0, "0.6396"},     {1000, "0.0841"},  {5859, "0.3094"},
        {10000, "0.4239"}, {30000, "0.6242"}, {50000, "0.6396"},
    };
    struct trace tr = read_trace("mooncake_synthetic.txt");
    assert_int_equal(tr.n_requests, 3993);
    assert_int_equal(tr.n_blocks, 121877);
    CHECK_RATES(&tr, want, 43924);
    free_trace(&tr);
}

static void test_tree_one_offs_do_not_wash_out_what_is_asked_for_again(void **state)
{
    (void)state;
    static const uint64_t capacities[] = {1000, 5859, 10000, 30000, 50000};
    static const char *const names[] = {"mooncake_conversation.txt",
                                        "mooncake_synthetic.txt"};
    for (size_t n = 0; n < 2; n++) {
        struct trace tr = read_trace(names[n]);
        for (size_t i = 0; i < sizeof(capacities) / sizeof(capacities[0]); i++) {
            double rate[2][2];
            for (int protected = 0; protected < 2; protected ++)
                for (int one_offs = 0; one_offs < 2; one_offs++)
                    rate[protected][one_offs] = replay_with_one_offs(
                        &tr, capacities[i], protected ? PROTECT : 0, one_offs);
            print_message("%-26s %6llu blocks: %.4f plain, %.4f protected; with "
                          "one-offs %.4f and %.4f\n",
                          names[n], (unsigned long long)capacities[i], rate[0][0],
                          rate[1][0], rate[0][1], rate[1][1]);
            assert_true(rate[1][0] >= rate[0][0] && rate[1][1] >= rate[0][1]);
        }
        free_trace(&tr);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_tree_one_offs_do_not_wash_out_what_is_asked_for_again),
        cmocka_unit_test(test_tree_conversation_trace_hits_exactly),
        cmocka_unit_test(test_tree_synthetic_trace_hits_exactly),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
