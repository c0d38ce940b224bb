/* SPDX-License-Identifier: MIT */
#ifndef INCIPIT_PROTO_ANSWER_READ_H
#define INCIPIT_PROTO_ANSWER_READ_H

/*
 * What answer.c (life of an answer, its facts) and answer_read.c (the JSON inside) share.
 */

#include "proto/answer.h"
#include "proto/jlex.h"
#include "proto/sse.h"

/* Counts of tokens as they were named; -1: not seen. */
struct answer_counts {
    int64_t prompt, cached, completion; /* usage of the OpenAI routes */
    int64_t input, cache_read,
        cache_made; /* usage of the Messages API: input is the rest */
    int64_t output;
    int64_t evaluated; /* native: length of the prompt */
    int64_t predicted; /* timings */
};

struct answer_call {
    struct buf id, name, arguments;
};

/* Steps of the engine, where they are asked for. */
struct answer_steps {
    bool wanted, tokens;
    struct buf text;
    struct answer_unit *units;
    size_t n, room;
    size_t content, reasoning, call, arguments; /* how far events have been noted */
};

struct answer {
    enum prompt_api api;
    bool stream;
    uint64_t now_us;
    struct answer_facts facts;
    struct answer_counts counts;
    struct sse sse;
    struct buf body; /* of a document, until its end */

    bool understood; /* some part of an answer was found where it belongs */
    bool broken;     /* the text below is not, or not all of, the answer */
    bool has_content;
    bool event_has_content; /* of the event that is being read */
    unsigned reasoning_key; /* which of two names the engine uses; 0 until known */
    unsigned last_block;    /* Messages API: kind of the open block */
    size_t text_bytes;
    struct buf content, reasoning;
    struct answer_call calls[ANSWER_MAX_CALLS];
    size_t n_calls;
    struct answer_steps steps;

    struct prompt_tool_call call_views[ANSWER_MAX_CALLS];
    struct prompt_answer view;
};

/* Reads one event's data, or a whole document. False where it is not valid JSON. */
bool answer_read(struct answer *a, struct slice json);

/* A unit ends with what was appended to a->steps.text. */
void answer_end_unit(struct answer *a, double logprob);

#endif
