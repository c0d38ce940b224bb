/* SPDX-License-Identifier: MIT */
#ifndef INCIPIT_LAB_SERVE_H
#define INCIPIT_LAB_SERVE_H

/*
 * The built-in model behind the parts of llama-server's HTTP API that a gateway uses:
 * generations of four kinds with streams and timings, tokens and templates, slots that
 * keep and reuse the start of prompts, and slot files in llama-server's format (rows of
 * type f32). For tests, demonstrations and lessons, never to claim anything about real
 * engines. docs/lab.md says what is there and what differs.
 *
 * One thread: the model computes between the turns of the event loop, at most 64 tokens
 * at a time, so that every request is answered while others are computed.
 */

#include <stdint.h>

#include "base/err.h"

/* Ways to misbehave, for tests of what stands in front of it. */
#define LAB_MISBEHAVIOURS(X)                                                             \
    X(LAB_RESTORE_LIES, "restore-lies")       /* restore says yes and does nothing */    \
    X(LAB_STAYS_BUSY, "stays-busy")           /* a slot whose client left stays busy */  \
    X(LAB_CUT, "cut")                         /* answers end in the middle */            \
    X(LAB_LATE, "late")                       /* generations begin two seconds late */   \
    X(LAB_RESET, "reset")                     /* a reset instead of an answer */         \
    X(LAB_WRONG_COUNTS, "wrong-counts")       /* says 1,000 more tokens were reused */   \
    X(LAB_NO_REUSE, "no-reuse-after-restore") /* as sliding-window models do */          \
    X(LAB_RECURRENT, "recurrent")             /* as recurrent models do */               \
    X(LAB_NO_SLOTS, "no-slots")               /* GET /slots: 501 */

enum lab_misbehaviour {
#define X(code, name) code,
    LAB_MISBEHAVIOURS(X)
#undef X
        LAB_MISBEHAVIOUR_KINDS
};

struct lab_serve_options {
    const char *listen;         /* "ADDR:PORT"; port 0: any */
    uint32_t slots, context;    /* tokens of context, each slot */
    const char *slot_save_path; /* NULL: save, restore and erase answer 501 */
    uint64_t seed;              /* of the weights */
    uint32_t state_version;     /* of slot files: 2 or 4 */
    const char *alias;          /* name of the model */
    int64_t predict;            /* tokens of an answer without limit; -1: until it ends */
    uint64_t token_cost_us;     /* what a prompt token takes besides computing */
    unsigned misbehave;         /* bits 1u << LAB_… */
};
#define LAB_SERVE_DEFAULT                                                                \
    ((struct lab_serve_options){"127.0.0.1:8080", 2, 8192, NULL, 1, 2, "incipit-lab",    \
                                -1, 0, 0})

#define LAB_SERVE_MAX_SLOTS 64
#define LAB_SERVE_MAX_CONTEXT (1u << 20)

/* "cut,late": the bits of the names; "": none. ERR_INVALID for a name that is none. */
int lab_misbehave_parse(const char *names, unsigned *set, struct err *e);

/* Prints "listening on ADDR:PORT" and serves until SIGTERM or SIGINT. 0, or a negative
 * ERR_ code where it cannot start. */
int lab_serve_run(const struct lab_serve_options *o, struct err *e);

#endif
