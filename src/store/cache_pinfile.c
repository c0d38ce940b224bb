/* SPDX-License-Identifier: MIT */
#include "cache_internal.h"

/*
 * The bytes of the file `pins` (docs/store.md). It is replaced as a whole, so one
 * checksum over all of it tells whether it can be believed; what cannot be is not used in
 * parts.
 */

#include <stdlib.h>
#include <string.h>

#include "base/mem.h"

#define FORMAT 1
#define HEAD 40     /* before the pins */
#define PIN_HEAD 36 /* of one, before its name */
#define PUBLIC 1u   /* of its flags */
#define MOST_PIECES ((uint32_t)PIECES_MAX)

static const char magic[8] = "incipPN\n";

static void put_u32(struct buf *b, uint32_t v)
{
    buf_append(b, &v, sizeof(v));
}

static void put_pin(struct buf *b, const struct cache_pin *p)
{
    unsigned char record[PROMPT_LOG_RECORD];
    buf_append(b, &p->fingerprint, sizeof(p->fingerprint));
    put_u32(b, (uint32_t)strlen(p->name));
    put_u32(b, p->tokens);
    put_u32(b, (uint32_t)p->n_blocks);
    put_u32(b, (uint32_t)p->n);
    put_u32(b, p->public ? PUBLIC : 0);
    buf_append_str(b, p->name);
    for (size_t i = 0; i < p->n; i++) {
        prompt_log_encode(&p->v[i], record);
        buf_append(b, record, sizeof(record));
    }
}

/* Over the head before it and all pins behind it. */
static struct hash128 sum_of(const char *bytes, size_t n)
{
    const struct slice parts[] = {{bytes, HEAD - 16}, {bytes + HEAD, n - HEAD}};
    return chain_checksum_parts(parts, 2);
}

void cache_pinfile_write(const struct cache_pins *p, struct buf *out)
{
    const char nothing[HEAD] = {0};
    buf_append(out, nothing, HEAD);
    for (size_t i = 0; i < p->n; i++)
        put_pin(out, p->v[i]);
    char *bytes = out->data + out->start;
    const uint64_t size = buf_len(out);
    const uint32_t format = FORMAT, n = (uint32_t)p->n;
    memcpy(bytes, magic, 8);
    memcpy(bytes + 8, &format, 4);
    memcpy(bytes + 12, &n, 4);
    memcpy(bytes + 16, &size, 8);
    const struct hash128 sum = sum_of(bytes, size);
    memcpy(bytes + 24, &sum, 16);
}

static uint32_t get_u32(const char *at)
{
    uint32_t v;
    memcpy(&v, at, sizeof(v));
    return v;
}

/* Reads one pin off the front of `in`; NULL where it does not follow the format. */
static struct cache_pin *take_pin(struct slice *in)
{
    if (in->len < PIN_HEAD)
        return NULL;
    const uint32_t name = get_u32(in->ptr + 16), n = get_u32(in->ptr + 28);
    const uint64_t size = PIN_HEAD + (uint64_t)name + (uint64_t)n * PROMPT_LOG_RECORD;
    if (name == 0 || name > CACHE_PIN_NAME || n == 0 || n > MOST_PIECES || size > in->len)
        return NULL;
    struct cache_pin *p = mem_zalloc(sizeof(*p));
    memcpy(&p->fingerprint, in->ptr, 16);
    p->tokens = get_u32(in->ptr + 20);
    p->n_blocks = get_u32(in->ptr + 24);
    p->public = get_u32(in->ptr + 32) & PUBLIC;
    memcpy(p->name, in->ptr + PIN_HEAD, name);
    p->v = mem_array(n, sizeof(*p->v));
    bool good = strlen(p->name) == name;
    const unsigned char *at = (const unsigned char *)in->ptr + PIN_HEAD + name;
    for (; good && p->n < n; at += PROMPT_LOG_RECORD)
        good = prompt_log_decode(at, &p->v[p->n++]);
    *in = slice_make(in->ptr + size, in->len - (size_t)size);
    if (good)
        return p;
    free(p->v);
    free(p);
    return NULL;
}

int cache_pinfile_read(struct cache_pins *p, struct slice bytes, struct err *e)
{
    struct hash128 sum;
    uint64_t size;
    if (bytes.len < HEAD || memcmp(bytes.ptr, magic, sizeof(magic)) != 0)
        return err_set(e, ERR_FORMAT, "it is no file of pins");
    if (get_u32(bytes.ptr + 8) != FORMAT)
        return err_set(e, ERR_FORMAT, "its format is %u, this program knows %u",
                       get_u32(bytes.ptr + 8), FORMAT);
    memcpy(&size, bytes.ptr + 16, sizeof(size));
    if (size != bytes.len)
        return err_set(e, ERR_FORMAT, "it has %zu bytes and should have %llu", bytes.len,
                       (unsigned long long)size);
    memcpy(&sum, bytes.ptr + 24, sizeof(sum));
    if (!hash128_eq(sum, sum_of(bytes.ptr, bytes.len)))
        return err_set(e, ERR_CHECKSUM, "its checksum is wrong");
    const uint32_t n = get_u32(bytes.ptr + 12);
    if (n > CACHE_MAX_PINS)
        return err_set(e, ERR_FORMAT, "it holds %u pins, at most %u may be", n,
                       CACHE_MAX_PINS);
    struct slice rest = slice_make(bytes.ptr + HEAD, bytes.len - HEAD);
    p->v = mem_array((size_t)n + 1, sizeof(struct cache_pin *));
    while (p->n < n && (p->v[p->n] = take_pin(&rest)))
        p->n++;
    if (p->n < n || rest.len)
        return err_set(e, ERR_FORMAT, "pin %zu does not follow the format", p->n);
    return 0;
}
