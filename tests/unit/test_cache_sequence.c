/* SPDX-License-Identifier: MIT */
#include "../../src/store/cache_sequence.h"

#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "cmocka_all.h"

#define N_TOKENS 37
#define N_RECORDS 5

static struct buf sequence_value(void)
{
    uint32_t tokens[N_TOKENS];
    struct index_record records[N_RECORDS] = {0};
    struct buf value = {0};
    for (uint32_t i = 0; i < N_TOKENS; i++)
        tokens[i] = 1000 + i;
    for (uint32_t i = 0; i < N_RECORDS; i++)
        records[i] = (struct index_record){.hash = {i + 1, 7},
                                           .check = 100 + i,
                                           .low = i,
                                           .high = 2 * i,
                                           .reach = 3 * i,
                                           .owner = 9};
    const struct cache_sequence s = {.block_tokens = 16,
                                     .token_bytes = 8,
                                     .n_tokens = N_TOKENS,
                                     .n_records = N_RECORDS,
                                     .tokens = tokens,
                                     .records = records};
    cache_sequence_write(&s, &value);
    return value;
}

static void test_cache_sequence_reads_what_was_written(void **state)
{
    struct cache_sequence s;
    struct buf value = sequence_value();
    (void)state;
    assert_int_equal(buf_len(&value), 32 + 4 * N_TOKENS + 40 * N_RECORDS + 16);
    assert_int_equal(cache_sequence_read(buf_slice(&value), &s, NULL), 0);
    assert_int_equal(s.block_tokens, 16);
    assert_int_equal(s.token_bytes, 8);
    assert_int_equal(s.n_tokens, N_TOKENS);
    assert_int_equal(s.n_records, N_RECORDS);
    assert_int_equal(s.tokens[N_TOKENS - 1], 1000 + N_TOKENS - 1);
    assert_true(hash128_none(s.records[0].parent));
    for (size_t i = 1; i < N_RECORDS; i++)
        assert_true(hash128_eq(s.records[i].parent, s.records[i - 1].hash));
    assert_int_equal(s.records[4].check, 104);
    assert_int_equal(s.records[4].low, 4);
    assert_int_equal(s.records[4].high, 8);
    assert_int_equal(s.records[4].reach, 12);
    assert_int_equal(s.records[4].owner, 9);
    cache_sequence_free(&s);
    buf_free(&value);
}

static void test_cache_sequence_refuses_any_other_bytes(void **state)
{
    struct cache_sequence s;
    struct buf value = sequence_value();
    const struct slice all = buf_slice(&value);
    (void)state;
    for (size_t len = 0; len < all.len; len++) {
        char *cut = mem_dup(all.ptr, len); /* so that sanitizers see its end */
        if (cache_sequence_read(slice_make(cut, len), &s, NULL) == 0)
            fail_msg("%zu of %zu bytes were taken", len, all.len);
        free(cut);
    }
    for (size_t bit = 0; bit < all.len * 8; bit++) {
        char *bad = mem_dup(all.ptr, all.len);
        bad[bit / 8] ^= (char)(1 << bit % 8);
        if (cache_sequence_read(slice_make(bad, all.len), &s, NULL) == 0)
            fail_msg("bit %zu was not missed", bit);
        free(bad);
    }
    buf_free(&value);
}

static void test_cache_sequence_places(void **state)
{
    unsigned char place[CACHE_PLACE_BYTES];
    const struct hash128 name = {5, 6};
    struct hash128 found;
    (void)state;
    cache_place_write(name, 77, place);
    const struct slice all = slice_make((const char *)place, sizeof(place));
    assert_true(cache_place_read(all, 77, &found));
    assert_true(hash128_eq(found, name));
    assert_false(cache_place_read(all, 78, &found)); /* another text, the same hash */
    assert_false(cache_place_read(slice_make(all.ptr, all.len - 1), 77, &found));
    for (size_t bit = 0; bit < sizeof(place) * 8; bit++) {
        place[bit / 8] ^= (unsigned char)(1 << bit % 8);
        assert_false(cache_place_read(all, 77, &found));
        place[bit / 8] ^= (unsigned char)(1 << bit % 8);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_cache_sequence_reads_what_was_written),
        cmocka_unit_test(test_cache_sequence_refuses_any_other_bytes),
        cmocka_unit_test(test_cache_sequence_places),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
