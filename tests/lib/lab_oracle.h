/* SPDX-License-Identifier: MIT */
#ifndef INCIPIT_TESTS_LAB_ORACLE_H
#define INCIPIT_TESTS_LAB_ORACLE_H

/*
 * A second opinion on the built-in model: the same weights, drawn anew, and the textbook's
 * formulas in double precision, one plain loop inside the other, without a cache.
 */

#include <stddef.h>
#include <stdint.h>

#include "lab/model.h"

/* Logits behind the last of n tokens. */
void lab_oracle_logits(struct lab_shape shape, uint64_t seed, const uint32_t *tokens,
                       size_t n, double logits[LAB_VOCAB]);

#endif
