/* SPDX-License-Identifier: MIT */
#ifndef INCIPIT_LOAD_VERDICT_H
#define INCIPIT_LOAD_VERDICT_H

/*
 * Is an answer good? By limits that are set before the run:
 *
 *   outcome   it was completed
 *   answer    it says something, and what its request expects; of paths that are not read
 *             nobody can tell: it passes
 *   ttft      its first token came within so long, from the planned moment
 *   gap       its longest gap between events with content is at most so long. Of up to
 *             100 gaps that is the p99 (nearest rank) too. Without gaps it passes
 *   total     its end came within so long, from the planned moment
 *
 * What was not completed fails by its outcome alone, what says nothing not by ttft and
 * gap; all else by each limit that it does not keep. A time that is not known is not
 * kept. Pending requests are not judged.
 */

#include <stdint.h>

#include "base/err.h"
#include "load/tally.h"

enum verdict_by {
    VERDICT_OUTCOME,
    VERDICT_ANSWER,
    VERDICT_TTFT,
    VERDICT_GAP,
    VERDICT_TOTAL,
    VERDICT_N
};
extern const char *const verdict_names[VERDICT_N];

struct verdict_limits {
    double ms[VERDICT_N]; /* of times; 0: no limit */
};

struct verdict_count {
    uint64_t n, good, failed[VERDICT_N];
};

/* "ttft=500ms,gap=50ms,total=10s"; any of them, each once. */
int verdict_parse(const char *text, struct verdict_limits *out, struct err *e);

/* A bit (1 << by) for each that it fails by; 0 is good. */
unsigned verdict_of(const struct verdict_limits *l, const struct sample *s);

void verdict_add(struct verdict_count *c, const struct verdict_limits *l,
                 const struct tally *t);

/* Good of n, NAN of none; and the 95 % interval of a share (Wilson 1927). */
double verdict_share(const struct verdict_count *c);
void verdict_interval(const struct verdict_count *c, double *low, double *high);

#endif
