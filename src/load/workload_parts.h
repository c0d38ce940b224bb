/* SPDX-License-Identifier: MIT */
#ifndef INCIPIT_LOAD_WORKLOAD_PARTS_H
#define INCIPIT_LOAD_WORKLOAD_PARTS_H

/*
 * What workload.c (profiles, and all that is common) and the formats of files share:
 * workload_lines.c (bodies), workload_talks.c (conversations), workload_trace.c (traces
 * and tables).
 */

#include "load/input.h"
#include "load/workload.h"

#define WORKLOAD_CHAT "/v1/chat/completions"

/* Each use of random numbers has its own. Of the second arm 16 more. */
enum workload_what {
    WHAT_LENGTH = 1,
    WHAT_ORDER,
    WHAT_MIX,
    WHAT_TEXT,
    WHAT_ASK,
    WHAT_REPLY,
    WHAT_BLOCK,
    WHAT_NUMBER,
    WHAT_MOMENT
};

/* What all requests have in common. */
struct workload_common {
    char *model; /* as JSON */
    uint64_t seed;
    uint32_t max_tokens; /* 0: none */
    bool stream, fixed, logprobs;
};

/* Requests that come from a file: one pass of them, and how each is made. A format puts
 * its own fields behind these. */
struct workload_source {
    const struct workload_common *common; /* the workload's */
    char *name;
    char *note; /* NULL: nothing to tell */
    uint64_t pass;
    bool timed;

    void (*make)(const struct workload_source *s, uint64_t i, uint32_t arm,
                 struct buf *body, struct workload_request *rq);
    uint64_t (*due_us)(const struct workload_source *s, uint64_t i); /* where timed */
    void (*free)(struct workload_source *s); /* its own fields, not the struct */
};

/*
 * Readers of a file. Take `in` over: it lives until free(), or is freed in case of an
 * error. NULL with `e` set, which names the line.
 */
struct workload_source *workload_lines(const struct workload_options *o,
                                       const struct workload_common *c, struct input *in,
                                       struct err *e);
struct workload_source *workload_talks(const struct workload_options *o,
                                       const struct workload_common *c, struct input *in,
                                       struct err *e);
struct workload_source *workload_trace(const struct workload_options *o,
                                       const struct workload_common *c, struct input *in,
                                       struct err *e);

/* `out_tokens` under the limit of all requests. */
uint32_t workload_limit(const struct workload_common *c, uint32_t out_tokens);

/* The members around a chat's list of messages: `{"model":…,"messages":[`, and all that
 * comes behind the `]`, which is the caller's. */
void workload_chat_begin(struct buf *out, const struct workload_common *c);
void workload_chat_end(struct buf *out, const struct workload_common *c,
                       uint32_t out_tokens);

/* `n` words, the first without a space before it. */
void workload_words(struct buf *out, uint64_t state, uint32_t n);

/* Word number `n` of WORKLOAD_WORDS. */
#define WORKLOAD_WORDS 128u
const char *workload_word(uint32_t n);

#endif
