/* SPDX-License-Identifier: MIT */
#include "prefix/pieces.h"

#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "cmocka_all.h"

#define TEXT_BYTES 5000

static struct chain_key key;
static char text[TEXT_BYTES];
static uint64_t rng;

static uint32_t roll(uint32_t below)
{
    rng = rng * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)((rng >> 33) % below);
}

static int prepare(void **state)
{
    unsigned char bytes[CHAIN_KEY_BYTES];
    (void)state;
    rng = 20250101;
    for (size_t i = 0; i < sizeof(bytes); i++)
        bytes[i] = (unsigned char)roll(256);
    chain_key_init(&key, bytes);
    for (size_t i = 0; i < sizeof(text); i++)
        text[i] = (char)('a' + roll(26));
    return 0;
}

static void start(struct pieces *p)
{
    pieces_init(p, &key, SLICE_LIT(""));
}

static void add(struct pieces *p, enum pieces_kind kind, unsigned char tag,
                struct slice s)
{
    pieces_begin(p, kind, tag);
    pieces_bytes(p, s.ptr, s.len);
    pieces_end(p);
}

static void add_text(struct pieces *p, size_t len)
{
    add(p, PIECES_TEXT, 1, slice_make(text, len));
}

/* Field by field: a struct copied by value may differ in its padding. */
static void assert_equal(const struct pieces *a, const struct pieces *b)
{
    assert_int_equal(a->n, b->n);
    assert_true(hash128_eq(a->root, b->root));
    for (size_t i = 0; i < a->n; i++) {
        const struct piece *x = &a->v[i], *y = &b->v[i];
        assert_true(hash128_eq(x->hash, y->hash));
        assert_true(x->check == y->check && x->end_bytes == y->end_bytes);
        assert_true(x->ends_part == y->ends_part && x->is_media == y->is_media);
    }
}

static size_t common(const struct pieces *a, const struct pieces *b)
{
    return pieces_common(a->v, a->n, b->v, b->n);
}

/* Two prompts of one part each, made by `a` and `b`, and what they have in common. */
static size_t common_of(struct slice a, unsigned char tag_a, struct slice b,
                        unsigned char tag_b)
{
    struct pieces p, q;
    start(&p);
    start(&q);
    add(&p, PIECES_TEXT, tag_a, a);
    add(&q, PIECES_TEXT, tag_b, b);
    const size_t n = common(&p, &q);
    pieces_free(&p);
    pieces_free(&q);
    return n;
}

/* ---- cuts -------------------------------------------------------------------------- */

static void test_pieces_cut_every_256_bytes_and_at_the_end_of_a_part(void **state)
{
    static const uint64_t ends[] = {256, 512, 700, 790};
    struct pieces p;
    (void)state;
    start(&p);
    add_text(&p, 700);
    add_text(&p, 90);
    assert_int_equal(p.n, 4);
    for (size_t i = 0; i < p.n; i++)
        assert_int_equal(p.v[i].end_bytes, ends[i]);
    assert_false(p.v[0].ends_part || p.v[1].ends_part);
    assert_true(p.v[2].ends_part && p.v[3].ends_part);
    pieces_free(&p);
}

static void test_pieces_close_every_part_even_an_empty_or_a_full_one(void **state)
{
    static const struct {
        size_t len, n;
    } want[] = {{0, 1}, {1, 1}, {255, 1}, {256, 2}, {257, 2}, {512, 3}};
    (void)state;
    for (size_t i = 0; i < sizeof(want) / sizeof(*want); i++) {
        struct pieces p;
        start(&p);
        add_text(&p, want[i].len);
        assert_int_equal(p.n, want[i].n);
        assert_true(p.v[p.n - 1].ends_part);
        assert_int_equal(p.v[p.n - 1].end_bytes, want[i].len);
        pieces_free(&p);
    }
}

static void test_pieces_of_a_text_are_shared_with_every_longer_one(void **state)
{
    (void)state;
    for (size_t len = 0; len < 1500; len += 37)
        assert_int_equal(common_of(slice_make(text, len), 1, slice_make(text, 2000), 1),
                         len / PIECE_BYTES);
}

