/* SPDX-License-Identifier: MIT */
#ifndef INCIPIT_LAB_GGUF_H
#define INCIPIT_LAB_GGUF_H

/*
 * The metadata of a GGUF file, versions 2 and 3: typed values under names like
 * "llama.block_count". Tensors are not looked at. Values stay in the caller's bytes.
 *
 * Strict: an unknown type, a name twice, a count that the file is too small for, text
 * that runs over the end are errors, found while reading and never by allocating what a
 * damaged count asks for.
 */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"
#include "base/slice.h"

#define GGUF_MAX_PAIRS 4096

enum gguf_type {
    GGUF_U8,
    GGUF_I8,
    GGUF_U16,
    GGUF_I16,
    GGUF_U32,
    GGUF_I32,
    GGUF_F32,
    GGUF_BOOL,
    GGUF_STRING,
    GGUF_ARRAY,
    GGUF_U64,
    GGUF_I64,
    GGUF_F64,
    GGUF_TYPES
};

struct gguf_pair {
    struct slice key;
    enum gguf_type type;
    enum gguf_type item; /* type of an array's items, else as `type` */
    uint64_t n;          /* items of an array, else 1 */
    struct slice bytes;  /* the value; for an array its items; for text the text */
};

struct gguf {
    uint32_t version;
    uint64_t tensors;
    size_t n;
    struct gguf_pair *pairs; /* in the order of the file; gguf_free() */
};

/*
 * Reads the metadata from the first bytes of a file of `file_size` bytes. 0; ERR_FORMAT;
 * ERR_UNSUPPORTED: version, byte order, arrays of arrays; ERR_LIMIT: the metadata runs
 * over the end of `bytes` but not of the file, so call again with more of it. On an error
 * there is nothing to free.
 */
int gguf_read(struct gguf *g, struct slice bytes, uint64_t file_size, struct err *e);
void gguf_free(struct gguf *g);

/* The pair of this name, or NULL. */
const struct gguf_pair *gguf_find(const struct gguf *g, const char *key);

/* Item i (< n) of a pair of whole numbers or truth values. False where it is of another
 * type, or negative. */
bool gguf_number(const struct gguf_pair *p, uint64_t i, uint64_t *out);

#endif
