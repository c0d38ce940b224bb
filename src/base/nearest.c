/* SPDX-License-Identifier: MIT */
#include "base/nearest.h"

#include <string.h>

#define LONGEST 64 /* no name here is longer; words beyond it resemble none */

static size_t least(size_t a, size_t b, size_t c)
{
    const size_t d = a < b ? a : b;
    return c < d ? c : d;
}

/* Levenshtein's distance; row[j] is that of the first i bytes of a and j of b. */
static size_t distance(const char *a, size_t n_a, const char *b, size_t n_b)
{
    size_t row[LONGEST + 1];
    for (size_t j = 0; j <= n_b; j++)
        row[j] = j;
    for (size_t i = 1; i <= n_a; i++) {
        size_t diagonal = row[0];
        row[0] = i;
        for (size_t j = 1; j <= n_b; j++) {
            const size_t above = row[j];
            row[j] = least(above + 1, row[j - 1] + 1, diagonal + (a[i - 1] != b[j - 1]));
            diagonal = above;
        }
    }
    return row[n_b];
}

void nearest_offer(struct nearest *n, const char *name)
{
    const size_t n_word = strlen(n->word), n_name = strlen(name);
    if (n_word > LONGEST || n_name > LONGEST)
        return;
    const size_t edits = distance(n->word, n_word, name, n_name);
    if (edits < n->edits) {
        n->edits = edits;
        n->best = name;
    }
}

const char *nearest_get(const struct nearest *n)
{
    if (!n->best)
        return NULL;
    const size_t len = strlen(n->best);
    return n->edits <= (len > 5 ? len / 3 : 1) ? n->best : NULL;
}
