/* SPDX-License-Identifier: MIT */
#ifndef INCIPIT_LAB_LESSON_H
#define INCIPIT_LAB_LESSON_H

/*
 * What a KV cache does, run on the built-in model and measured: `incipit lab`.
 *
 * 1. A prompt of 13 tokens, 8 generated, every token forwarded: 9 passes. Without a cache
 *    each pass computes all positions again, 13 + 14 + ... + 21 = 153; with one 13 + 8.
 *    The logits are the same to the last bit.
 * 2. Prefill (a prompt at once) and decode (a token at a time), on a longer prompt.
 * 3. Prompt caching: requests that start alike, and what one changed byte costs, at the
 *    front and at the end.
 *
 * lesson_run() computes a plain struct; the other functions show it. Counts and tokens
 * are the same on each machine and in each run; times are not.
 */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/buf.h"
#include "base/err.h"
#include "lab/model.h"

#define LESSON_PROMPT "Phileas Fogg "
#define LESSON_PROMPT_TOKENS 13
#define LESSON_GENERATED 8
#define LESSON_PASSES (1 + LESSON_GENERATED)
#define LESSON_DECODES 16 /* of part 2 */

/* What one way of computing took. */
struct lesson_cost {
    uint64_t projections; /* positions that were computed (Q, K and V in all layers) */
    uint64_t attended;    /* pairs of positions that attention looked at, one layer */
    uint64_t kept_bytes;  /* of K and V, kept for the next pass */
    double ms;            /* in part 1 the least of several runs */
};

struct lesson_pass {
    uint32_t positions; /* of the sequence, with the tokens of this pass */
    uint32_t token;     /* chosen behind them; a byte, or 256 and up */
    struct lesson_cost without, with;
    double difference; /* largest difference of a logit between the two */
};

struct lesson_phase {
    uint32_t tokens;
    double ms; /* for all of them */
};

struct lesson_request {
    const char *name;        /* what is special about it, in a few words */
    const char *front, *end; /* text before and behind the start that all have */
    uint32_t tokens;         /* of the prompt; one a byte */
    uint32_t common;         /* how many of them the cache of the one before holds */
    struct lesson_cost without, with;
    double difference;
};

enum { LESSON_REQUESTS = 5 };

struct lesson {
    struct lab_shape shape;
    uint64_t seed;
    uint32_t token_bytes; /* of K and V a token */
    struct lesson_pass passes[LESSON_PASSES];
    struct lesson_cost without, with; /* sums over the passes; kept bytes: at the end */
    double difference;                /* the largest of all */
    struct lesson_phase prefill, decode;
    struct lesson_request requests[LESSON_REQUESTS];
};

/* Runs it. Part 1 takes milliseconds and is done several times for the sake of the times,
 * the others once: about a tenth of a second in all. */
void lesson_run(struct lesson *l);

/* A token as people can read it: "a", "\x07", "<end>". `out` has 8 bytes; returns it. */
const char *lesson_token(uint32_t token, char out[8]);

/* The whole as plain text. */
void lesson_text(const struct lesson *l, struct buf *out);

/* The same in screens, 0 … lesson_screens() − 1, each at most 22 lines of 80 columns;
 * with `color` in terminal colours. */
unsigned lesson_screens(void);
void lesson_screen(const struct lesson *l, unsigned screen, bool color, struct buf *out);

/* One JSON object (docs/lesson.md), with a line feed. */
void lesson_json(const struct lesson *l, struct buf *out);

/* One HTML page that needs nothing else: a slider over the passes, and the rest. */
void lesson_html(const struct lesson *l, struct buf *out);

/*
 * Walks through the screens on the terminal at descriptors `in` and `out`: arrow keys, q
 * to quit. The terminal is as before when it returns, and when it is ended by a signal.
 * 0, or ERR_IO where they are no terminal.
 */
int lesson_tui(const struct lesson *l, int in, int out, struct err *e);

#endif
