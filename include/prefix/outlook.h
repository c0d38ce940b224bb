/* SPDX-License-Identifier: MIT */
#ifndef INCIPIT_PREFIX_OUTLOOK_H
#define INCIPIT_PREFIX_OUTLOOK_H

/*
 * What would be gained? Looks at requests as they come, changes nothing, and tells for
 * stores of several sizes at once how many prompt tokens they would have reused, beside
 * what the engine reused by itself, and what that would have saved of the time to first
 * token.
 *
 * Sizes are numbers of pieces (pieces.h), each about PIECE_BYTES of text; the tokens of a
 * prompt are spread over its pieces by their bytes, and half of the piece in which it
 * parts from an earlier one counts as common. A store of a size has what the curve
 * (curve.h) says. Where the engine reused more than that, its own count stands: the sum
 * is that of store and engine together.
 *
 * The gain in time is that of the last OUTLOOK_KEEP requests with a known time, by a
 * model of the same ones (ttft.h); putting blocks back is not in it. For one thread.
 */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "prefix/pieces.h"
#include "prefix/ttft.h"

#define OUTLOOK_SIZES 12 /* 2⁸ … 2¹⁹ pieces: about 16 thousand to 33 million tokens */
#define OUTLOOK_KEEP TTFT_KEEP /* requests whose time counts */

struct outlook;

struct outlook *outlook_new(void);
void outlook_free(struct outlook *o); /* NULL is allowed */

/* A request whose answer was whole. */
struct outlook_request {
    const struct piece *v; /* of prompt and answer */
    size_t n, n_prompt;
    double prompt_tokens;
    double cached_tokens; /* reused by the engine; < 0 unknown */
    double ttft_ms;       /* < 0: unknown, or other prefills were in its way */
};
void outlook_add(struct outlook *o, const struct outlook_request *rq);

/* Why tokens of prompts were not reused: by the place where a prompt parts from all
 * earlier ones. */
#define OUTLOOK_CAUSES(X)                                                                \
    X(OUTLOOK_FIRST_SIGHT, "first-sight") /* nothing of it was known */                  \
    X(OUTLOOK_EARLY, "parts-early")       /* within its first part: a clock, a name? */  \
    X(OUTLOOK_LATE, "new-text")           /* behind a known start: as it should be */    \
    X(OUTLOOK_DROPPED, "dropped")         /* known, and the engine had it no more */

enum outlook_cause {
#define X(code, name) code,
    OUTLOOK_CAUSES(X)
#undef X
        OUTLOOK_CAUSE_KINDS
};
const char *outlook_cause_name(enum outlook_cause c);

struct outlook_size {
    size_t pieces;
    double tokens;         /* that these hold, at the mean tokens of a piece */
    double reused_tokens;  /* by store and engine together */
    double saved_ms, half; /* of `timed` requests, 95 % interval ± half; NAN unknown */
};

struct outlook_figures {
    uint64_t requests, timed;
    uint64_t counted; /* requests whose engine told what it had reused */
    double prompt_tokens;
    double counted_tokens, engine_tokens; /* prompts of these, and what was reused */
    double distinct_tokens;               /* all different starts seen, remembered ones */
    double lost[OUTLOOK_CAUSE_KINDS];     /* prompt tokens by cause */
    struct outlook_size sizes[OUTLOOK_SIZES];
};
void outlook_figures(struct outlook *o, struct outlook_figures *out);

#endif
