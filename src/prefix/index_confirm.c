/* SPDX-License-Identifier: MIT */

/*
 * What a count says. A prompt parts from a known one inside the piece behind boundary i;
 * the engine found c tokens in common:
 *
 *     known   ──────────┤ i ├───────────────┤ i+1 ├────
 *     prompt  ──────────┤ i ├────╱          ┤ i+1 ├────
 *     tokens            ≤ c      c          ≥ c
 *                       ≥ c − what fits into the piece that parted
 *
 * Bounds of boundary i may contradict this. The engine is right, and the bounds of its
 * neighbours follow, so that bounds go on ascending along every text.
 */

#include <assert.h>

#include "index_internal.h"

#define SPAN_TOKENS 4      /* a common token may span the boundary, or be cut otherwise */
#define TEMPLATE_TOKENS 32 /* that a template may put behind a boundary */
#define SETTLE_TOKENS 8    /* either side of a count that contradicts the bounds */

/* Lets the engine's word decide where it contradicts what was thought. `said.high` may be
 * open (UINT32_MAX): then what was thought keeps its width. */
static void settle(struct index_bounds *b, struct index_bounds said)
{
    const struct index_bounds both = {
        .low = b->low > said.low ? b->low : said.low,
        .high = b->high < said.high ? b->high : said.high,
    };
    if (both.low <= both.high) {
        *b = both;
        return;
    }
    if (said.high == UINT32_MAX)
        said.high = index_add_tokens(said.low, b->high - b->low);
    b->low = said.low > SETTLE_TOKENS ? said.low - SETTLE_TOKENS : 0;
    b->high = index_add_tokens(said.high, SETTLE_TOKENS);
}

/* No boundary before one that lies at most at `high` lies behind that. */
static void lower_ancestors(struct index *ix, uint32_t id)
{
    const uint32_t high = ix->entries[id].bounds.high;
    for (id = ix->entries[id].parent; id != INDEX_START; id = ix->entries[id].parent) {
        struct index_bounds *b = &ix->entries[id].bounds;
        if (b->high <= high)
            return;
        b->high = high;
        if (b->low > high)
            b->low = high;
    }
}

static void raise(struct index_bounds *b, uint32_t low)
{
    if (b->high < low)
        b->high = index_add_tokens(low, b->high - b->low);
    b->low = low;
}

/* No boundary behind one that lies at least at `low` lies before that. Walks down as far
 * as this changes anything. */
static void raise_descendants(struct index *ix, uint32_t top)
{
    const uint32_t low = ix->entries[top].bounds.low;
    uint32_t id = ix->entries[top].child;
    while (id != INDEX_START) {
        struct index_entry *e = &ix->entries[id];
        const bool raised = e->bounds.low < low;
        if (raised)
            raise(&e->bounds, low);
        if (raised && e->child != INDEX_START) {
            id = e->child;
            continue;
        }
        while (id != top && ix->entries[id].elder == INDEX_START)
            id = ix->entries[id].parent;
        id = id == top ? INDEX_START : ix->entries[id].elder;
    }
}

static void raise_to(struct index *ix, uint32_t id, uint32_t low)
{
    struct index_bounds *b = &ix->entries[id].bounds;
    if (b->low >= low)
        return;
    raise(b, low);
    raise_descendants(ix, id);
}

/* The prompt from which this one parted, where that is sure: with several of them, the
 * slot may have held any. */
static uint32_t only_other_child(const struct index *ix, uint32_t parent, uint32_t child)
{
    uint32_t found = INDEX_START;
    for (uint32_t id = ix->entries[parent].child; id; id = ix->entries[id].elder) {
        if (id == child)
            continue;
        if (found)
            return INDEX_START;
        found = id;
    }
    return found;
}

/* Most tokens that may be common behind the boundary: as many as the piece that parted
 * has at 1.5 times the density so far, and what a template puts there. */
static double worth_of_next(const struct index *ix, const struct piece *v, size_t n,
                            size_t n_common, uint32_t tokens)
{
    const uint64_t start = v[n_common - 1].end_bytes;
    const uint64_t bytes = n_common < n ? v[n_common].end_bytes - start : 0;
    double density = tokens / ((double)start + 1);
    if (density < ix->density)
        density = ix->density;
    density = density * 1.5 < 1 ? density * 1.5 : 1;
    return density * (double)bytes + TEMPLATE_TOKENS;
}

static void confirm_common(struct index *ix, uint32_t id, double worth, uint32_t tokens,
                           bool exact)
{
    struct index_entry *e = &ix->entries[id];
    settle(&e->bounds,
           (struct index_bounds){
               .low = tokens > worth ? (uint32_t)(tokens - worth) : 0,
               .high = exact ? index_add_tokens(tokens, SPAN_TOKENS) : UINT32_MAX,
           });
    lower_ancestors(ix, id);
    raise_descendants(ix, id);
    /* All that was there was reused: there may be more of it. */
    if (!exact && tokens >= index_reach(e))
        e->next_high =
            index_add_tokens(tokens, PIECE_BYTES * ix->density + INDEX_REACH_TOKENS);
    else if (tokens > e->next_high)
        e->next_high = tokens;
}

void index_confirm(struct index *ix, const struct piece *v, size_t n, size_t n_common,
                   uint32_t tokens, bool exact)
{
    assert(n_common <= n);
    uint32_t id = INDEX_START;
    if (n_common) {
        id = index_lookup(ix, &v[n_common - 1]);
        if (!id)
            return; /* evicted since */
        confirm_common(ix, id, worth_of_next(ix, v, n, n_common, tokens), tokens, exact);
    }
    const uint32_t next = n_common < n ? index_lookup(ix, &v[n_common]) : INDEX_START;
    const uint32_t other = only_other_child(ix, id, next);
    if (next)
        raise_to(ix, next, tokens);
    if (other && tokens <= ix->entries[other].bounds.high)
        raise_to(ix, other, tokens);
}
