/* SPDX-License-Identifier: MIT */
#include "lab/gguf.h"

/*
 *     magic "GGUF" · u32 version · u64 tensors · u64 pairs
 *     pairs times:  u64 length, name · u32 type · value
 *     value:        a number; or u64 length, text; or u32 type, u64 count, items
 *
 * All little-endian, nothing aligned. The reader walks with one cursor; `left` is what
 * the file still has, `have` what of it is in memory. Running over `left` is a damaged
 * file, running over `have` alone a reason to read more of it.
 */

#include <assert.h>
#include <inttypes.h>
#include <stdlib.h>

#include "base/mem.h"

#define MIN_PAIR 13   /* an empty name, a type, one byte */
#define MIN_TENSOR 24 /* an empty name, no dimensions, type and offset */

struct cursor {
    const unsigned char *at;
    uint64_t have, left;
    struct err *e;
};

static const uint8_t widths[GGUF_TYPES] = {
    [GGUF_U8] = 1,  [GGUF_I8] = 1,  [GGUF_U16] = 2, [GGUF_I16] = 2,
    [GGUF_U32] = 4, [GGUF_I32] = 4, [GGUF_F32] = 4, [GGUF_BOOL] = 1,
    [GGUF_U64] = 8, [GGUF_I64] = 8, [GGUF_F64] = 8,
};

static uint64_t little(const unsigned char *p, size_t n)
{
    uint64_t v = 0;
    for (size_t i = 0; i < n; i++)
        v |= (uint64_t)p[i] << (8 * i);
    return v;
}

static int take(struct cursor *c, uint64_t n, struct slice *out)
{
    if (n > c->left)
        return err_set(c->e, ERR_FORMAT, "the file ends inside its metadata");
    if (n > c->have)
        return err_set(c->e, ERR_LIMIT, "there is more metadata than was read");
    *out = slice_make((const char *)c->at, (size_t)n);
    c->at += n;
    c->have -= n;
    c->left -= n;
    return 0;
}

static int take_number(struct cursor *c, size_t width, uint64_t *out)
{
    struct slice s;
    const int rc = take(c, width, &s);
    if (rc == 0)
        *out = little((const unsigned char *)s.ptr, width);
    return rc;
}

static int take_text(struct cursor *c, struct slice *out)
{
    uint64_t len;
    const int rc = take_number(c, 8, &len);
    return rc ? rc : take(c, len, out);
}

static int take_type(struct cursor *c, enum gguf_type *out)
{
    uint64_t type;
    const int rc = take_number(c, 4, &type);
    if (rc)
        return rc;
    if (type >= GGUF_TYPES)
        return err_set(c->e, ERR_FORMAT, "a value is of the unknown type %" PRIu64, type);
    *out = (enum gguf_type)type;
    return 0;
}

/* Text has a length in front of each item, so an array of it has to be walked. */
static int take_texts(struct cursor *c, uint64_t n, struct slice *out)
{
    const unsigned char *start = c->at;
    if (n > c->left / 8)
        return err_set(c->e, ERR_FORMAT, "the file is too small for %" PRIu64 " texts",
                       n);
    for (uint64_t i = 0; i < n; i++) {
        struct slice s;
        const int rc = take_text(c, &s);
        if (rc)
            return rc;
    }
    *out = slice_make((const char *)start, (size_t)(c->at - start));
    return 0;
}

static int take_array(struct cursor *c, struct gguf_pair *p)
{
    int rc = take_type(c, &p->item);
    if (rc == 0)
        rc = take_number(c, 8, &p->n);
    if (rc)
        return rc;
    if (p->item == GGUF_ARRAY)
        return err_set(c->e, ERR_UNSUPPORTED, "an array of arrays");
    if (p->item == GGUF_STRING)
        return take_texts(c, p->n, &p->bytes);
    if (p->n > c->left / widths[p->item])
        return err_set(c->e, ERR_FORMAT, "the file is too small for %" PRIu64 " items",
                       p->n);
    return take(c, p->n * widths[p->item], &p->bytes);
}

