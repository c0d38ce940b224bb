/* SPDX-License-Identifier: MIT */
#ifndef INCIPIT_GATEWAY_WARM_H
#define INCIPIT_GATEWAY_WARM_H

/*
 * Warming: starts of prompts are computed, stored and pinned before anybody asks for them
 * (docs/warm.md). What the configuration lists is looked after for as long as the gateway
 * runs: it is computed again where the model has changed or a block of it was lost. What
 * a command asks for is done once.
 *
 *     PENDING ──replica stores──► RUNNING ──answered──► SAVING ──stored──► DONE
 *        ▲                           └────────┬────────────┘
 *        └──── a few times ── went wrong ◄────┘──── for good ──► FAILED
 *
 * Each start is computed once for each model (replicas of one model share what is
 * stored), one at a time for each replica, as a job that goes behind all clients. A start
 * that is stored already is only pinned.
 */

#include <jansson.h>

#include "gateway/options.h"
#include "gateway/request.h"

struct warm;

/* Reads the files of the list. One that cannot be read has failed, with the reason. */
struct warm *warm_open(struct request_world *w, const struct options *o);
/* What runs is given up, who waits gets an answer. NULL is allowed. */
/* A replica more: what `o` lists is made warm there, too. */
void warm_join(struct warm *w, const struct options *o, struct replica *r);

/* This one is about to leave: what was to be warm there has failed. */
void warm_part(struct warm *w, struct replica *r);

void warm_set_save(struct warm *w, bool save); /* store.save, changed */

void warm_close(struct warm *w);

/* How one start went on its replica. */
struct warm_outcome {
    int status;          /* as HTTP says it: 200, 400, 404, 502, 503, 507 */
    const char *name;    /* of the start */
    const char *replica; /* "": none */
    const char *why;     /* "" where all is well */
    uint32_t tokens;     /* stored, of the blocks that cover it */
    uint32_t computed;   /* of these, by the engine just now */
    double seconds;
    bool pinned;
    uint64_t bytes; /* of the pin */
};

/* The last call of a command: n outcomes, one a replica, borrowed for the call. */
typedef void (*warm_done_cb)(void *arg, const struct warm_outcome *v, size_t n);

struct warm_command {
    struct slice text;                  /* a request body, or a system prompt */
    const char *name;                   /* "": one is made from what the text hashes to */
    const char *path, *model, *replica; /* as in the configuration; "" each */
    bool pin;
    bool public;  /* the pin: for all tenants */
    bool compute; /* false: only what is stored already */
};

/* Starts a command; `done` comes later, never from inside, unless it is forgotten. */
struct warm_entry *warm_start(struct warm *w, const struct warm_command *c,
                              warm_done_cb done, void *arg);
/* Nobody waits for it any more; it goes on. */
void warm_forget(struct warm_entry *e);

/* Nothing of the list is still to come, or it need not be waited for; once that is so it
 * stays so. */
bool warm_is_ready(struct warm *w);

struct warm_counts {
    uint64_t pending, running, done, failed; /* now, starts times replicas */
    uint64_t computed_tokens;                /* since the start */
};
void warm_counts(const struct warm *w, struct warm_counts *out);

/* Each start on each replica, for the admin pages. */
json_t *warm_json(const struct warm *w);

#endif
