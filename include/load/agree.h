/* SPDX-License-Identifier: MIT */
#ifndef INCIPIT_LOAD_AGREE_H
#define INCIPIT_LOAD_AGREE_H

/*
 * Do two services answer the same requests alike? Answers of one request by arms A and B
 * are compared as soon as both are there, and forgotten: what is kept of a pair is
 * whether they are equal, where they differ first, and a hash of each.
 *
 * Pairs are told apart by what the engines reused of the prompt: with equal counts the
 * same work was done, and answers that differ are the engine's or the setting's. With
 * other counts a prompt was computed in other batches, which by itself changes the last
 * bits of an engine like llama-server: those pairs say little. Where an engine does not
 * tell its count nobody knows which of the two it is.
 *
 * A pair is not read where one of the two was not completed, or its text is not whole
 * (several choices, more than ANSWER_MAX_TEXT).
 */

#include <jansson.h>
#include <stdio.h>

#include "load/reading.h"
#include "proto/answer.h"

struct agree;

struct agree *agree_new(void);
void agree_free(struct agree *g); /* NULL is allowed */

/* Arm 0 or 1 has answered request s->index, or failed to. `a` as it was read, with units
 * noted; NULL where there is none. Once for each arm and request. */
void agree_add(struct agree *g, unsigned arm, const struct sample *s, struct answer *a);

/* A new reference: `output` of docs/bench.md. */
json_t *agree_json(const struct agree *g);

/* The same for people. */
void agree_print(const json_t *output, FILE *out);

#endif
