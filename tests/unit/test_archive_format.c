/* SPDX-License-Identifier: MIT */

/* Archives whose checksums are right and whose contents cannot be, and the words for it. */

#include "../../src/store/archive_internal.h"

#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "cmocka_all.h"

#define PART 24 /* bytes of the head of a part */
#define SUM 16
#define N_TOKENS 4
#define ROWS 16

static const unsigned char secret[CHAIN_KEY_BYTES] = "a key for tests and for no more";

/* Parts under construction. */
struct made {
    struct archive_writer w;
    char *bytes;
    size_t size;
};

static void begin(struct made *m, bool with_key)
{
    struct archive_header h = {.key_id = archive_key_id(secret), .with_key = with_key};
    if (with_key)
        memcpy(h.key, secret, sizeof(h.key));
    *m = (struct made){.bytes = NULL};
    archive_format_start(&m->w, open_memstream(&m->bytes, &m->size), &h);
}

/* A part that the writer would not write. */
static void put_raw(struct made *m, uint32_t kind, uint32_t zero, const void *body,
                    size_t n)
{
    struct {
        uint32_t kind, zero;
        uint64_t length;
        int64_t used_ns;
    } head = {kind, zero, n, 0};
    const struct slice parts[] = {
        {(const char *)&m->w.sum, SUM}, {(const char *)&head, PART}, slice_make(body, n)};
    m->w.sum = chain_checksum_parts(parts, 3);
    fwrite(&head, 1, PART, m->w.out);
    fwrite(body, 1, n, m->w.out);
    fwrite(&m->w.sum, 1, SUM, m->w.out);
}

/* The i-th block of a sequence. */
static struct store_block *make_block(uint32_t i)
{
    const uint32_t words[N_TOKENS] = {1, 2, 3, 4};
    struct chain_key key;
    struct store_head h = {
        .fingerprint = {1, 2}, .index = i, .n_tokens = N_TOKENS, .rows_bytes = ROWS};
    uint32_t *tokens;
    unsigned char *rows;
    chain_key_init(&key, secret);
    h.parent = chain_hash(&key, SLICE_LIT("root"));
    h.hash = chain_block(&key, h.parent, words, N_TOKENS);
    for (uint32_t k = 0; k < i; k++) {
        h.parent = h.hash;
        h.hash = chain_block(&key, h.parent, words, N_TOKENS);
    }
    struct store_block *b = store_block_new(&h, &tokens, &rows);
    memcpy(tokens, words, sizeof(words));
    memset(rows, (int)i, ROWS);
    store_block_seal(b);
    return b;
}

static void put_block(struct made *m, uint32_t i)
{
    struct store_block *b = make_block(i);
    archive_format_block(&m->w, b, 1000 + i);
    store_block_put(b);
}

static void put_prompt(struct made *m)
{
    const struct prompt_record r = {.boundary = {.hash = {5, 6}, .low = 1, .high = 2}};
    archive_format_prompt(&m->w, &r);
}

/* ---- reading ------------------------------------------------------------------------ */

struct taken {
    uint64_t blocks, prompts;
};

static int on_header(void *arg, const struct archive_header *h,
                     unsigned char key[CHAIN_KEY_BYTES], struct err *e)
{
    (void)arg;
    (void)h;
    (void)e;
    memcpy(key, secret, CHAIN_KEY_BYTES);
    return 0;
}

static int on_block(void *arg, struct store_block *b, int64_t used_ns, struct err *e)
{
    struct taken *t = arg;
    (void)e;
    assert_int_equal(b->head.index, t->blocks);
    assert_int_equal(used_ns, 1000 + t->blocks);
    t->blocks++;
    return 0;
}

static int on_prompt(void *arg, const struct prompt_record *r, struct err *e)
{
    struct taken *t = arg;
    (void)e;
    assert_int_equal(r->boundary.high, 2);
    t->prompts++;
    return 0;
}

/* Reads it and frees it. */
static int read_it(struct made *m, struct taken *t, struct err *e)
{
    static const struct archive_sink sink = {on_header, on_block, on_prompt};
    *t = (struct taken){0};
    *e = (struct err){0};
    fclose(m->w.out);
    FILE *in = fmemopen(m->bytes, m->size, "rb");
    const int rc = archive_format_read(in, &sink, t, e);
    fclose(in);
    free(m->bytes);
    return rc;
}

static void refused(struct made *m, int code, const char *why)
{
    struct taken t;
    struct err e;
    assert_int_equal(read_it(m, &t, &e), code);
    assert_string_equal(e.text, why);
}

static void test_what_is_written_is_read(void **state)
{
    struct made m;
    struct taken t;
    struct err e;
    (void)state;
    for (int with_key = 0; with_key < 2; with_key++) {
        begin(&m, with_key);
        for (uint32_t i = 0; i < 3; i++)
            put_block(&m, i);
        put_prompt(&m);
        assert_int_equal(archive_format_end(&m.w, &e), 0);
        assert_int_equal(read_it(&m, &t, &e), 0);
        assert_int_equal(t.blocks, 3);
        assert_int_equal(t.prompts, 1);
    }
}

