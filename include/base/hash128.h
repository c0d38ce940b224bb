/* SPDX-License-Identifier: MIT */
#ifndef INCIPIT_BASE_HASH128_H
#define INCIPIT_BASE_HASH128_H

/*
 * A 128-bit hash as a value: chain hashes, piece hashes, fingerprints, checksums.
 * How it is computed is the business of prefix/chain.h. All-zero means "none".
 */

#include <stdbool.h>
#include <stdint.h>

struct hash128 {
    uint64_t lo, hi;
};

#define HASH128_HEX 33 /* 32 lower-case digits (hi, then lo) and a NUL */

static inline bool hash128_eq(struct hash128 a, struct hash128 b)
{
    return a.lo == b.lo && a.hi == b.hi;
}

static inline bool hash128_none(struct hash128 h)
{
    return h.lo == 0 && h.hi == 0;
}

/* Writes 32 digits and a NUL to `out`, returns `out`. */
char *hash128_hex(struct hash128 h, char out[HASH128_HEX]);

/* The whole string must be exactly 32 digits, of either case. */
bool hash128_parse(const char *hex, struct hash128 *out);

#endif
