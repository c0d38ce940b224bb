/* SPDX-License-Identifier: MIT */
#ifndef INCIPIT_LOAD_READING_H
#define INCIPIT_LOAD_READING_H

/*
 * The clocks of one request, and what became of it. Pure: times come as parameters
 * (microseconds of one monotonic clock, 0 is never).
 *
 *   planned   when it was to be sent: in an open loop by the plan, else as it was started
 *   started   when it was handed to the connection
 *   sent      its last byte was handed to the system
 *   first     first event with generated content: text, reasoning, a part of a tool call.
 *             A chunk with a role alone, a ping, a comment is none
 *   last      last event with content
 *   end       the answer was whole, or it was clear that it will not be
 *
 * Outcomes:
 *
 *   completed     2xx, and whole: a stream with its finish reason or [DONE], a document
 *                 that can be read
 *   refused       any other status
 *   interrupted   2xx, and the end is missing or an error came instead
 *   failed        no head of an answer: connecting, a reset, a timeout
 *   pending       not over when the run was
 */

#include <stdbool.h>
#include <stdint.h>

#include "base/slice.h"
#include "load/spread.h"
#include "proto/answer.h"

enum sample_outcome {
    SAMPLE_PENDING,
    SAMPLE_COMPLETED,
    SAMPLE_REFUSED,
    SAMPLE_INTERRUPTED,
    SAMPLE_FAILED
};

/* Whether a whole answer says anything: text, reasoning or a tool call. Where something
 * is expected: whether it is in the text, which has to be known for that. */
enum sample_answer {
    SAMPLE_ANSWER_UNKNOWN,
    SAMPLE_ANSWER_EMPTY,
    SAMPLE_ANSWER_OTHER, /* than expected */
    SAMPLE_ANSWER_GIVEN
};

struct sample {
    uint64_t index; /* in the workload */
    uint64_t group; /* as in struct workload_request, like the next four */
    uint32_t turn, in_tokens, shared_tokens, out_tokens;
    enum sample_outcome outcome;
    enum sample_answer answer; /* of a completed one; of paths not read: unknown */
    int status;                /* of the answer, 0: none */
    uint8_t connects, retries; /* of its connections: call_facts */
    uint8_t kind;              /* kind.h */
    int error; /* ERR_ code where it failed or was interrupted on the way */
    uint64_t planned_us, started_us, sent_us, first_us, last_us, end_us;
    uint64_t content_events;
    uint64_t longest_us; /* the longest gap between two of them */
    int64_t prompt_tokens, cached_tokens, output_tokens; /* the engine's, -1: unknown */
};

struct reading {
    struct sample sample;
    struct spread *gaps;      /* each gap between content events goes there, */
    struct spread *kind_gaps; /* and there; may be NULL, may be changed meanwhile */
    struct spread *then_gaps; /* takes the place of kind_gaps behind the next gap */
    struct answer *answer;
    enum prompt_api api;
    bool stream;
    bool units;         /* note the units of the answer: set behind reading_init() */
    const char *expect; /* so is this: the answer's text has it in it; or NULL */
};

/* `r->sample` is filled in by the caller as far as it is known; `gaps` is borrowed. */
void reading_init(struct reading *r, enum prompt_api api, struct spread *gaps);
void reading_fini(struct reading *r);

void reading_sent(struct reading *r, uint64_t now_us);
void reading_head(struct reading *r, int status, bool stream);

/* Several content events in one piece of bytes came at once: gaps of 0 between them. */
void reading_body(struct reading *r, struct slice bytes, uint64_t now_us);

/* The answer's framing ended; or the call failed with an ERR_ code. */
void reading_end(struct reading *r, uint64_t now_us);
void reading_fail(struct reading *r, int error, uint64_t now_us);

/* "completed"; the short name of an outcome. */
const char *reading_outcome(enum sample_outcome o);

/* Milliseconds of a completed request, NAN where it has no such time. */
double reading_ttft_ms(const struct sample *s);    /* sent → first */
double reading_first_ms(const struct sample *s);   /* planned → first */
double reading_total_ms(const struct sample *s);   /* planned → end */
double reading_gap_ms(const struct sample *s);     /* mean between its content events */
double reading_longest_ms(const struct sample *s); /* the longest gap */
double reading_lag_ms(const struct sample *s); /* planned → started, of any request */

#endif
