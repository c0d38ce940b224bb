/* SPDX-License-Identifier: MIT */

/*
 * Files of pins from anywhere. One that is taken is, byte for byte, what writing its pins
 * gives. Each input is read as it is, and once more with its size and checksums put
 * right: else nothing behind them is ever reached.
 */

#include <assert.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "../../src/store/cache_internal.h"
#include "base/mem.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#define SIZE_AT 16
#define SUM_AT 24
#define HEAD 40
#define PIN_HEAD 36

static void read_pins(const char *bytes, size_t size)
{
    struct cache_pins p = {0};
    struct buf again = {0};
    struct err e = {0};
    const int rc = cache_pinfile_read(&p, slice_make(bytes, size), &e);
    assert(rc == e.code && (rc == 0) == (e.text[0] == '\0'));
    cache_pinfile_write(&p, &again);
    assert(rc || slice_eq(buf_slice(&again), slice_make(bytes, size)));
    buf_free(&again);
    for (size_t i = 0; i < p.n; i++) {
        assert(p.v[i]->n > 0 && strlen(p.v[i]->name) > 0);
        free(p.v[i]->v);
        free(p.v[i]);
    }
    free(p.v);
}

static uint32_t number_at(const char *at)
{
    uint32_t v;
    memcpy(&v, at, sizeof(v));
    return v;
}

/* The unused field and the checksums of one pin's records; bytes of the pin, 0 where it does not end here. */
static size_t repair_pin(char *pin, size_t size)
{
    if (size < PIN_HEAD)
        return 0;
    const uint64_t start = PIN_HEAD + (uint64_t)number_at(pin + 16);
    const uint64_t end = start + (uint64_t)number_at(pin + 28) * PROMPT_LOG_RECORD;
    if (end > size)
        return 0;
    memset(pin + 32, 0, 4);
    for (char *r = pin + start; r < pin + end; r += PROMPT_LOG_RECORD) {
        const uint32_t sum =
            (uint32_t)chain_checksum(slice_make(r, PROMPT_LOG_RECORD - 4)).lo;
        memcpy(r + PROMPT_LOG_RECORD - 4, &sum, sizeof(sum));
    }
    return (size_t)end;
}

static void repair(char *bytes, size_t size)
{
    const uint64_t n = size;
    size_t at = HEAD, pin;
    memcpy(bytes + SIZE_AT, &n, sizeof(n));
    while ((pin = repair_pin(bytes + at, size - at)) > 0)
        at += pin;
    const struct slice parts[] = {{bytes, SUM_AT}, {bytes + HEAD, size - HEAD}};
    const struct hash128 sum = chain_checksum_parts(parts, 2);
    memcpy(bytes + SUM_AT, &sum, sizeof(sum));
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    read_pins((const char *)data, size);
    if (size < HEAD)
        return 0;
    char *copy = mem_dup((const char *)data, size);
    repair(copy, size);
    read_pins(copy, size);
    free(copy);
    return 0;
}
