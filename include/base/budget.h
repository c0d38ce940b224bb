/* SPDX-License-Identifier: MIT */
#ifndef INCIPIT_BASE_BUDGET_H
#define INCIPIT_BASE_BUDGET_H

/*
 * A bound on what many hold together (bytes, in practice). Each of them keeps its own
 * share; `used` is the sum of all shares. For one thread.
 */

#include <stdbool.h>
#include <stdint.h>

struct budget {
    uint64_t max, used;
};

/* Whether a share may become `n`: it always may become smaller. */
static inline bool budget_fits(const struct budget *b, uint64_t share, uint64_t n)
{
    const uint64_t others = b->used - share;
    return n <= share || (n <= b->max && others <= b->max - n);
}

/* Makes it `n`. False, and nothing changed, where it does not fit. */
static inline bool budget_set(struct budget *b, uint64_t *share, uint64_t n)
{
    if (!budget_fits(b, *share, n))
        return false;
    b->used += n - *share;
    *share = n;
    return true;
}

#endif
