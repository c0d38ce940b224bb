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
 * samples of the fit, their noise, and the uncertainty of a, b and c. The noise has a
 * fixed part and one in proportion to the time; both are estimated from the samples, and
 * these are weighted accordingly.
 *
 * A plain value; {0} knows nothing.
 */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define TTFT_KEEP 512
#define TTFT_MIN 5 /* samples before anything is predicted */

struct ttft_sample {
    double reused, fresh; /* k, m in tokens */
    double ms;
};

struct ttft_model {
    struct ttft_sample v[TTFT_KEEP];
    uint64_t n;     /* samples ever added */
    double a, b, c; /* of the last fit; ms */
    double sigma;   /* about 1: deviation in units of the noise */
    struct ttft_noise {
        double fixed, relative; /* variance of a measurement: fixed + relative · ms² */
    } noise;
    double max_tokens; /* longest k + m among the samples of the fit */
    double min_fresh, max_fresh;
    bool fitted;
    bool stale; /* samples came since the last fit */

    /* private, of the last fit */
    struct ttft_fit {
        double beta[3];
        double spread[3][3]; /* covariance of beta for a sigma of 1 */
        double sigma, t95;   /* t95: quantile of Student's t */
    } kept, free;            /* with coefficients ≥ 0, and with any */
    double least;            /* no time counts as less noisy than this one, ms */
};

/* False for what cannot be a measurement: m < 1, k < 0, ms ≤ 0, no number, 10⁹ and
 * more. */
bool ttft_is_sample(double reused, double fresh, double ms);

/* Adds a measurement; what cannot be one is ignored. */
void ttft_add(struct ttft_model *m, double reused, double fresh, double ms);

struct ttft_estimate {
    double ms, low, high; /* 95 % prediction interval */
    bool extrapolated;    /* outside anything measured: leave it out of totals */
};

/* False while too little is known. Fits anew where samples came since the last call. */
bool ttft_predict(struct ttft_model *m, double reused, double fresh,
                  struct ttft_estimate *out);

/*
 * What n prompts would have cost together, cold (lengths in tokens). Their own noise
 * partly cancels out; the uncertainty of the model does not. False like ttft_predict().
 */
struct ttft_sum {
    double ms, half; /* the 95 % prediction interval is ms ± half */
};
bool ttft_predict_sum(struct ttft_model *m, const double *lengths, size_t n,
                      struct ttft_sum *out);

/*
 * What n prompts would have taken less if more[i] of their fresh tokens had been reused
 * as well (v[i].ms is not looked at). Like ttft_predict_sum().
 */
bool ttft_predict_gain(struct ttft_model *m, const struct ttft_sample *v,
                       const double *more, size_t n, struct ttft_sum *out);

#endif
