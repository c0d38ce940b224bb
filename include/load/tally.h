/* SPDX-License-Identifier: MIT */
#ifndef INCIPIT_LOAD_TALLY_H
#define INCIPIT_LOAD_TALLY_H

/* The samples of one arm in one phase of a run. */

#include <stddef.h>

#include "load/kind.h"
#include "load/reading.h"

struct tally {
    struct sample *samples; /* in the order in which they ended */
    size_t n, room;
    struct spread gaps; /* of all content events, whatever became of their request */
    struct spread *kind_gaps[KINDS]; /* the same of each kind; NULL: none */
    uint64_t begun_us;               /* of the phase */
    uint64_t ended_us;
};

void tally_free(struct tally *t); /* its contents; {0} is an empty one */
void tally_add(struct tally *t, const struct sample *s);

/* Gaps of a kind, to be added to; NULL for KIND_NONE. */
struct spread *tally_gaps(struct tally *t, enum kind k);

/* The samples of a kind alone, and its gaps. */
struct tally tally_of_kind(const struct tally *t, enum kind k);

/* Into the order of the workload. */
void tally_sort(struct tally *t);

uint64_t tally_count(const struct tally *t, enum sample_outcome o);

/* The numbers that `of` gives (NAN left out), sorted; *n of them; to be freed. */
double *tally_values(const struct tally *t, double (*of)(const struct sample *),
                     size_t *n);

/* Nearest rank of sorted values; NAN for none. */
double tally_quantile(const double *sorted, size_t n, double p);

#endif
