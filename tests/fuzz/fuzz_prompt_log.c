/* SPDX-License-Identifier: MIT */

/*
 * Records of prompts.log from anywhere, put into an index. What is decoded is, byte for
 * byte, what encoding it gives. A boundary that was taken is found by the pieces before
 * it, its bounds are in order, and the index keeps its limit. Checksums are put right:
 * else no record is ever taken.
 */

#include <assert.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "prefix/chain.h"
#include "prefix/index.h"
#include "store/prompt_log.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#define BUDGET 4096 /* small, so that the fuzzer gets there */
#define MAX_RECORDS 64

struct taken {
    struct index_record v[MAX_RECORDS];
    size_t n;
};

static struct prompt_record decode(const uint8_t *data)
{
    unsigned char bytes[PROMPT_LOG_RECORD], again[PROMPT_LOG_RECORD];
    struct prompt_record r;
    memcpy(bytes, data, sizeof(bytes));
    const struct slice head = slice_make((const char *)bytes, sizeof(bytes) - 4);
    const uint32_t sum = (uint32_t)chain_checksum(head).lo;
    memcpy(bytes + sizeof(bytes) - 4, &sum, sizeof(sum));
    assert(prompt_log_decode(bytes, &r));
    prompt_log_encode(&r, again);
    assert(memcmp(bytes, again, sizeof(bytes)) == 0);
    bytes[data[0] % sizeof(bytes)] ^= 1;
    assert(!prompt_log_decode(bytes, &r) || data[0] % sizeof(bytes) == 0);
    return r;
}

static const struct index_record *taken_at(const struct taken *t, struct hash128 hash)
{
    for (size_t i = t->n; i-- > 0;)
        if (hash128_eq(t->v[i].hash, hash))
            return &t->v[i];
    return NULL;
}

/* The pieces of the prompt that ends with `r`, first one first. */
static size_t pieces_to(const struct taken *t, const struct index_record *r,
                        struct piece out[MAX_RECORDS])
{
    size_t n = 0;
    for (; r; r = hash128_none(r->parent) ? NULL : taken_at(t, r->parent)) {
        memmove(out + 1, out, n * sizeof(*out));
        out[0] = (struct piece){.hash = r->hash, .check = r->check};
        assert(++n <= MAX_RECORDS);
    }
    return n;
}

static void check_found(struct index *ix, const struct taken *t)
{
    struct piece v[MAX_RECORDS];
    struct index_hit hit = {0};
    const size_t n = pieces_to(t, &t->v[t->n - 1], v);
    index_find(ix, v, n, &hit);
    assert(hit.n_pieces == n && hit.low <= hit.high);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct index *ix = index_new(BUDGET, NULL);
    struct index_stats stats;
    struct taken t = {.n = 0};
    for (; size >= PROMPT_LOG_RECORD && t.n < MAX_RECORDS;
         data += PROMPT_LOG_RECORD, size -= PROMPT_LOG_RECORD) {
        const struct prompt_record r = decode(data);
        const bool was = taken_at(&t, r.boundary.hash) != NULL;
        index_stats(ix, &stats);
        if (!index_import(ix, &r.boundary, NULL))
            continue;
        assert(!was || stats.evicted);
        t.v[t.n++] = r.boundary;
        check_found(ix, &t);
    }
    index_stats(ix, &stats);
    assert(stats.bytes <= BUDGET && stats.entries + stats.evicted == t.n);
    index_free(ix);
    return 0;
}