/* A prompt as a list of parts, to be handed over in any runs. */
struct script {
    size_t n;
    struct part {
        enum pieces_kind kind;
        unsigned char tag;
        size_t at, len;
    } parts[12];
};

static void random_script(struct script *s)
{
    s->n = 1 + roll(12);
    for (size_t i = 0; i < s->n; i++) {
        struct part *t = &s->parts[i];
        t->kind = i < 2 && roll(2) ? PIECES_ROOT : roll(5) ? PIECES_TEXT : PIECES_MEDIA;
        if (t->kind == PIECES_ROOT && i == 1 && s->parts[0].kind != PIECES_ROOT)
            t->kind = PIECES_TEXT;
        t->tag = (unsigned char)roll(3);
        t->len = roll(3) ? roll(1200) : roll(4) * PIECE_BYTES;
        t->at = roll((uint32_t)(TEXT_BYTES - t->len));
    }
}

/* The longest run is `max_run`; 0 hands each part over whole. */
static void play(struct pieces *p, const struct script *s, uint32_t max_run)
{
    start(p);
    for (size_t i = 0; i < s->n; i++) {
        const struct part *t = &s->parts[i];
        pieces_begin(p, t->kind, t->tag);
        for (size_t done = 0, run; done < t->len; done += run) {
            run = max_run ? roll(max_run + 1) : t->len;
            if (run > t->len - done)
                run = t->len - done;
            pieces_bytes(p, text + t->at + done, run);
        }
        pieces_end(p);
    }
}

static void test_pieces_do_not_depend_on_the_runs_of_the_caller(void **state)
{
    static const uint32_t runs[] = {1, 7, 256, 257, 700};
    (void)state;
    for (int round = 0; round < 300; round++) {
        struct script s;
        struct pieces whole, cut;
        random_script(&s);
        play(&whole, &s, 0);
        play(&cut, &s, runs[roll(5)]);
        assert_equal(&whole, &cut);
        pieces_free(&whole);
        pieces_free(&cut);
    }
}

static void test_pieces_share_exactly_what_lies_before_the_first_difference(void **state)
{
    (void)state;
    for (int round = 0; round < 300; round++) {
        const size_t len = 1 + roll(4000), at = roll((uint32_t)len);
        char *other = mem_dup(text, len);
        other[at] ^= 1;
        assert_int_equal(common_of(slice_make(text, len), 1, slice_make(other, len), 1),
                         at / PIECE_BYTES);
        free(other);
    }
}

/* ---- what enters the hash ---------------------------------------------------------- */

static void test_pieces_tell_part_boundaries_apart(void **state)
{
    struct pieces p, q;
    (void)state;
    start(&p);
    start(&q);
    add(&p, PIECES_TEXT, 1, SLICE_LIT("ab"));
    add(&p, PIECES_TEXT, 1, SLICE_LIT("c"));
    add(&q, PIECES_TEXT, 1, SLICE_LIT("a"));
    add(&q, PIECES_TEXT, 1, SLICE_LIT("bc"));
    assert_int_equal(common(&p, &q), 0);
    pieces_free(&q);

    start(&q);
    add(&q, PIECES_TEXT, 1, SLICE_LIT("abc"));
    assert_int_equal(common(&p, &q), 0);
    pieces_free(&q);
    pieces_free(&p);
}

static void test_pieces_tell_the_end_of_a_part_from_more_of_it(void **state)
{
    struct pieces p, q;
    (void)state;
    start(&p);
    start(&q);
    add_text(&p, 256); /* 256 and a closing piece of none */
    add_text(&p, 256);
    add_text(&q, 512);
    assert_int_equal(common(&p, &q), 1);
    pieces_free(&p);
    pieces_free(&q);
}

