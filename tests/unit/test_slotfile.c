/* SPDX-License-Identifier: MIT */
#include "proto/slotfile.h"

#include <stdio.h>
#include <stdlib.h>

#include "cmocka_all.h"
#include "base/mem.h"

/* Real files, see tests/data/slotfiles/README.md. */
struct sample {
    const char *name;
    uint32_t version, streams, n_tokens, stream, seq;
    struct slotfile_layer layer; /* both layers alike */
    uint32_t k_rot, v_rot;
};

#define UNKNOWN SLOTFILE_ROT_UNKNOWN
static const struct sample samples[] = {
    {"v2-f16-slot0", 2, 2, 5, 0, 0, {1, 1, 384, 384, 0}, 0, 0},
    {"v2-f16-slot1", 2, 2, 5, 1, 1, {1, 1, 384, 384, 0}, 0, 0},
    {"v2-q8_0-slot0", 2, 2, 5, 0, 0, {8, 8, 204, 204, 0}, UNKNOWN, UNKNOWN},
    {"v2-q4_0-q8_0-slot1", 2, 2, 3, 1, 1, {2, 8, 108, 204, 0}, UNKNOWN, UNKNOWN},
    {"v4-f16-slot0", 4, 2, 5, 0, 0, {1, 1, 384, 384, 0}, 0, 0},
    {"v4-f16-slot1", 4, 2, 5, 1, 1, {1, 1, 384, 384, 0}, 0, 0},
    {"v4-q8_0-slot0", 4, 2, 5, 0, 0, {8, 8, 204, 204, 0}, 64, 64},
    /* One stream for all slots: the sequence id is the slot's, the stream is not. */
    {"v2-f16-unified-slot1", 2, 1, 5, 0, 1, {1, 1, 384, 384, 0}, 0, 0},
};
enum { N_SAMPLES = sizeof samples / sizeof *samples, N_ALIKE = N_SAMPLES - 1 };

/* The same prompt in slot 0, saved with flash attention and without: V is transposed. */
static const char *const with_and_without[][2] = {{"v2-f16-slot0", "v2-f16-transposed"},
                                                  {"v4-f16-slot0", "v4-f16-transposed"}};

static const uint32_t prompt[] = {19556, 905, 198, 504, 2365};

/* ---- helpers ----------------------------------------------------------------------- */

struct file {
    unsigned char *bytes; /* exactly `size`, so that the sanitizer sees one byte more */
    size_t size;
};

static struct file load(const char *name)
{
    char path[128];
    struct file f = {0};
    snprintf(path, sizeof path, "tests/data/slotfiles/%s.bin", name);
    FILE *in = fopen(path, "rb");
    if (!in)
        fail_msg("%s: run the tests in the root of the project", path);
    fseek(in, 0, SEEK_END);
    f.size = (size_t)ftell(in);
    rewind(in);
    f.bytes = mem_alloc(f.size);
    assert_int_equal(fread(f.bytes, 1, f.size, in), f.size);
    fclose(in);
    return f;
}

static int parse(struct slotfile *s, const unsigned char *bytes, size_t size)
{
    struct err e = {0};
    const int rc = slotfile_parse(s, slice_make((const char *)bytes, size), &e);
    assert_int_equal(rc, e.code);
    assert_true((rc == 0) == (e.text[0] == '\0'));
    return rc;
}

static struct slotfile *parse_sample(const char *name, struct file *f)
{
    struct slotfile *s = mem_alloc(sizeof *s);
    *f = load(name);
    assert_int_equal(parse(s, f->bytes, f->size), 0);
    return s;
}

static void drop(struct slotfile *s, struct file *f)
{
    free(s);
    free(f->bytes);
}

static unsigned char *cut(const struct slotfile *s, size_t first, size_t n)
{
    unsigned char *rows = mem_alloc(n * s->frame.token_bytes + 1);
    slotfile_cut(s, first, n, rows);
    return rows;
}

static uint32_t *tokens_of(const struct slotfile *s)
{
    uint32_t *tokens = mem_array(s->n_tokens + 1, sizeof *tokens);
    for (size_t i = 0; i < s->n_tokens; i++)
        tokens[i] = slotfile_token(s, i);
    return tokens;
}

/* The file composed of one part, the first n tokens of `s`. */
static struct file compose_start(const struct slotfile *s, uint32_t stream, uint32_t n)
{
    const struct slotfile_part part = {cut(s, 0, s->n_tokens), s->n_tokens, n};
    uint32_t *tokens = tokens_of(s);
    struct file f = {0};
    f.size = slotfile_size(&s->frame, n);
    f.bytes = mem_alloc(f.size);
    slotfile_compose(&s->frame, stream, tokens, n, &part, 1, f.bytes);
    free(tokens);
    free((void *)(uintptr_t)part.rows);
    return f;
}

static void put_u32(unsigned char *p, uint32_t v)
{
    for (int i = 0; i < 4; i++)
        p[i] = (unsigned char)(v >> (8 * i));
}

/* ---- reading ----------------------------------------------------------------------- */

