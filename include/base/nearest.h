/* SPDX-License-Identifier: MIT */
#ifndef INCIPIT_BASE_NEAREST_H
#define INCIPIT_BASE_NEAREST_H

/*
 * "Did you mean …?": among the names offered, the one with the fewest edits (insert,
 * delete, replace one byte) from a mistyped word. Offer all names, then ask.
 */

#include <stddef.h>

struct nearest {
    const char *word, *best;
    size_t edits; /* of the best so far */
};

static inline struct nearest nearest_to(const char *word)
{
    return (struct nearest){.word = word, .edits = (size_t)-1};
}

void nearest_offer(struct nearest *n, const char *name);

/* The best name, or NULL where nothing comes close (more than a third is different). */
const char *nearest_get(const struct nearest *n);

#endif
