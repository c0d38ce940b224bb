/* SPDX-License-Identifier: MIT */
#ifndef INCIPIT_BASE_DRAW_H
#define INCIPIT_BASE_DRAW_H

/*
 * Random numbers that a seed repeats on every machine: SplitMix64 (Steele, Lea, Flood
 * 2014). draw_key() makes a state of its own for each thing that is drawn, so that
 * nothing depends on the order in which things are asked for.
 */

#include <stdint.h>

static inline uint64_t draw_next(uint64_t *state)
{
    uint64_t z = *state += 0x9e3779b97f4a7c15u;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
}

/* The state for thing `what` number `i` (of `j`). */
static inline uint64_t draw_key(uint64_t seed, uint64_t what, uint64_t i, uint64_t j)
{
    uint64_t state = seed, part[3] = {what, i, j};
    for (int k = 0; k < 3; k++) {
        state ^= part[k];
        state = draw_next(&state);
    }
    return state;
}

/* 0 to n − 1; 0 for n = 0. */
static inline uint32_t draw_below(uint64_t *state, uint32_t n)
{
    return (uint32_t)((draw_next(state) >> 32) * n >> 32);
}

/* Above 0 and up to 1. */
static inline double draw_unit(uint64_t *state)
{
    return ((double)(draw_next(state) >> 11) + 1) / 9007199254740992.0;
}

#endif
