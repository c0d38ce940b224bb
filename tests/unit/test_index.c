/* SPDX-License-Identifier: MIT */
#include "prefix/index.h"

#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "cmocka_all.h"

/*
 * Prompts are made of texts of an invented tokenizer whose cuts are known: a token is as
 * long as its first letter says ('b' 2 bytes … 'f' 6 bytes), but ends with its part. Each
 * part stands in a template of a few tokens. So the truth behind every estimate is known,
 * and so are the tokens that two prompts have in common.
 */

#define BLOCK 64
#define PARTS_MAX 12
#define TEMPLATE 3 /* tokens in front of a part, and as many less one behind it */

struct text {
    char *ptr;
    size_t len;
};

struct sample { /* one prompt, taken apart */
    struct text parts[PARTS_MAX];
    bool is_media[PARTS_MAX];
    size_t n_parts;
    struct pieces pieces;
    uint32_t *truth; /* tokens before the end of each piece */
    uint32_t *tokens;
    size_t n_tokens;
};

static struct chain_key key;
static uint64_t rng;

static uint32_t roll(uint32_t below)
{
    rng = rng * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)((rng >> 33) % below);
}

static int prepare(void **state)
{
    unsigned char bytes[CHAIN_KEY_BYTES] = "a key for tests and for no more";
    (void)state;
    chain_key_init(&key, bytes);
    return 0;
}

static int reset(void **state)
{
    (void)state;
    rng = 7;
    return 0;
}

/* Mean length of tokens 4 bytes, ± `lean` percent of one letter: ±10 % with 20. */
static struct text random_text(size_t len, uint32_t lean)
{
    struct text t = {mem_alloc(len), len};
    const char favourite = roll(2) ? 'b' : 'f';
    const uint32_t share = roll(lean + 1);
    for (size_t i = 0; i < len; i++)
        t.ptr[i] = roll(100) < share ? favourite : (char)('b' + roll(5));
    return t;
}

static struct text copy_text(struct text t)
{
    return (struct text){mem_dup(t.ptr, t.len), t.len};
}

static void add_part(struct sample *s, struct text t)
{
    assert_true(s->n_parts < PARTS_MAX);
    s->parts[s->n_parts++] = t;
}

static void put_token(struct sample *s, uint32_t id)
{
    s->tokens[s->n_tokens++] = id;
}

static uint32_t token_id(const char *ptr, size_t len)
{
    return (uint32_t)chain_checksum((struct slice){ptr, len}).lo;
}

/* Notes the truth at each cut of a part as the tokens that end before it. */
static void tokenize(struct sample *s, const struct text *t, size_t *piece)
{
    size_t at = 0, cut = PIECE_BYTES;
    while (at < t->len) {
        size_t len = (size_t)(t->ptr[at] - 'a') + 1;
        len = len < t->len - at ? len : t->len - at;
        for (; at + len > cut; cut += PIECE_BYTES)
            s->truth[(*piece)++] = (uint32_t)s->n_tokens;
        put_token(s, token_id(t->ptr + at, len));
        at += len;
    }
    for (; t->len >= cut; cut += PIECE_BYTES)
        s->truth[(*piece)++] = (uint32_t)s->n_tokens;
    s->truth[(*piece)++] = (uint32_t)s->n_tokens;
}

/* A picture is 1000 tokens whatever its bytes. */
static void tokenize_media(struct sample *s, const struct text *t, size_t *piece)
{
    for (uint32_t i = 0; i < 1000; i++)
        put_token(s, token_id(t->ptr, t->len) + i);
    s->truth[(*piece)++] = (uint32_t)s->n_tokens;
}

static void build(struct sample *s)
{
    size_t room = 64, piece = 0;
    pieces_init(&s->pieces, &key, SLICE_LIT("test"));
    for (size_t i = 0; i < s->n_parts; i++) {
        pieces_begin(&s->pieces, s->is_media[i] ? PIECES_MEDIA : PIECES_TEXT, 0);
        pieces_bytes(&s->pieces, s->parts[i].ptr, s->parts[i].len);
        pieces_end(&s->pieces);
        room += s->parts[i].len + 1000 + 2 * TEMPLATE;
    }
    s->truth = mem_array(s->pieces.n + 1, sizeof(*s->truth));
    s->tokens = mem_array(room, sizeof(*s->tokens));
    for (size_t i = 0; i < s->n_parts; i++) {
        for (uint32_t k = 0; k < TEMPLATE; k++)
            put_token(s, k);
        if (s->is_media[i])
            tokenize_media(s, &s->parts[i], &piece);
        else
            tokenize(s, &s->parts[i], &piece);
        for (uint32_t k = 1; k < TEMPLATE; k++)
            put_token(s, 100 + k);
    }
    assert_int_equal(piece, s->pieces.n);
}

static void sample_free(struct sample *s)
{
    for (size_t i = 0; i < s->n_parts; i++)
        free(s->parts[i].ptr);
    pieces_free(&s->pieces);
    free(s->truth);
    free(s->tokens);
    *s = (struct sample){0};
}

/* New texts behind the first `shared` parts of another prompt (may be NULL). */
static void random_sample(struct sample *s, const struct sample *like, size_t shared,
                          uint32_t lean)
{
    *s = (struct sample){0};
    for (size_t i = 0; i < shared; i++)
        add_part(s, copy_text(like->parts[i]));
    const uint32_t more = 1 + roll(4);
    for (uint32_t i = 0; i < more && s->n_parts < PARTS_MAX; i++)
        add_part(s, random_text(roll(5) ? roll(4000) : roll(40), lean));
    build(s);
}

