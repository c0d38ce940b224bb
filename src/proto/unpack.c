/* SPDX-License-Identifier: MIT */
#include "proto/unpack.h"

#include <limits.h>
#include <string.h>
#include <zlib.h>

#define STEP ((size_t)64 << 10)
#define GZIP_BITS (15 + 16) /* as inflateInit2() wants to be told the format */
#define ZLIB_BITS 15
#define BARE_BITS (-15)

static const char too_large[] = "packed body: too large";
static const char too_dense[] = "packed body: too many times its packed size";
static const char damaged[] = "packed body: damaged";

enum unpack_coding unpack_coding(struct slice value)
{
    static const struct {
        struct slice name;
        enum unpack_coding coding;
    } names[] = {{SLICE_LIT("gzip"), UNPACK_GZIP},
                 {SLICE_LIT("x-gzip"), UNPACK_GZIP},
                 {SLICE_LIT("deflate"), UNPACK_DEFLATE},
                 {SLICE_LIT("identity"), UNPACK_PLAIN}};
    if (!value.ptr || !value.len)
        return UNPACK_PLAIN;
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++)
        if (slice_eq_nocase(value, names[i].name))
            return names[i].coding;
    return UNPACK_UNKNOWN;
}

/* Two bytes that begin zlib's form: its method, and a sum that is a multiple of 31. */
static bool is_zlib(struct slice s)
{
    const unsigned char *b = (const unsigned char *)s.ptr;
    return s.len >= 2 && (b[0] & 0x0f) == Z_DEFLATED && (b[0] * 256u + b[1]) % 31 == 0;
}

static const char *check_size(size_t bytes, size_t packed, size_t max_bytes)
{
    if (bytes > max_bytes)
        return too_large;
    return bytes > UNPACK_FREE && bytes / UNPACK_RATIO > packed ? too_dense : NULL;
}

static const char *inflate_all(z_stream *z, struct buf *out, bool members,
                               size_t max_bytes)
{
    const size_t before = buf_len(out), packed = z->avail_in;
    const char *why = NULL;
    while (!why) {
        z->next_out = (unsigned char *)buf_reserve(out, STEP);
        z->avail_out = (unsigned)STEP;
        const int rc = inflate(z, Z_NO_FLUSH);
        buf_commit(out, STEP - z->avail_out);
        why = check_size(buf_len(out) - before, packed, max_bytes);
        if (why || rc == Z_OK)
            continue;
        if (rc != Z_STREAM_END || (z->avail_in && !members))
            return damaged;
        if (!z->avail_in)
            return NULL;
        inflateReset(z); /* the next member of a gzip file */
    }
    return why;
}

const char *unpack(struct buf *out, enum unpack_coding coding, struct slice packed,
                   size_t max_bytes)
{
    z_stream z = {.avail_in = (unsigned)packed.len};
    const size_t before = buf_len(out);
    const int bits = coding == UNPACK_GZIP ? GZIP_BITS
                     : is_zlib(packed)     ? ZLIB_BITS
                                           : BARE_BITS;
    if (packed.len > UINT_MAX || packed.len > max_bytes)
        return too_large;
    memcpy(&z.next_in, &packed.ptr, sizeof(z.next_in)); /* it is only read */
    if (inflateInit2(&z, bits) != Z_OK)
        return damaged;
    const char *why = inflate_all(&z, out, coding == UNPACK_GZIP, max_bytes);
    inflateEnd(&z);
    if (why)
        out->end -= buf_len(out) - before;
    return why;
}
