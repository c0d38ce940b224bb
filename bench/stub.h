/* SPDX-License-Identifier: MIT */
#ifndef INCIPIT_BENCH_STUB_H
#define INCIPIT_BENCH_STUB_H

/*
 * A service for benchmarks of the load generator, in a process and on a core of its own:
 * it answers every POST in the same way, after delays that are known, and writes down when
 * it did what, in microseconds of CLOCK_MONOTONIC. HTTP/1.1 as a load generator speaks it,
 * nothing more.
 */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

struct stub_options {
    unsigned tokens;   /* events of a stream; 0: one JSON document instead */
    uint64_t first_us; /* from the whole request to the first token, or to the document */
    uint64_t gap_us;   /* between two tokens; the end comes with the last */
    unsigned per_connection; /* requests, then it is closed without a word; 0: no limit */
    int core;                /* it keeps to this one; -1: any */
    size_t notes; /* how many requests are written down: those with a body that has
                           "user":"N", N below this */
};

/* In the order of time; 0: did not happen. */
struct stub_note {
    uint64_t received_us; /* the request was there */
    uint64_t first_us;    /* right before the first token was sent */
    uint64_t last_us;     /* right before the last one */
};

struct stub {
    pid_t pid;
    unsigned short port;
    const struct stub_note *notes; /* shared with it */
    size_t notes_bytes;
};

/* Exits the program where it cannot be started. */
void stub_start(struct stub *s, const struct stub_options *o);
void stub_stop(struct stub *s);

#endif