static struct sample sample_of(size_t n, const size_t *lengths)
{
    struct sample s = {0};
    for (size_t i = 0; i < n; i++)
        add_part(&s, random_text(lengths[i], 20));
    build(&s);
    return s;
}

/* The prompt with one byte of its last part changed, so that it parts there. */
static struct sample parted_at(const struct sample *like, size_t byte)
{
    struct sample s = {0};
    for (size_t i = 0; i < like->n_parts; i++)
        add_part(&s, copy_text(like->parts[i]));
    char *c = &s.parts[s.n_parts - 1].ptr[byte];
    *c = *c == 'd' ? 'e' : 'd';
    build(&s);
    return s;
}

static uint32_t common_tokens(const struct sample *a, const struct sample *b)
{
    uint32_t n = 0;
    while (n < a->n_tokens && n < b->n_tokens && a->tokens[n] == b->tokens[n])
        n++;
    return n;
}

static size_t common_pieces(const struct sample *a, const struct sample *b)
{
    return pieces_common(a->pieces.v, a->pieces.n, b->pieces.v, b->pieces.n);
}

/* ---- index and tree ---------------------------------------------------------------- */

static struct tree *tree; /* of the test that has one */

static struct index *new_index_and_tree(uint64_t max_bytes)
{
    tree = tree_new(&(struct tree_options){.block_tokens = BLOCK, .keep_tokens = true});
    return index_new(max_bytes, tree);
}

static void assert_tree_good(void)
{
    char why[200] = "";
    if (!tree_check(tree, why, sizeof(why)))
        fail_msg("%s", why);
}

static void free_index_and_tree(struct index *ix)
{
    index_free(ix);
    assert_tree_good();
    tree_free(tree);
    tree = NULL;
}

static void insert(const struct sample *s, struct tree_mark *end)
{
    const size_t n = s->n_tokens / BLOCK, tail = s->n_tokens % BLOCK;
    const struct hash128 root = {1, 1};
    struct hash128 *chain = mem_array(n + 1, sizeof(*chain));
    chain_blocks(&key, root, s->tokens, s->n_tokens, BLOCK, chain);
    if (tail)
        chain[n] =
            chain_block(&key, n ? chain[n - 1] : root, s->tokens + n * BLOCK, tail);
    const struct tree_sequence q = {.chain = chain,
                                    .n = n,
                                    .tokens = s->tokens,
                                    .tail_tokens = (uint32_t)tail,
                                    .token_bytes = 1};
    tree_insert(tree, &q, end);
    free(chain);
}

static void learn(struct index *ix, const struct sample *s)
{
    struct tree_mark end = {0};
    if (tree)
        insert(s, &end);
    index_learn(ix, &(struct index_lesson){
                        .v = s->pieces.v,
                        .n = s->pieces.n,
                        .n_prompt = s->pieces.n,
                        .prompt_tokens = (uint32_t)s->n_tokens,
                        .total_tokens = (uint32_t)tree_mark_tokens(&end),
                        .end = tree ? &end : NULL,
                    });
    if (tree)
        tree_mark_clear(tree, &end);
}

/* What is found, and how many tokens and blocks its place covers: the place itself cannot
 * be handed around. */
struct found {
    size_t n_pieces, place_tokens, place_blocks;
    uint32_t low, high, reach;
    uint64_t text_bytes;
};

static struct found find_pieces(struct index *ix, const struct piece *v, size_t n)
{
    struct index_hit hit = {0};
    index_find(ix, v, n, &hit);
    const struct found f = {hit.n_pieces,
                            tree_mark_tokens(&hit.at),
                            tree_mark_blocks(&hit.at),
                            hit.low,
                            hit.high,
                            hit.reach,
                            hit.text_bytes};
    if (tree)
        tree_mark_clear(tree, &hit.at);
    assert_null(hit.at.node);
    return f;
}

static struct found find(struct index *ix, const struct sample *s)
{
    return find_pieces(ix, s->pieces.v, s->pieces.n);
}

/* What is known of boundary `i` of the prompt: a prompt that ends there finds it. */
static struct found at_boundary(struct index *ix, const struct sample *s, size_t i)
{
    const struct found f = find_pieces(ix, s->pieces.v, i);
    assert_int_equal(f.n_pieces, i);
    assert_true(f.low <= f.high && f.high <= f.reach);
    return f;
}

static void confirm(struct index *ix, const struct sample *s, size_t n_common,
                    uint32_t tokens, bool exact)
{
    index_confirm(ix, s->pieces.v, s->pieces.n, n_common, tokens, exact);
}

static uint64_t n_entries(const struct index *ix)
{
    struct index_stats st;
    index_stats(ix, &st);
    return st.entries;
}

/* ---- finding ----------------------------------------------------------------------- */

static void test_index_knows_nothing_at_first(void **state)
{
    (void)state;
    struct index *ix = index_new(1 << 20, NULL);
    struct sample s;
    random_sample(&s, NULL, 0, 20);
    const struct found hit = find(ix, &s);
    assert_int_equal(hit.n_pieces, 0);
    assert_int_equal(hit.high, 0);
    assert_int_equal(hit.reach, 0);
    index_free(ix);
    sample_free(&s);
}

static void test_index_finds_the_deepest_boundary_of_all_known_prompts(void **state)
{
    enum { N = 60 };
    static struct sample s[N];
    (void)state;
    struct index *ix = index_new(1 << 20, NULL);
    for (size_t i = 0; i < N; i++) {
        const struct sample *like = i ? &s[roll((uint32_t)i)] : NULL;
        random_sample(&s[i], like, like ? roll((uint32_t)like->n_parts) : 0, 20);
        size_t want = 0;
        for (size_t j = 0; j < i; j++) {
            const size_t n = common_pieces(&s[i], &s[j]);
            want = n > want ? n : want;
        }
        const struct found hit = find(ix, &s[i]);
        assert_int_equal(hit.n_pieces, want);
        assert_int_equal(hit.text_bytes, want ? s[i].pieces.v[want - 1].end_bytes : 0);
        learn(ix, &s[i]);
        assert_int_equal(find(ix, &s[i]).n_pieces, s[i].pieces.n);
    }
    for (size_t i = 0; i < N; i++)
        sample_free(&s[i]);
    index_free(ix);
}

