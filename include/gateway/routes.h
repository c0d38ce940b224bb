/* SPDX-License-Identifier: MIT */
#ifndef INCIPIT_GATEWAY_ROUTES_H
#define INCIPIT_GATEWAY_ROUTES_H

/*
 * What a path means to the gateway. Decided on a normalised copy of the target; the
 * target itself goes to the engine byte for byte. Unknown paths are relayed untouched.
 */

#include <stdbool.h>

#include "base/slice.h"
#include "proto/prompt.h"

struct route {
    bool refused;        /* one of the engine's admin calls */
    bool bad_path;       /* ".." or otherwise not to be normalised */
    bool generates;      /* takes a slot of the engine */
    enum prompt_api api; /* how its body is read; PROMPT_NONE: not at all */
};

struct route routes_find(struct slice method, struct slice target);

#endif
