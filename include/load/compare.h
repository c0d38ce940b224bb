/* SPDX-License-Identifier: MIT */
#ifndef INCIPIT_LOAD_COMPARE_H
#define INCIPIT_LOAD_COMPARE_H

/*
 * Two documents of report_json(), made at different times: what changed, and is it noise?
 * Arm A of each is compared, from the times of its requests. Where both asked the same
 * requests (profile and seed) these are compared in pairs. What else changed in a machine
 * between two runs is in the difference too: two arms of one run tell more.
 */

#include <jansson.h>
#include <stdio.h>

#include "base/err.h"

/* A new reference: "settings" (those that differ, each [a, b]), "paired", "figures" (of
 * the whole run, each [a, b]), "good" (difference of shares; null where limits are not
 * the same), "contrasts" as in a report. Of runs with steps the last four are in "steps",
 * a list with a "load" each; loads that only one of them has are in "alone". NULL with
 * `e` set where one of them is no report, or one has steps and the other has none. */
json_t *compare_documents(const json_t *a, const json_t *b, struct err *e);

void compare_print(const json_t *comparison, FILE *out);

#endif