static void test_index_counts_a_wrong_check_and_finds_nothing_behind_it(void **state)
{
    struct index_stats st;
    (void)state;
    struct index *ix = index_new(1 << 20, NULL);
    struct sample s = sample_of(1, (size_t[]){3000});
    learn(ix, &s);
    for (size_t i = 4; i < s.pieces.n; i++)
        s.pieces.v[i].check ^= 1;
    assert_int_equal(find(ix, &s).n_pieces, 4);
    index_stats(ix, &st);
    assert_true(st.check_failures > 0);

    learn(ix, &s); /* both may be known side by side */
    assert_int_equal(find(ix, &s).n_pieces, s.pieces.n);
    for (size_t i = 4; i < s.pieces.n; i++)
        s.pieces.v[i].check ^= 1;
    assert_int_equal(find(ix, &s).n_pieces, s.pieces.n);
    sample_free(&s);
    index_free(ix);
}

/* ---- bounds ------------------------------------------------------------------------ */

static void test_index_bounds_hold_where_the_ratio_varies_by_10_percent(void **state)
{
    size_t n = 0, held = 0;
    double width = 0, depth = 0;
    (void)state;
    for (int round = 0; round < 400; round++) {
        struct index *ix = index_new(1 << 20, NULL);
        struct sample s;
        random_sample(&s, NULL, 0, 20);
        learn(ix, &s);
        for (size_t i = 1; i <= s.pieces.n; i++) {
            const struct found hit = at_boundary(ix, &s, i);
            held += hit.low <= s.truth[i - 1] && s.truth[i - 1] <= hit.high;
            width += hit.high - hit.low;
            depth += (double)s.n_tokens;
            n++;
        }
        sample_free(&s);
        index_free(ix);
    }
    print_message("%zu of %zu bounds held, mean width %.1f %% of the prompt\n", held, n,
                  100 * width / depth);
    assert_true((double)held >= 0.99 * (double)n);
    assert_true(width < 0.2 * depth); /* or anything would hold */
}

/* Random chats and their confirmations, as an engine would give them. */
static void test_index_bounds_hold_while_prompts_come_and_are_confirmed(void **state)
{
    enum { N = 120 };
    static struct sample s[N];
    size_t n = 0, held = 0, too_high = 0;
    (void)state;
    struct index *ix = index_new(1 << 22, NULL);
    for (size_t i = 0; i < N; i++) {
        const struct sample *like = i > 2 ? &s[roll((uint32_t)i)] : NULL;
        random_sample(&s[i], like, like ? roll((uint32_t)like->n_parts + 1) : 0, 20);
        if (like) { /* the slot held `like` */
            const uint32_t common = common_tokens(&s[i], like);
            const uint32_t most = (uint32_t)s[i].n_tokens - 1;
            const bool exact = common < most && common < like->n_tokens;
            confirm(ix, &s[i], find(ix, &s[i]).n_pieces, common < most ? common : most,
                    exact && find(ix, &s[i]).n_pieces == common_pieces(&s[i], like));
        }
        learn(ix, &s[i]);
        struct found before = {0};
        for (size_t k = 1; k <= s[i].pieces.n; k++) {
            const struct found hit = at_boundary(ix, &s[i], k);
            assert_true(before.low <= hit.low && before.high <= hit.high);
            before = hit;
            held += hit.low <= s[i].truth[k - 1] && s[i].truth[k - 1] <= hit.high;
            too_high += hit.low > s[i].truth[k - 1];
            n++;
        }
    }
    print_message("%zu of %zu bounds held, %zu promised too much\n", held, n, too_high);
    assert_true((double)held >= 0.99 * (double)n);
    for (size_t i = 0; i < N; i++)
        sample_free(&s[i]);
    index_free(ix);
}

static void test_index_bounds_are_narrow_and_true_once_confirmed(void **state)
{
    size_t narrowed = 0;
    (void)state;
    for (int round = 0; round < 300; round++) {
        struct index *ix = index_new(1 << 20, NULL);
        struct sample s = sample_of(3, (size_t[]){roll(5000), roll(3000), 8000});
        const size_t byte = roll(8000);
        struct sample other = parted_at(&s, byte);
        learn(ix, &s);
        if (round % 2) /* the engine's count may come before the lesson or after it */
            learn(ix, &other);
        const size_t i = common_pieces(&s, &other);
        const uint32_t common = common_tokens(&s, &other);
        const struct found before = at_boundary(ix, &s, i);
        confirm(ix, &other, i, common, true);
        const struct found after = at_boundary(ix, &s, i);
        const uint32_t truth = s.truth[i - 1];
        if (!(after.low <= truth && truth <= after.high && after.high - after.low <= 170))
            fail_msg("round %d: %u is not in %u … %u", round, truth, after.low,
                     after.high);
        assert_true(after.high <= common + 12);
        assert_true(after.reach >= common);
        assert_true(at_boundary(ix, &s, i + 1).low >= common);
        if (round % 2)
            assert_true(at_boundary(ix, &other, i + 1).low >= common);
        narrowed += after.high - after.low < before.high - before.low;
        sample_free(&s);
        sample_free(&other);
        index_free(ix);
    }
    assert_true(narrowed > 250);
}

