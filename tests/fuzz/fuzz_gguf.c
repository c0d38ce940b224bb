/* SPDX-License-Identifier: MIT */

/*
 * Model files from anywhere, GGUF and config.json. They are refused or understood; what
 * was understood has bounded layers and sums that do not run over, and a file of which
 * only the front is there asks for the rest or is refused.
 */

#include <assert.h>
#include <stdint.h>
#include <stdlib.h>

#include "base/mem.h"
#include "lab/gguf.h"
#include "lab/kvsize.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check_pairs(struct slice bytes)
{
    struct gguf g;
    if (gguf_read(&g, bytes, bytes.len, NULL) != 0)
        return;
    for (size_t i = 0; i < g.n; i++) {
        const struct gguf_pair *p = &g.pairs[i];
        uint64_t number;
        assert(p->bytes.ptr >= bytes.ptr);
        assert(p->bytes.ptr + p->bytes.len <= bytes.ptr + bytes.len);
        if (p->n && gguf_number(p, p->n - 1, &number))
            assert(p->item != GGUF_STRING);
    }
    gguf_free(&g);
}

static void check_model(const struct kvsize_model *m)
{
    const struct kvsize_types t = {kvsize_type_find("f32"), kvsize_type_find("f32")};
    assert(m->n_layers > 0 && m->n_layers <= KVSIZE_MAX_LAYERS);
    const uint64_t token = kvsize_bytes(m, t, 1);
    const uint64_t most = kvsize_bytes(m, t, KVSIZE_MAX_TOKENS);
    assert(most <= INT64_MAX && most >= token);
    assert(most / KVSIZE_MAX_TOKENS <= token);
    assert(kvsize_fit(m, t, most) == KVSIZE_MAX_TOKENS);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    const struct kvsize_given nothing = {0};
    const struct slice bytes = slice_make((const char *)data, size);
    struct kvsize_model *m = mem_alloc(sizeof(*m));
    if (size && data[0] == 'G') {
        check_pairs(bytes);
        if (kvsize_from_gguf(m, bytes, size, &nothing, NULL) == 0)
            check_model(m);
        const int rc =
            kvsize_from_gguf(m, slice_make(bytes.ptr, size / 2), size, &nothing, NULL);
        if (rc == 0)
            check_model(m);
    } else if (kvsize_from_config(m, bytes, &nothing, NULL) == 0) {
        check_model(m);
    }
    free(m);
    return 0;
}