static void test_slotfile_parse_reads_real_files(void **state)
{
    (void)state;
    for (size_t i = 0; i < N_SAMPLES; i++) {
        const struct sample *want = &samples[i];
        struct file f;
        struct slotfile *s = parse_sample(want->name, &f);
        assert_int_equal(s->frame.version, want->version);
        assert_true(s->frame.packed_tokens);
        assert_int_equal(s->frame.streams, want->streams);
        assert_int_equal(s->n_tokens, want->n_tokens);
        assert_int_equal(s->stream, want->stream);
        assert_int_equal(s->seq, want->seq);
        assert_int_equal(s->frame.k_rot, want->k_rot);
        assert_int_equal(s->frame.v_rot, want->v_rot);
        assert_int_equal(s->frame.n_layers, 2);
        for (size_t l = 0; l < 2; l++)
            assert_memory_equal(&s->frame.layers[l], &want->layer, sizeof want->layer);
        assert_int_equal(s->frame.token_bytes,
                         2 * (want->layer.k_row + want->layer.v_row));
        for (size_t t = 0; t < s->n_tokens; t++)
            assert_int_equal(slotfile_token(s, t), prompt[t]);
        assert_int_equal(slotfile_size(&s->frame, s->n_tokens), f.size);
        drop(s, &f);
    }
}

static void test_slotfile_compose_gives_back_the_very_bytes(void **state)
{
    (void)state;
    for (size_t i = 0; i < N_ALIKE; i++) {
        struct file f;
        struct slotfile *s = parse_sample(samples[i].name, &f);
        struct file again = compose_start(s, s->stream, s->n_tokens);
        assert_int_equal(again.size, f.size);
        assert_memory_equal(again.bytes, f.bytes, f.size);
        free(again.bytes);
        drop(s, &f);
    }
}

static void test_slotfile_compose_names_its_stream_as_the_sequence(void **state)
{
    (void)state;
    struct file f;
    struct slotfile *s = parse_sample("v2-f16-unified-slot1", &f);
    struct file again = compose_start(s, 0, s->n_tokens);
    assert_int_equal(again.size, f.size);
    size_t differ = 0;
    for (size_t i = 0; i < f.size; i++)
        differ += again.bytes[i] != f.bytes[i];
    assert_int_equal(differ, s->n_tokens); /* the lowest byte of each sequence id */
    assert_int_equal(parse(s, again.bytes, again.size), 0);
    assert_int_equal(s->seq, 0);
    free(again.bytes);
    drop(s, &f);
}

static void test_slotfile_empty_slot_has_no_tokens_and_no_layout(void **state)
{
    (void)state;
    const char *const names[] = {"v2-empty", "v4-empty"};
    for (size_t i = 0; i < 2; i++) {
        struct file f;
        struct slotfile *s = parse_sample(names[i], &f);
        assert_int_equal(f.size, 40);
        assert_int_equal(s->n_tokens, 0);
        assert_int_equal(s->frame.n_layers, 0);
        assert_int_equal(s->frame.token_bytes, 0);
        assert_int_equal(s->frame.streams, 2);
        struct file again = compose_start(s, 1, 0);
        assert_int_equal(again.size, 40);
        assert_memory_equal(again.bytes, f.bytes, 40);
        free(again.bytes);
        drop(s, &f);
    }
}

/* ---- cutting and composing --------------------------------------------------------- */

static void check_start(const struct slotfile *whole, const struct slotfile *start)
{
    for (size_t t = 0; t < start->n_tokens; t++)
        assert_int_equal(slotfile_token(start, t), slotfile_token(whole, t));
    for (size_t l = 0; start->n_tokens && l < whole->frame.n_layers; l++) {
        const struct slotfile_layer *layer = &whole->frame.layers[l];
        assert_int_equal(start->k[l].len, start->n_tokens * layer->k_row);
        assert_memory_equal(start->k[l].ptr, whole->k[l].ptr, start->k[l].len);
        assert_int_equal(start->v[l].len, start->n_tokens * layer->v_row);
        assert_memory_equal(start->v[l].ptr, whole->v[l].ptr, start->v[l].len);
    }
}

static void test_slotfile_can_be_cut_at_any_token(void **state)
{
    (void)state;
    struct slotfile *start = mem_alloc(sizeof *start);
    for (size_t i = 0; i < N_SAMPLES; i++) {
        struct file f;
        struct slotfile *s = parse_sample(samples[i].name, &f);
        for (uint32_t n = 0; n <= s->n_tokens; n++) {
            for (uint32_t stream = 0; stream < s->frame.streams; stream++) {
                struct file part = compose_start(s, stream, n);
                assert_int_equal(parse(start, part.bytes, part.size), 0);
                assert_int_equal(start->n_tokens, n);
                assert_int_equal(start->stream, n ? stream : 0);
                check_start(s, start);
                free(part.bytes);
            }
        }
        drop(s, &f);
    }
    free(start);
}

