/* SPDX-License-Identifier: MIT */

/*
 * Two lists of token ids, the second from a place that the input says on: as many chain
 * hashes are equal as the lists have whole blocks in common, and none with another root.
 */

#include <assert.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "prefix/chain.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static const unsigned char secret[CHAIN_KEY_BYTES] = "a key for tests and for no more";

/* All their hashes; frees the tokens. */
static struct hash128 *hashes(const struct chain_key *key, struct hash128 root,
                              const uint32_t *tokens, size_t n, size_t block)
{
    struct hash128 *out = mem_array(n + 1, sizeof(*out));
    const size_t blocks = chain_blocks(key, root, tokens, n, block, out);
    assert(blocks == n / block);
    struct hash128 before = root;
    for (size_t i = 0; i < blocks; i++) {
        before = chain_block(key, before, tokens + i * block, block);
        assert(hash128_eq(before, out[i]));
    }
    return out;
}

static size_t smaller(size_t a, size_t b)
{
    return a < b ? a : b;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct chain_key key;
    if (size < 2)
        return 0;
    const size_t block = 1 + data[0] % 8, cut = smaller(data[1], (size - 2) / 4);
    const size_t n_a = (size - 2) / 4, n_b = n_a - cut;
    uint32_t *a = mem_array(n_a + 1, sizeof(*a)), *b = mem_array(n_b + 1, sizeof(*b));
    memcpy(a, data + 2, 4 * n_a);
    memcpy(b, data + 2 + 4 * cut, 4 * n_b);
    chain_key_init(&key, secret);
    const struct hash128 root = chain_hash(&key, SLICE_LIT("root"));
    const struct hash128 other = chain_hash(&key, SLICE_LIT("another root"));
    struct hash128 *x = hashes(&key, root, a, n_a, block);
    struct hash128 *y = hashes(&key, root, b, n_b, block);
    struct hash128 *z = hashes(&key, other, a, n_a, block);
    size_t same = 0;
    while (same < n_b && a[same] == b[same])
        same++;
    for (size_t i = 0; i < n_b / block; i++)
        assert(hash128_eq(x[i], y[i]) == (i < same / block));
    for (size_t i = 0; i < n_a / block; i++)
        assert(!hash128_eq(x[i], z[i]));
    free(a);
    free(b);
    free(x);
    free(y);
    free(z);
    return 0;
}