static void test_index_lower_bounds_raise_what_is_promised(void **state)
{
    (void)state;
    struct index *ix = index_new(1 << 20, NULL);
    struct sample s = sample_of(2, (size_t[]){6000, 8000});
    struct sample other = parted_at(&s, 4000);
    learn(ix, &s);
    const size_t i = common_pieces(&s, &other);
    const uint32_t common = common_tokens(&s, &other);
    const struct found before = at_boundary(ix, &s, i);
    confirm(ix, &other, i, common, false);
    const struct found after = at_boundary(ix, &s, i);
    assert_true(after.low > before.low && after.low <= s.truth[i - 1]);
    assert_int_equal(after.high, before.high);

    confirm(ix, &s, s.pieces.n, (uint32_t)s.n_tokens - 1, false); /* all but one token */
    assert_true(at_boundary(ix, &s, s.pieces.n).low <= s.truth[s.pieces.n - 1]);
    confirm(ix, &other, i, 10, false); /* a slot that held less says nothing */
    assert_int_equal(at_boundary(ix, &s, i).low, after.low);
    sample_free(&s);
    sample_free(&other);
    index_free(ix);
}

/* Whatever is restored is reused: then more is restored the next time. */
static void test_index_reach_grows_while_all_of_it_is_reused(void **state)
{
    (void)state;
    struct index *ix = index_new(1 << 20, NULL);
    struct sample s = sample_of(1, (size_t[]){2000});
    learn(ix, &s);
    uint32_t reach = find(ix, &s).reach;
    for (int i = 0; i < 5; i++) {
        confirm(ix, &s, s.pieces.n, reach, false);
        assert_true(find(ix, &s).reach > reach);
        reach = find(ix, &s).reach;
    }
    confirm(ix, &s, s.pieces.n, reach / 2, false);
    assert_int_equal(find(ix, &s).reach, reach);
    sample_free(&s);
    index_free(ix);
}

static void test_index_lets_a_confirmation_decide_a_contradiction(void **state)
{
    (void)state;
    struct index *ix = index_new(1 << 20, NULL);
    struct sample s = sample_of(2, (size_t[]){8000, 8000});
    struct sample other = parted_at(&s, 0);
    learn(ix, &s);
    const size_t i = common_pieces(&s, &other);
    const struct found before = at_boundary(ix, &s, i);

    confirm(ix, &other, i, before.low / 2, true);
    struct found hit = at_boundary(ix, &s, i);
    assert_true(hit.high <= before.low / 2 + 12 && hit.low + 170 > before.low / 2);
    for (size_t k = 1; k < i; k++) /* nothing before it lies behind it */
        assert_true(at_boundary(ix, &s, k).high <= hit.high);

    confirm(ix, &other, i, before.high * 3 / 2, true);
    hit = at_boundary(ix, &s, i);
    assert_true(hit.high >= before.high * 3 / 2);
    assert_true(hit.low > before.high);
    assert_true(at_boundary(ix, &s, i + 1).low >= hit.low);
    sample_free(&s);
    sample_free(&other);
    index_free(ix);
}

static void test_index_bounds_never_cross_whatever_is_confirmed(void **state)
{
    enum { N = 12 };
    static struct sample s[N];
    (void)state;
    struct index *ix = index_new(1 << 20, NULL);
    for (size_t i = 0; i < N; i++)
        random_sample(&s[i], i ? &s[0] : NULL, i ? 1 : 0, 20);
    for (int step = 0; step < 20000; step++) {
        const struct sample *x = &s[roll(N)];
        const size_t n = roll((uint32_t)x->pieces.n + 1);
        const uint32_t tokens = roll(20) ? roll(6000) : roll(2) ? 0 : UINT32_MAX;
        if (roll(40) == 0)
            learn(ix, x);
        confirm(ix, x, n, tokens, roll(2));
        const size_t known = find(ix, x).n_pieces;
        if (known)
            at_boundary(ix, x, 1 + roll((uint32_t)known));
    }
    for (size_t i = 0; i < N; i++)
        sample_free(&s[i]);
    index_free(ix);
}

static void test_index_learned_again_keeps_what_both_bounds_have_in_common(void **state)
{
    (void)state;
    struct index *ix = index_new(1 << 20, NULL);
    struct sample s = sample_of(1, (size_t[]){4000}), t = {0};
    add_part(&t, copy_text(s.parts[0]));
    add_part(&t, random_text(20000, 0));
    build(&t);
    const size_t mid = s.pieces.n / 2;
    learn(ix, &t);
    const struct found far = at_boundary(ix, &s, mid);
    learn(ix, &s); /* counted at its end, so the middle is known better */
    const struct found near = at_boundary(ix, &s, mid);
    assert_true(near.low >= far.low && near.high <= far.high);
    assert_true(near.high - near.low < far.high - far.low);
    learn(ix, &t);
    assert_int_equal(at_boundary(ix, &s, mid).low, near.low);
    assert_int_equal(at_boundary(ix, &s, mid).high, near.high);
    sample_free(&s);
    sample_free(&t);
    index_free(ix);
}

/* Some prose, then 40000 bytes of something with four times the tokens. */
static void test_index_is_not_misled_by_a_dense_text_behind_a_known_one(void **state)
{
    static const size_t lengths[] = {1000, 1500, 4000};
    (void)state;
    for (size_t l = 0; l < sizeof(lengths) / sizeof(*lengths); l++) {
        struct index *ix = index_new(1 << 20, NULL);
        struct sample s = sample_of(1, &lengths[l]), t = {0};
        add_part(&t, copy_text(s.parts[0]));
        add_part(&t, random_text(40000, 0));
        memset(t.parts[1].ptr, 'a', t.parts[1].len); /* one token a byte */
        build(&t);
        learn(ix, &s);
        learn(ix, &t);
        for (size_t i = 1; i <= s.pieces.n; i++) {
            const struct found hit = at_boundary(ix, &s, i);
            assert_true(hit.low <= s.truth[i - 1] && s.truth[i - 1] <= hit.high);
        }
        sample_free(&s);
        sample_free(&t);
        index_free(ix);
    }
}