static void test_slotfile_composes_parts_of_two_files(void **state)
{
    (void)state;
    struct file fa, fb;
    struct slotfile *a = parse_sample("v2-f16-slot0", &fa);
    struct slotfile *b = parse_sample("v4-f16-slot1", &fb);
    struct slotfile *s = mem_alloc(sizeof *s);
    assert_true(slotfile_same_layout(&a->frame, &b->frame));
    unsigned char *rows[] = {cut(a, 0, 2), cut(a, 2, 2), cut(b, 3, 2)};
    const struct slotfile_part parts[] = {
        {rows[0], 2, 2}, {rows[1], 2, 1}, {rows[2], 2, 0}, {rows[2], 2, 2}};
    uint32_t *tokens = tokens_of(a);
    const size_t size = slotfile_size(&b->frame, 5);
    unsigned char *bytes = mem_alloc(size);
    slotfile_compose(&b->frame, 0, tokens, 5, parts, 4, bytes);
    assert_int_equal(parse(s, bytes, size), 0);
    assert_int_equal(s->frame.version, 4);
    assert_int_equal(s->n_tokens, 5);
    for (size_t l = 0; l < 2; l++) { /* three rows of a, two of b, in each layer */
        assert_memory_equal(s->k[l].ptr, a->k[l].ptr, 3 * 384);
        assert_memory_equal(s->k[l].ptr + 3 * 384, b->k[l].ptr + 3 * 384, 2 * 384);
        assert_memory_equal(s->v[l].ptr, a->v[l].ptr, 3 * 384);
        assert_memory_equal(s->v[l].ptr + 3 * 384, b->v[l].ptr + 3 * 384, 2 * 384);
    }
    free(tokens);
    free(bytes);
    for (size_t i = 0; i < 3; i++)
        free(rows[i]);
    free(s);
    drop(a, &fa);
    drop(b, &fb);
}

static void test_slotfile_block_order_is_all_k_then_all_v(void **state)
{
    (void)state;
    struct file f;
    struct slotfile *s = parse_sample("v2-q4_0-q8_0-slot1", &f);
    unsigned char *rows = cut(s, 1, 2);
    assert_memory_equal(rows, s->k[0].ptr + 108, 2 * 108);
    assert_memory_equal(rows + 2 * 108, s->k[1].ptr + 108, 2 * 108);
    assert_memory_equal(rows + 4 * 108, s->v[0].ptr + 204, 2 * 204);
    assert_memory_equal(rows + 4 * 108 + 2 * 204, s->v[1].ptr + 204, 2 * 204);
    free(rows);
    drop(s, &f);
}

/* ---- transposed V ------------------------------------------------------------------ */

static void test_slotfile_transposed_v_is_the_same_rows(void **state)
{
    (void)state;
    for (size_t i = 0; i < 2; i++) {
        struct file fa, fb;
        struct slotfile *a = parse_sample(with_and_without[i][0], &fa);
        struct slotfile *b = parse_sample(with_and_without[i][1], &fb);
        assert_false(a->frame.v_transposed);
        assert_true(b->frame.v_transposed);
        assert_int_equal(b->frame.layers[0].v_element, 2);
        assert_int_equal(b->n_tokens, 2);
        assert_true(slotfile_same_layout(&a->frame, &b->frame));
        /* K and V of the first layer have met no attention: they are the same numbers. */
        unsigned char *x = cut(a, 0, 2), *y = cut(b, 0, 2);
        assert_memory_equal(x, y, 2 * 384);
        assert_memory_equal(x + 4 * 384, y + 4 * 384, 2 * 384);
        assert_memory_not_equal(b->v[0].ptr, y + 4 * 384, 2 * 384);
        free(x);
        free(y);
        drop(a, &fa);
        drop(b, &fb);
    }
}

static void test_slotfile_transposed_v_is_composed_of_any_parts(void **state)
{
    (void)state;
    for (size_t i = 0; i < 2; i++) {
        struct file f;
        struct slotfile *s = parse_sample(with_and_without[i][1], &f);
        unsigned char *out = mem_alloc(f.size);
        uint32_t *tokens = tokens_of(s);
        for (uint32_t at = 0; at <= s->n_tokens; at++) {
            unsigned char *x = cut(s, 0, s->n_tokens), *y = cut(s, at, s->n_tokens - at);
            const struct slotfile_part parts[] = {
                {x, s->n_tokens, at}, {y, s->n_tokens - at, s->n_tokens - at}};
            slotfile_compose(&s->frame, 0, tokens, s->n_tokens, parts, 2, out);
            assert_memory_equal(out, f.bytes, f.size);
            free(x);
            free(y);
        }
        free(tokens);
        free(out);
        drop(s, &f);
    }
}

/* Larger than the tiles in which it is turned, and not a whole number of them. */
static void test_slotfile_transposed_v_of_many_tokens(void **state)
{
    (void)state;
    enum { TOKENS = 75, WIDTH = 41, FIRST = 7, PARTS = 3 };
    struct slotfile *s = mem_zalloc(sizeof *s);
    s->frame = (struct slotfile_frame){.version = 4,
                                       .packed_tokens = true,
                                       .streams = 1,
                                       .v_transposed = true,
                                       .n_layers = 1,
                                       .token_bytes = 4 + 4 * WIDTH};
    s->frame.layers[0] = (struct slotfile_layer){
        .v_type = 0, .k_row = 4, .v_row = 4 * WIDTH, .v_element = 4};
    const uint32_t part[PARTS] = {33, 32, TOKENS - 65};
    struct slotfile_part parts[PARTS];
    uint32_t tokens[TOKENS], row = 0;
    for (size_t i = 0; i < PARTS; i++) {
        unsigned char *rows = mem_zalloc(part[i] * s->frame.token_bytes);
        for (uint32_t t = 0; t < part[i]; t++, row++)
            for (uint32_t e = 0; e < WIDTH; e++)
                put_u32(rows + 4 * (part[i] + t * WIDTH + e), row << 16 | e);
        parts[i] = (struct slotfile_part){rows, part[i], part[i]};
    }
    for (uint32_t t = 0; t < TOKENS; t++)
        tokens[t] = t;
    const size_t size = slotfile_size(&s->frame, TOKENS);
    unsigned char *bytes = mem_alloc(size);
    slotfile_compose(&s->frame, 0, tokens, TOKENS, parts, PARTS, bytes);
    assert_int_equal(parse(s, bytes, size), 0);
    unsigned char *rows = cut(s, FIRST, TOKENS - FIRST), word[4];
    for (uint32_t t = FIRST; t < TOKENS; t++)
        for (uint32_t e = 0; e < WIDTH; e++) {
            put_u32(word, t << 16 | e);
            assert_memory_equal(rows + 4 * (TOKENS - FIRST + (t - FIRST) * WIDTH + e),
                                word, 4);
        }
    free(rows);
    free(bytes);
    for (size_t i = 0; i < PARTS; i++)
        free((void *)(uintptr_t)parts[i].rows);
    free(s);
}

