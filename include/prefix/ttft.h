/* SPDX-License-Identifier: MIT */
#ifndef INCIPIT_PREFIX_TTFT_H
#define INCIPIT_PREFIX_TTFT_H

/*
 * What would this prompt have cost cold? A model of the time to first token of one
 * replica, fitted to its own recent requests:
 *
 *     ttft(k, m) = a + b·m + c·((k + m)² − k²)      m new tokens behind k reused ones
 *
 * b is the linear cost of a token, c its attention to everything before it; all three
 * are kept ≥ 0. Only requests that no other prefill overlapped may be added. Robust:
 * refitted with residuals beyond three (scaled) median deviations left out. Recent: a
 * window of TTFT_KEEP samples.
 *
 * The interval is where a new measurement would lie, 95 of 100 times: Student's t for the
 * samples of the fit, noise of equal size everywhere, and the uncertainty of a, b and c.
 *
 * A plain value; {0} knows nothing.
 */

#include <stdbool.h>
#include <stdint.h>

#define TTFT_KEEP 512
#define TTFT_MIN 5 /* samples before anything is predicted */

struct ttft_sample {
    double reused, fresh; /* k, m in tokens */
    double ms;
};

struct ttft_model {
    struct ttft_sample v[TTFT_KEEP];
    uint64_t n;            /* samples ever added */
    double a, b, c, sigma; /* of the last fit; ms */
    double max_tokens;     /* longest k + m among the samples of the fit */
    double min_fresh, max_fresh;
    bool fitted;
    bool stale; /* samples came since the last fit */

    /* private, of the last fit */
    double spread[3][3]; /* covariance of a, b, c for a sigma of 1 */
    double t95;          /* quantile of Student's t */
};

/* Adds a measurement. What cannot be one (m < 1, k < 0, ms ≤ 0, no number, 10⁹ or
 * more) is ignored. */
void ttft_add(struct ttft_model *m, double reused, double fresh, double ms);

struct ttft_estimate {
    double ms, low, high; /* 95 % prediction interval */
    bool extrapolated;    /* outside anything measured: leave it out of totals */
};

/* False while too little is known. Fits anew where samples came since the last call. */
bool ttft_predict(struct ttft_model *m, double reused, double fresh,
                  struct ttft_estimate *out);

#endif