static void test_pieces_tell_tags_and_kinds_apart(void **state)
{
    const struct slice s = slice_make(text, 600);
    struct pieces p, q;
    (void)state;
    assert_int_equal(common_of(s, 1, s, 1), 3);
    assert_int_equal(common_of(s, 1, s, 2), 0);
    start(&p);
    start(&q);
    add(&p, PIECES_TEXT, 1, SLICE_LIT("picture"));
    add(&q, PIECES_MEDIA, 1, SLICE_LIT("picture"));
    assert_int_equal(common(&p, &q), 0);
    pieces_free(&p);
    pieces_free(&q);
}

static void test_pieces_depend_on_seed_root_and_key(void **state)
{
    static const struct {
        const char *seed, *root;
        unsigned char key_byte;
    } other[] = {{"tenant-b", "model", 0}, {"tenant-a", "model2", 0},
                 {"tenant-a", "", 0},      {"", "tenant-amodel", 0},
                 {"tenant-amodel", "", 0}, {"tenant-a", "model", 1}};
    struct pieces p, q;
    (void)state;
    pieces_init(&p, &key, SLICE_LIT("tenant-a"));
    add(&p, PIECES_ROOT, 0, SLICE_LIT("model"));
    add_text(&p, 300);
    for (size_t i = 0; i < sizeof(other) / sizeof(*other); i++) {
        struct chain_key k = key;
        k.secret[0] ^= other[i].key_byte;
        pieces_init(&q, &k, slice_of(other[i].seed));
        add(&q, PIECES_ROOT, 0, slice_of(other[i].root));
        add_text(&q, 300);
        assert_int_equal(q.n, 2);
        assert_false(hash128_eq(p.root, q.root));
        assert_int_equal(common(&p, &q), 0);
        pieces_free(&q);
    }
    pieces_free(&p);
}

static void test_pieces_compare_the_check_as_well(void **state)
{
    struct pieces p, q;
    (void)state;
    start(&p);
    start(&q);
    add_text(&p, 1000);
    add_text(&q, 1000);
    assert_int_equal(common(&p, &q), 4);
    q.v[2].check ^= 1;
    q.v[3].check ^= 1;
    assert_int_equal(common(&p, &q), 2);
    pieces_free(&p);
    pieces_free(&q);
}

/* Another secret for the check changes the check alone. */
static void test_pieces_check_has_a_secret_of_its_own(void **state)
{
    struct chain_key k = key;
    struct pieces p, q;
    (void)state;
    for (size_t i = 0; i < sizeof(k.check); i++)
        k.check[i] ^= 0x5A;
    start(&p);
    pieces_init(&q, &k, SLICE_LIT(""));
    assert_true(hash128_eq(p.root, q.root));
    add_text(&p, 10);
    add_text(&q, 10);
    assert_true(p.v[0].check != q.v[0].check);
    pieces_free(&p);
    pieces_free(&q);
}

/* ---- roots and media --------------------------------------------------------------- */

static void test_pieces_of_a_root_are_none(void **state)
{
    struct pieces p;
    (void)state;
    start(&p);
    const struct hash128 before = p.root;
    add(&p, PIECES_ROOT, 0, slice_make(text, 3000));
    assert_int_equal(p.n, 0);
    assert_false(hash128_eq(before, p.root));
    add_text(&p, 10);
    assert_int_equal(p.v[0].end_bytes, 10);
    pieces_free(&p);
}

static void test_pieces_of_a_medium_are_one_and_count_as_no_text(void **state)
{
    struct pieces p, q;
    (void)state;
    start(&p);
    start(&q);
    add_text(&p, 100);
    add(&p, PIECES_MEDIA, 0, slice_make(text, 4000));
    add_text(&p, 100);
    assert_int_equal(p.n, 3);
    assert_true(p.v[1].is_media && p.v[1].ends_part && !p.v[2].is_media);
    assert_int_equal(p.v[1].end_bytes, 100);
    assert_int_equal(p.v[2].end_bytes, 200);

    add_text(&q, 100);
    add(&q, PIECES_MEDIA, 0, slice_make(text + 1, 4000));
    add_text(&q, 100);
    assert_int_equal(common(&p, &q), 1); /* another picture: the text behind parts too */
    pieces_free(&p);
    pieces_free(&q);
}

/* ---- reopen ------------------------------------------------------------------------ */