static void test_slotfile_bare_token_lists_are_read_and_written(void **state)
{
    (void)state;
    struct file f;
    struct slotfile *s = parse_sample("v2-q8_0-slot0", &f);
    s->frame.packed_tokens = false;
    struct file bare = compose_start(s, 0, 4);
    struct slotfile *again = mem_alloc(sizeof *again);
    assert_int_equal(parse(again, bare.bytes, bare.size), 0);
    assert_false(again->frame.packed_tokens);
    assert_int_equal(again->n_tokens, 4);
    check_start(s, again);
    free(bare.bytes);
    free(again);
    drop(s, &f);
}

/* ---- layouts ----------------------------------------------------------------------- */

static bool same_bytes(const struct slotfile_frame *a, const struct slotfile_frame *b)
{
    struct buf x = {0}, y = {0};
    slotfile_layout_bytes(a, &x);
    slotfile_layout_bytes(b, &y);
    const bool same = slice_eq(buf_slice(&x), buf_slice(&y));
    buf_free(&x);
    buf_free(&y);
    return same;
}

static void test_slotfile_layout_is_what_makes_rows_interchangeable(void **state)
{
    (void)state;
    /* Rows of plain numbers go between versions and streams; quantized ones do not,
     * since version 2 does not tell whether they were rotated. */
    const size_t group[N_SAMPLES] = {0, 0, 1, 2, 0, 0, 3, 0};
    struct file f[N_SAMPLES];
    struct slotfile *s[N_SAMPLES];
    for (size_t i = 0; i < N_SAMPLES; i++)
        s[i] = parse_sample(samples[i].name, &f[i]);
    for (size_t i = 0; i < N_SAMPLES; i++) {
        for (size_t j = 0; j < N_SAMPLES; j++) {
            const bool same = group[i] == group[j];
            assert_true(slotfile_same_layout(&s[i]->frame, &s[j]->frame) == same);
            assert_true(same_bytes(&s[i]->frame, &s[j]->frame) == same);
        }
    }
    for (size_t i = 0; i < N_SAMPLES; i++)
        drop(s[i], &f[i]);
}

static void test_slotfile_layout_sees_each_field_of_each_layer(void **state)
{
    (void)state;
    struct file f;
    struct slotfile *s = parse_sample("v4-f16-slot0", &f);
    struct slotfile *other = mem_alloc(sizeof *other);
    for (int field = 0; field < 7; field++) {
        *other = *s;
        struct slotfile_layer *l = &other->frame.layers[1];
        switch (field) {
        case 0:
            l->k_type++;
            break;
        case 1:
            l->v_type++;
            break;
        case 2:
            l->k_row++;
            break;
        case 3:
            l->v_row++;
            break;
        case 4:
            other->frame.n_layers--;
            break;
        case 5:
            other->frame.k_rot = 64;
            break;
        case 6:
            other->frame.v_rot = 64;
            break;
        }
        assert_false(slotfile_same_layout(&s->frame, &other->frame));
        assert_false(same_bytes(&s->frame, &other->frame));
    }
    free(other);
    drop(s, &f);
}

static void test_slotfile_type_names(void **state)
{
    (void)state;
    assert_string_equal(slotfile_type_name(0), "f32");
    assert_string_equal(slotfile_type_name(1), "f16");
    assert_string_equal(slotfile_type_name(8), "q8_0");
    assert_string_equal(slotfile_type_name(30), "bf16");
    assert_string_equal(slotfile_type_name(4), "type 4");
    assert_string_equal(slotfile_type_name(UINT32_MAX), "type 4294967295");
}

/* ---- bad files --------------------------------------------------------------------- */

static void test_slotfile_refuses_every_truncation(void **state)
{
    (void)state;
    const char *const names[] = {"v2-q4_0-q8_0-slot1", "v4-q8_0-slot0", "v2-empty"};
    struct slotfile *s = mem_alloc(sizeof *s);
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        struct file f = load(names[i]);
        for (size_t n = 0; n < f.size; n++) {
            unsigned char *part = mem_alloc(n + !n);
            memcpy(part, f.bytes, n);
            assert_int_equal(parse(s, part, n), ERR_FORMAT);
            free(part);
        }
        free(f.bytes);
    }
    free(s);
}