static void test_blocks_that_cannot_be(void **state)
{
    struct made m;
    (void)state;
    begin(&m, false);
    put_block(&m, 0);
    put_block(&m, 2);
    refused(&m, ERR_FORMAT, "block 2 comes without the one before it");
    begin(&m, false);
    put_block(&m, 0);
    put_block(&m, 0);
    refused(&m, ERR_FORMAT, "block 2 comes twice");
    begin(&m, false);
    put_prompt(&m);
    put_block(&m, 0);
    refused(&m, ERR_FORMAT, "a block comes behind the prompts");
    begin(&m, false);
    put_raw(&m, 1, 0, "short", 5);
    refused(&m, ERR_FORMAT, "a block of 5 bytes");
}

static void test_block_that_was_damaged_before_it_was_packed(void **state)
{
    struct made m;
    struct store_block *b = make_block(0);
    const struct slice good = store_block_file(b);
    char *bytes = mem_dup(good.ptr, good.len);
    (void)state;
    bytes[good.len - 1] ^= 1;
    begin(&m, false);
    put_raw(&m, 1, 0, bytes, good.len);
    refused(&m, ERR_CHECKSUM, "block 1 is damaged");
    free(bytes);
    store_block_put(b);
}

static void test_block_under_the_name_of_other_tokens(void **state)
{
    struct made m;
    struct store_block *b = make_block(0), *other;
    struct store_head h = b->head;
    uint32_t *tokens;
    unsigned char *rows;
    (void)state;
    other = store_block_new(&h, &tokens, &rows);
    memset(tokens, 0, N_TOKENS * sizeof(*tokens));
    memset(rows, 0, ROWS);
    store_block_seal(other);
    begin(&m, false);
    archive_format_block(&m.w, other, 0);
    refused(&m, ERR_MISMATCH, "the name of block 1 is not the hash of its tokens");
    store_block_put(other);
    store_block_put(b);
}

static void test_prompts_and_ends_that_cannot_be(void **state)
{
    const unsigned char record[PROMPT_LOG_RECORD] = {1};
    struct made m;
    (void)state;
    begin(&m, false);
    put_raw(&m, 2, 0, record, sizeof(record));
    refused(&m, ERR_CHECKSUM, "a prompt record is damaged");
    begin(&m, false);
    put_raw(&m, 2, 0, record, 79);
    refused(&m, ERR_FORMAT, "a prompt record of 79 bytes");
    begin(&m, false);
    put_raw(&m, 3, 0, record, 8);
    refused(&m, ERR_FORMAT, "the end mark of the archive is not one");
    begin(&m, false);
    put_raw(&m, 4, 0, record, 8);
    refused(&m, ERR_FORMAT, "the archive has a part of kind 4");
    begin(&m, false);
    put_raw(&m, 2, 1, record, 8);
    refused(&m, ERR_FORMAT, "the archive is damaged");
}

static void test_what_was_lost_is_missed(void **state)
{
    struct made m;
    struct err e;
    (void)state;
    begin(&m, false);
    put_block(&m, 0);
    m.w.n.blocks++;
    assert_int_equal(archive_format_end(&m.w, &e), 0);
    refused(&m, ERR_FORMAT, "the archive has lost blocks or prompts");
    begin(&m, false);
    put_block(&m, 0);
    refused(&m, ERR_FORMAT, "the archive is cut short");
    begin(&m, false);
    assert_int_equal(archive_format_end(&m.w, &e), 0);
    fputc('x', m.w.out);
    refused(&m, ERR_FORMAT, "something follows the end of the archive");
}

static void test_header_that_contradicts_itself(void **state)
{
    struct made m;
    struct archive_header h = {.key_id = {1, 2}, .with_key = true};
    (void)state;
    m = (struct made){.bytes = NULL};
    memcpy(h.key, secret, sizeof(h.key));
    archive_format_start(&m.w, open_memstream(&m.bytes, &m.size), &h);
    refused(&m, ERR_FORMAT, "the header of the archive contradicts itself");
    h.with_key = false; /* and yet there is one */
    m = (struct made){.bytes = NULL};
    archive_format_start(&m.w, open_memstream(&m.bytes, &m.size), &h);
    refused(&m, ERR_FORMAT, "the header of the archive contradicts itself");
}

/* A full disk shows when it is asked for. */
static void test_writing_that_fails_is_said(void **state)
{
    struct archive_writer w;
    const struct archive_header h = {.key_id = {1, 2}};
    struct err e = {0};
    (void)state;
    FILE *full = fopen("/dev/full", "wb");
    if (!full)
        skip();
    archive_format_start(&w, full, &h);
    assert_int_equal(archive_format_end(&w, &e), ERR_IO);
    assert_non_null(strstr(e.text, "writing the archive: No space left"));
    fclose(full);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_what_is_written_is_read),
        cmocka_unit_test(test_blocks_that_cannot_be),
        cmocka_unit_test(test_block_that_was_damaged_before_it_was_packed),
        cmocka_unit_test(test_block_under_the_name_of_other_tokens),
        cmocka_unit_test(test_prompts_and_ends_that_cannot_be),
        cmocka_unit_test(test_what_was_lost_is_missed),
        cmocka_unit_test(test_header_that_contradicts_itself),
        cmocka_unit_test(test_writing_that_fails_is_said),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
