/* SPDX-License-Identifier: MIT */
#include "store/cache.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/mem.h"
#include "cmocka_all.h"
#include "store_rig.h"

#define BT 16
#define TOKEN_BYTES 8
#define BLOCK_BYTES (BT * TOKEN_BYTES)
#define MAX_BLOCKS 32
#define PIECES_OF(n) ((n) / 2) /* of a prompt of n blocks: one every two of them */

static struct store_rig rig;
static struct cache *cache;
static struct cache_options options;
static char *dir;
static struct err e;

static const struct hash128 model = {0xa, 1}, other_model = {0xb, 2};

static int set_up(void **state)
{
    (void)state;
    store_rig_up(&rig, 2);
    dir = mem_printf("%s/store", rig.root);
    e = (struct err){0};
    options = (struct cache_options){.block_tokens = BT,
                                     .max_bytes = 20 * BLOCK_BYTES,
                                     .max_pinned = 10 * BLOCK_BYTES,
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

static void on_attached(void *arg, size_t n_blocks)
{
    (void)arg;
    (void)n_blocks;
}

static void open_as(struct hash128 fingerprint)
{
    cache = cache_open(&options, rig.workers, &e);
    if (!cache)
        fail_msg("%s", e.text);
    cache_attach(cache, fingerprint, TOKEN_BYTES, on_attached, NULL);
    store_rig_settle(&rig);
}

static void reopen(void)
{
    close_cache();
    open_as(model);
}

/* ---- prompts: number `id`, the first `common` blocks like those of all others ------ */

struct prompt_of {
    uint32_t id, common, n_blocks;
};

static struct hash128 root(void)
{
    return chain_hash(cache_key(cache), SLICE_LIT("root"));
}

static size_t chain_of(struct prompt_of p, uint32_t *tokens, struct hash128 *chain)
{
    const uint32_t n = p.n_blocks * BT;
    assert_true(p.n_blocks <= MAX_BLOCKS);
    for (uint32_t i = 0; i < n; i++)
        tokens[i] = (i < p.common * BT ? 0 : p.id * 100000) + i;
    return chain_blocks(cache_key(cache), root(), tokens, n, BT, chain);
}

static void pieces_of(struct prompt_of p, struct piece *v)
{
    struct hash128 h = {1, 1};
    for (uint32_t i = 0; i < PIECES_OF(p.n_blocks); i++) {
        const uint64_t what = 2 * i + 1 < p.common ? 0 : p.id;
        h = chain_link(cache_key(cache), h,
                       slice_make((const char *)&what, sizeof(what)));
        v[i] = (struct piece){.hash = h, .check = h.hi ^ 5, .end_bytes = (i + 1) * 128};
    }
    v[PIECES_OF(p.n_blocks) - 1].ends_part = true;
}

static void put(struct prompt_of p)
{
    uint32_t tokens[MAX_BLOCKS * BT];
    struct hash128 chain[MAX_BLOCKS];
    struct piece v[MAX_BLOCKS];
    struct store_block *blocks[MAX_BLOCKS];
    struct tree_mark m = {0};
    const size_t n = chain_of(p, tokens, chain);
    const struct tree_sequence s = {
        .chain = chain, .n = n, .tokens = tokens, .token_bytes = TOKEN_BYTES};
    const size_t n_new = cache_insert(cache, model, &s, &m);
    const size_t first = tree_mark_blocks(&m) - n_new;
    for (size_t i = 0; i < n_new; i++) {
        const size_t at = first + i;
        const struct store_head head = {.fingerprint = model,
                                        .hash = chain[at],
                                        .parent = at ? chain[at - 1] : root(),
                                        .index = (uint32_t)at,
                                        .n_tokens = BT,
                                        .rows_bytes = BLOCK_BYTES};
        uint32_t *ids;
        unsigned char *rows;
        blocks[i] = store_block_new(&head, &ids, &rows);
        memcpy(ids, tokens + at * BT, BT * sizeof(*ids));
        memset(rows, (int)p.id, BLOCK_BYTES);
        store_block_seal(blocks[i]);
    }
    pieces_of(p, v);
    const struct index_lesson lesson = {.v = v,
                                        .n = PIECES_OF(p.n_blocks),
                                        .n_prompt = PIECES_OF(p.n_blocks),
                                        .prompt_tokens = p.n_blocks * BT,
                                        .total_tokens = p.n_blocks * BT,
                                        .end = &m};
    cache_learn(cache, model, &lesson);
    cache_put(cache, &m, blocks, n_new);
    store_rig_settle(&rig);
}

static int pin_for(struct prompt_of p, const char *name, bool public)
{
    struct piece v[MAX_BLOCKS];
    pieces_of(p, v);
    e = (struct err){0};
    const int rc = cache_pin(cache, model, name, v, PIECES_OF(p.n_blocks), public, &e);
    store_rig_settle(&rig);
    return rc;
}

static int pin(struct prompt_of p, const char *name)
{
    return pin_for(p, name, false);
}

static bool is_stored(struct prompt_of p)
{
    struct piece v[MAX_BLOCKS];
    pieces_of(p, v);
    return cache_stored(cache, v, PIECES_OF(p.n_blocks), NULL);
}

/* Others come by, each with blocks and boundaries of its own. */
static void pass_by(uint32_t n)
{
    static uint32_t id = 1000;
    for (uint32_t i = 0; i < n; i++)
        put((struct prompt_of){id++, 0, 4});
}

static size_t count_pins(void)
{
    struct cache_pin_view v;
    size_t n = 0;
    while (cache_pin_view(cache, n, &v))
        n++;
    return n;
}

static char *block_file(struct prompt_of p, size_t i)
{
    uint32_t tokens[MAX_BLOCKS * BT];
    struct hash128 chain[MAX_BLOCKS];
    char hex[HASH128_HEX];
    chain_of(p, tokens, chain);
    return store_rig_find(dir, hash128_hex(chain[i], hex));
}

static const struct prompt_of one = {1, 0, 4}, two = {2, 0, 4}, third = {3, 0, 4};

/* ---- tests ------------------------------------------------------------------------- */

static void test_pinned_starts_stay_while_others_pass(void **state)
{
    (void)state;
    open_as(model);
    put(one);
    put(two);
    assert_int_equal(pin(one, "one"), 0);
    pass_by(20);
    assert_true(is_stored(one));
    assert_false(is_stored(two));
    assert_true(cache_pin_whole(cache, model, "one"));
    assert_int_equal(cache_pinned_bytes(cache), 4 * BLOCK_BYTES);
    assert_true(cache_unpin(cache, "one"));
    assert_false(cache_unpin(cache, "one"));
    pass_by(20);
    assert_false(is_stored(one));
}

static void test_pins_are_refused_beyond_their_share_and_fit_up_to_it(void **state)
{
    (void)state;
    open_as(model);
    put(one);
    put(two);
    options.max_pinned = 0;
    assert_int_equal(pin(one, "one"), 0);
    assert_int_equal(pin(two, "two"), 0); /* 8 of 10 */
    put(third);
    assert_int_equal(pin(third, "third"), ERR_LIMIT); /* 12 */
    assert_non_null(strstr(e.text, "store.max_pinned"));
    assert_int_equal(count_pins(), 2);
    const struct prompt_of longer = {2, 0, 6}, too_long = {2, 0, 8};
    put(longer);
    assert_int_equal(pin(longer, "longer"), 0); /* shares 4 with two: exactly 10 */
    put(too_long);
    assert_int_equal(pin(too_long, "too-long"), ERR_LIMIT);
    assert_int_equal(cache_pinned_bytes(cache), 10 * BLOCK_BYTES);
}

static void test_only_what_is_stored_can_be_pinned_under_a_good_name(void **state)
{
    (void)state;
    open_as(model);
    assert_int_equal(pin(one, "one"), ERR_NOT_FOUND);
    put(one);
    static const char *const bad[] = {
        "", "a b", "a/b", "\xc3\xa4",
        "12345678901234567890123456789012345678901234567890123456789012345"};
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++)
        assert_int_equal(pin(one, bad[i]), ERR_INVALID);
    assert_int_equal(
        pin(one, "1234567890123456789012345678901234567890123456789012345678901234"), 0);
}

static void test_pin_of_the_same_name_is_replaced(void **state)
{
    (void)state;
    open_as(model);
    put(one);
    put(two);
    assert_int_equal(pin(one, "x"), 0);
    assert_int_equal(pin(two, "x"), 0);
    assert_int_equal(count_pins(), 1);
    pass_by(20);
    assert_false(is_stored(one));
    assert_true(is_stored(two));
}

static void test_pins_come_back_after_a_restart_without_the_prompt_log(void **state)
{
    (void)state;
    open_as(model);
    put(one);
    assert_int_equal(pin(one, "one"), 0);
    close_cache();
    char *log = mem_printf("%s/prompts.log", dir);
    assert_int_equal(unlink(log), 0);
    free(log);
    open_as(model);
    assert_true(is_stored(one));
    assert_true(cache_pin_whole(cache, model, "one"));
    pass_by(20);
    assert_true(is_stored(one));
}

static void test_smaller_budget_after_a_restart_keeps_the_pins(void **state)
{
    (void)state;
    open_as(model);
    put(one);
    assert_int_equal(pin(one, "one"), 0);
    put(two);
    put(third); /* used later than what is pinned */
    close_cache();
    options.max_bytes = 5 * BLOCK_BYTES;
    open_as(model);
    assert_true(cache_pin_whole(cache, model, "one"));
}

static void test_pins_of_another_model_wait_for_it(void **state)
{
    (void)state;
    struct cache_pin_view v;
    open_as(model);
    put(one);
    assert_int_equal(pin(one, "one"), 0);
    close_cache();
    open_as(other_model);
    assert_true(cache_pin_view(cache, 0, &v));
    assert_false(v.attached);
    assert_int_equal(cache_pinned_bytes(cache), 0);
    assert_false(cache_pin_whole(cache, other_model, "one"));
    reopen();
    assert_true(cache_pin_whole(cache, model, "one"));
}

static void test_lost_block_makes_a_pin_incomplete_until_it_is_pinned_again(void **state)
{
    (void)state;
    struct cache_pin_view v;
    const struct prompt_of longer = {1, 0, 8};
    open_as(model);
    put(longer);
    assert_int_equal(pin(longer, "one"), 0);
    char *path = block_file(longer, 6);
    close_cache();
    assert_int_equal(unlink(path), 0);
    free(path);
    open_as(model);
    assert_true(cache_pin_view(cache, 0, &v));
    assert_false(v.whole);
    assert_true(v.bytes >= 4 * BLOCK_BYTES && v.bytes <= 6 * BLOCK_BYTES);
    put(longer);
    assert_int_equal(pin(longer, "one"), 0);
    assert_true(cache_pin_whole(cache, model, "one"));
}

static void test_boundaries_of_pins_outlive_others_in_a_small_index(void **state)
{
    (void)state;
    options.index_bytes = 4096; /* some thirty boundaries */
    open_as(model);
    put(one);
    assert_int_equal(pin(one, "one"), 0);
    struct index_stats s;
    pass_by(60);
    index_stats(cache_index(cache), &s);
    assert_true(s.evicted > 2 * s.entries);
    assert_true(is_stored(one));
}

static void test_hits_are_counted_where_the_start_was_reused(void **state)
{
    (void)state;
    struct piece v[MAX_BLOCKS];
    struct cache_pin_view view;
    open_as(model);
    put(one);
    assert_int_equal(pin(one, "one"), 0);
    pieces_of(one, v);
    cache_pin_hit(cache, v, 2, 4 * BT);
    cache_pin_hit(cache, v, 1, 4 * BT); /* its last part goes on */
    cache_pin_hit(cache, v, 2, BT);     /* the engine had little of it */
    pieces_of(two, v);
    cache_pin_hit(cache, v, 2, 4 * BT);
    assert_true(cache_pin_view(cache, 0, &view));
    assert_int_equal(view.hits, 2);
}

static uint32_t last_low;

/* Tokens of the public start that a prompt begins with, by the first n of its pieces. */
static size_t public_tokens(struct hash128 of, struct prompt_of p, size_t n)
{
    struct piece v[MAX_BLOCKS];
    struct tree_mark at = {0};
    uint32_t low = 0;
    pieces_of(p, v);
    const size_t found = cache_public_find(cache, of, v, n, &at, &low);
    const size_t tokens = tree_mark_tokens(&at);
    tree_mark_clear(cache_tree(cache), &at);
    assert_true(found <= n && low <= tokens);
    last_low = low;
    assert_int_equal(found != 0, tokens != 0);
    return tokens;
}

static void test_public_starts_are_found_the_longest_first(void **state)
{
    (void)state;
    const struct prompt_of longer = {1, 0, 6}, sibling = {5, 4, 6};
    open_as(model);
    put(one);
    put(longer);
    put(two);
    assert_int_equal(cache_public_pieces(cache, model), 0);
    assert_int_equal(pin_for(one, "short", true), 0);
    assert_int_equal(pin_for(two, "private", false), 0);
    assert_int_equal(cache_public_pieces(cache, model), PIECES_OF(4));
    assert_int_equal(public_tokens(model, longer, PIECES_OF(6)), 4 * BT);
    assert_int_equal(pin_for(longer, "long", true), 0);
    assert_int_equal(public_tokens(model, longer, PIECES_OF(6)), 6 * BT);
    assert_int_equal(public_tokens(model, one, PIECES_OF(4)), 4 * BT);
    assert_int_equal(public_tokens(model, two, PIECES_OF(4)), 0);
    assert_int_equal(public_tokens(other_model, one, PIECES_OF(4)), 0);
    assert_int_equal(public_tokens(model, sibling, PIECES_OF(6)), 0);
    reopen();
    assert_int_equal(public_tokens(model, longer, PIECES_OF(6)), 6 * BT);
    assert_int_equal(public_tokens(model, two, PIECES_OF(4)), 0);
    assert_true(cache_unpin(cache, "long"));
    assert_int_equal(public_tokens(model, longer, PIECES_OF(6)), 4 * BT);
    assert_int_equal(pin_for(one, "short", false), 0);
    assert_int_equal(public_tokens(model, longer, PIECES_OF(6)), 0);
    assert_int_equal(cache_public_pieces(cache, model), 0);
}

/* The last piece closes a part; a prompt whose part goes on there has all but that one. */
static void test_public_start_whose_last_part_goes_on(void **state)
{
    (void)state;
    open_as(model);
    put(one);
    assert_int_equal(pin_for(one, "start", true), 0);
    assert_in_range(public_tokens(model, one, PIECES_OF(4)), 4 * BT, 4 * BT);
    const uint32_t low = last_low;
    assert_in_range(low, 1, 4 * BT);
    assert_in_range(public_tokens(model, one, PIECES_OF(4) - 1), 1, 4 * BT);
    assert_in_range(last_low, 1, low - 1);
    assert_int_equal(public_tokens(model, one, PIECES_OF(4) - 2), 0);
}

static void test_drop_spares_what_other_pins_share(void **state)
{
    (void)state;
    const struct prompt_of a = {1, 2, 4}, b = {2, 2, 4};
    size_t n = 0;
    open_as(model);
    put(a);
    put(b);
    assert_int_equal(pin(a, "a"), 0);
    assert_int_equal(pin(b, "b"), 0);
    assert_int_equal(cache_pinned_bytes(cache), 6 * BLOCK_BYTES);
    assert_int_equal(cache_drop(cache, "a", &n, &e), 0);
    assert_int_equal(n, 2);
    assert_true(cache_pin_whole(cache, model, "b"));
    assert_int_equal(cache_drop(cache, "a", &n, &e), ERR_NOT_FOUND);
}

static void test_flush_leaves_pins(void **state)
{
    (void)state;
    open_as(model);
    put(one);
    put(two);
    assert_int_equal(pin(one, "one"), 0);
    assert_int_equal(cache_flush(cache), 4);
    assert_true(is_stored(one));
    assert_false(is_stored(two));
}

static void test_pins_in_RAM_stay_without_a_folder(void **state)
{
    (void)state;
    options.store.dir = NULL;
    options.store.ram_bytes = options.max_bytes; /* heads of blocks come on top of it */
    open_as(model);
    put(one);
    assert_int_equal(pin(one, "one"), 0);
    pass_by(20);
    struct store_stats s;
    store_stats(cache_store(cache), &s);
    assert_int_equal(s.ram_blocks, 20);
    assert_true(cache_pin_whole(cache, model, "one"));
}

/* ---- the file ---------------------------------------------------------------------- */

static char *pins_file(void)
{
    return mem_printf("%s/pins", dir);
}

static void keep_one(void)
{
    open_as(model);
    put(one);
    assert_int_equal(pin(one, "one"), 0);
    close_cache();
}

/* The file is not believed, put aside, and everything else goes on. */
static void assert_put_aside(void)
{
    char *path = pins_file(), *aside = mem_printf("%s.damaged", path);
    open_as(model);
    assert_int_equal(count_pins(), 0);
    assert_int_equal(access(aside, F_OK), 0);
    assert_true(is_stored(one));
    assert_int_equal(pin(one, "one"), 0);
    reopen();
    assert_true(cache_pin_whole(cache, model, "one"));
    close_cache();
    free(path);
    free(aside);
}

static void test_damaged_file_is_put_aside(void **state)
{
    (void)state;
    static const long at[] = {0, 8, 12, 16, 24, 40, 60, 75, -1};
    for (size_t i = 0; i < sizeof(at) / sizeof(at[0]); i++) {
        keep_one();
        char *path = pins_file();
        store_rig_flip(path, at[i]);
        free(path);
        assert_put_aside();
    }
}

static void test_torn_file_is_put_aside(void **state)
{
    (void)state;
    static const long sizes[] = {0, 1, 39, 40, 76, 200};
    for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
        keep_one();
        char *path = pins_file();
        assert_int_equal(truncate(path, sizes[i]), 0);
        free(path);
        assert_put_aside();
    }
}