static void test_index_builds_on_the_counts_of_earlier_turns(void **state)
{
    (void)state;
    struct index *ix = index_new(1 << 20, NULL);
    struct sample turn = sample_of(1, (size_t[]){8000}), next = {0};
    memset(turn.parts[0].ptr, 'f', 8000); /* sparse; the rest of the chat is not */
    struct text sparse = copy_text(turn.parts[0]);
    sample_free(&turn);
    add_part(&turn, sparse);
    build(&turn);
    add_part(&next, copy_text(turn.parts[0]));
    add_part(&next, random_text(600, 0));
    add_part(&next, random_text(40000, 0));
    build(&next);
    learn(ix, &turn);
    learn(ix, &next);
    for (size_t i = turn.pieces.n; i <= turn.pieces.n + 3; i++) {
        const struct found hit = at_boundary(ix, &next, i);
        assert_true(hit.low <= next.truth[i - 1] && next.truth[i - 1] <= hit.high);
        assert_true(hit.high - hit.low < 150);
    }
    sample_free(&turn);
    sample_free(&next);
    index_free(ix);
}

/* Templates put more tokens around a word than it has; then a longer text follows. */
static void test_index_bounds_hold_where_parts_are_very_short(void **state)
{
    (void)state;
    struct index *ix = index_new(1 << 20, NULL);
    struct sample s = {0};
    for (size_t i = 0; i + 1 < PARTS_MAX; i++)
        add_part(&s, random_text(4, 0));
    add_part(&s, random_text(300, 0));
    build(&s);
    learn(ix, &s);
    for (size_t i = 1; i <= s.pieces.n; i++) {
        const struct found hit = at_boundary(ix, &s, i);
        assert_true(hit.low <= s.truth[i - 1] && s.truth[i - 1] <= hit.high);
    }
    sample_free(&s);
    index_free(ix);
}

static void test_index_bounds_hold_around_a_picture(void **state)
{
    (void)state;
    for (int round = 0; round < 100; round++) {
        struct index *ix = index_new(1 << 20, NULL);
        struct sample s = {0};
        add_part(&s, random_text(roll(6000), 20));
        s.is_media[s.n_parts] = true;
        add_part(&s, random_text(50, 20));
        add_part(&s, random_text(roll(6000), 20));
        build(&s);
        learn(ix, &s);
        for (size_t i = 1; i <= s.pieces.n; i++) {
            const struct found hit = at_boundary(ix, &s, i);
            assert_true(hit.low <= s.truth[i - 1] && s.truth[i - 1] <= hit.high);
            assert_true(hit.high <= s.n_tokens);
        }
        sample_free(&s);
        index_free(ix);
    }
}

static void learn_uncounted(struct index *ix, const struct sample *s)
{
    index_learn(ix, &(struct index_lesson){
                        .v = s->pieces.v, .n = s->pieces.n, .n_prompt = s->pieces.n});
}

static void test_index_estimates_from_bytes_what_nobody_counted(void **state)
{
    (void)state;
    for (int dense = 0; dense < 2; dense++) {
        struct index *ix = index_new(1 << 20, NULL);
        for (int i = 0; i < 40; i++) {
            struct sample s = sample_of(2, (size_t[]){3000, 5000});
            for (size_t p = 0; dense && p < 2; p++)
                memset(s.parts[p].ptr, 'a', s.parts[p].len - (size_t)i);
            struct sample t = {0};
            add_part(&t, copy_text(s.parts[0]));
            add_part(&t, copy_text(s.parts[1]));
            build(&t);
            if (i < 39)
                learn(ix, &t); /* what texts are like is learned from counted ones */
            else
                learn_uncounted(ix, &t);
            for (size_t k = 1; i == 39 && k <= t.pieces.n; k++) {
                const struct found hit = at_boundary(ix, &t, k);
                assert_true(hit.low <= t.truth[k - 1] && t.truth[k - 1] <= hit.high);
            }
            sample_free(&s);
            sample_free(&t);
        }
        index_free(ix);
    }
}

/* The next turn of a chat quotes the answer: its boundaries are known as well. */
static void test_index_learns_the_answer_behind_the_prompt(void **state)
{
    (void)state;
    for (int stored = 0; stored < 2; stored++) {
        struct index *ix = index_new(1 << 20, NULL);
        struct sample all = sample_of(3, (size_t[]){2000, 1000, 1500}), prompt = {0};
        add_part(&prompt, copy_text(all.parts[0]));
        add_part(&prompt, copy_text(all.parts[1]));
        build(&prompt);
        index_learn(ix, &(struct index_lesson){
                            .v = all.pieces.v,
                            .n = all.pieces.n,
                            .n_prompt = prompt.pieces.n,
                            .prompt_tokens = (uint32_t)prompt.n_tokens + TEMPLATE,
                            .total_tokens = stored ? (uint32_t)all.n_tokens : 0,
                        });
        for (size_t i = 1; i <= all.pieces.n; i++) {
            const struct found hit = at_boundary(ix, &all, i);
            assert_true(hit.low <= all.truth[i - 1] && all.truth[i - 1] <= hit.high);
        }
        sample_free(&all);
        sample_free(&prompt);
        index_free(ix);
    }
}

/* ---- places in the tree ------------------------------------------------------------ */

