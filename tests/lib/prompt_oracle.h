/* SPDX-License-Identifier: MIT */
#ifndef INCIPIT_TESTS_PROMPT_ORACLE_H
#define INCIPIT_TESTS_PROMPT_ORACLE_H

/*
 * A second opinion on prompts: jansson reads the body into a tree, and a short recursive
 * walk writes the canonical tokens anew from that tree. What the scanner calls readable
 * must be readable to jansson, with the same texts in the same places.
 *
 * Both sides are recorded in one buffer: 0xFE and the kind of part, its bytes, 0xFD.
 * Numbers are compared as numbers, because the tree does not know how they were written.
 */

#include <stdbool.h>

#include "base/buf.h"
#include "proto/prompt.h"

#define RECORD_BEGIN '\xFE'
#define RECORD_END '\xFD'

/* A sink that records into `b`. */
struct prompt_sink record_sink(struct buf *b);

/* Records prompt_emit(). */
void record_prompt(const struct prompt *p, enum prompt_order order, struct buf *b);

/*
 * Scans `body` and checks the scanner against the tree. NULL where they agree (or the
 * scanner did not call the body readable, or the tree cannot tell); else what differs.
 */
const char *oracle_check(enum prompt_api api, enum prompt_order order, struct slice body);

#endif
