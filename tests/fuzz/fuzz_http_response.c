/* SPDX-License-Identifier: MIT */
#include "http_reading.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    const struct slice in = {(const char *)data, size};
    for (int to_head = 0; to_head < 2; to_head++) {
        struct buf told = read_alike(HTTP_RESPONSE, to_head != 0, in);
        buf_free(&told);
    }
    return 0;
}
