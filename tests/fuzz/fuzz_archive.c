/* SPDX-License-Identifier: MIT */

/*
 * Archives from anywhere. What is told is right: blocks that verify, each behind its
 * parent, none twice. An archive that is taken to its end is, byte for byte, what writing
 * its contents gives.
 */

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "../../src/store/archive_internal.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#define MAX_BLOCKS 64

struct taken {
    struct archive_writer again;
    struct store_head heads[MAX_BLOCKS];
    size_t n;
};

static int on_header(void *arg, const struct archive_header *h,
                     unsigned char key[CHAIN_KEY_BYTES], struct err *e)
{
    struct taken *t = arg;
    (void)e;
    /* Without a key it is that of the seeds. */
    memset(key, 7, CHAIN_KEY_BYTES);
    if (h->with_key)
        memcpy(key, h->key, CHAIN_KEY_BYTES);
    archive_format_start(&t->again, t->again.out, h);
    return 0;
}

static int on_block(void *arg, struct store_block *b, int64_t used_ns, struct err *e)
{
    struct taken *t = arg;
    bool has_parent = b->head.index == 0;
    assert(store_block_verify(b));
    for (size_t i = 0; i < t->n; i++) {
        assert(!hash128_eq(t->heads[i].hash, b->head.hash) ||
               !hash128_eq(t->heads[i].fingerprint, b->head.fingerprint));
        has_parent |= hash128_eq(t->heads[i].hash, b->head.parent) &&
                      hash128_eq(t->heads[i].fingerprint, b->head.fingerprint) &&
                      t->heads[i].index + 1 == b->head.index;
    }
    assert(has_parent);
    if (t->n == MAX_BLOCKS)
        return err_set(e, ERR_LIMIT, "enough");
    t->heads[t->n++] = b->head;
    archive_format_block(&t->again, b, used_ns);
    return 0;
}

static int on_prompt(void *arg, const struct prompt_record *r, struct err *e)
{
    struct taken *t = arg;
    (void)e;
    archive_format_prompt(&t->again, r);
    return 0;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const struct archive_sink sink = {on_header, on_block, on_prompt};
    struct taken t = {0};
    struct err e = {0};
    char *bytes = NULL;
    size_t n = 0;
    if (size == 0)
        return 0;
    FILE *in = fmemopen((void *)(uintptr_t)data, size, "rb");
    t.again.out = open_memstream(&bytes, &n);
    assert(in && t.again.out);
    const int rc = archive_format_read(in, &sink, &t, &e);
    assert(rc == e.code);
    if (rc == 0)
        assert(archive_format_end(&t.again, NULL) == 0);
    fclose(in);
    fclose(t.again.out);
    assert(rc || (n == size && memcmp(bytes, data, size) == 0));
    free(bytes);
    return 0;
}