static void test_index_place_covers_reach_as_far_as_the_tree_goes(void **state)
{
    enum { N = 40 };
    static struct sample s[N];
    (void)state;
    struct index *ix = new_index_and_tree(1 << 22);
    for (size_t i = 0; i < N; i++) {
        const struct sample *like = i ? &s[roll((uint32_t)i)] : NULL;
        random_sample(&s[i], like, like ? roll((uint32_t)like->n_parts) : 0, 20);
        learn(ix, &s[i]);
        assert_tree_good();
        for (size_t k = 1; k <= s[i].pieces.n; k++) {
            struct found hit = at_boundary(ix, &s[i], k);
            const size_t held = s[i].n_tokens;
            assert_true(hit.place_tokens >= (hit.reach < held ? hit.reach : held));
        }
    }
    for (size_t i = 0; i < N; i++)
        sample_free(&s[i]);
    free_index_and_tree(ix);
}

/* A start that was never saved on its own is there as the start of another. */
static void test_index_place_of_a_parting_prompt_is_in_the_known_one(void **state)
{
    (void)state;
    struct index *ix = new_index_and_tree(1 << 20);
    struct sample s = sample_of(2, (size_t[]){3000, 6000});
    struct sample other = parted_at(&s, 3000);
    learn(ix, &s);
    struct found hit = find(ix, &other);
    assert_int_equal(hit.n_pieces, common_pieces(&s, &other));
    assert_true(hit.place_tokens >= common_tokens(&s, &other));
    assert_true(hit.place_tokens < s.n_tokens);
    sample_free(&s);
    sample_free(&other);
    free_index_and_tree(ix);
}

static void test_index_place_falls_back_when_blocks_are_evicted(void **state)
{
    (void)state;
    struct index *ix = new_index_and_tree(1 << 20);
    struct sample s = sample_of(2, (size_t[]){6000, 6000}), other = {0};
    add_part(&other, copy_text(s.parts[0]));
    add_part(&other, random_text(9000, 20));
    build(&other);
    const uint32_t shared = common_tokens(&s, &other) / BLOCK;
    learn(ix, &s);
    learn(ix, &other);
    tree_shrink(tree, UINT64_MAX,
                shared + 5); /* s is older: what it alone had goes first */

    struct found hit = find(ix, &s);
    assert_int_equal(hit.n_pieces, s.pieces.n); /* it was seen … */
    assert_int_equal(hit.place_blocks, shared); /* … and not continued with
                                                            the other's blocks */
    hit = find(ix, &other);
    assert_int_equal(hit.place_blocks, shared + 5);

    tree_shrink(tree, UINT64_MAX, 1);
    hit = find(ix, &s);
    assert_int_equal(hit.place_blocks, 1);

    learn(ix, &s);
    hit = find(ix, &s);
    assert_int_equal(hit.place_tokens, s.n_tokens);
    sample_free(&s);
    sample_free(&other);
    free_index_and_tree(ix);
}

static void test_index_place_is_not_given_up_for_one_that_covers_less(void **state)
{
    (void)state;
    struct index *ix = new_index_and_tree(1 << 20);
    struct sample s = sample_of(2, (size_t[]){2000, 6000}), other = {0};
    struct tree_mark start = {0};
    add_part(&other, copy_text(s.parts[0]));
    add_part(&other, random_text(1000, 20));
    build(&other);
    learn(ix, &s);
    insert(&s, &start);
    learn(ix, &other); /* the continuation used last */
    tree_mark_up(tree, &start, 3);
    index_learn(ix, &(struct index_lesson){.v = s.pieces.v,
                                           .n = s.pieces.n,
                                           .n_prompt = s.pieces.n,
                                           .prompt_tokens = (uint32_t)s.n_tokens,
                                           .total_tokens = 3 * BLOCK,
                                           .end = &start});
    tree_mark_clear(tree, &start);
    assert_int_equal(find(ix, &s).place_tokens, s.n_tokens);
    sample_free(&s);
    sample_free(&other);
    free_index_and_tree(ix);
}

/* Text that is known beyond what the tree holds of it: what follows there in the tree is
 * another prompt's. */
static void test_index_place_is_not_continued_behind_the_end_of_a_lesson(void **state)
{
    (void)state;
    struct index *ix = new_index_and_tree(1 << 20);
    struct sample s = sample_of(2, (size_t[]){4000, 6000}), other = {0};
    struct tree_mark start = {0};
    add_part(&other, copy_text(s.parts[0]));
    add_part(&other, random_text(9000, 20));
    build(&other);
    const uint32_t shared = common_tokens(&s, &other) / BLOCK;
    learn(ix, &other);
    insert(&other, &start);
    tree_mark_up(tree, &start, shared);
    index_learn(ix, &(struct index_lesson){.v = s.pieces.v,
                                           .n = s.pieces.n,
                                           .n_prompt = s.pieces.n,
                                           .prompt_tokens = (uint32_t)s.n_tokens,
                                           .end = &start});
    tree_mark_clear(tree, &start);
    assert_int_equal(find(ix, &s).n_pieces, s.pieces.n);
    assert_int_equal(find(ix, &s).place_blocks, shared);
    sample_free(&s);
    sample_free(&other);
    free_index_and_tree(ix);
}

/* A shared start of one token less than a block, of a block, and of one more: a hit, with
 * the tokens it has, and a place that reaches them although no block ends there. */