static void test_slotfile_refuses_bytes_left_over(void **state)
{
    (void)state;
    struct slotfile *s = mem_alloc(sizeof *s);
    for (size_t i = 0; i < N_SAMPLES; i++) {
        struct file f = load(samples[i].name);
        f.bytes = mem_realloc(f.bytes, f.size + 4);
        memset(f.bytes + f.size, 0, 4);
        for (size_t more = 1; more <= 4; more++)
            assert_int_equal(parse(s, f.bytes, f.size + more), ERR_FORMAT);
        free(f.bytes);
    }
    free(s);
}

/* What a damaged byte may do: nothing that moves rows to other tokens. */
static void test_slotfile_damaged_bytes_never_change_the_shape(void **state)
{
    (void)state;
    const char *const names[] = {"v2-q4_0-q8_0-slot1", "v4-q8_0-slot0"};
    static const unsigned char flips[] = {0x01, 0x02, 0x80, 0xff};
    struct slotfile *s = mem_alloc(sizeof *s);
    for (size_t i = 0; i < 2; i++) {
        struct file f = load(names[i]);
        assert_int_equal(parse(s, f.bytes, f.size), 0);
        const struct slotfile right = *s;
        for (size_t at = 0; at < f.size * sizeof flips; at++) {
            unsigned char *byte = &f.bytes[at / sizeof flips];
            *byte ^= flips[at % sizeof flips];
            const int rc = parse(s, f.bytes, f.size);
            if (rc == 0) {
                assert_int_equal(s->n_tokens, right.n_tokens);
                assert_int_equal(s->frame.n_layers, right.frame.n_layers);
                assert_int_equal(s->frame.token_bytes, right.frame.token_bytes);
                assert_int_equal(s->stream, right.stream);
                assert_memory_equal(s->k, right.k, 2 * sizeof *s->k);
                assert_memory_equal(s->v, right.v, 2 * sizeof *s->v);
            } else {
                assert_true(rc == ERR_FORMAT || rc == ERR_UNSUPPORTED);
            }
            *byte ^= flips[at % sizeof flips];
        }
        free(f.bytes);
    }
    free(s);
}

/* Offsets in v4-f16-slot0: 5 tokens, so words 3 … 11 are the payload. */
enum {
    AT_VERSION = 4,
    AT_WORDS = 8,
    AT_PAYLOAD_VERSION = 16,
    AT_N = 20,
    AT_TOKEN = 24,
    AT_MEDIA = 44,
    AT_STREAMS = 48,
    AT_CELLS = 52,
    AT_CELL = 56,
    AT_V_TRANS = 116,
    AT_LAYERS = 120,
    AT_K_ROT = 124,
    AT_V_ROT = 128,
    AT_K_ROW = 136,
};

struct change {
    size_t at;
    uint32_t value;
    int rc;
};

static void test_slotfile_refuses_what_it_does_not_understand(void **state)
{
    (void)state;
    static const struct change changes[] = {
        {0, 0x67677370, ERR_FORMAT},
        {AT_VERSION, 1, ERR_UNSUPPORTED},
        {AT_VERSION, 3, ERR_UNSUPPORTED},
        {AT_VERSION, 5, ERR_UNSUPPORTED},
        {AT_WORDS, 0, ERR_FORMAT},
        {AT_WORDS, 3, ERR_FORMAT},
        {AT_WORDS, UINT32_MAX, ERR_FORMAT},
        {AT_PAYLOAD_VERSION, 2, ERR_UNSUPPORTED},
        {AT_N, 6, ERR_FORMAT},
        {AT_N, UINT32_MAX, ERR_FORMAT},
        {AT_TOKEN, UINT32_MAX, ERR_UNSUPPORTED}, /* a picture's place */
        {AT_TOKEN, 0x80000000, ERR_UNSUPPORTED},
        {AT_MEDIA, 1, ERR_UNSUPPORTED},
        {AT_STREAMS, 0, ERR_FORMAT},
        {AT_STREAMS, 1, ERR_FORMAT},
        {AT_STREAMS, 3, ERR_FORMAT},
        {AT_STREAMS, UINT32_MAX, ERR_FORMAT},
        {AT_CELLS, 0, ERR_FORMAT},
        {AT_CELLS, 4, ERR_FORMAT},
        {AT_CELLS, 6, ERR_FORMAT},
        {AT_CELLS, UINT32_MAX, ERR_FORMAT},
        {AT_CELL, 1, ERR_UNSUPPORTED},          /* positions do not start at 0 */
        {AT_CELL + 24, 3, ERR_UNSUPPORTED},     /* a gap */
        {AT_CELL + 4, 2, ERR_UNSUPPORTED},      /* shared by two sequences */
        {AT_CELL + 4, 0, ERR_UNSUPPORTED},      /* of none */
        {AT_CELL + 12 + 8, 1, ERR_UNSUPPORTED}, /* cells of different sequences */
        {AT_V_TRANS, 1, ERR_UNSUPPORTED},
        {AT_V_TRANS, 2, ERR_FORMAT},
        {AT_LAYERS, 0, ERR_FORMAT},
        {AT_LAYERS, 1, ERR_FORMAT},
        {AT_LAYERS, 3, ERR_FORMAT},
        {AT_LAYERS, SLOTFILE_MAX_LAYERS + 1, ERR_UNSUPPORTED},
        {AT_K_ROT, 63, ERR_UNSUPPORTED},
        {AT_V_ROT, 3, ERR_UNSUPPORTED},
        {AT_K_ROW, 0, ERR_UNSUPPORTED},
        {AT_K_ROW, 383, ERR_FORMAT},
        {AT_K_ROW + 4, UINT32_MAX, ERR_FORMAT},
    };
    struct slotfile *s = mem_alloc(sizeof *s);
    struct file f = load("v4-f16-slot0");
    for (size_t i = 0; i < sizeof changes / sizeof *changes; i++) {
        const struct change *c = &changes[i];
        unsigned char kept[4];
        memcpy(kept, f.bytes + c->at, 4);
        put_u32(f.bytes + c->at, c->value);
        const int rc = parse(s, f.bytes, f.size);
        if (rc != c->rc)
            fail_msg("%zu: byte %zu = %u gives %s", i, c->at, c->value, err_name(rc));
        memcpy(f.bytes + c->at, kept, 4);
    }
    assert_int_equal(parse(s, f.bytes, f.size), 0);
    free(f.bytes);
    free(s);
}

