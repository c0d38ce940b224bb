/* SPDX-License-Identifier: MIT */
#ifndef INCIPIT_LOAD_INPUT_H
#define INCIPIT_LOAD_INPUT_H

/*
 * A file of requests, read where it lies: mapped into memory, so that a large one costs
 * pages that the system can take back. (It must not be cut short while it is in use.) A
 * pipe is read whole, up to INPUT_MAX_PIPE.
 *
 * What it holds is seen by its first item, whatever its name:
 *
 *   JSON objects, one a line, or all in one array
 *     hash_ids, input_length                     INPUT_TRACE
 *     conversations, or messages that end with   INPUT_TALKS
 *     an answer
 *     anything else                              INPUT_BODIES
 *   a line that starts with TIMESTAMP,           INPUT_TABLE
 *
 * A byte-order mark and blank lines are passed over.
 */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"
#include "base/slice.h"
#include "proto/jlex.h"

#define INPUT_MAX_ITEMS 1000000u
#define INPUT_MAX_ITEM ((size_t)64 << 20)
#define INPUT_MAX_PIPE ((size_t)256 << 20)

enum input_format { INPUT_BODIES, INPUT_TALKS, INPUT_TRACE, INPUT_TABLE };

struct input;

/* NULL with `e` set: cannot be read, is empty, is none of the above. */
struct input *input_open(const char *path, struct err *e);
void input_free(struct input *in); /* NULL is allowed; slices of it die */

enum input_format input_format(const struct input *in);

/*
 * The next item: a JSON object, or a line of the table without its end (the first is the
 * heading). 1: here it is; 0: no more; else an ERR_ code with `e` set.
 */
int input_next(struct input *in, struct slice *item, struct err *e);

/* Puts "FILE:LINE: " of the item in front of an error. Returns the code. */
int input_blame(const struct input *in, struct err *e);

/* The same for the same bytes; to tell files apart, no more. */
uint32_t input_sum(const struct input *in);

/* A member's value as it is written; JLEX_END: the object has none. */
struct input_value {
    enum jlex_type type;
    struct slice text;
};

/*
 * The members `names[0]` to `names[n − 1]` of an object; others are passed over.
 * ERR_FORMAT where it is no object, no valid JSON, or has one of them twice.
 */
int input_members(struct slice object, const char *const *names, size_t n,
                  struct input_value *values, struct err *e);

#endif
