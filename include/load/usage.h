/* SPDX-License-Identifier: MIT */
#ifndef INCIPIT_LOAD_USAGE_H
#define INCIPIT_LOAD_USAGE_H

/*
 * What a service takes of its machine between two moments: processor time and resident
 * memory of its processes, seen through /proc (base/procs.h), and the bytes of KV in an
 * incipit's store, asked at its admin side. Only what runs on this machine can be seen;
 * what cannot is unknown (null), not 0.
 *
 *     usage_begin() ── looks at all processes five times a second ── usage_end() ──► JSON
 *
 * Which processes: those named, those that listen on a port, and the descendants of both;
 * looked up at each usage_begin(), so what is started later is not seen. One that ends in
 * between counts until it was seen last.
 */

#include <jansson.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "base/err.h"
#include "io/loop.h"

#define USAGE_MAX 256 /* processes of a service */

struct usage;

struct usage_options {
    const pid_t *pids; /* named */
    size_t n_pids;     /* at most USAGE_MAX */
    uint16_t port;     /* 0: none */
    const char *admin; /* URL of incipit's admin side, or NULL */
};

/* NULL with `e` set where a process that was named does not exist, or `admin` is no URL.
 * Borrows the loop. */
struct usage *usage_new(struct loop *l, const struct usage_options *o, struct err *e);
void usage_free(struct usage *u); /* NULL is allowed */

/* Each of the two runs the loop until the admin side has answered, where there is one,
 * for 2 s at most; so neither may be called from inside the loop. */
void usage_begin(struct usage *u);

/* Since usage_begin(): a new reference to an object, whose members docs/bench.md lists
 * under `resources`. */
json_t *usage_end(struct usage *u);

/* "A: 2 processes, 1.43 cores, …": an object of usage_end() for people, a line or two. */
void usage_print(const json_t *resources, FILE *out);

/* The machine that this runs on: cores, memory, processor and kernel; no host name. */
json_t *usage_machine(void);

#endif