/* A sliding-window model writes a second cache behind the first. */
static void test_slotfile_refuses_a_second_cache(void **state)
{
    (void)state;
    struct slotfile *s = mem_alloc(sizeof *s);
    struct file f = load("v2-q8_0-slot0");
    const size_t cache = f.size - AT_STREAMS;
    unsigned char *twice = mem_alloc(f.size + cache);
    memcpy(twice, f.bytes, f.size);
    memcpy(twice + f.size, f.bytes + AT_STREAMS, cache);
    assert_int_equal(parse(s, twice, f.size + cache), ERR_FORMAT);
    free(twice);
    free(f.bytes);
    free(s);
}

/* Bytes of a file from `at` on are exchanged for these words; what is parsed lives until
 * the next call. */
static unsigned char *exchanged;

static int parse_whole(struct slotfile *s, const struct file *f, size_t at,
                       const uint32_t *words, size_t n_words)
{
    const size_t size = at + 4 * n_words;
    free(exchanged);
    unsigned char *bytes = exchanged = mem_alloc(size);
    memcpy(bytes, f->bytes, at);
    memcpy(bytes + at, words, 4 * n_words);
    struct err e = {0};
    const int rc = slotfile_parse_whole(s, slice_make((char *)bytes, size), &e);
    assert_int_equal(rc, e.code);
    return rc;
}

static void test_slotfile_whole_states(void **state)
{
    (void)state;
    struct file f;
    struct slotfile *s = parse_sample("v2-q8_0-slot0", &f);
    const uint32_t row = s->frame.layers[0].k_type;
    uint32_t words[] = {1, s->n_tokens - 1, 0, 77}; /* one cell, its place, no sequence */
    for (size_t at = f.size;; at = AT_STREAMS) {    /* beside attention, or alone */
        assert_int_equal(parse_whole(s, &f, at, words, 4), 0);
        assert_int_equal(s->n_tokens, 5);
        assert_int_equal(slotfile_token(s, 4), prompt[4]);
        assert_int_equal(s->frame.n_layers, at == f.size ? 2 : 0);
        assert_int_equal(s->frame.layers[0].k_type, at == f.size ? row : 0);
        assert_int_not_equal(parse_whole(s, &f, at, words, 2), 0); /* cut short */
        for (size_t i = 0; i < 3; i++) {
            words[i] += 1;
            assert_int_not_equal(parse_whole(s, &f, at, words, 4), 0);
            words[i] -= 1;
        }
        if (at == AT_STREAMS)
            break;
    }
    drop(s, &f);
}

/* ---- windows ----------------------------------------------------------------------- */

static const char *const windowed[] = {"v2-f16-slot0", "v2-q4_0-q8_0-slot1",
                                       "v4-f16-slot1", "v4-q8_0-slot0"};

/* One of these; `turned`: as it would be without flash attention. */
static struct slotfile *windowed_sample(size_t i, bool turned, struct file *f)
{
    struct slotfile *s = parse_sample(windowed[i], f);
    if (turned) {
        s->frame.v_transposed = true;
        for (uint32_t l = 0; l < s->frame.n_layers; l++)
            s->frame.layers[l].v_element = 4;
        const struct file again = compose_start(s, s->stream, s->n_tokens);
        free(f->bytes);
        *f = again;
        assert_int_equal(parse(s, f->bytes, f->size), 0);
    }
    return s;
}

/* The rows of the last `n` tokens; `blank`: those of the first of them are zeros. */
static unsigned char *last_rows(const struct slotfile *s, uint32_t n, bool blank)
{
    unsigned char *rows = cut(s, s->n_tokens - n, n), *p = rows;
    for (uint32_t i = 0; blank && i < 2 * s->frame.n_layers; i++) {
        const struct slotfile_layer *l = &s->frame.layers[i % s->frame.n_layers];
        const size_t row = (size_t)(i < s->frame.n_layers ? l->k_row : l->v_row);
        memset(p, 0, row);
        p += n * row;
    }
    return rows;
}