static int take_pair(struct cursor *c, struct gguf_pair *p)
{
    int rc = take_text(c, &p->key);
    if (rc == 0)
        rc = take_type(c, &p->type);
    if (rc)
        return rc;
    p->item = p->type;
    p->n = 1;
    if (p->type == GGUF_ARRAY)
        return take_array(c, p);
    if (p->type == GGUF_STRING)
        return take_text(c, &p->bytes);
    return take(c, widths[p->type], &p->bytes);
}

static int take_head(struct cursor *c, struct gguf *g, uint64_t *pairs)
{
    uint64_t version;
    struct slice magic;
    if (take(c, 4, &magic) != 0 || !slice_eq(magic, SLICE_LIT("GGUF"))) {
        if (c->e)
            *c->e = (struct err){0};
        return err_set(c->e, ERR_FORMAT, "this is no GGUF file");
    }
    int rc = take_number(c, 4, &version);
    if (rc)
        return rc;
    if (version != 2 && version != 3)
        return err_set(c->e, ERR_UNSUPPORTED,
                       "GGUF version %" PRIu64 "%s; 2 and 3 are read", version,
                       version & 0xffff ? "" : " (in the other byte order?)");
    g->version = (uint32_t)version;
    rc = take_number(c, 8, &g->tensors);
    return rc ? rc : take_number(c, 8, pairs);
}

int gguf_read(struct gguf *g, struct slice bytes, uint64_t file_size, struct err *e)
{
    assert(bytes.len <= file_size);
    struct cursor c = {(const unsigned char *)bytes.ptr, bytes.len, file_size, e};
    uint64_t pairs = 0;
    *g = (struct gguf){0};
    int rc = take_head(&c, g, &pairs);
    if (rc)
        return rc;
    if (pairs > GGUF_MAX_PAIRS)
        return err_set(e, ERR_FORMAT, "%" PRIu64 " values; at most %d are read", pairs,
                       GGUF_MAX_PAIRS);
    if (pairs > c.left / MIN_PAIR || g->tensors > c.left / MIN_TENSOR)
        return err_set(e, ERR_FORMAT, "the file is too small for its %s",
                       g->tensors > c.left / MIN_TENSOR ? "tensors" : "values");
    g->pairs = mem_array((size_t)pairs + 1, sizeof(*g->pairs));
    for (; rc == 0 && g->n < pairs; g->n += rc == 0) {
        struct gguf_pair *p = &g->pairs[g->n];
        rc = take_pair(&c, p);
        for (size_t i = 0; rc == 0 && i < g->n; i++)
            if (slice_eq(g->pairs[i].key, p->key))
                rc = err_set(e, ERR_FORMAT, "a name is there twice");
    }
    if (rc == 0 && g->tensors > c.left / MIN_TENSOR)
        rc = err_set(e, ERR_FORMAT, "the file is too small for its tensors");
    if (rc)
        gguf_free(g);
    return rc;
}

void gguf_free(struct gguf *g)
{
    free(g->pairs);
    *g = (struct gguf){0};
}

const struct gguf_pair *gguf_find(const struct gguf *g, const char *key)
{
    for (size_t i = 0; i < g->n; i++)
        if (slice_eq(g->pairs[i].key, slice_of(key)))
            return &g->pairs[i];
    return NULL;
}

bool gguf_number(const struct gguf_pair *p, uint64_t i, uint64_t *out)
{
    assert(i < p->n);
    const bool is_signed = p->item == GGUF_I8 || p->item == GGUF_I16 ||
                           p->item == GGUF_I32 || p->item == GGUF_I64;
    if (p->item == GGUF_F32 || p->item == GGUF_F64 || p->item == GGUF_STRING)
        return false;
    const size_t width = widths[p->item];
    *out = little((const unsigned char *)p->bytes.ptr + i * width, width);
    return !(is_signed && *out >> (8 * width - 1));
}
