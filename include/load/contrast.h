/* SPDX-License-Identifier: MIT */
#ifndef INCIPIT_LOAD_CONTRAST_H
#define INCIPIT_LOAD_CONTRAST_H

/*
 * Two sets of times: is one different from the other, or is it noise? Difference b − a of
 * means (bootstrap-t) and of medians (percentile bootstrap), each with a 95 % interval.
 * Where the interval contains 0, no difference is seen. CONTRAST_RESAMPLES resamples,
 * fewer (200 at least) of more than 20,000 values. The same values give the same result.
 *
 * Paired: a[i] and b[i] belong together (the same request, asked at the same time) and
 * are resampled together, so that what differs between requests is no noise.
 */

#include <stdbool.h>
#include <stddef.h>

#define CONTRAST_RESAMPLES 2000
#define CONTRAST_MIN 5 /* values of each set, else nothing is said */

struct contrast {
    double a, b;                  /* means or medians */
    double difference, low, high; /* b − a */
    bool seen;                    /* the interval does not contain 0 */
};

struct contrast_result {
    size_t n_a, n_b;
    bool known; /* enough values */
    struct contrast mean, median;
};

/* NAN are left out (of a pair: both). For pairs n_a = n_b. */
void contrast_of(const double *a, size_t n_a, const double *b, size_t n_b, bool paired,
                 struct contrast_result *out);

#endif
