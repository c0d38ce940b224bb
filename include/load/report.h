/* SPDX-License-Identifier: MIT */
#ifndef INCIPIT_LOAD_REPORT_H
#define INCIPIT_LOAD_REPORT_H

/*
 * What a run has shown: one JSON document (docs/bench.md has its fields), a table made
 * from it, and a line for each request as CSV. Neither holds a host's name, an address, a
 * prompt or an answer.
 */

#include <jansson.h>
#include <stdio.h>

#include "load/runner.h"
#include "load/verdict.h"

#define REPORT_SCHEMA "incipit-bench/1"

struct report_input {
    const struct runner *runner; /* after its run */
    const struct runner_options *options;
    const struct workload *workload;
    const char *engine, *model; /* NULL: not known */
    bool stream;
    const struct verdict_limits *good;
    const struct agree *agree; /* NULL: answers were not compared */
    double knee, until; /* shares of good answers, of runs with steps; until 0: none */
};

/* A new reference. */
json_t *report_json(const struct report_input *in);

/* Is it a document of report_json(), by its schema? */
bool report_is(const json_t *doc);

/* The document as a table. */
void report_print(const json_t *doc, FILE *out);

/* Differences of times of arms A and B, by name, as report_json() and compare.h hold
 * them; `a` and `b` are what the columns are called. */
void report_print_contrasts(const json_t *contrasts, const char *a, const char *b,
                            FILE *out);

/* One line a request, with a line of names before them. */
void report_csv(const struct report_input *in, FILE *out);

/* Times that are told: their name in the document, what it is called in tables. */
struct report_time {
    const char *name, *words;
    double (*of)(const struct sample *);
};
extern const struct report_time report_times[]; /* ends with a NULL name */

/* What is told of each request, as lists of equal length, and how often which gap came:
 * docs/bench.md. */
json_t *report_samples(const struct tally *t);

/* Two series of values, NAN where there is none, as JSON; null for too few values. */
json_t *report_contrast(const double *a, size_t n_a, const double *b, size_t n_b,
                        bool paired);

/* NAN is null. */
json_t *report_number(double value);

#endif
