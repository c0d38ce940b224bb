/* SPDX-License-Identifier: MIT */
#ifndef LAB_ANSWER_H
#define LAB_ANSWER_H

/* How the four APIs word an answer. Documents belong to the caller. */

#include "lab_engine.h"
#include "lab_question.h"

/* A generation, as far as it has come. */
struct lab_result {
    const struct lab_question *q;
    const struct lab_task *tasks; /* q->n of them */
    const char *alias;
    uint64_t number;   /* of the generation: makes its id */
    int64_t created_s; /* wall clock */
    bool wrong_counts;
};

/* A whole answer. */
json_t *lab_answer_whole(const struct lab_result *r);

/* The events of a stream, one by one. An event has a name in Anthropic's API only. */
struct lab_answer_sink {
    void (*event)(void *arg, const char *name, json_t *doc); /* takes doc */
    void (*done)(void *arg);                                 /* "data: [DONE]" */
    void *arg;
};
void lab_answer_begin(const struct lab_result *r, const struct lab_answer_sink *to);
void lab_answer_piece(const struct lab_result *r, struct slice text, uint32_t token,
                      const struct lab_answer_sink *to);
void lab_answer_end(const struct lab_result *r, const struct lab_answer_sink *to);

/* The text of an answer, without the token that ended it. */
void lab_answer_text(const struct lab_task *t, struct buf *out);

#endif
