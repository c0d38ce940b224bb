/* SPDX-License-Identifier: MIT */
#ifndef INCIPIT_WIRE_ASK_H
#define INCIPIT_WIRE_ASK_H

/*
 * Small control calls to an engine with JSON in and out (/props, /slots, save, restore):
 * configuration-size documents, read with jansson, at most ASK_MAX_BYTES.
 */

#include <jansson.h>
#include <stdint.h>

#include "base/err.h"
#include "wire/upstream.h"

#define ASK_MAX_BYTES ((size_t)16 << 20)

struct ask;

/*
 * status 0: no answer (err says why). `doc` is NULL where the body is no JSON; it is
 * borrowed for the call. The callback is the last thing that happens to the ask.
 */
typedef void (*ask_cb)(void *arg, int status, json_t *doc, const struct err *err);

/* `body` NULL: GET, else POST. `headers`: extra complete lines, may be "". */
struct ask *ask_json(struct upstream *u, const char *path, const char *body,
                     const char *headers, uint64_t timeout_ms, struct loop *l, ask_cb cb,
                     void *arg);

/* The same, and never repeated on another connection: for a question whose answer is
 * meant for the process that the last question went to. */
struct ask *ask_once(struct upstream *u, const char *path, const char *body,
                     const char *headers, uint64_t timeout_ms, struct loop *l, ask_cb cb,
                     void *arg);

/* Gives the call up; no callback follows. */
void ask_cancel(struct ask *a);

#endif
