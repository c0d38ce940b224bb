/* SPDX-License-Identifier: MIT */

/*
 * A lesson: which of its counts are known (anchors), what follows from them for all its
 * boundaries (index_bounds), what was known of them before, and where each of them lies
 * in the block tree.
 *
 *     piece        1     2     3     4     5     6        prompt: 1 … 4, answer: 5, 6
 *     anchor  0          ×           ×           ×        tokens at the end of an earlier
 *     tokens  0         310         790         1210      turn, of the prompt, of all
 */

#include <assert.h>
#include <stdlib.h>

#include "base/mem.h"
#include "index_internal.h"

#define DENSITY_STEP 0.1 /* weight of the newest prompt in the running mean */
#define ANCHORS_MAX 64   /* known boundaries that serve as anchors, at most: those … */
#define ANCHOR_TOKENS 16.0 /* … with bounds this narrow, and a share of their place */
#define ANCHOR_SHARE 0.02

/* A lesson under way. */
struct study {
    const struct index_lesson *lesson;
    size_t n;     /* pieces that get an entry: all, unless the budget is tiny */
    size_t known; /* of them had one before */
    uint32_t *ids;
    struct index_bounds *bounds; /* of all boundaries of the lesson */
    struct index_anchor anchors[ANCHORS_MAX + 3];
    size_t n_anchors;
};

static void add_anchor(struct study *s, size_t at, double tokens, double slack)
{
    s->anchors[s->n_anchors++] = (struct index_anchor){at, tokens, slack, false};
}

/* Known boundaries with narrow bounds, e.g. the ends of earlier turns; the deepest ones
 * of them, as far as `most` tokens allow. */
static void add_known_anchors(struct index *ix, struct study *s, double most)
{
    struct index_anchor found[ANCHORS_MAX];
    size_t n = 0;
    for (size_t i = s->known; i-- > 0 && n < ANCHORS_MAX;) {
        const struct index_bounds b = ix->entries[s->ids[i]].bounds;
        const double tokens = ((double)b.low + b.high) / 2;
        const double slack = ((double)b.high - b.low) / 2;
        if (i + 1 >= s->lesson->n_prompt || tokens > most)
            continue;
        if (2 * slack > ANCHOR_TOKENS + ANCHOR_SHARE * tokens)
            continue;
        found[n++] = (struct index_anchor){i + 1, tokens, slack, false};
        most = tokens;
    }
    while (n-- > 0)
        s->anchors[s->n_anchors++] = found[n];
}

/* The last anchor, where nobody counted: what this text usually comes to. */
static void add_guess(struct index *ix, struct study *s)
{
    const struct index_anchor *last = &s->anchors[s->n_anchors - 1];
    const struct index_lesson *l = s->lesson;
    double density = ix->density;
    if (last->at)
        density = last->tokens / index_bounds_weight(l->v, 0, last->at);
    const double more = density * index_bounds_weight(l->v, last->at, l->n);
    s->anchors[s->n_anchors++] =
        (struct index_anchor){l->n, last->tokens + more, last->slack, true};
}

static void collect_anchors(struct index *ix, struct study *s)
{
    const struct index_lesson *l = s->lesson;
    const bool answered = l->n > l->n_prompt || !l->prompt_tokens;
    add_anchor(s, 0, 0, 0);
    if (l->prompt_tokens && l->n_prompt) {
        add_known_anchors(ix, s, l->prompt_tokens);
        add_anchor(s, l->n_prompt, l->prompt_tokens, 0);
    }
    if (answered && l->total_tokens && l->total_tokens >= l->prompt_tokens)
        add_anchor(s, l->n, l->total_tokens, 0);
    else if (s->anchors[s->n_anchors - 1].at < l->n)
        add_guess(ix, s);
}