static void test_index_reports_shared_starts_around_one_block(void **state)
{
    (void)state;
    for (uint32_t tokens = BLOCK - 1; tokens <= BLOCK + 1; tokens++) {
        struct index *ix = new_index_and_tree(1 << 20);
        struct sample a = {0}, b = {0};
        struct text start = random_text((tokens - TEMPLATE - 2) * 4, 0);
        memset(start.ptr, 'd', start.len); /* all tokens of 4 bytes */
        add_part(&a, start);
        add_part(&b, copy_text(start));
        add_part(&a, random_text(2000, 20));
        add_part(&b, random_text(2000, 20));
        build(&a);
        build(&b);
        const uint32_t common = common_tokens(&a, &b);
        assert_true(common >= tokens);
        learn(ix, &a);
        struct found hit = find(ix, &b);
        assert_int_equal(hit.n_pieces, 1);
        assert_true(hit.low > 0 && hit.low <= tokens && tokens <= hit.high + 2);
        assert_true(hit.reach >= common);
        assert_true(hit.place_tokens >= common);
        sample_free(&a);
        sample_free(&b);
        free_index_and_tree(ix);
    }
}

/* ---- forgetting -------------------------------------------------------------------- */

/* Boundaries known of the prompt; nothing may be missing before the last one. */
static size_t known_prefix(struct index *ix, const struct sample *s)
{
    size_t deepest = 0;
    for (size_t i = 1; i <= s->pieces.n; i++) {
        if (!find_pieces(ix, s->pieces.v + i - 1, 1).n_pieces) /* this boundary alone */
            continue;
        assert_int_equal(deepest, i - 1);
        deepest = i;
    }
    assert_int_equal(find(ix, s).n_pieces, deepest);
    return deepest;
}

static void test_index_known_boundaries_stay_a_prefix_under_eviction(void **state)
{
    enum { N = 40, BUDGET = 20000 };
    static struct sample s[N];
    struct index_stats st;
    (void)state;
    struct index *ix = index_new(BUDGET, NULL);
    for (size_t i = 0; i < N; i++) {
        const struct sample *like = i ? &s[roll((uint32_t)i)] : NULL;
        random_sample(&s[i], like, like ? roll((uint32_t)like->n_parts) : 0, 20);
    }
    for (int step = 0; step < 600; step++) {
        struct sample *x = &s[roll(N)];
        if (roll(10) == 0)
            index_forget(ix, x->pieces.v, x->pieces.n, roll((uint32_t)x->pieces.n));
        learn(ix, x);
        assert_int_equal(find(ix, x).n_pieces, x->pieces.n);
        known_prefix(ix, &s[roll(N)]);
        index_stats(ix, &st);
        assert_true(st.bytes <= BUDGET && st.entries <= BUDGET / 100);
    }
    assert_true(st.evicted > 100 && st.entries > BUDGET / 128 - 10);
    for (size_t i = 0; i < N; i++)
        sample_free(&s[i]);
    index_free(ix);
}

static void test_index_evicts_the_deepest_boundary_of_the_oldest_prompt(void **state)
{
    (void)state;
    struct index *ix = index_new(128 * 40, NULL);
    struct sample a = sample_of(1, (size_t[]){20 * 256 + 1});
    struct sample b = sample_of(1, (size_t[]){10 * 256 + 1});
    struct sample c = sample_of(1, (size_t[]){20 * 256 + 1});
    learn(ix, &a);
    learn(ix, &b);
    learn(ix, &a);
    learn(ix, &c);
    assert_int_equal(known_prefix(ix, &c), c.pieces.n);
    assert_true(known_prefix(ix, &a) > known_prefix(ix, &b));
    assert_true(known_prefix(ix, &b) < b.pieces.n);
    sample_free(&a);
    sample_free(&b);
    sample_free(&c);
    index_free(ix);
}

static void test_index_keeps_the_start_of_a_prompt_that_is_too_long(void **state)
{
    (void)state;
    static const uint64_t budgets[] = {0, 128, 1000, 5000};
    for (size_t i = 0; i < sizeof(budgets) / sizeof(*budgets); i++) {
        struct index *ix = new_index_and_tree(budgets[i]);
        struct sample s = sample_of(2, (size_t[]){3000, 30000});
        learn(ix, &s);
        learn(ix, &s);
        const size_t known = known_prefix(ix, &s);
        assert_true(known >= 1 && known < s.pieces.n);
        assert_int_equal(known, n_entries(ix));
        sample_free(&s);
        free_index_and_tree(ix);
    }
}

static void test_index_forgets_from_a_piece_on_and_what_continues_it(void **state)
{
    (void)state;
    struct index *ix = new_index_and_tree(1 << 20);
    struct sample s = sample_of(2, (size_t[]){2000, 3000}), other = {0};
    add_part(&other, copy_text(s.parts[0]));
    add_part(&other, random_text(3000, 20));
    build(&other);
    learn(ix, &s);
    learn(ix, &other);
    index_forget(ix, s.pieces.v, s.pieces.n, 10);
    assert_int_equal(known_prefix(ix, &s), 10);
    assert_int_equal(known_prefix(ix, &other), other.pieces.n);
    index_forget(ix, s.pieces.v, s.pieces.n, s.pieces.n);
    assert_int_equal(known_prefix(ix, &s), 10);
    index_forget(ix, s.pieces.v, s.pieces.n, 3); /* the other one continues this, too */
    assert_int_equal(known_prefix(ix, &s), 3);
    assert_int_equal(known_prefix(ix, &other), 3);
    index_forget(ix, s.pieces.v, s.pieces.n, 0);
    assert_int_equal(n_entries(ix), 0);
    learn(ix, &s);
    assert_int_equal(known_prefix(ix, &s), s.pieces.n);
    sample_free(&s);
    sample_free(&other);
    free_index_and_tree(ix);
}

/* ---- records ----------------------------------------------------------------------------- */

/* Exports all boundaries of a prompt and puts them into another index over the same tree,
 * placed at its end. Returns how many were taken. */
