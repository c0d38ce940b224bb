/* SPDX-License-Identifier: MIT */
#include "load/kind.h"

#include <stddef.h>

const char *kind_name(enum kind k)
{
    static const char *const names[KINDS] = {
        [KIND_SHORT] = "short",
        [KIND_LONG_IN] = "long-in",
        [KIND_LONG_OUT] = "long-out",
        [KIND_SHORT_ALONE] = "short-alone",
        [KIND_SHORT_IN_PREFILL] = "short-in-prefill",
        [KIND_SHORT_IN_ANSWER] = "short-in-answer",
        [KIND_SHORT_LATE] = "short-late",
        [KIND_LONG_ALONE] = "long-alone",
        [KIND_LONG_MET] = "long-met",
    };
    return names[k];
}
