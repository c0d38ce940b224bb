/* SPDX-License-Identifier: MIT */

/*
 * Values that other gateways have put into the shared tier, sequences and places. What is
 * taken is, byte for byte, what writing it gives. Each input is read as it is, and once
 * more with its checksum put right: else nothing behind it is ever reached.
 */

#include <assert.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "../../src/store/cache_sequence.h"
#include "base/mem.h"
#include "prefix/chain.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#define SUM 16      /* bytes behind a sequence */
#define PLACE_SUM 8 /* behind a place */
#define CHECK_AT 16 /* in a place */

static void read_sequence(struct slice value)
{
    struct cache_sequence s;
    struct buf again = {0};
    struct err e = {0};
    const int rc = cache_sequence_read(value, &s, &e);
    assert(rc == e.code);
    if (rc == 0) {
        for (size_t i = 0; i < s.n_records; i++)
            assert(i == 0 ? hash128_none(s.records[i].parent)
                          : hash128_eq(s.records[i].parent, s.records[i - 1].hash));
        cache_sequence_write(&s, &again);
        assert(slice_eq(buf_slice(&again), value));
    }
    buf_free(&again);
    cache_sequence_free(&s);
}

static void read_place(struct slice value)
{
    unsigned char again[CACHE_PLACE_BYTES];
    struct hash128 sequence;
    uint64_t check = 0;
    if (value.len >= CHECK_AT + sizeof(check))
        memcpy(&check, value.ptr + CHECK_AT, sizeof(check));
    assert(!cache_place_read(value, check + 1, &sequence));
    if (!cache_place_read(value, check, &sequence))
        return;
    cache_place_write(sequence, check, again);
    assert(slice_eq(slice_make((const char *)again, sizeof(again)), value));
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    const struct slice value = slice_make((const char *)data, size);
    read_sequence(value);
    read_place(value);
    if (size < SUM)
        return 0;
    char *copy = mem_dup(data, size);
    struct hash128 sum = chain_checksum(slice_make(copy, size - SUM));
    memcpy(copy + size - SUM, &sum, SUM);
    read_sequence(slice_make(copy, size));
    sum = chain_checksum(slice_make(copy, size - PLACE_SUM));
    memcpy(copy + size - PLACE_SUM, &sum.lo, PLACE_SUM);
    read_place(slice_make(copy, size));
    free(copy);
    return 0;
}
