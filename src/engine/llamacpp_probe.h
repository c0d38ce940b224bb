/* SPDX-License-Identifier: MIT */
#ifndef INCIPIT_ENGINE_LLAMACPP_PROBE_H
#define INCIPIT_ENGINE_LLAMACPP_PROBE_H

/*
 * The probe, for its two files: llamacpp_probe.c asks who is there, llamacpp_selftest.c
 * whether it can restore. Each has a table of steps.
 */

#include "llamacpp_internal.h"

#define LLAMA_MAX_ADAPTERS 32

struct probe;

struct probe_step {
    const char *path; /* with %d: the slot */
    const char *body; /* of a POST; NULL: GET */
    void (*reply)(struct probe *p, int status, json_t *doc);
};

struct probe {
    struct llama *l;
    struct ask *ask;
    const struct probe_step *asked; /* by it */
    struct loop_timer retry;
    bool stopped; /* a worker still has it; freed when it comes back */
    bool working;
    bool attaching;   /* all is found out: it waits for the stored blocks */
    bool foreign;     /* another driver's business */
    unsigned n_waits; /* for idle slots */

    char model_path[1024], memo_name[64];
    struct buf identity; /* what goes into the fingerprint */
    json_t *adapters;    /* as the engine lists them; NULL: none */
    const char *adapter_paths[LLAMA_MAX_ADAPTERS]; /* in it */
    int slot;                                      /* where the self-test runs */
    char *saved_path, saved_name[64], *cut_path, cut_name[64];
    struct llama_look look;
    struct llama_logits logits; /* of its prompt, computed */
    struct llama_logits left;   /* of its prompt and more, in the slot left in place */
    unsigned n_copies;          /* of its text */
    double prompt_ms;           /* that it took */
    unsigned n_more;            /* what goes behind it, so many times */
    bool doubted;               /* the self-test has failed once */
    bool again;                 /* an engine that is in observe mode */
};

/* Sends it; `body` in the place of the table's. Where no answer comes the engine is down,
 * and the probe begins again later. */
void llama_probe_ask(struct probe *p, const struct probe_step *step, const char *body);

/* A worker has come back. False: the probe was stopped meanwhile, and is gone. */
bool llama_probe_worked(struct probe *p);

/* Ends it without store mode. `why` may belong to the probe. */
void llama_probe_observe(struct probe *p, const char *why);

/* The same if it happens a second time, since somebody else may have used the slot. */
void llama_probe_doubt(struct probe *p, const char *why);

/* It can restore. */
void llama_probe_tested(struct probe *p);

/* On p->slot, with the files p->saved_path and p->cut_path; ends in one of the above. */
void llama_selftest(struct probe *p);

#endif
