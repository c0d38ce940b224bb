/* SPDX-License-Identifier: MIT */
#include "prefix/chain.h"

#include <string.h>

#include "cmocka_all.h"

static struct chain_key key_of(unsigned char first)
{
    unsigned char bytes[CHAIN_KEY_BYTES] = {0};
    bytes[0] = first;
    struct chain_key k;
    chain_key_init(&k, bytes);
    return k;
}

static void assert_hash(struct hash128 got, const char *want)
{
    char hex[HASH128_HEX];
    assert_string_equal(hash128_hex(got, hex), want);
}

/* Stores outlive versions of the library: these values must never change. */
static void test_chain_values_are_fixed(void **state)
{
    (void)state;
    struct chain_key k = key_of(7);
    const uint32_t tokens[4] = {1, 2, 3, 4};
    assert_hash(chain_hash(&k, SLICE_LIT("root")), "ee330729838fea76b16f210c694fa61b");
    assert_hash(chain_block(&k, (struct hash128){1, 2}, tokens, 4),
                "5b033a2b72a9d8f13a5e6e173f4573f4");
    assert_true(chain_check(&k, SLICE_LIT("root")) == UINT64_C(0xaa677a9e0bf99005));
}

/* The reference value of the hash's author for no bytes and no seed. */
static void test_chain_checksum_is_plain_xxh3_128(void **state)
{
    (void)state;
    assert_hash(chain_checksum(SLICE_LIT("")), "99aa06d3014798d86001c324468d497f");
}

static void test_chain_every_bit_of_the_key_matters(void **state)
{
    (void)state;
    struct slice text = SLICE_LIT("the same bytes");
    struct chain_key zero = key_of(0);
    for (size_t bit = 0; bit < CHAIN_KEY_BYTES * 8; bit++) {
        unsigned char bytes[CHAIN_KEY_BYTES] = {0};
        bytes[bit / 8] = (unsigned char)(1u << bit % 8);
        struct chain_key k;
        chain_key_init(&k, bytes);
        assert_false(hash128_eq(chain_hash(&zero, text), chain_hash(&k, text)));
        assert_true(chain_check(&zero, text) != chain_check(&k, text));
    }
}

static void test_chain_check_is_independent_of_the_hash(void **state)
{
    (void)state;
    struct chain_key k = key_of(1);
    struct hash128 h = chain_hash(&k, SLICE_LIT("x"));
    uint64_t check = chain_check(&k, SLICE_LIT("x"));
    assert_true(check != h.lo && check != h.hi);
    assert_memory_not_equal(k.secret, k.check, sizeof(k.secret));
}

/* Short, middle and long inputs take different ways, and very long ones are streamed. */
static void test_chain_link_is_the_hash_of_both_joined(void **state)
{
    (void)state;
    static const size_t sizes[] = {0, 1, 16, 112, 224, 240, 256, 8191, 8192, 8193, 40000};
    static char bytes[16 + 40000];
    struct chain_key k = key_of(9);
    struct hash128 parent = chain_hash(&k, SLICE_LIT("parent"));
    for (size_t i = 0; i < sizeof(bytes); i++)
        bytes[i] = (char)(i * 31 + i / 251);
    memcpy(bytes, &parent, sizeof(parent));
    for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
        struct hash128 got = chain_link(&k, parent, slice_make(bytes + 16, sizes[i]));
        struct hash128 want = chain_hash(&k, slice_make(bytes, 16 + sizes[i]));
        assert_true(hash128_eq(got, want));
    }
}

static void test_chain_link_depends_on_the_parent(void **state)
{
    (void)state;
    struct chain_key k = key_of(2);
    struct hash128 a = chain_link(&k, (struct hash128){1, 0}, SLICE_LIT("block"));
    struct hash128 b = chain_link(&k, (struct hash128){0, 1}, SLICE_LIT("block"));
    assert_false(hash128_eq(a, b));
}

static void test_chain_blocks_hashes_full_blocks_only(void **state)
{
    (void)state;
    struct chain_key k = key_of(3);
    struct hash128 root = chain_hash(&k, SLICE_LIT("root")), out[4] = {{0, 0}};
    uint32_t tokens[11];
    for (uint32_t i = 0; i < 11; i++)
        tokens[i] = i * i;
    assert_int_equal(chain_blocks(&k, root, tokens, 3, 4, out), 0);
    assert_true(hash128_none(out[0]));
    assert_int_equal(chain_blocks(&k, root, tokens, 11, 4, out), 2);
    assert_true(hash128_none(out[2]));
    struct hash128 first = chain_block(&k, root, tokens, 4);
    assert_true(hash128_eq(out[0], first));
    assert_true(hash128_eq(out[1], chain_block(&k, first, tokens + 4, 4)));
}

static void test_chain_blocks_agree_up_to_the_first_difference(void **state)
{
    (void)state;
    struct chain_key k = key_of(3);
    struct hash128 root = {5, 5}, a[8], b[8];
    uint32_t tokens[64] = {0};
    chain_blocks(&k, root, tokens, 64, 8, a);
    tokens[3 * 8 + 7] = 1;
    chain_blocks(&k, root, tokens, 64, 8, b);
    for (size_t i = 0; i < 8; i++)
        assert_int_equal(hash128_eq(a[i], b[i]), i < 3);
}

static void test_chain_checksum_parts_equals_the_whole(void **state)
{
    (void)state;
    char bytes[1000];
    for (size_t i = 0; i < sizeof(bytes); i++)
        bytes[i] = (char)(i ^ i >> 3);
    struct slice parts[] = {{bytes, 3}, {NULL, 0}, {bytes + 3, 600}, {bytes + 603, 397}};
    struct hash128 whole = chain_checksum(slice_make(bytes, sizeof(bytes)));
    assert_true(hash128_eq(chain_checksum_parts(parts, 4), whole));
    bytes[999] ^= 1;
    assert_false(hash128_eq(chain_checksum_parts(parts, 4), whole));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_chain_values_are_fixed),
        cmocka_unit_test(test_chain_checksum_is_plain_xxh3_128),
        cmocka_unit_test(test_chain_every_bit_of_the_key_matters),
        cmocka_unit_test(test_chain_check_is_independent_of_the_hash),
        cmocka_unit_test(test_chain_link_is_the_hash_of_both_joined),
        cmocka_unit_test(test_chain_link_depends_on_the_parent),
        cmocka_unit_test(test_chain_blocks_hashes_full_blocks_only),
        cmocka_unit_test(test_chain_blocks_agree_up_to_the_first_difference),
        cmocka_unit_test(test_chain_checksum_parts_equals_the_whole),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
