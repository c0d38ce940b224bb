/* SPDX-License-Identifier: MIT */
#include "base/trouble.h"

bool trouble_begins(struct trouble *t, uint64_t now_us)
{
    const bool first = !t->last_us;
    t->n = first ? 1 : t->n + 1;
    t->last_us = now_us;
    return first;
}

bool trouble_ends(struct trouble *t, uint64_t now_us)
{
    if (!t->last_us || now_us - t->last_us < TROUBLE_CALM_US)
        return false;
    t->last_us = 0;
    return true;
}
