/* SPDX-License-Identifier: MIT */
#include "cache_sequence.h"

#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "prefix/chain.h"

#define MAGIC "incipSQ\n"
#define FORMAT_VERSION 1
#define CHECKSUM 16

struct head {
    char magic[8];
    uint32_t version, block_tokens;
    uint32_t n_tokens, n_records;
    uint64_t token_bytes;
};
_Static_assert(sizeof(struct head) == 32, "no padding");

/* The boundary before it is the one before it in the value. */
struct packed_record {
    struct hash128 hash;
    uint64_t check;
    uint32_t low, high, reach, owner;
};
_Static_assert(sizeof(struct packed_record) == 40, "no padding");

/* ---- places ------------------------------------------------------------------------ */

static uint64_t place_sum(const unsigned char *bytes)
{
    return chain_checksum(slice_make((const char *)bytes, CACHE_PLACE_BYTES - 8)).lo;
}

void cache_place_write(struct hash128 sequence, uint64_t check,
                       unsigned char out[CACHE_PLACE_BYTES])
{
    memcpy(out, &sequence, 16);
    memcpy(out + 16, &check, 8);
    const uint64_t sum = place_sum(out);
    memcpy(out + 24, &sum, 8);
}

bool cache_place_read(struct slice value, uint64_t check, struct hash128 *sequence)
{
    unsigned char bytes[CACHE_PLACE_BYTES];
    uint64_t there, sum;
    if (value.len != sizeof(bytes))
        return false;
    memcpy(bytes, value.ptr, sizeof(bytes));
    memcpy(sequence, bytes, 16);
    memcpy(&there, bytes + 16, 8);
    memcpy(&sum, bytes + 24, 8);
    return there == check && sum == place_sum(bytes);
}

/* ---- sequences --------------------------------------------------------------------- */

void cache_sequence_write(const struct cache_sequence *s, struct buf *out)
{
    const size_t start = buf_len(out);
    const struct head h = {.magic = MAGIC,
                           .version = FORMAT_VERSION,
                           .block_tokens = s->block_tokens,
                           .n_tokens = (uint32_t)s->n_tokens,
                           .n_records = (uint32_t)s->n_records,
                           .token_bytes = s->token_bytes};
    buf_append(out, &h, sizeof(h));
    buf_append(out, s->tokens, s->n_tokens * sizeof(*s->tokens));
    for (size_t i = 0; i < s->n_records; i++) {
        const struct index_record *r = &s->records[i];
        const struct packed_record p = {.hash = r->hash,
                                        .check = r->check,
                                        .low = r->low,
                                        .high = r->high,
                                        .reach = r->reach,
                                        .owner = r->owner};
        buf_append(out, &p, sizeof(p));
    }
    struct slice all = buf_slice(out);
    const struct hash128 sum =
        chain_checksum(slice_make(all.ptr + start, all.len - start));
    buf_append(out, &sum, sizeof(sum));
}

static bool good_head(const struct head *h, size_t size)
{
    return h->block_tokens && h->n_tokens && h->n_records <= CACHE_MAX_BOUNDARIES &&
           size == sizeof(*h) + (uint64_t)h->n_tokens * sizeof(uint32_t) +
                       (uint64_t)h->n_records * sizeof(struct packed_record) + CHECKSUM;
}

static bool good_sum(struct slice value)
{
    struct hash128 sum;
    memcpy(&sum, value.ptr + value.len - CHECKSUM, CHECKSUM);
    return hash128_eq(sum, chain_checksum(slice_make(value.ptr, value.len - CHECKSUM)));
}

int cache_sequence_read(struct slice value, struct cache_sequence *s, struct err *e)
{
    struct head h;
    struct hash128 before = {0, 0};
    *s = (struct cache_sequence){0};
    if (value.len < sizeof(h) + CHECKSUM)
        return err_set(e, ERR_FORMAT, "too short for a sequence");
    memcpy(&h, value.ptr, sizeof(h));
    if (memcmp(h.magic, MAGIC, sizeof(h.magic)) != 0 || h.version != FORMAT_VERSION ||
        !good_head(&h, value.len))
        return err_set(e, ERR_FORMAT, "not a sequence");
    if (!good_sum(value))
        return err_set(e, ERR_CHECKSUM, "the sequence is damaged");
    s->block_tokens = h.block_tokens;
    s->token_bytes = h.token_bytes;
    s->n_tokens = h.n_tokens;
    s->n_records = h.n_records;
    s->tokens = mem_array(s->n_tokens, sizeof(*s->tokens));
    s->records = mem_array(s->n_records + 1, sizeof(*s->records));
    const char *at = value.ptr + sizeof(h);
    memcpy(s->tokens, at, s->n_tokens * sizeof(*s->tokens));
    at += s->n_tokens * sizeof(*s->tokens);
    for (size_t i = 0; i < s->n_records; i++) {
        struct packed_record p;
        memcpy(&p, at + i * sizeof(p), sizeof(p));
        s->records[i] = (struct index_record){p.hash, before,  p.check, p.low,
                                              p.high, p.reach, p.owner};
        before = p.hash;
    }
    return 0;
}

void cache_sequence_free(struct cache_sequence *s)
{
    free(s->tokens);
    free(s->records);
    *s = (struct cache_sequence){0};
}
