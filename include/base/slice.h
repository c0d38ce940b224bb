/* SPDX-License-Identifier: MIT */
#ifndef INCIPIT_BASE_SLICE_H
#define INCIPIT_BASE_SLICE_H

/*
 * A slice is a borrowed run of bytes: pointer and length, no terminator, may hold NUL.
 * It is passed by value and never outlives the callback that handed it out.
 */

#include <stdbool.h>
#include <stddef.h>
#include <string.h>
#include <strings.h>

struct slice {
    const char *ptr;
    size_t len;
};

/* A slice of a string literal; of a C string; of raw bytes. */
#define SLICE_LIT(s) ((struct slice){"" s, sizeof(s) - 1})

static inline struct slice slice_of(const char *s)
{
    return (struct slice){s, s ? strlen(s) : 0};
}

static inline struct slice slice_make(const char *ptr, size_t len)
{
    return (struct slice){ptr, len};
}

static inline bool slice_eq(struct slice a, struct slice b)
{
    return a.len == b.len && (a.len == 0 || memcmp(a.ptr, b.ptr, a.len) == 0);
}

/* Equal without regard to ASCII case: header names, tokens. */
static inline bool slice_eq_nocase(struct slice a, struct slice b)
{
    return a.len == b.len && (a.len == 0 || strncasecmp(a.ptr, b.ptr, a.len) == 0);
}

static inline bool slice_starts(struct slice s, struct slice prefix)
{
    return s.len >= prefix.len &&
           (prefix.len == 0 || memcmp(s.ptr, prefix.ptr, prefix.len) == 0);
}

/* Without spaces and tabs at either end. */
static inline struct slice slice_trim(struct slice s)
{
    while (s.len && (s.ptr[0] == ' ' || s.ptr[0] == '\t'))
        s.ptr++, s.len--;
    while (s.len && (s.ptr[s.len - 1] == ' ' || s.ptr[s.len - 1] == '\t'))
        s.len--;
    return s;
}

#endif
