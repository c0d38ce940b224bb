/* SPDX-License-Identifier: MIT */
#include "gateway/credential.h"

#include <stdio.h>

#include "cmocka_all.h"

static struct credential_digest digest_of(const char *text)
{
    return credential_digest(slice_of(text));
}

/* One bit anywhere makes another digest: none is left out when they are compared. */
static void test_digests_are_the_same_where_all_bits_are(void **state)
{
    (void)state;
    const struct credential_digest a = digest_of("a key");
    struct credential_digest b = digest_of("a key");
    assert_true(credential_same(&a, &b));
    for (size_t bit = 0; bit < 8 * CREDENTIAL_SHA256; bit++) {
        b.sha256[bit / 8] ^= (unsigned char)(1u << bit % 8);
        assert_false(credential_same(&a, &b));
        b.sha256[bit / 8] ^= (unsigned char)(1u << bit % 8);
    }
    b = digest_of("a kez");
    assert_false(credential_same(&a, &b));
}

static void test_digest_is_written_as_sha256sum_does_and_read_back(void **state)
{
    (void)state;
    /* printf abc | sha256sum */
    static const char abc[] =
        "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
    struct credential_digest a = digest_of("abc"), b;
    char hex[CREDENTIAL_HEX];
    credential_write(&a, hex);
    assert_memory_equal(hex, abc, CREDENTIAL_HEX);
    assert_true(credential_read(slice_of(abc), &b));
    assert_true(credential_same(&a, &b));
    assert_false(credential_read(slice_make(abc, CREDENTIAL_HEX - 1), &b));
    hex[5] = 'A';
    assert_false(credential_read(slice_make(hex, CREDENTIAL_HEX), &b));
}

/* What `lines` of a request show, "" for nothing. */
static void shows(const char *lines, const char *credential)
{
    char text[256];
    size_t used;
    struct slice data;
    snprintf(text, sizeof(text), "GET / HTTP/1.1\r\nHost: h\r\n%s\r\n", lines);
    struct http_parser *p = http_parser_new(HTTP_REQUEST, HTTP_LIMITS_DEFAULT);
    assert_int_equal(http_parser_next(p, slice_of(text), &used, &data), HTTP_HEAD);
    const struct slice s = credential_of(http_parser_head(p));
    assert_int_equal(s.len, slice_of(credential).len);
    if (s.len)
        assert_memory_equal(s.ptr, credential, s.len);
    http_parser_free(p);
}

static void test_credential_is_that_of_either_header(void **state)
{
    (void)state;
    shows("", "");
    shows("Authorization: Bearer abc\r\n", "abc");
    shows("authorization: bearer   abc\r\n", "abc");
    shows("Authorization: Basic abc\r\n", "Basic abc");
    shows("X-Api-Key: abc\r\n", "abc");
    shows("x-api-key: abc\r\nAuthorization: Bearer def\r\n", "def");
    shows("Authorization:\r\nX-API-KEY: abc\r\n", "abc");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_digests_are_the_same_where_all_bits_are),
        cmocka_unit_test(test_digest_is_written_as_sha256sum_does_and_read_back),
        cmocka_unit_test(test_credential_is_that_of_either_header),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