static size_t carry_over(struct index *from, struct index *to, const struct sample *s)
{
    struct tree_mark end = {0};
    size_t n = 0;
    insert(s, &end);
    for (size_t i = 0; i < s->pieces.n; i++) {
        struct index_record r;
        assert_true(index_export(from, s->pieces.v, i, &r));
        n += index_import(to, &r, &end);
    }
    tree_mark_clear(tree, &end);
    return n;
}

static void test_index_records_bring_boundaries_back(void **state)
{
    (void)state;
    struct index *ix = new_index_and_tree(1 << 20);
    struct index *copy = index_new(1 << 20, tree);
    struct sample s = sample_of(3, (size_t[]){3000, 500, 2000}), unknown;
    struct index_record r;
    learn(ix, &s);
    assert_int_equal(carry_over(ix, copy, &s), s.pieces.n);
    assert_int_equal(carry_over(ix, copy, &s), 0); /* known already */
    for (size_t i = 1; i <= s.pieces.n; i++) {
        const struct found a = at_boundary(ix, &s, i), b = at_boundary(copy, &s, i);
        assert_true(a.low == b.low && a.high == b.high && a.reach == b.reach);
        assert_true(b.place_tokens >= b.high);
    }
    random_sample(&unknown, NULL, 0, 20);
    assert_false(index_export(ix, unknown.pieces.v, 0, &r));
    index_forget(copy, s.pieces.v, s.pieces.n, 2);
    assert_true(index_export(ix, s.pieces.v, 3, &r));
    assert_false(index_import(copy, &r, NULL)); /* the one before it is not known */
    assert_int_equal(known_prefix(copy, &s), 2);
    sample_free(&s);
    sample_free(&unknown);
    index_free(copy);
    free_index_and_tree(ix);
}

static void test_index_records_beyond_the_budget_are_refused(void **state)
{
    static const uint64_t budgets[] = {0, 1000, 3000};
    (void)state;
    struct index *ix = new_index_and_tree(1 << 20);
    struct sample s = sample_of(2, (size_t[]){3000, 9000});
    learn(ix, &s);
    for (size_t i = 0; i < sizeof(budgets) / sizeof(*budgets); i++) {
        struct index *small = index_new(budgets[i], tree);
        const size_t n = carry_over(ix, small, &s);
        assert_true(n >= 1 && n < s.pieces.n);
        assert_int_equal(known_prefix(small, &s), n);
        assert_int_equal(n_entries(small), n);
        index_free(small);
    }
    sample_free(&s);
    free_index_and_tree(ix);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(test_index_knows_nothing_at_first, reset),
        cmocka_unit_test_setup(test_index_finds_the_deepest_boundary_of_all_known_prompts,
                               reset),
        cmocka_unit_test_setup(
            test_index_counts_a_wrong_check_and_finds_nothing_behind_it, reset),
        cmocka_unit_test_setup(
            test_index_bounds_hold_where_the_ratio_varies_by_10_percent, reset),
        cmocka_unit_test_setup(
            test_index_bounds_hold_while_prompts_come_and_are_confirmed, reset),
        cmocka_unit_test_setup(test_index_bounds_are_narrow_and_true_once_confirmed,
                               reset),
        cmocka_unit_test_setup(test_index_lower_bounds_raise_what_is_promised, reset),
        cmocka_unit_test_setup(test_index_reach_grows_while_all_of_it_is_reused, reset),
        cmocka_unit_test_setup(test_index_lets_a_confirmation_decide_a_contradiction,
                               reset),
        cmocka_unit_test_setup(test_index_bounds_never_cross_whatever_is_confirmed,
                               reset),
        cmocka_unit_test_setup(
            test_index_learned_again_keeps_what_both_bounds_have_in_common, reset),
        cmocka_unit_test_setup(
            test_index_is_not_misled_by_a_dense_text_behind_a_known_one, reset),
        cmocka_unit_test_setup(test_index_builds_on_the_counts_of_earlier_turns, reset),
        cmocka_unit_test_setup(test_index_bounds_hold_where_parts_are_very_short, reset),
        cmocka_unit_test_setup(test_index_bounds_hold_around_a_picture, reset),
        cmocka_unit_test_setup(test_index_estimates_from_bytes_what_nobody_counted,
                               reset),
        cmocka_unit_test_setup(test_index_learns_the_answer_behind_the_prompt, reset),
        cmocka_unit_test_setup(test_index_place_covers_reach_as_far_as_the_tree_goes,
                               reset),
        cmocka_unit_test_setup(test_index_place_of_a_parting_prompt_is_in_the_known_one,
                               reset),
        cmocka_unit_test_setup(test_index_place_falls_back_when_blocks_are_evicted,
                               reset),
        cmocka_unit_test_setup(test_index_place_is_not_given_up_for_one_that_covers_less,
                               reset),
        cmocka_unit_test_setup(
            test_index_place_is_not_continued_behind_the_end_of_a_lesson, reset),
        cmocka_unit_test_setup(test_index_records_bring_boundaries_back, reset),
        cmocka_unit_test_setup(test_index_records_beyond_the_budget_are_refused, reset),
        cmocka_unit_test_setup(test_index_reports_shared_starts_around_one_block, reset),
        cmocka_unit_test_setup(test_index_known_boundaries_stay_a_prefix_under_eviction,
                               reset),
        cmocka_unit_test_setup(
            test_index_evicts_the_deepest_boundary_of_the_oldest_prompt, reset),
        cmocka_unit_test_setup(test_index_keeps_the_start_of_a_prompt_that_is_too_long,
                               reset),
        cmocka_unit_test_setup(test_index_forgets_from_a_piece_on_and_what_continues_it,
                               reset),
    };
    return cmocka_run_group_tests(tests, prepare, NULL);
}
