/* SPDX-License-Identifier: MIT */
#ifndef INCIPIT_CMD_BENCH_H
#define INCIPIT_CMD_BENCH_H

/* What cmd_bench.c and its neighbours share: what is sent and when; a load that is
 * raised in steps; files. */

#include <stdbool.h>

#include <jansson.h>

#include "base/buf.h"
#include "load/runner.h"

#define BENCH_OPEN_CONCURRENCY 500

/* The flags, NULL where absent. Says what is wrong and returns false. */
struct bench_input_flags {
    const char *profile, *input, *scale, *at_once, *max_tokens;
    const char *arrivals, *speed, *rate, *steps, *concurrency;
};
bool cmd_bench_take_input(const struct bench_input_flags *f, struct workload_options *w,
                          struct runner_options *o);

/* Once it is known whether the input has times: whether they are those of the run. */
int cmd_bench_choose_times(const struct bench_input_flags *f, const struct workload *w,
                           struct runner_options *o, struct err *e);

struct bench_steps {
    struct runner_step steps[RUNNER_MAX_STEPS];
    size_t n;
    double knee, until; /* shares of good answers; until 0: none */
    bool settle_given;
};

/* The flags, NULL where absent. Says what is wrong and returns false. Sets the steps of
 * `o` where there are any: of --steps, or of a --rate that is a list. */
struct bench_step_flags {
    const char *steps, *rate, *settle, *knee, *until;
};
bool cmd_bench_take_steps(const struct bench_step_flags *f, struct bench_steps *s,
                          struct runner_options *o);

/* Once it is known how many requests a step has: how long it settles, if nobody said. */
void cmd_bench_settle(struct bench_steps *s, const struct runner_options *o);

/* How long the steps behind this one will take, at its pace; NAN: not known. */
double cmd_bench_seconds_behind(const struct bench_steps *s,
                                const struct runner_options *o,
                                const struct runner_progress *p);

/* The JSON of a file, a new reference; NULL after saying what is wrong. */
json_t *cmd_bench_read(const char *command, const char *file);

/* Writes a page to a file; the exit status, after saying what is wrong. */
int cmd_bench_write(const char *command, const char *file, struct buf *page);

#endif
