/* SPDX-License-Identifier: MIT */

/*
 * Files of blocks from anywhere, taken in as the directory tier does it. A block that
 * verifies must be, byte for byte, what sealing its contents writes.
 */

#include <assert.h>
#include <stdint.h>
#include <string.h>

#include "../../src/store/store_internal.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static struct store_block *sealed_again(const struct store_block *b)
{
    uint32_t *tokens;
    unsigned char *rows;
    struct store_block *again = store_block_new(&b->head, &tokens, &rows);
    memcpy(tokens, b->tokens, 4 * (size_t)b->head.n_tokens);
    memcpy(rows, b->rows, b->head.rows_bytes);
    store_block_seal(again);
    assert(store_block_verify(again));
    return again;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct store_head h;
    struct err e = {0};
    unsigned char *bytes;
    if (size < STORE_BLOCK_HEAD)
        return 0;
    const int rc = store_block_read_head(data, size, &h, &e);
    assert(rc == e.code);
    if (rc)
        return 0;
    assert(store_block_bytes(&h) == size);
    const bool head_ok = store_block_head_ok(data, &h);
    struct store_block *b = store_block_blank(&h, &bytes);
    memcpy(bytes, data, size);
    store_block_adopt(b);
    const bool ok = store_block_verify(b);
    assert(head_ok || !ok);
    struct store_block *again = sealed_again(b);
    assert(ok == slice_eq(store_block_file(again), slice_make((const char *)data, size)));
    store_block_put(again);
    store_block_put(b);
    return 0;
}
