/* SPDX-License-Identifier: MIT */
#ifndef INCIPIT_PREFIX_CHAIN_H
#define INCIPIT_PREFIX_CHAIN_H

/*
 * Keyed hashes and chains of them: XXH3-128 with a secret made from a random key, so
 * that nobody outside can prepare collisions. The key is kept beside the store (a
 * restart keeps its hits) and shared by gateways that share a store. XXH3 is not a
 * cryptographic hash: equality of hashes is a candidate, never proof. What proves it is
 * named where it is used (token ids in the tree, a second hash in the prompt index).
 *
 * A chain hash covers everything from the root to the end of its block:
 *     chain[0]   = H(root,       tokens of block 0)
 *     chain[i]   = H(chain[i-1], tokens of block i)
 * Two equal chain hashes at one depth therefore mean equal prefixes.
 */

#include <stddef.h>
#include <stdint.h>

#include "base/hash128.h"
#include "base/slice.h"

#define CHAIN_KEY_BYTES 32

/* Secrets derived from a key; a plain value, read-only after chain_key_init(). */
struct chain_key {
    unsigned char secret[192]; /* for the 128-bit hashes */
    unsigned char check[192];  /* for the independent 64-bit check hashes */
};

void chain_key_init(struct chain_key *k, const unsigned char bytes[CHAIN_KEY_BYTES]);

/* Keyed hash of any bytes: roots, fingerprints. */
struct hash128 chain_hash(const struct chain_key *k, struct slice bytes);

/* The independent 64-bit check of the same bytes. */
uint64_t chain_check(const struct chain_key *k, struct slice bytes);

/* One link: H(parent, bytes). */
struct hash128 chain_link(const struct chain_key *k, struct hash128 parent,
                          struct slice bytes);

/* One block of token ids (little-endian u32 in memory). */
struct hash128 chain_block(const struct chain_key *k, struct hash128 parent,
                           const uint32_t *tokens, size_t n);

/* Hashes of all full blocks of `tokens` into out[n / block_tokens]; returns how many. */
size_t chain_blocks(const struct chain_key *k, struct hash128 root,
                    const uint32_t *tokens, size_t n, size_t block_tokens,
                    struct hash128 *out);

/* Unkeyed 128-bit checksum of stored bytes (detects damage, not malice). */
struct hash128 chain_checksum(struct slice bytes);

/* The same over several runs of bytes, one after the other. */
struct hash128 chain_checksum_parts(const struct slice *parts, size_t n);

#endif
