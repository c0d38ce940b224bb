/* SPDX-License-Identifier: MIT */
#ifndef INCIPIT_PROTO_JLEX_H
#define INCIPIT_PROTO_JLEX_H

/*
 * A strict pull lexer for JSON (RFC 8259) that builds nothing: each call returns the next
 * token with its place in the text, and what the caller does not care for is skipped at
 * several bytes a cycle. Used on request bodies and on answers, which both come from
 * strangers.
 *
 * Strict: UTF-8 without byte-order mark, no lone surrogates, no control characters in
 * strings, no NaN, no comments, nothing behind the value, at most JLEX_MAX_DEPTH levels.
 * One thing valid JSON may hold is refused too: a NUL in a key. The grammar is checked
 * while tokens are read, so a text is known to be valid only when JLEX_END came.
 *
 * No recursion and no allocation. A lexer is a plain value; it borrows the text.
 */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/slice.h"

#define JLEX_MAX_DEPTH 512

enum jlex_type {
    JLEX_ERROR, /* see why, why_at; every later call returns it again */
    JLEX_END,   /* the text is one whole value */
    JLEX_OBJECT,
    JLEX_OBJECT_END,
    JLEX_ARRAY,
    JLEX_ARRAY_END,
    JLEX_KEY, /* of an object's member; the colon behind it is taken too */
    JLEX_STRING,
    JLEX_NUMBER,
    JLEX_TRUE,
    JLEX_FALSE,
    JLEX_NULL
};

struct jlex_token {
    enum jlex_type type;
    bool escaped;      /* a key or string with at least one backslash */
    size_t start, end; /* in the text, quotes included; brackets alone */
};

struct jlex {
    struct slice text;
    const char *why; /* static text, NULL while all is well */
    size_t why_at;

    /* private */
    size_t at;
    unsigned state;
    unsigned depth;
    uint64_t objects[JLEX_MAX_DEPTH / 64]; /* one bit a level: object or array */
};

/* Checks the encoding of the whole text; an error shows at the first jlex_next(). */
void jlex_init(struct jlex *j, struct slice text);

/* Reads the next token into `t` and returns its type. */
enum jlex_type jlex_next(struct jlex *j, struct jlex_token *t);

/*
 * `t` is the first token of a value: reads on to its end and stretches `t` over all of
 * it. False on an error. Scalars are whole already.
 */
bool jlex_skip(struct jlex *j, struct jlex_token *t);

/* Gives up: records the reason at `at`, unless there is one. Always returns false. */
bool jlex_fail(struct jlex *j, const char *why, size_t at);

/* The bytes of a token; of a key or string those between the quotes, still escaped. */
struct slice jlex_raw(const struct jlex *j, const struct jlex_token *t);

/*
 * The decoded text of a key or string: the body's own bytes where nothing is escaped,
 * else decoded into `tmp`. One of at most cap − JLEX_DECODE_ROOM bytes fits; a text that
 * does not has ptr NULL.
 */
struct slice jlex_text(const struct jlex *j, const struct jlex_token *t, char *tmp,
                       size_t cap);

/* A number written as an integer that fits. */
bool jlex_int(const struct jlex *j, const struct jlex_token *t, int64_t *out);

/* Any finite number. */
bool jlex_double(const struct jlex *j, const struct jlex_token *t, double *out);

/* The inside of a string: is it one, and valid? */
bool jlex_inside_ok(struct slice inside);

/*
 * Decodes from the front of `*in` (valid inside of a string) into `out` until `*in` is
 * used up or less than JLEX_DECODE_ROOM of `cap` is left; `*in` becomes the rest.
 * Returns the bytes written. Never splits an escape.
 */
#define JLEX_DECODE_ROOM 32
size_t jlex_decode(struct slice *in, char *out, size_t cap);

#endif
