/* SPDX-License-Identifier: MIT */
#include "proto/unpack.h"

#include <stdlib.h>
#include <string.h>
#include <zlib.h>

#include "base/mem.h"
#include "cmocka_all.h"

static struct buf packed, out;

static int finish(void **state)
{
    (void)state;
    buf_free(&packed);
    buf_free(&out);
    return 0;
}

static void pack(int bits, const void *bytes, size_t n)
{
    z_stream z = {0};
    assert_int_equal(deflateInit2(&z, 9, Z_DEFLATED, bits, 8, Z_DEFAULT_STRATEGY), Z_OK);
    memcpy(&z.next_in, &bytes, sizeof(z.next_in));
    z.avail_in = (unsigned)n;
    const size_t room = deflateBound(&z, n) + 64;
    z.next_out = (unsigned char *)buf_reserve(&packed, room);
    z.avail_out = (unsigned)room;
    assert_int_equal(deflate(&z, Z_FINISH), Z_STREAM_END);
    buf_commit(&packed, room - z.avail_out);
    deflateEnd(&z);
}

static const char *take(enum unpack_coding coding, size_t max)
{
    return unpack(&out, coding, buf_slice(&packed), max);
}

static void gives(enum unpack_coding coding, const char *text)
{
    assert_null(take(coding, 1000));
    assert_true(slice_eq(buf_slice(&out), slice_of(text)));
    buf_clear(&out);
    buf_clear(&packed);
}

static void test_unpack_names_of_codings(void **state)
{
    (void)state;
    assert_int_equal(unpack_coding((struct slice){0}), UNPACK_PLAIN);
    assert_int_equal(unpack_coding(SLICE_LIT("identity")), UNPACK_PLAIN);
    assert_int_equal(unpack_coding(SLICE_LIT("gzip")), UNPACK_GZIP);
    assert_int_equal(unpack_coding(SLICE_LIT("X-GZip")), UNPACK_GZIP);
    assert_int_equal(unpack_coding(SLICE_LIT("deflate")), UNPACK_DEFLATE);
    assert_int_equal(unpack_coding(SLICE_LIT("br")), UNPACK_UNKNOWN);
    assert_int_equal(unpack_coding(SLICE_LIT("gzip, gzip")), UNPACK_UNKNOWN);
}

static void test_unpack_every_form(void **state)
{
    (void)state;
    pack(31, "hello", 5);
    gives(UNPACK_GZIP, "hello");
    pack(31, "hello ", 6);
    pack(31, "again", 5); /* a second member */
    gives(UNPACK_GZIP, "hello again");
    pack(15, "hello", 5);
    gives(UNPACK_DEFLATE, "hello");
    pack(-15, "hello", 5);
    gives(UNPACK_DEFLATE, "hello");
    pack(31, "", 0);
    gives(UNPACK_GZIP, "");
}

static void test_unpack_what_is_damaged_leaves_nothing(void **state)
{
    (void)state;
    buf_append_str(&out, "before");
    pack(31, "hello hello hello", 17);
    const size_t len = buf_len(&packed);
    for (size_t n = 0; n < len; n++) { /* every cut */
        const struct slice cut = slice_make(buf_slice(&packed).ptr, n);
        assert_non_null(unpack(&out, UNPACK_GZIP, cut, 1000));
    }
    packed.data[len - 5] ^= 1; /* its checksum */
    assert_non_null(strstr(take(UNPACK_GZIP, 1000), "damaged"));
    packed.data[len - 5] ^= 1;
    buf_append_str(&packed, "behind");
    assert_non_null(take(UNPACK_GZIP, 1000));
    assert_non_null(take(UNPACK_DEFLATE, 1000));
    assert_true(slice_eq(buf_slice(&out), SLICE_LIT("before")));
}

static void test_unpack_limit_of_bytes(void **state)
{
    (void)state;
    char bytes[5000];
    for (size_t i = 0; i < sizeof(bytes); i++)
        bytes[i] = (char)(rand() % 4);
    pack(31, bytes, sizeof(bytes));
    assert_null(take(UNPACK_GZIP, sizeof(bytes)));
    assert_int_equal(buf_len(&out), sizeof(bytes));
    buf_clear(&out);
    assert_non_null(strstr(take(UNPACK_GZIP, sizeof(bytes) - 1), "too large"));
    assert_int_equal(buf_len(&out), 0);
}

static void test_unpack_limit_of_ratio(void **state)
{
    (void)state;
    const size_t n = 8 << 20;
    char *zeros = mem_zalloc(n);
    pack(31, zeros, UNPACK_FREE); /* some hundred times, but little */
    assert_null(take(UNPACK_GZIP, n));
    assert_int_equal(buf_len(&out), UNPACK_FREE);
    buf_clear(&out);
    buf_clear(&packed);
    pack(31, zeros, n);
    assert_non_null(strstr(take(UNPACK_GZIP, n), "times its packed size"));
    assert_true(out.cap < n / 4); /* it stopped early */
    free(zeros);
}

int main(void)
{
#define TEST(f) cmocka_unit_test_teardown(f, finish)
    const struct CMUnitTest tests[] = {
        TEST(test_unpack_names_of_codings),
        TEST(test_unpack_every_form),
        TEST(test_unpack_what_is_damaged_leaves_nothing),
        TEST(test_unpack_limit_of_bytes),
        TEST(test_unpack_limit_of_ratio),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
