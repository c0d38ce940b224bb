/* SPDX-License-Identifier: MIT */
#ifndef INCIPIT_TESTS_FUZZ_JSON_READING_H
#define INCIPIT_TESTS_FUZZ_JSON_READING_H

#include <stdbool.h>

#include "proto/jlex.h"

/* One whole JSON object, and nothing behind it. */
static inline bool is_object(struct slice text)
{
    struct jlex j;
    struct jlex_token t;
    jlex_init(&j, text);
    return jlex_next(&j, &t) == JLEX_OBJECT && jlex_skip(&j, &t) &&
           jlex_next(&j, &t) == JLEX_END;
}

#endif
