/* SPDX-License-Identifier: MIT */
#include "store/store.h"

/*
 * A block lives in RAM as the very bytes of its file (docs/store.md), behind the struct
 * that points into them. Writing it is one write, reading one read, and the checksum
 * that goes to disk is the one that is verified in RAM:
 *
 *     struct image │ magic … sizes, checksum of the head │ token ids │ rows │ checksum
 *        tokens ───┼──────────────────────────────────────┘           │
 *        rows ─────┼──────────────────────────────────────────────────┘
 *
 * The head has a checksum of its own, over itself and the token ids: a recovery reads
 * these and no rows.
 */

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "store_internal.h"

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__,
               "numbers are stored as they are");

#define MAGIC "incipKV\n"
#define FORMAT_VERSION 1

/* The bytes before the token ids, as they are in memory and in the file. */
struct file_head {
    char magic[8];
    uint32_t version;
    uint32_t rows_at; /* offset of the rows: head and token ids */
    struct hash128 fingerprint, hash, parent;
    uint32_t index, n_tokens;
    uint64_t rows_bytes;
    struct hash128 check; /* of the bytes before, and of the token ids */
};
_Static_assert(sizeof(struct file_head) == STORE_BLOCK_HEAD, "no padding");
_Static_assert(sizeof(struct hash128) == STORE_BLOCK_TAIL, "the checksum at the end");

struct image {
    struct store_block b;
    atomic_uint refs;
    size_t size;
    _Alignas(16) unsigned char bytes[];
};

static struct image *image_of(struct store_block *b)
{
    return LIST_ENTRY(b, struct image, b);
}

static const struct image *const_image(const struct store_block *b)
{
    return (const struct image *)(const void *)b; /* `b` is its first member */
}
_Static_assert(offsetof(struct image, b) == 0, "see const_image()");

uint64_t store_block_bytes(const struct store_head *h)
{
    return STORE_BLOCK_HEAD + 4 * (uint64_t)h->n_tokens + h->rows_bytes +
           STORE_BLOCK_TAIL;
}

static bool good_sizes(uint32_t n_tokens, uint64_t rows_bytes)
{
    return n_tokens > 0 && n_tokens <= STORE_MAX_BLOCK_TOKENS &&
           rows_bytes <= STORE_MAX_BLOCK_BYTES;
}

/* ---- the bytes --------------------------------------------------------------------- */

int store_block_read_head(const unsigned char bytes[STORE_BLOCK_HEAD], uint64_t size,
                          struct store_head *h, struct err *e)
{
    struct file_head f;
    memcpy(&f, bytes, sizeof f);
    if (memcmp(f.magic, MAGIC, sizeof f.magic) != 0)
        return err_set(e, ERR_FORMAT, "not a block");
    if (f.version != FORMAT_VERSION)
        return err_set(e, ERR_UNSUPPORTED, "block format %u", f.version);
    if (!good_sizes(f.n_tokens, f.rows_bytes) ||
        f.rows_at != STORE_BLOCK_HEAD + 4 * f.n_tokens)
        return err_set(e, ERR_FORMAT, "block of %u tokens and %llu bytes", f.n_tokens,
                       (unsigned long long)f.rows_bytes);
    *h = (struct store_head){
        .fingerprint = f.fingerprint,
        .hash = f.hash,
        .parent = f.parent,
        .index = f.index,
        .n_tokens = f.n_tokens,
        .rows_bytes = f.rows_bytes,
    };
    if (store_block_bytes(h) != size)
        return err_set(e, ERR_FORMAT, "%llu bytes instead of %llu",
                       (unsigned long long)size,
                       (unsigned long long)store_block_bytes(h));
    return 0;
}

static struct hash128 head_check(const unsigned char *bytes, uint32_t n_tokens)
{
    const struct slice parts[] = {
        {(const char *)bytes, offsetof(struct file_head, check)},
        {(const char *)bytes + STORE_BLOCK_HEAD, 4 * (size_t)n_tokens},
    };
    return chain_checksum_parts(parts, 2);
}

bool store_block_head_ok(const unsigned char *bytes, const struct store_head *h)
{
    struct hash128 check;
    memcpy(&check, bytes + offsetof(struct file_head, check), sizeof check);
    return hash128_eq(check, head_check(bytes, h->n_tokens));
}

