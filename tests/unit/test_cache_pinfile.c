/* SPDX-License-Identifier: MIT */

/* Files of pins that are whole and say what cannot be. (Damaged ones: test_cache_pins.) */

#include "../../src/store/cache_internal.h"

#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "cmocka_all.h"

#define HEAD 40
#define PIN_HEAD 36

static struct prompt_record records[3];

/* Two pins with three records each. */
static struct buf good_file(void)
{
    struct cache_pin a = {.name = "a", .fingerprint = {1, 2}, .tokens = 5, .n_blocks = 1},
                     b = {.name = "the-second", .fingerprint = {3, 4}};
    struct cache_pin *v[] = {&a, &b};
    struct cache_pins pins = {.v = v, .n = 2};
    struct buf out = {0};
    for (uint32_t i = 0; i < 3; i++)
        records[i] = (struct prompt_record){
            .boundary = {.hash = {i + 1, 7}, .parent = {i, 7}, .low = i, .high = i + 1}};
    a.v = b.v = records;
    a.n = b.n = 3;
    cache_pinfile_write(&pins, &out);
    return out;
}

/* As whoever writes such a file would. */
static void seal(struct buf *b)
{
    char *bytes = b->data + b->start;
    const uint64_t size = buf_len(b);
    memcpy(bytes + 16, &size, 8);
    const struct slice parts[] = {{bytes, 24}, {bytes + HEAD, buf_len(b) - HEAD}};
    const struct hash128 sum = chain_checksum_parts(parts, 2);
    memcpy(bytes + 24, &sum, 16);
}

static int read_it(struct buf *b, struct cache_pins *p, struct err *e)
{
    *p = (struct cache_pins){0};
    *e = (struct err){0};
    return cache_pinfile_read(p, buf_slice(b), e);
}

static void free_pins(struct cache_pins *p)
{
    for (size_t i = 0; i < p->n; i++) {
        free(p->v[i]->v);
        free(p->v[i]);
    }
    free(p->v);
}

static void set_number(struct buf *b, size_t at, uint32_t value)
{
    memcpy(b->data + b->start + at, &value, sizeof(value));
}

static void test_what_is_written_is_read(void **state)
{
    struct buf b = good_file();
    struct cache_pins p;
    struct err e;
    (void)state;
    assert_int_equal(read_it(&b, &p, &e), 0);
    assert_int_equal(p.n, 2);
    assert_string_equal(p.v[0]->name, "a");
    assert_string_equal(p.v[1]->name, "the-second");
    assert_int_equal(p.v[0]->tokens, 5);
    assert_true(hash128_eq(p.v[1]->fingerprint, (struct hash128){3, 4}));
    assert_int_equal(p.v[1]->n, 3);
    assert_memory_equal(&p.v[1]->v[2].boundary, &records[2].boundary,
                        sizeof(records[2].boundary));
    free_pins(&p);
    buf_free(&b);
}

static void test_what_cannot_be_is_refused_though_its_sum_is_right(void **state)
{
    static const struct {
        size_t at;
        uint32_t value;
        const char *why;
    } rows[] = {
        {8, 2, "its format is 2, this program knows 1"},
        {12, CACHE_MAX_PINS + 1, "it holds 1025 pins, at most 1024 may be"},
        {12, 3, "pin 2 does not follow the format"},
        {12, 1, "pin 1 does not follow the format"}, /* and something behind it */
        {HEAD + 16, 0, "pin 0"},                     /* a name of no bytes */
        {HEAD + 16, CACHE_PIN_NAME + 1, "pin 0"},
        {HEAD + 16, UINT32_MAX, "pin 0"},
        {HEAD + 28, 0, "pin 0"}, /* no records */
        {HEAD + 28, 100, "pin 0"},
        {HEAD + 28, UINT32_MAX, "pin 0"},
        {HEAD + PIN_HEAD + 1, 0, "pin 0"}, /* in a record */
        {HEAD + PIN_HEAD - 3, 0, "pin 0"}, /* a zero in the name */
    };
    (void)state;
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        struct buf b = good_file();
        struct cache_pins p;
        struct err e;
        set_number(&b, rows[i].at, rows[i].value);
        seal(&b);
        assert_int_equal(read_it(&b, &p, &e), ERR_FORMAT);
        if (!strstr(e.text, rows[i].why))
            fail_msg("row %zu: %s", i, e.text);
        free_pins(&p);
        buf_free(&b);
    }
}

static void test_size_and_sum_are_looked_at(void **state)
{
    struct buf b = good_file();
    struct cache_pins p;
    struct err e;
    (void)state;
    buf_append_char(&b, 0);
    assert_int_equal(read_it(&b, &p, &e), ERR_FORMAT);
    assert_non_null(strstr(e.text, "bytes and should have"));
    b.data[b.start + HEAD] ^= 1;
    set_number(&b, 16, (uint32_t)buf_len(&b));
    assert_int_equal(read_it(&b, &p, &e), ERR_CHECKSUM);
    b.data[b.start] ^= 1;
    assert_int_equal(read_it(&b, &p, &e), ERR_FORMAT);
    assert_string_equal(e.text, "it is no file of pins");
    buf_free(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_what_is_written_is_read),
        cmocka_unit_test(test_what_cannot_be_is_refused_though_its_sum_is_right),
        cmocka_unit_test(test_size_and_sum_are_looked_at),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
