/* SPDX-License-Identifier: MIT */

/*
 * Packed bodies from anywhere: the first byte is the coding. What comes out keeps the
 * limits; what is refused leaves nothing.
 */

#include <assert.h>
#include <stdint.h>

#include "proto/unpack.h"

#define MOST ((size_t)1 << 20)

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct buf out = {0};
    if (size < 1)
        return 0;
    const enum unpack_coding coding = data[0] & 1 ? UNPACK_GZIP : UNPACK_DEFLATE;
    const struct slice packed = slice_make((const char *)data + 1, size - 1);
    buf_append_str(&out, "before");
    const char *why = unpack(&out, coding, packed, MOST);
    const size_t len = buf_len(&out) - 6;
    assert(slice_starts(buf_slice(&out), SLICE_LIT("before")));
    assert(why ? len == 0 : len <= MOST);
    assert(len <= UNPACK_FREE || len / UNPACK_RATIO <= packed.len);
    buf_free(&out);
    return 0;
}