/* The file that `s` was parsed from, behind it a cache of the last `n` tokens, and a tail:
 * what a model with a sliding window writes. */
static struct file with_window(const struct slotfile *s, const struct file *f, uint32_t n,
                               bool blank, size_t tail)
{
    const struct slotfile_part part = {last_rows(s, n, blank), n, n};
    const uint32_t tokens[8] = {0};
    const size_t head = 28 + 4 * (size_t)n; /* before the streams */
    const size_t size = slotfile_size(&s->frame, n);
    unsigned char *w = mem_alloc(size);
    slotfile_compose(&s->frame, s->stream, tokens, n, &part, 1, w);
    for (uint32_t i = 0; i < n; i++)
        put_u32(w + head + 8 + 4 * s->stream + 12 * i, s->n_tokens - n + i);
    struct file both = {mem_alloc(f->size + size - head + tail),
                        f->size + size - head + tail};
    memcpy(both.bytes, f->bytes, f->size);
    memcpy(both.bytes + f->size, w + head, size - head);
    memset(both.bytes + f->size + size - head, 0xab, tail);
    free((void *)(uintptr_t)part.rows);
    free(w);
    return both;
}

static int read_whole(struct slotfile *s, const struct file *f, size_t size)
{
    struct err e = {0};
    const int rc = slotfile_parse_whole(s, slice_make((char *)f->bytes, size), &e);
    assert_int_equal(rc, e.code);
    return rc;
}

static void test_slotfile_windows_are_whole_states(void **state)
{
    (void)state;
    struct slotfile *s = mem_alloc(sizeof *s);
    for (size_t i = 0; i < 8; i++) {
        struct file f;
        struct slotfile *plain = windowed_sample(i % 4, i > 3, &f);
        for (uint32_t n = 1; n <= plain->n_tokens; n++) {
            struct file w = with_window(plain, &f, n, false, 9);
            for (size_t tail = 0; tail < 2; tail++) {
                assert_int_equal(read_whole(s, &w, w.size - 9 * tail), 0);
                assert_int_equal(s->n_tokens, plain->n_tokens);
                assert_int_equal(s->window, n);
                assert_int_equal(s->window_bytes, 12 + plain->frame.token_bytes);
                assert_true(slotfile_same_layout(&s->frame, &plain->frame));
            }
            for (size_t size = f.size; size < w.size - 9; size++)
                assert_int_not_equal(read_whole(s, &w, size), 0);
            /* The first cell's position, and the number of cells. */
            unsigned char *cells = w.bytes + f.size + 4 + 4 * plain->stream;
            cells[4]++;
            assert_int_equal(read_whole(s, &w, w.size), ERR_UNSUPPORTED);
            put_u32(cells, plain->n_tokens + 1);
            assert_int_equal(read_whole(s, &w, w.size), ERR_UNSUPPORTED);
            free(w.bytes);
        }
        drop(plain, &f);
    }
    free(s);
}

static void test_slotfile_windows_get_one_cell_more(void **state)
{
    (void)state;
    for (size_t i = 0; i < 8; i++) {
        struct file f;
        struct slotfile *plain = windowed_sample(i % 4, i > 3, &f);
        for (uint32_t n = 1; n < plain->n_tokens; n++) {
            struct file w = with_window(plain, &f, n, false, 7);
            struct file wanted = with_window(plain, &f, n + 1, true, 7);
            const struct slice bytes = slice_make((char *)w.bytes, w.size);
            assert_int_equal(wanted.size, w.size + 12 + plain->frame.token_bytes);
            unsigned char *out = mem_alloc(wanted.size);
            assert_int_equal(slotfile_pad_window(bytes, out), 0);
            assert_memory_equal(out, wanted.bytes, wanted.size);
            free(out);
            free(wanted.bytes);
            free(w.bytes);
        }
        /* Nothing lies before all tokens, and other files have no window. */
        struct file w = with_window(plain, &f, plain->n_tokens, false, 0);
        const struct slice all = slice_make((char *)w.bytes, w.size);
        const struct slice none = slice_make((char *)f.bytes, f.size);
        assert_int_equal(slotfile_pad_window(all, NULL), ERR_UNSUPPORTED);
        assert_int_equal(slotfile_pad_window(none, NULL), ERR_UNSUPPORTED);
        free(w.bytes);
        drop(plain, &f);
    }
}

static void exchange_bytes(const char *a, const char *b, size_t n)
{
    unsigned char *x = (unsigned char *)(uintptr_t)a, *y = (unsigned char *)(uintptr_t)b;
    for (size_t i = 0; i < n; i++) {
        const unsigned char t = x[i];
        x[i] = y[i];
        y[i] = t;
    }
}

/* Exchanges two cells, with the rows or columns of each layer. */
static void exchange(struct slotfile *s, const char *cells, size_t a, size_t b)
{
    exchange_bytes(cells + 12 * a, cells + 12 * b, 12);
    for (size_t i = 0; i < s->frame.n_layers; i++) {
        const struct slotfile_layer *l = &s->frame.layers[i];
        const bool turned = s->frame.v_transposed;
        const size_t size = turned ? l->v_element : (size_t)l->v_row;
        const char *v = s->v[i].ptr, *end = v + (turned ? s->v[i].len : 1);
        exchange_bytes(s->k[i].ptr + a * l->k_row, s->k[i].ptr + b * l->k_row,
                       (size_t)l->k_row);
        for (; v < end; v += s->n_tokens * size)
            exchange_bytes(v + a * size, v + b * size, size);
    }
}

