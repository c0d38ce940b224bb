/* SPDX-License-Identifier: MIT */

/* Gigabytes a second that pieces_bytes() hashes, by length of the caller's runs. */

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "base/mem.h"
#include "prefix/pieces.h"

#define TEXT_BYTES ((size_t)16 << 20)
#define ROUNDS 10

static double now_s(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* One prompt in parts of `part` bytes, each handed over in runs of `run` bytes. */
static double one_prompt(const struct chain_key *key, const char *text, size_t part,
                         size_t run)
{
    struct pieces p;
    const double start = now_s();
    pieces_init(&p, key, SLICE_LIT("bench"));
    for (size_t at = 0; at < TEXT_BYTES; at += part) {
        pieces_begin(&p, PIECES_TEXT, 0);
        for (size_t done = 0; done < part; done += run)
            pieces_bytes(&p, text + at + done, run);
        pieces_end(&p);
    }
    pieces_free(&p);
    return now_s() - start;
}

static void measure(const struct chain_key *key, const char *text, size_t part,
                    size_t run)
{
    double best = 1e9;
    for (int i = 0; i < ROUNDS; i++) {
        const double s = one_prompt(key, text, part, run);
        best = s < best ? s : best;
    }
    printf("%10zu %10zu %10.2f\n", part, run, (double)TEXT_BYTES / best / 1e9);
}

int main(void)
{
    static const size_t sizes[][2] = {
        {TEXT_BYTES, TEXT_BYTES},
        {TEXT_BYTES, 65536},
        {TEXT_BYTES, 4096},
        {TEXT_BYTES, 256},
        {TEXT_BYTES, 64},
        {4096, 4096},
        {1024, 1024},
        {256, 256},
        {64, 64},
    };
    unsigned char bytes[CHAIN_KEY_BYTES] = "bench";
    struct chain_key key;
    char *text = mem_alloc(TEXT_BYTES);
    uint64_t x = 1;

    chain_key_init(&key, bytes);
    for (size_t i = 0; i < TEXT_BYTES; i++) {
        x = x * 6364136223846793005u + 1442695040888963407u;
        text[i] = (char)('a' + (x >> 33) % 26);
    }
    printf("%10s %10s %10s   (best of %d, one core)\n", "part", "run", "GB/s", ROUNDS);
    for (size_t i = 0; i < sizeof(sizes) / sizeof(*sizes); i++)
        measure(&key, text, sizes[i][0], sizes[i][1]);
    free(text);
    return 0;
}
