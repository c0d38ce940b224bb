/* SPDX-License-Identifier: MIT */
#include "prefix/chain.h"

/*
 * Why a secret and no seed: above 240 bytes a seed makes XXH3 rebuild its whole secret
 * for every call, and blocks of 64 token ids are just above. So the previous hash is put
 * in front of the bytes, and the key lives in a secret that is derived once.
 *
 * Why no XXH3_generateSecret(): its result may change between versions of the library,
 * and the key of a store must mean the same hashes for as long as the store lives. The
 * secret is made of the hash function proper, whose values are fixed:
 *     secret[16·i … 16·i+15] = XXH3-128(key, label, i)
 *
 * Hashes are kept as two native 64-bit halves over native 32-bit token ids, and written
 * to disk as they are: little-endian hosts only.
 */

#include <assert.h>
#include <string.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__,
               "hashes are stored as they are");
_Static_assert(sizeof(((struct chain_key *)0)->secret) >= XXH3_SECRET_SIZE_MIN,
               "XXH3 wants a longer secret");
_Static_assert(sizeof(struct hash128) == 16, "a link starts with the 16 bytes before it");

/* Parent and bytes are joined here up to this size; longer ones are streamed. */
#define JOIN_BYTES 8192

enum { LABEL_HASH = 1, LABEL_CHECK = 2 };

static struct hash128 from_xxh(XXH128_hash_t h)
{
    return (struct hash128){.lo = h.low64, .hi = h.high64};
}

static void derive(unsigned char *secret, size_t size,
                   const unsigned char bytes[CHAIN_KEY_BYTES], unsigned char label)
{
    unsigned char input[CHAIN_KEY_BYTES + 2];
    memcpy(input, bytes, CHAIN_KEY_BYTES);
    input[CHAIN_KEY_BYTES] = label;
    for (size_t at = 0; at < size; at += sizeof(struct hash128)) {
        input[CHAIN_KEY_BYTES + 1] = (unsigned char)(at / sizeof(struct hash128));
        struct hash128 h = from_xxh(XXH3_128bits(input, sizeof(input)));
        memcpy(secret + at, &h, sizeof(h));
    }
}

void chain_key_init(struct chain_key *k, const unsigned char bytes[CHAIN_KEY_BYTES])
{
    derive(k->secret, sizeof(k->secret), bytes, LABEL_HASH);
    derive(k->check, sizeof(k->check), bytes, LABEL_CHECK);
}

struct hash128 chain_hash(const struct chain_key *k, struct slice bytes)
{
    return from_xxh(
        XXH3_128bits_withSecret(bytes.ptr, bytes.len, k->secret, sizeof(k->secret)));
}

uint64_t chain_check(const struct chain_key *k, struct slice bytes)
{
    return XXH3_64bits_withSecret(bytes.ptr, bytes.len, k->check, sizeof(k->check));
}

static struct hash128 link_streamed(const struct chain_key *k, struct hash128 parent,
                                    struct slice bytes)
{
    XXH3_state_t state;
    XXH3_128bits_reset_withSecret(&state, k->secret, sizeof(k->secret));
    XXH3_128bits_update(&state, &parent, sizeof(parent));
    XXH3_128bits_update(&state, bytes.ptr, bytes.len);
    return from_xxh(XXH3_128bits_digest(&state));
}

struct hash128 chain_link(const struct chain_key *k, struct hash128 parent,
                          struct slice bytes)
{
    char joined[sizeof(parent) + JOIN_BYTES];
    if (bytes.len > JOIN_BYTES)
        return link_streamed(k, parent, bytes);
    memcpy(joined, &parent, sizeof(parent));
    if (bytes.len)
        memcpy(joined + sizeof(parent), bytes.ptr, bytes.len);
    return chain_hash(k, slice_make(joined, sizeof(parent) + bytes.len));
}

struct hash128 chain_block(const struct chain_key *k, struct hash128 parent,
                           const uint32_t *tokens, size_t n)
{
    return chain_link(k, parent, slice_make((const char *)tokens, n * sizeof(*tokens)));
}

size_t chain_blocks(const struct chain_key *k, struct hash128 root,
                    const uint32_t *tokens, size_t n, size_t block_tokens,
                    struct hash128 *out)
{
    assert(block_tokens > 0);
    size_t n_blocks = n / block_tokens;
    struct hash128 h = root;
    for (size_t i = 0; i < n_blocks; i++)
        out[i] = h = chain_block(k, h, tokens + i * block_tokens, block_tokens);
    return n_blocks;
}

struct hash128 chain_checksum(struct slice bytes)
{
    return from_xxh(XXH3_128bits(bytes.ptr, bytes.len));
}

struct hash128 chain_checksum_parts(const struct slice *parts, size_t n)
{
    XXH3_state_t state;
    XXH3_128bits_reset(&state);
    for (size_t i = 0; i < n; i++)
        if (parts[i].len)
            XXH3_128bits_update(&state, parts[i].ptr, parts[i].len);
    return from_xxh(XXH3_128bits_digest(&state));
}
