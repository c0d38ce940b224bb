/* SPDX-License-Identifier: MIT */

/*
 * Files that are to be kept warm, request bodies and texts: what is made of them is one
 * whole JSON object; where there are two of them they differ in the user's words alone.
 * The first byte chooses path and model.
 */

#include <assert.h>
#include <stdint.h>

#include "../../src/gateway/warm_internal.h"
#include "json_reading.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* The other one has one letter more. */
static void check_words(struct slice body, struct slice other)
{
    size_t same = 0;
    while (same < body.len && body.ptr[same] == other.ptr[same])
        same++;
    assert(other.len == body.len + 1 && other.ptr[same] == 'x');
    assert(slice_eq(slice_make(body.ptr + same, body.len - same),
                    slice_make(other.ptr + same + 1, body.len - same)));
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const char *const paths[] = {"", "/v1/chat/completions", "/v1/messages",
                                        "/completion", "/v1/models"};
    static const char *const models[] = {"", "m", "\"\\\n"};
    struct warm_body b = {0};
    struct err e = {0};
    if (size == 0)
        return 0;
    const int rc = warm_body_make(&b, slice_make((const char *)data + 1, size - 1),
                                  paths[data[0] % 5], models[data[0] / 5 % 3], &e);
    assert(rc == e.code && (rc == 0) == (e.text[0] == '\0'));
    if (rc == 0) {
        assert(b.path && b.api != PROMPT_NONE && is_object(buf_slice(&b.body)));
        if (buf_len(&b.other))
            check_words(buf_slice(&b.body), buf_slice(&b.other));
    }
    warm_body_free(&b);
    return 0;
}
