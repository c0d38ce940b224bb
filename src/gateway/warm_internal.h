/* SPDX-License-Identifier: MIT */
#ifndef INCIPIT_GATEWAY_WARM_INTERNAL_H
#define INCIPIT_GATEWAY_WARM_INTERNAL_H

/*
 * What the files of warming share:
 *
 *     warm.c        what is to be warm, and what is next
 *     warm_body.c   from a file to the body of a request
 *     warm_run.c    one start on one replica
 */

#include "gateway/inspect.h"
#include "gateway/warm.h"

/* ---- warm_body.c ------------------------------------------------------------------- */

/*
 * A request that begins with the start. Where the start ends before the user's words,
 * `other` is the same request with other words: what both share is the start. Else it is
 * empty, and the start is the whole prompt.
 */
struct warm_body {
    enum prompt_api api;
    char *path;
    struct buf body, other;
};

/* Makes it of a request body or of the text of a system prompt. ERR_INVALID, ERR_FORMAT.
 * Always leaves something to free. */
int warm_body_make(struct warm_body *b, struct slice text, const char *path,
                   const char *model, struct err *e);
void warm_body_free(struct warm_body *b);

/* ---- warm_run.c -------------------------------------------------------------------- */

struct warm_run;

/* Looks at the body as this replica would, sent by the tenant of those who show nothing.
 * NULL where it cannot be warmed: see `e`. The body and the replica outlive the run. */
struct warm_run *warm_run_new(struct replica *r, const struct tenants *t,
                              const struct warm_body *b, struct err *e);
void warm_run_free(
    struct warm_run *run); /* gives up what is under way; NULL is allowed */

/* Whether the start is stored, and in how many tokens of blocks. */
bool warm_run_stored(const struct warm_run *run, uint32_t *tokens);
int warm_run_pin(const struct warm_run *run, const char *name, bool public,
                 struct err *e);

/* "warm-" and what the start hashes to. */
void warm_run_name(const struct warm_run *run, char out[32]);

/* Has the engine compute it. `status` as HTTP says it, 0: no answer; `why` is for people;
 * computed: tokens that the engine did not have. The run stays. */
typedef void (*warm_run_cb)(void *arg, int status, uint32_t computed, const char *why);
void warm_run_go(struct warm_run *run, warm_run_cb done, void *arg);

#endif
