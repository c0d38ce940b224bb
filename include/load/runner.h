/* SPDX-License-Identifier: MIT */
#ifndef INCIPIT_LOAD_RUNNER_H
#define INCIPIT_LOAD_RUNNER_H

/*
 * Sends a workload to one service, or to two (arms A and B) in turn, and keeps what came
 * of each request.
 *
 * Closed loop (rate 0): `concurrency` requests are under way at any time; the next starts
 * when one has ended. Open loop: requests are started at the times of arrivals.h, however
 * slow the service is, and are timed from there. Where `concurrency` are under way
 * already, or this process is late, a request starts late; that is its lag, and part of
 * its times.
 *
 * First `warmup` requests for each arm run as a closed loop (of one in an open run) and
 * are kept apart; the run proper goes on behind them in the workload. It ends with
 * `requests` for each arm, or when duration_ms is over, whichever comes first: then what
 * is under way is waited for. With two arms each pair of sends goes to both, which of
 * them first is drawn, and both get the same requests of the workload, in other words.
 *
 * With `steps` the run proper is a list of them, one after the other, each with its own
 * load. A step has a part in which the load settles, told apart, then the measured part:
 * `requests` for each arm, or duration_ms. In a closed loop the load is then kept up
 * until the last measured request has ended; what is sent for that is told with what
 * settled. What is under way is waited for before the next step. Both parts begin at a
 * whole pass of the workload, so no part finds words of another, and the measured parts
 * of all steps are made alike. Arrivals of each step are drawn apart.
 *
 * Connections are used again, as clients do, or each request has one of its own. One that
 * the service had closed before a single byte of the answer came is replaced once; the
 * request's times go on, and it is counted.
 */

#include <stdbool.h>
#include <stdint.h>

#include "io/loop.h"
#include "io/tls.h"
#include "load/agree.h"
#include "load/tally.h"
#include "load/usage.h"
#include "load/workload.h"

#define RUNNER_ARMS 2
#define RUNNER_MAX_REQUESTS 1000000u /* of an arm */
#define RUNNER_MAX_CONCURRENCY 10000u
#define RUNNER_MAX_RATE 100000.0
#define RUNNER_MAX_STEPS 64

struct runner_step {
    unsigned concurrency; /* at least 1 */
    double rate;          /* of all arms together, a second; 0: closed loop */
    uint64_t settle;      /* the load settles for so many requests of an arm, */
    uint64_t settle_ms;   /* and for at least so long */
};

struct runner_options {
    const char *url[RUNNER_ARMS];    /* the second may be NULL */
    const char *headers;             /* complete lines, "" for none */
    struct tls_options tls;          /* for https; `name` NULL: that of the URL */
    const struct runner_step *steps; /* borrowed; NULL: no steps, but the next two */
    size_t n_steps;
    unsigned concurrency; /* at least 1 */
    double rate;          /* of all arms together, a second; 0: closed loop */
    bool poisson;
    double speed; /* above 0: an open loop at the workload's own times, so many times as
                     fast, each arm at all of them; then no rate and no steps */
    uint64_t requests;    /* of an arm, in the run proper or a step; at least 1 */
    uint64_t duration_ms; /* of the same; 0: no limit */
    uint64_t warmup;      /* of an arm */
    uint64_t timeout_ms;  /* for the first byte, and between bytes */
    bool keep_alive;
    uint64_t seed;
    struct agree *agree; /* borrowed: gets all answers, and both arms send the same
                            words. NULL: answers are not compared */

    /* usage.h: whose resources are told. Processes that listen on the port of a loopback
     * URL need not be named. */
    struct usage_options watch[RUNNER_ARMS];
};

struct runner_progress {
    uint64_t sent, ended, planned; /* of the phase or step */
    uint64_t elapsed_us;
    bool warmup;
    bool settling; /* of a step */
    size_t step;
};

struct runner;

/* NULL with `e` set where a URL is none, for requests that meet (workload.h) under
 * another load than a closed loop of one to one service, or for what usage_new() refuses.
 * Borrows loop, workload and the headers. */
struct runner *runner_new(struct loop *l, const struct workload *w,
                          const struct runner_options *o, struct err *e);
void runner_free(struct runner *r);

/* Told twice a second while it runs; before runner_run(). */
void runner_on_progress(struct runner *r,
                        void (*tell)(void *arg, const struct runner_progress *p),
                        void *arg);

/* Runs the loop until all is over. */
void runner_run(struct runner *r);

/* Ends the run now: what is under way is pending. From a callback of the loop. */
void runner_stop(struct runner *r);
bool runner_stopped(const struct runner *r);

/* Asked after each step but the last one: shall the next be run? Before runner_run(). */
void runner_on_step(struct runner *r, bool (*ask)(void *arg, size_t step), void *arg);

/* After the run: samples of an arm, in the order of the workload. Of steps: the first. */
const struct tally *runner_tally(const struct runner *r, unsigned arm, bool warmup);

/* How many steps were begun; without steps 0. */
size_t runner_steps(const struct runner *r);

/* After a step, its measured samples, or those told apart. */
const struct tally *runner_step_tally(const struct runner *r, size_t step, unsigned arm,
                                      bool measured);

/* What usage_end() said of the service of an arm; NULL for a phase that was not run. Of
 * a step: of all of it. */
json_t *runner_resources(const struct runner *r, unsigned arm, bool warmup);
json_t *runner_step_resources(const struct runner *r, size_t step, unsigned arm);

#endif
