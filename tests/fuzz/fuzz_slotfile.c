/* SPDX-License-Identifier: MIT */

/*
 * Slot files from anywhere: the parser must refuse them or understand them to the last
 * byte. What it understood must survive being cut in two and composed again.
 */

#include <assert.h>
#include <stdint.h>
#include <stdlib.h>

#include "base/mem.h"
#include "proto/slotfile.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check_again(const struct slotfile *s, const unsigned char *bytes, size_t size)
{
    struct slotfile *again = mem_alloc(sizeof *again);
    assert(slotfile_parse(again, slice_make((const char *)bytes, size), NULL) == 0);
    assert(slotfile_same_layout(&s->frame, &again->frame));
    assert(again->n_tokens == s->n_tokens && again->stream == s->stream);
    for (uint32_t i = 0; i < s->n_tokens; i++)
        assert(slotfile_token(s, i) == slotfile_token(again, i));
    for (uint32_t i = 0; i < s->frame.n_layers; i++)
        assert(slice_eq(s->k[i], again->k[i]) && slice_eq(s->v[i], again->v[i]));
    free(again);
}

static void cut_and_compose(const struct slotfile *s, const uint8_t *data, size_t size)
{
    const uint32_t n = s->n_tokens, half = n / 2;
    unsigned char *rows = mem_alloc(n * s->frame.token_bytes + 1);
    unsigned char *bytes = mem_alloc(size);
    uint32_t *tokens = mem_array(n + (size_t)1, sizeof *tokens);
    for (uint32_t i = 0; i < n; i++)
        tokens[i] = slotfile_token(s, i);
    const struct slotfile_part parts[] = {
        {rows, half, half}, {rows + half * s->frame.token_bytes, n - half, n - half}};
    slotfile_cut(s, 0, half, rows);
    slotfile_cut(s, half, n - half, rows + half * s->frame.token_bytes);
    slotfile_compose(&s->frame, s->stream, tokens, n, parts, 2, bytes);
    assert(s->seq != s->stream || memcmp(bytes, data, size) == 0);
    check_again(s, bytes, size);
    free(tokens);
    free(bytes);
    free(rows);
}

static void pad(const struct slotfile *s, const uint8_t *data, size_t size)
{
    const size_t more = (size_t)s->window_bytes;
    unsigned char *bytes = mem_alloc(size + more);
    struct slotfile *again = mem_alloc(sizeof *again);
    if (slotfile_pad_window(slice_make((const char *)data, size), bytes) == 0) {
        const struct slice padded = slice_make((const char *)bytes, size + more);
        assert(slotfile_parse_whole(again, padded, NULL) == 0);
        assert(again->n_tokens == s->n_tokens && again->window == s->window + 1);
        assert(again->window_bytes == s->window_bytes);
    } else {
        assert(s->window == 0 || s->window == s->n_tokens);
    }
    free(again);
    free(bytes);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct slotfile *s = mem_alloc(sizeof *s);
    struct err e = {0};
    const int rc = slotfile_parse(s, slice_make((const char *)data, size), &e);
    assert(rc == 0 || rc == ERR_FORMAT || rc == ERR_UNSUPPORTED);
    if (rc == 0) {
        assert(slotfile_size(&s->frame, s->n_tokens) == size);
        cut_and_compose(s, data, size);
    }
    uint32_t *order;
    if (slotfile_parse_any(s, slice_make((const char *)data, size), &order, NULL) == 0) {
        unsigned char *rows = mem_alloc(s->n_tokens * s->frame.token_bytes + 1);
        slotfile_cut(s, 0, s->n_tokens, rows);
        free(rows);
        free(order);
    }
    if (slotfile_parse_whole(s, slice_make((const char *)data, size), NULL) == 0) {
        for (uint32_t i = 0; i < s->n_tokens; i++)
            assert(slotfile_token(s, i) <= INT32_MAX);
        pad(s, data, size);
    }
    free(s);
    return 0;
}