static void test_half_written_file_beside_it_is_no_trouble(void **state)
{
    (void)state;
    keep_one();
    char *path = mem_printf("%s/pins.new", dir);
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    fputs("half", f);
    fclose(f);
    open_as(model);
    assert_true(cache_pin_whole(cache, model, "one"));
    put(two);
    assert_int_equal(pin(two, "two"), 0);
    reopen();
    assert_int_equal(count_pins(), 2);
    assert_int_equal(access(path, F_OK), -1);
    free(path);
}

#define TEST(name) cmocka_unit_test_setup_teardown(test_##name, set_up, tear_down)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(pinned_starts_stay_while_others_pass),
        TEST(pins_are_refused_beyond_their_share_and_fit_up_to_it),
        TEST(only_what_is_stored_can_be_pinned_under_a_good_name),
        TEST(pin_of_the_same_name_is_replaced),
        TEST(pins_come_back_after_a_restart_without_the_prompt_log),
        TEST(smaller_budget_after_a_restart_keeps_the_pins),
        TEST(pins_of_another_model_wait_for_it),
        TEST(lost_block_makes_a_pin_incomplete_until_it_is_pinned_again),
        TEST(boundaries_of_pins_outlive_others_in_a_small_index),
        TEST(hits_are_counted_where_the_start_was_reused),
        TEST(public_starts_are_found_the_longest_first),
        TEST(public_start_whose_last_part_goes_on),
        TEST(drop_spares_what_other_pins_share),
        TEST(flush_leaves_pins),
        TEST(pins_in_RAM_stay_without_a_folder),
        TEST(damaged_file_is_put_aside),
        TEST(torn_file_is_put_aside),
        TEST(half_written_file_beside_it_is_no_trouble),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
