/* SPDX-License-Identifier: MIT */
#ifndef INCIPIT_LOAD_REPORT_PARTS_H
#define INCIPIT_LOAD_REPORT_PARTS_H

/* What the files of the report share: report.c makes the document of one arm,
 * report_steps.c that of steps, and the _text ones print them. */

#include "load/report.h"

extern const char *const report_arm_names[RUNNER_ARMS];

/* The figures of `t`. What is in `around` (NULL: nothing) and ended meanwhile counts for
 * the throughput, as the service did it too. `resources` is borrowed, or NULL. */
json_t *report_arm(const struct tally *t, const struct tally *around, json_t *resources,
                   const char *name, const struct verdict_limits *l);
json_t *report_outcomes(const struct tally *t);
json_t *report_contrasts(const struct tally *a, const struct tally *b);

/* Steps: what is set, into "settings"; and what they showed, into the document. */
void report_step_settings(const struct report_input *in, json_t *settings);
void report_put_steps(const struct report_input *in, json_t *doc);
void report_print_steps(const json_t *doc, FILE *out);

#endif
