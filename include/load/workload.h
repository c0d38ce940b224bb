/* SPDX-License-Identifier: MIT */
#ifndef INCIPIT_LOAD_WORKLOAD_H
#define INCIPIT_LOAD_WORKLOAD_H

/*
 * The requests of a benchmark. Generated: request i is a pure function of profile, seed
 * and i. From a file (load/input.h says how its kind is seen), from the beginning again
 * behind the last:
 *
 *   bodies          `{"messages": …}`, `{"prompt": …}`, or `{"body": {…}, "path": "/v1"}`
 *                   ("url" for "path": batches of OpenAI; "expect": what the answer
 *                   has in it), in their order. What a body
 *                   does not say of model, stream and (with max_tokens) limit is put
 *                   behind its members; nothing else is changed
 *   conversations   each answer of the file is a request with all before it as history.
 *                   `at_once` conversations have turns in rounds, in drawn order; where
 *                   one is over, the next of the file takes its place. The answer's limit
 *                   is a token for four bytes of the file's
 *   traces, tables  texts with the lengths and shared blocks of the trace, times scale;
 *                   other words in each pass. They have times: workload_due_us()
 *
 * Generated text is made of common short English words, which the vocabularies of most
 * models hold as one token each (with the space before it): n tokens are n words. What
 * the engine counted is told beside what was aimed at. Lengths of prompts and documents
 * are drawn evenly from 3/4 to 5/4 of the profile's; the answer's limit is exact, and
 * answers may end earlier.
 *
 * Shared starts of the generated profiles:
 *
 *   short, long-in, long-out, mix   none: each prompt begins with words of its own
 *   shared   `documents` documents are asked `questions` questions each, in rounds: in
 *            each round every document once, in an order that is drawn. Then follow as
 *            many new documents. The document is the system message, the question the
 *            user's: turn 0 of a group shares nothing, the others the document
 *   chat     `chats` chats of `turns` turns, in rounds as well; turn k repeats turn k−1
 *            and an answer to it that the generator wrote, not the engine: so the load
 *            does not depend on what is answered, and the engine's own KV of an answer
 *            is not what the next turn needs
 *
 * An arm is one side of a comparison: the same lengths, groups and order, other words; so
 * nothing that one side computes helps the other. Bodies and conversations of a file are
 * the same for both.
 */

#include <stdbool.h>
#include <stdint.h>

#include "base/buf.h"
#include "base/err.h"
#include "load/kind.h"
#include "proto/prompt.h"

#define WORKLOAD_ALONE UINT64_MAX
#define WORKLOAD_MAX_TOKENS 1000000u /* of a text */
#define WORKLOAD_MAX_GROUPS 10000u   /* documents or chats */
#define WORKLOAD_MAX_ROUNDS 1000u    /* questions or turns */
#define WORKLOAD_MAX_LINES 1000000u  /* requests of a file */
#define WORKLOAD_MAX_AT_ONCE 100000u /* conversations */
#define WORKLOAD_MIN_SCALE 0.001     /* of a trace */
#define WORKLOAD_MAX_SCALE 1000.0

struct workload;

struct workload_options {
    const char *profile; /* "NAME[,key=N…]", NULL: short */
    const char *file;    /* instead of a profile, or NULL */
    const char *model;   /* put where a body has none */
    uint64_t seed;
    bool stream;   /* put where a body does not say */
    bool fixed;    /* generated bodies, conversations and traces ask for answers that
                            can be repeated: a seed */
    bool logprobs; /* and for log-probabilities of their tokens */
    uint32_t max_tokens; /* no limit of an answer is above it, and a body without one gets
                            it; 0: none */
    uint32_t at_once;    /* conversations; 0: 8 */
    double scale;        /* of a trace's lengths; 0: 1 */
};

struct workload_request {
    const char *path; /* of the API; lives as long as the workload */
    enum prompt_api api;
    uint64_t group;         /* requests of one group start alike, or WORKLOAD_ALONE */
    uint32_t turn;          /* number within its group */
    enum kind kind;         /* where there are several */
    uint32_t in_tokens;     /* aimed at, without the template's; 0: unknown (a file) */
    uint32_t shared_tokens; /* of those, the start that an earlier request had */
    uint32_t out_tokens;    /* limit of the answer; 0: unknown */
    const char *expect;     /* the answer's text has this in it; NULL: anything */
};

/* NULL with `e` set: unknown profile or key, a limit, a line that is no request. Reads
 * the file (blocking). Copies what the options point to. */
struct workload *workload_new(const struct workload_options *o, struct err *e);
void workload_free(struct workload *w); /* NULL is allowed */

/* Request `i` for arm 0 or 1; `body` is replaced. */
void workload_make(const struct workload *w, uint64_t i, uint32_t arm, struct buf *body,
                   struct workload_request *rq);

/* One pass: the requests of a file, documents × questions, chats × turns, else 100. */
uint64_t workload_pass(const struct workload *w);

/* "shared,in=2000,ask=40,out=64,documents=8,questions=4"; of a file what it is and a sum
 * of its bytes: equal names and seeds are equal requests. */
const char *workload_name(const struct workload *w);

/* What the reader of a file has to tell a person, or NULL. */
const char *workload_note(const struct workload *w);

/* Whether it has times of its own: how long after request 0 is request `i` due? */
bool workload_timed(const struct workload *w);
uint64_t workload_due_us(const struct workload *w, uint64_t i);

/*
 * Profile interrupt: four requests belong together, a short one and a long one alone,
 * then a long one and a short one beside it. When the last of them is to come, 0 for all
 * others: up to 1 is a part of the time that the long one needs to its first token, 1 to
 * 2 of what it needs from there.
 */
bool workload_meets(const struct workload *w);
double workload_moment(const struct workload *w, uint64_t i);

/* How a body at this path is answered. */
enum prompt_api workload_api(const char *path);

#endif