static void test_pieces_reopened_equal_the_text_written_at_once(void **state)
{
    (void)state;
    for (int round = 0; round < 300; round++) {
        const size_t a = roll(3) ? roll(1500) : roll(4) * PIECE_BYTES;
        const size_t b = roll(3) ? roll(1500) : roll(4) * PIECE_BYTES;
        struct pieces p, q;
        start(&p);
        start(&q);
        add_text(&p, 30);
        add_text(&p, a);
        pieces_reopen(&p);
        pieces_bytes(&p, text + a, b);
        pieces_end(&p);
        add_text(&p, 30);
        add_text(&q, 30);
        add_text(&q, a + b);
        add_text(&q, 30);
        assert_equal(&p, &q);
        pieces_free(&p);
        pieces_free(&q);
    }
}

static void test_pieces_may_be_reopened_again(void **state)
{
    struct pieces p, q;
    (void)state;
    start(&p);
    start(&q);
    add_text(&p, 0);
    for (size_t i = 0; i < 600; i += 100) {
        pieces_reopen(&p);
        pieces_bytes(&p, text + i, 100);
        pieces_end(&p);
    }
    add_text(&q, 600);
    assert_equal(&p, &q);
    pieces_free(&p);
    pieces_free(&q);
}

/* ---- bounds ------------------------------------------------------------------------ */

static void test_pieces_stop_at_the_maximum(void **state)
{
    struct pieces p;
    (void)state;
    start(&p);
    pieces_begin(&p, PIECES_TEXT, 1);
    for (size_t done = 0; done < (size_t)(PIECES_MAX + 100) * PIECE_BYTES; done += 4096)
        pieces_bytes(&p, text, 4096);
    pieces_end(&p);
    assert_true(p.full);
    assert_int_equal(p.n, PIECES_MAX);
    assert_int_equal(p.v[p.n - 1].end_bytes, (uint64_t)PIECES_MAX * PIECE_BYTES);
    pieces_reopen(&p);
    pieces_bytes(&p, text, 100);
    pieces_end(&p);
    add(&p, PIECES_MEDIA, 0, slice_make(text, 100));
    add_text(&p, 100);
    assert_int_equal(p.n, PIECES_MAX);
    pieces_free(&p);
}

static void test_pieces_common_of_nothing_is_nothing(void **state)
{
    struct pieces p;
    (void)state;
    start(&p);
    add_text(&p, 100);
    assert_int_equal(pieces_common(NULL, 0, p.v, p.n), 0);
    assert_int_equal(pieces_common(p.v, p.n, NULL, 0), 0);
    pieces_free(&p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_pieces_cut_every_256_bytes_and_at_the_end_of_a_part),
        cmocka_unit_test(test_pieces_close_every_part_even_an_empty_or_a_full_one),
        cmocka_unit_test(test_pieces_of_a_text_are_shared_with_every_longer_one),
        cmocka_unit_test(test_pieces_do_not_depend_on_the_runs_of_the_caller),
        cmocka_unit_test(test_pieces_share_exactly_what_lies_before_the_first_difference),
        cmocka_unit_test(test_pieces_tell_part_boundaries_apart),
        cmocka_unit_test(test_pieces_tell_the_end_of_a_part_from_more_of_it),
        cmocka_unit_test(test_pieces_tell_tags_and_kinds_apart),
        cmocka_unit_test(test_pieces_depend_on_seed_root_and_key),
        cmocka_unit_test(test_pieces_compare_the_check_as_well),
        cmocka_unit_test(test_pieces_check_has_a_secret_of_its_own),
        cmocka_unit_test(test_pieces_of_a_root_are_none),
        cmocka_unit_test(test_pieces_of_a_medium_are_one_and_count_as_no_text),
        cmocka_unit_test(test_pieces_reopened_equal_the_text_written_at_once),
        cmocka_unit_test(test_pieces_may_be_reopened_again),
        cmocka_unit_test(test_pieces_stop_at_the_maximum),
        cmocka_unit_test(test_pieces_common_of_nothing_is_nothing),
    };
    return cmocka_run_group_tests(tests, prepare, NULL);
}
