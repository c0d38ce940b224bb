/* SPDX-License-Identifier: MIT */
#ifndef INCIPIT_LOAD_SCALE_H
#define INCIPIT_LOAD_SCALE_H

/* The numbers of an axis: which range it shows, where a value is on it, which values are
 * marked and how they are written. Pure. */

#include <stdbool.h>
#include <stddef.h>

#define SCALE_LOG_SPAN 30.0 /* largest by smallest value from which an axis is log */
#define SCALE_TICKS 12      /* at most, on an axis */

/* What there is to show. {0} has seen nothing. */
struct scale_extent {
    double low, high, least; /* least: the smallest above 0 */
    size_t n, n_positive;
};

/* What is not finite is left out. Beyond ±SCALE_MOST counts as that, what is nearer to 0
 * than SCALE_LEAST as 0. */
#define SCALE_MOST 1e15
#define SCALE_LEAST 1e-15
void scale_see(struct scale_extent *e, const double *v, size_t n);

struct scale {
    double low, high; /* low < high; of a log scale above 0 */
    bool log;
};

/* Ends are round numbers. From 0, or from below where values are negative; log where it
 * may be, nothing is negative and the values above 0 span SCALE_LOG_SPAN. Of nothing:
 * 0 to 1. */
struct scale scale_fit(const struct scale_extent *e, bool may_be_log);

/* Exactly this range; a log one must not hold 0. */
struct scale scale_exact(double low, double high);

/* Place of a value, 0 at the low end to 1; what is beyond an end (on a log scale: 0 too)
 * is at that end. NAN stays NAN. */
double scale_at(const struct scale *s, double value);

/* Round values within the range, about `wanted` of them (2 to SCALE_TICKS − 1), rising;
 * at least two of a range that scale_fit() gave. */
size_t scale_ticks(const struct scale *s, unsigned wanted, double out[SCALE_TICKS]);

enum scale_unit {
    SCALE_COUNT,  /* 1,500 is "1.5k" */
    SCALE_MS,     /* 1500 is "1.5 s" */
    SCALE_SHARE,  /* 0.25 is "25 %" */
    SCALE_CHANGE, /* 0.25 is "+25 %" */
    SCALE_BYTES   /* 2048 is "2 KiB" */
};

#define SCALE_LABEL 32

/* Short, for a tick: three digits that count. "–" where it is not finite. */
void scale_label(enum scale_unit unit, double value, char out[SCALE_LABEL]);

#endif
