/* SPDX-License-Identifier: MIT */

/*
 * The built-in model's speed on one core: a prompt of 2,000 tokens, computed in one call
 * and in batches of 64 as the server does, and tokens one by one behind it. Median of
 * several runs, tokens a second.
 */

#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "lab/model.h"

#define PROMPT 2000
#define ANSWER 200
#define RUNS 7

static double now_s(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static int by_size(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

/* Appends n tokens, `at_once` of them a call; tokens a second. */
static double feed(const struct lab_model *m, struct lab_cache *c, const uint32_t *tokens,
                   size_t n, size_t at_once)
{
    float logits[LAB_VOCAB];
    const double start = now_s();
    for (size_t at = 0; at < n; at += at_once) {
        const struct lab_step s = {.tokens = tokens + at,
                                   .n = n - at < at_once ? n - at : at_once,
                                   .logits = logits};
        if (!lab_forward(m, c, &s))
            abort();
    }
    return (double)n / (now_s() - start);
}

/* The first `before` tokens come first and are not measured. */
static void run(const struct lab_model *m, const char *what, size_t before, size_t n,
                size_t at_once)
{
    uint32_t tokens[PROMPT + ANSWER];
    double speed[RUNS];
    for (size_t i = 0; i < PROMPT + ANSWER; i++)
        tokens[i] = (uint32_t)(' ' + i * i % 95);
    for (int i = 0; i < RUNS; i++) {
        struct lab_cache *c = lab_cache_new(m, PROMPT + ANSWER);
        if (before)
            feed(m, c, tokens, before, before);
        speed[i] = feed(m, c, tokens + before, n, at_once);
        lab_cache_free(c);
    }
    qsort(speed, RUNS, sizeof(*speed), by_size);
    printf("%-44s %8.0f tokens/s\n", what, speed[RUNS / 2]);
}

int main(void)
{
    struct lab_model *m = lab_model_new(LAB_SHAPE_DEFAULT, 1);
    run(m, "prefill, 2,000 tokens in one call", 0, PROMPT, PROMPT);
    run(m, "prefill, 2,000 tokens in batches of 64", 0, PROMPT, 64);
    run(m, "decode behind 10 tokens", 10, ANSWER, 1);
    run(m, "decode behind 2,000 tokens", PROMPT, ANSWER, 1);
    lab_model_free(m);
    return 0;
}