static void check_any_order(const char *name, size_t one, size_t other)
{
    struct file f;
    uint32_t *order;
    struct slotfile *s = parse_sample(name, &f);
    const uint32_t n = s->n_tokens;
    unsigned char *rows = cut(s, 0, n);
    const size_t cells = (size_t)(s->tokens - f.bytes) + 4 * (size_t)n + 12;
    exchange(s, (const char *)f.bytes + cells, one, other);
    assert_int_equal(parse(s, f.bytes, f.size), ERR_UNSUPPORTED);
    const struct slice bytes = slice_make((const char *)f.bytes, f.size);
    assert_int_equal(slotfile_parse_any(s, bytes, &order, NULL), 0);
    assert_int_equal(order[one], other);
    unsigned char *again = cut(s, 0, n);
    assert_memory_equal(rows, again, n * s->frame.token_bytes);
    free(again);
    free(order);
    /* A position that is there twice, and one beyond. */
    const uint32_t wrong[] = {one ? 0 : 1, n, UINT32_MAX};
    for (size_t i = 0; i < 3; i++) {
        memcpy(f.bytes + cells + 12 * one, &wrong[i], 4);
        memcpy(f.bytes + cells + 12 * other, &wrong[0], 4);
        assert_int_equal(slotfile_parse_any(s, bytes, &order, NULL), ERR_UNSUPPORTED);
        assert_null(order);
    }
    free(rows);
    drop(s, &f);
}

static void test_slotfile_cells_in_any_order(void **state)
{
    (void)state;
    check_any_order("v2-f16-slot0", 1, 4);
    check_any_order("v2-f16-transposed", 0, 1);
    check_any_order("v4-f16-transposed", 0, 1);
}

static void test_slotfile_refuses_cells_in_two_streams(void **state)
{
    (void)state;
    struct slotfile *s = mem_alloc(sizeof *s);
    struct file f = load("v2-q8_0-slot0"); /* its last word: stream 1 has no cells */
    const size_t stream = f.size - 4 - AT_CELLS;
    unsigned char *both = mem_alloc(f.size - 4 + stream);
    memcpy(both, f.bytes, f.size - 4);
    memcpy(both + f.size - 4, f.bytes + AT_CELLS, stream);
    assert_int_equal(parse(s, both, f.size - 4 + stream), ERR_FORMAT);
    free(both);
    free(f.bytes);
    free(s);
}

static void test_slotfile_refuses_words_behind_the_tokens(void **state)
{
    (void)state;
    struct slotfile *s = mem_alloc(sizeof *s);
    struct file f = load("v2-empty");
    unsigned char *longer = mem_alloc(f.size + 4);
    const size_t end = f.size - 12; /* of the payload: streams and their cells follow */
    memcpy(longer, f.bytes, end);
    put_u32(longer + end, 77);
    memcpy(longer + end + 4, f.bytes + end, 12);
    put_u32(longer + AT_WORDS, 5);
    assert_int_equal(parse(s, longer, f.size + 4), ERR_FORMAT);
    free(longer);
    free(f.bytes);
    free(s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_slotfile_parse_reads_real_files),
        cmocka_unit_test(test_slotfile_compose_gives_back_the_very_bytes),
        cmocka_unit_test(test_slotfile_compose_names_its_stream_as_the_sequence),
        cmocka_unit_test(test_slotfile_empty_slot_has_no_tokens_and_no_layout),
        cmocka_unit_test(test_slotfile_can_be_cut_at_any_token),
        cmocka_unit_test(test_slotfile_composes_parts_of_two_files),
        cmocka_unit_test(test_slotfile_block_order_is_all_k_then_all_v),
        cmocka_unit_test(test_slotfile_transposed_v_is_the_same_rows),
        cmocka_unit_test(test_slotfile_transposed_v_is_composed_of_any_parts),
        cmocka_unit_test(test_slotfile_transposed_v_of_many_tokens),
        cmocka_unit_test(test_slotfile_bare_token_lists_are_read_and_written),
        cmocka_unit_test(test_slotfile_layout_is_what_makes_rows_interchangeable),
        cmocka_unit_test(test_slotfile_layout_sees_each_field_of_each_layer),
        cmocka_unit_test(test_slotfile_type_names),
        cmocka_unit_test(test_slotfile_refuses_every_truncation),
        cmocka_unit_test(test_slotfile_refuses_bytes_left_over),
        cmocka_unit_test(test_slotfile_damaged_bytes_never_change_the_shape),
        cmocka_unit_test(test_slotfile_refuses_what_it_does_not_understand),
        cmocka_unit_test(test_slotfile_refuses_a_second_cache),
        cmocka_unit_test(test_slotfile_whole_states),
        cmocka_unit_test(test_slotfile_windows_are_whole_states),
        cmocka_unit_test(test_slotfile_windows_get_one_cell_more),
        cmocka_unit_test(test_slotfile_cells_in_any_order),
        cmocka_unit_test(test_slotfile_refuses_cells_in_two_streams),
        cmocka_unit_test(test_slotfile_refuses_words_behind_the_tokens),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
