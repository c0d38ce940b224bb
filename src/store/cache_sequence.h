/* SPDX-License-Identifier: MIT */
#ifndef INCIPIT_STORE_CACHE_SEQUENCE_H
#define INCIPIT_STORE_CACHE_SEQUENCE_H

/*
 * What gateways tell each other about prompts, as values in the shared tier
 * (docs/store.md): a place leads from a piece of text to a sequence, a sequence has the
 * token ids of its blocks and the boundaries of the text along them. The chain hashes of
 * the blocks are not in it: who has the key makes them from the tokens, and a sequence is
 * named by the last one, so nothing else than these tokens can be found under a name.
 *
 * Pure; for any thread.
 */

#include "base/buf.h"
#include "base/err.h"
#include "base/hash128.h"
#include "base/slice.h"
#include "prefix/index.h"

#define CACHE_PLACE_BYTES 32
#define CACHE_MAX_BOUNDARIES 16384 /* of a sequence: four megabytes of text */

/* Of the boundary with this check: it lies in the sequence of that name. */
void cache_place_write(struct hash128 sequence, uint64_t check,
                       unsigned char out[CACHE_PLACE_BYTES]);
bool cache_place_read(struct slice value, uint64_t check, struct hash128 *sequence);

struct cache_sequence {
    uint32_t block_tokens;
    uint64_t token_bytes; /* KV bytes of one */
    size_t n_tokens, n_records;
    uint32_t *tokens;
    struct index_record *records; /* from the first boundary on, without gaps */
};

void cache_sequence_write(const struct cache_sequence *s, struct buf *out);

/* Arrays are owned by the sequence then. ERR_FORMAT, ERR_CHECKSUM. */
int cache_sequence_read(struct slice value, struct cache_sequence *s, struct err *e);
void cache_sequence_free(struct cache_sequence *s);

#endif