/* Keeps a mean of tokens per weight over prompts of text. */
static void note_density(struct index *ix, const struct index_lesson *l)
{
    if (!l->prompt_tokens || !l->n_prompt)
        return;
    for (size_t i = 0; i < l->n_prompt; i++)
        if (l->v[i].is_media)
            return;
    const double weight = index_bounds_weight(l->v, 0, l->n_prompt);
    double density = l->prompt_tokens / weight;
    density = density < 0.05 ? 0.05 : density > 1 ? 1 : density;
    ix->density += DENSITY_STEP * (density - ix->density);
}

static void keep_bounds(struct index *ix, struct study *s)
{
    for (size_t i = 0; i < s->known; i++)
        s->bounds[i] = index_bounds_merge(ix->entries[s->ids[i]].bounds, s->bounds[i]);
    index_bounds_order(s->bounds, s->lesson->n);
    for (size_t i = 0; i < s->n; i++) {
        struct index_entry *e = &ix->entries[s->ids[i]];
        e->bounds = s->bounds[i];
        if (i + 1 < s->lesson->n)
            e->next_high = s->bounds[i + 1].high;
        else if (e->next_high <= e->bounds.high)
            e->next_high = index_add_tokens(e->bounds.high, PIECE_BYTES * ix->density +
                                                                INDEX_REACH_TOKENS);
    }
}

/* Tokens of a full block: all blocks but the last of a sequence are full. */
static size_t block_tokens(struct tree *t, const struct tree_mark *end)
{
    const size_t blocks = tree_mark_blocks(end);
    struct tree_mark m = {0};
    if (blocks < 2)
        return tree_mark_tokens(end);
    tree_mark_copy(t, &m, end);
    tree_mark_up(t, &m, blocks - 1);
    const size_t tokens = tree_mark_tokens(&m) / (blocks - 1);
    tree_mark_clear(t, &m);
    return tokens;
}

/* A new place is better unless it covers less than the old one and less than is wanted:
 * then the tree holds only the start of this lesson. */
static void move_mark(struct index *ix, struct index_entry *e, const struct tree_mark *to)
{
    const size_t had = tree_mark_tokens(&e->mark), has = tree_mark_tokens(to);
    if (has < had && has < e->bounds.high)
        return;
    index_place(ix, e, to);
}

/* Walks up from the end once; highs ascend, so no mark lies below the next one. */
static void place_marks(struct index *ix, struct study *s)
{
    struct tree_mark m = {0};
    const struct tree_mark *end = s->lesson->end;
    if (!ix->tree || !end || !tree_mark_blocks(end))
        return;
    const size_t full = block_tokens(ix->tree, end);
    tree_mark_copy(ix->tree, &m, end);
    for (size_t i = s->n; i-- > 0;) {
        struct index_entry *e = &ix->entries[s->ids[i]];
        const size_t high = e->bounds.high ? e->bounds.high : 1;
        const size_t blocks = (high + full - 1) / full;
        if (blocks < tree_mark_blocks(&m))
            tree_mark_up(ix->tree, &m, blocks);
        move_mark(ix, e, &m);
    }
    tree_mark_clear(ix->tree, &m);
}

void index_learn(struct index *ix, const struct index_lesson *lesson)
{
    struct study s = {.lesson = lesson};
    assert(lesson->n_prompt <= lesson->n);
    if (!lesson->n)
        return;
    s.n = lesson->n < ix->cap ? lesson->n : ix->cap;
    s.ids = mem_array(s.n, sizeof(*s.ids));
    s.bounds = mem_array(lesson->n, sizeof(*s.bounds));

    s.known = index_take(ix, lesson, s.n, s.ids);
    collect_anchors(ix, &s);
    const struct index_measure m = {lesson->v, s.anchors, s.n_anchors, ix->density};
    index_bounds_estimate(&m, s.bounds);
    keep_bounds(ix, &s);
    place_marks(ix, &s);
    note_density(ix, lesson);

    free(s.ids);
    free(s.bounds);
}