static void write_head(unsigned char *bytes, const struct store_head *h)
{
    struct file_head f = {
        .magic = MAGIC,
        .version = FORMAT_VERSION,
        .rows_at = STORE_BLOCK_HEAD + 4 * h->n_tokens,
        .fingerprint = h->fingerprint,
        .hash = h->hash,
        .parent = h->parent,
        .index = h->index,
        .n_tokens = h->n_tokens,
        .rows_bytes = h->rows_bytes,
    };
    memcpy(bytes, &f, offsetof(struct file_head, check));
    f.check = head_check(bytes, h->n_tokens);
    memcpy(bytes, &f, sizeof f);
}

/* Over all that comes before it. */
static struct hash128 checksum_of(const struct image *i)
{
    return chain_checksum(slice_make((const char *)i->bytes, i->size - STORE_BLOCK_TAIL));
}

/* ---- blocks ------------------------------------------------------------------------ */

struct store_block *store_block_blank(const struct store_head *h, unsigned char **bytes)
{
    assert(good_sizes(h->n_tokens, h->rows_bytes));
    const size_t size = (size_t)store_block_bytes(h);
    struct image *i = mem_alloc(sizeof *i + size);
    i->b = (struct store_block){
        .head = *h,
        .tokens = (const uint32_t *)(const void *)(i->bytes + STORE_BLOCK_HEAD),
        .rows = i->bytes + STORE_BLOCK_HEAD + 4 * (size_t)h->n_tokens,
    };
    atomic_init(&i->refs, 1);
    i->size = size;
    *bytes = i->bytes;
    return &i->b;
}

struct store_block *store_block_new(const struct store_head *head, uint32_t **tokens,
                                    unsigned char **rows)
{
    unsigned char *bytes;
    struct store_block *b = store_block_blank(head, &bytes);
    *tokens = (uint32_t *)(void *)(bytes + STORE_BLOCK_HEAD);
    *rows = bytes + STORE_BLOCK_HEAD + 4 * (size_t)head->n_tokens;
    return b;
}

void store_block_seal(struct store_block *b)
{
    struct image *i = image_of(b);
    write_head(i->bytes, &b->head);
    b->checksum = checksum_of(i);
    memcpy(i->bytes + i->size - STORE_BLOCK_TAIL, &b->checksum, STORE_BLOCK_TAIL);
}

void store_block_adopt(struct store_block *b)
{
    const struct image *i = image_of(b);
    memcpy(&b->checksum, i->bytes + i->size - STORE_BLOCK_TAIL, STORE_BLOCK_TAIL);
}

struct slice store_block_file(const struct store_block *b)
{
    const struct image *i = const_image(b);
    return slice_make((const char *)i->bytes, i->size);
}

struct store_block *store_block_get(struct store_block *b)
{
    struct image *i = image_of(b);
    const unsigned before = atomic_fetch_add_explicit(&i->refs, 1, memory_order_relaxed);
    assert(before > 0);
    return b;
}

void store_block_put(struct store_block *b)
{
    if (!b)
        return;
    struct image *i = image_of(b);
    const unsigned before = atomic_fetch_sub_explicit(&i->refs, 1, memory_order_acq_rel);
    assert(before > 0);
    if (before == 1)
        free(i);
}

static bool same_head(const struct store_head *a, const struct store_head *b)
{
    return hash128_eq(a->fingerprint, b->fingerprint) && hash128_eq(a->hash, b->hash) &&
           hash128_eq(a->parent, b->parent) && a->index == b->index &&
           a->n_tokens == b->n_tokens && a->rows_bytes == b->rows_bytes;
}

bool store_block_verify(const struct store_block *b)
{
    const struct image *i = const_image(b);
    struct store_head h;
    struct hash128 stored;
    memcpy(&stored, i->bytes + i->size - STORE_BLOCK_TAIL, sizeof stored);
    return store_block_read_head(i->bytes, i->size, &h, NULL) == 0 &&
           same_head(&h, &b->head) && store_block_head_ok(i->bytes, &h) &&
           hash128_eq(stored, b->checksum) && hash128_eq(stored, checksum_of(i));
}
