/* SPDX-License-Identifier: MIT */

/*
 * One prompt, handed over in two ways: each part in one run, and in runs and reopened
 * parts as the input says. Both must give the same pieces. The input is a list of
 * instructions: a byte for kind, tag and cuts, a length, then the bytes of the part.
 */

#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "prefix/pieces.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void require(bool holds)
{
    if (!holds)
        abort();
}

static void add_whole(struct pieces *p, unsigned kind, unsigned char tag, struct slice s)
{
    pieces_begin(p, (enum pieces_kind)kind, tag);
    pieces_bytes(p, s.ptr, s.len);
    pieces_end(p);
}

static void add_cut(struct pieces *p, unsigned kind, unsigned char tag, struct slice s,
                    unsigned how)
{
    size_t step = 1 + how * 37U;
    pieces_begin(p, (enum pieces_kind)kind, tag);
    while (s.len) {
        const size_t run = step < s.len ? step : s.len;
        pieces_bytes(p, s.ptr, run);
        s.ptr += run;
        s.len -= run;
        step = step * 5 % 613 + 1;
        if (kind == PIECES_TEXT && step % 4 == 0) {
            pieces_end(p);
            pieces_reopen(p);
        }
    }
    pieces_end(p);
}

static void compare(const struct pieces *a, const struct pieces *b)
{
    require(a->n == b->n && hash128_eq(a->root, b->root));
    require(pieces_common(a->v, a->n, b->v, b->n) == a->n);
    for (size_t i = 0; i < a->n; i++) {
        require(a->v[i].end_bytes == b->v[i].end_bytes);
        require(a->v[i].ends_part == b->v[i].ends_part);
        require(a->v[i].is_media == b->v[i].is_media);
        require(i == 0 || a->v[i].end_bytes >= a->v[i - 1].end_bytes);
        require(i == 0 || !hash128_eq(a->v[i].hash, a->v[i - 1].hash));
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const unsigned char secret[CHAIN_KEY_BYTES] =
        "a key for tests and for no more";
    struct chain_key key;
    struct pieces whole, cut;

    chain_key_init(&key, secret);
    pieces_init(&whole, &key, SLICE_LIT("seed"));
    pieces_init(&cut, &key, SLICE_LIT("seed"));
    while (size >= 3) {
        const unsigned op = data[0];
        const unsigned kind = whole.n ? 1 + op % 2 : op % 3; /* roots only in front */
        size_t len = (size_t)data[1] << (data[2] & 3);
        data += 3;
        size -= 3;
        if (len > size)
            len = size;
        const struct slice s = {(const char *)data, len};
        add_whole(&whole, kind, (unsigned char)(op >> 6), s);
        add_cut(&cut, kind, (unsigned char)(op >> 6), s, op >> 2 & 15);
        data += len;
        size -= len;
    }
    compare(&whole, &cut);
    pieces_free(&whole);
    pieces_free(&cut);
    return 0;
}
