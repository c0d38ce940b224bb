/* SPDX-License-Identifier: MIT */
#include "archive_internal.h"

/*
 *     header │ block │ block … │ prompt │ prompt … │ end
 *
 * Each part ends with a checksum over itself and the checksum before, so that it covers
 * the whole stream up to there: what was damaged, left out or put elsewhere is found at
 * the first part that is not right.
 */

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"

#define MAGIC "incipAR\n"
#define FORMAT_VERSION 1
#define WITH_KEY 1u

enum { PART_BLOCK = 1, PART_PROMPT = 2, PART_END = 3 };

struct file_header {
    char magic[8];
    uint32_t version, flags;
    struct hash128 key_id;
    unsigned char key[CHAIN_KEY_BYTES];
    struct hash128 sum;
};
_Static_assert(sizeof(struct file_header) == 80, "no padding");

struct part_head {
    uint32_t kind, zero;
    uint64_t length; /* of what follows, without the checksum */
    int64_t used_ns; /* blocks: when last used; 0 for others */
};
_Static_assert(sizeof(struct part_head) == 24, "no padding");

struct part_end {
    uint64_t blocks, bytes, prompts;
};

struct hash128 archive_key_id(const unsigned char key[CHAIN_KEY_BYTES])
{
    struct chain_key k;
    chain_key_init(&k, key);
    return chain_hash(&k, SLICE_LIT("incipit archive key id"));
}

static struct hash128 next_sum(struct hash128 sum, const struct part_head *head,
                               struct slice body)
{
    const struct slice parts[] = {
        {(const char *)&sum, sizeof sum}, {(const char *)head, sizeof *head}, body};
    return chain_checksum_parts(parts, 3);
}

/* ---- writing ----------------------------------------------------------------------- */

static void put(struct archive_writer *w, const void *bytes, size_t n)
{
    fwrite(bytes, 1, n, w->out); /* failures are asked for in the end */
}

static void put_part(struct archive_writer *w, uint32_t kind, int64_t used_ns,
                     struct slice body)
{
    const struct part_head h = {.kind = kind, .length = body.len, .used_ns = used_ns};
    w->sum = next_sum(w->sum, &h, body);
    put(w, &h, sizeof h);
    put(w, body.ptr, body.len);
    put(w, &w->sum, sizeof w->sum);
}

void archive_format_start(struct archive_writer *w, FILE *out,
                          const struct archive_header *h)
{
    struct file_header f = {.magic = MAGIC,
                            .version = FORMAT_VERSION,
                            .flags = h->with_key ? WITH_KEY : 0,
                            .key_id = h->key_id};
    memcpy(f.key, h->key, sizeof f.key);
    f.sum =
        chain_checksum(slice_make((const char *)&f, offsetof(struct file_header, sum)));
    *w = (struct archive_writer){.out = out, .sum = f.sum};
    put(w, &f, sizeof f);
}

void archive_format_block(struct archive_writer *w, const struct store_block *b,
                          int64_t used_ns)
{
    const struct slice bytes = store_block_file(b);
    put_part(w, PART_BLOCK, used_ns, bytes);
    w->n.blocks++;
    w->n.bytes += bytes.len;
}

void archive_format_prompt(struct archive_writer *w, const struct prompt_record *r)
{
    unsigned char bytes[PROMPT_LOG_RECORD];
    prompt_log_encode(r, bytes);
    put_part(w, PART_PROMPT, 0, slice_make((const char *)bytes, sizeof bytes));
    w->n.prompts++;
}

int archive_format_end(struct archive_writer *w, struct err *e)
{
    const struct part_end end = {w->n.blocks, w->n.bytes, w->n.prompts};
    put_part(w, PART_END, 0, slice_make((const char *)&end, sizeof end));
    errno = 0;
    if (fflush(w->out) != 0 || ferror(w->out))
        return errno ? err_errno(e, "writing the archive")
                     : err_set(e, ERR_IO, "the archive could not be written");
    return 0;
}

/* ---- reading ----------------------------------------------------------------------- */

/* A block that has come, for those behind it. */
struct seen {
    struct store_map_node node;
    uint32_t index;
};

struct reader {
    FILE *in;
    const struct archive_sink *sink;
    void *arg;
    struct chain_key key;
    struct hash128 sum;
    struct store_map seen;
    struct part_end count; /* what has come so far */
    struct err *e;
};

static int get(struct reader *r, void *out, size_t n)
{
    if (fread(out, 1, n, r->in) == n)
        return 0;
    return ferror(r->in) ? err_errno(r->e, "reading the archive")
                         : err_set(r->e, ERR_FORMAT, "the archive is cut short");
}

static int read_header(struct reader *r)
{
    static const unsigned char none[CHAIN_KEY_BYTES];
    struct file_header f;
    unsigned char key[CHAIN_KEY_BYTES];
    int rc = get(r, &f, sizeof f);
    if (rc)
        return rc;
    if (memcmp(f.magic, MAGIC, sizeof f.magic) != 0)
        return err_set(r->e, ERR_FORMAT, "this is no archive of incipit");
    if (f.version != FORMAT_VERSION)
        return err_set(r->e, ERR_UNSUPPORTED,
                       "archive format %u; this program knows format %u", f.version,
                       FORMAT_VERSION);
    r->sum =
        chain_checksum(slice_make((const char *)&f, offsetof(struct file_header, sum)));
    if (!hash128_eq(r->sum, f.sum))
        return err_set(r->e, ERR_CHECKSUM, "the header of the archive is damaged");
    struct archive_header h = {.key_id = f.key_id, .with_key = f.flags & WITH_KEY};
    memcpy(h.key, f.key, sizeof h.key);
    if (f.flags & ~WITH_KEY || (!h.with_key && memcmp(h.key, none, sizeof none) != 0) ||
        (h.with_key && !hash128_eq(archive_key_id(h.key), h.key_id)))
        return err_set(r->e, ERR_FORMAT, "the header of the archive contradicts itself");
    rc = r->sink->header(r->arg, &h, key, r->e);
    if (!rc)
        chain_key_init(&r->key, key);
    return rc;
}

/* The checksum behind a part. */
static int read_sum(struct reader *r, const struct part_head *h, struct slice body)
{
    struct hash128 sum;
    const int rc = get(r, &sum, sizeof sum);
    if (rc)
        return rc;
    r->sum = next_sum(r->sum, h, body);
    return hash128_eq(sum, r->sum)
               ? 0
               : err_set(r->e, ERR_CHECKSUM, "the archive is damaged behind block %llu",
                         (unsigned long long)r->count.blocks);
}

static const struct seen *find_seen(const struct reader *r, struct hash128 fingerprint,
                                    struct hash128 hash)
{
    struct store_map_node *node =
        store_map_find(&r->seen, &(struct store_name){fingerprint, hash});
    return node ? LIST_ENTRY(node, struct seen, node) : NULL;
}

/* What the bytes say is true: about themselves, and about the blocks that came before. */
static int check_block(struct reader *r, const struct store_block *b)
{
    const struct store_head *h = &b->head;
    const struct seen *parent = find_seen(r, h->fingerprint, h->parent);
    const unsigned long long number = r->count.blocks + 1;
    if (!store_block_verify(b))
        return err_set(r->e, ERR_CHECKSUM, "block %llu is damaged", number);
    if (!hash128_eq(chain_block(&r->key, h->parent, b->tokens, h->n_tokens), h->hash))
        return err_set(r->e, ERR_MISMATCH,
                       "the name of block %llu is not the hash of its tokens", number);
    if (h->index && (!parent || parent->index + 1 != h->index))
        return err_set(r->e, ERR_FORMAT, "block %llu comes without the one before it",
                       number);
    if (find_seen(r, h->fingerprint, h->hash))
        return err_set(r->e, ERR_FORMAT, "block %llu comes twice", number);
    return 0;
}

static void remember(struct reader *r, const struct store_head *h)
{
    struct seen *s = mem_zalloc(sizeof *s);
    s->node.name = (struct store_name){h->fingerprint, h->hash};
    s->index = h->index;
    store_map_add(&r->seen, &s->node);
}

static int take_block(struct reader *r, const struct part_head *p, struct store_block *b,
                      struct slice bytes)
{
    int rc = read_sum(r, p, bytes);
    store_block_adopt(b);
    if (!rc)
        rc = check_block(r, b);
    if (!rc)
        rc = r->sink->block(r->arg, b, p->used_ns, r->e);
    if (rc)
        return rc;
    remember(r, &b->head);
    r->count.blocks++;
    r->count.bytes += bytes.len;
    return 0;
}

static int read_block(struct reader *r, const struct part_head *p)
{
    unsigned char head[STORE_BLOCK_HEAD], *bytes;
    struct store_head h;
    if (r->count.prompts)
        return err_set(r->e, ERR_FORMAT, "a block comes behind the prompts");
    if (p->length < sizeof head)
        return err_set(r->e, ERR_FORMAT, "a block of %llu bytes",
                       (unsigned long long)p->length);
    int rc = get(r, head, sizeof head);
    if (!rc)
        rc = store_block_read_head(head, p->length, &h, r->e);
    if (rc)
        return rc;
    struct store_block *b = store_block_blank(&h, &bytes);
    memcpy(bytes, head, sizeof head);
    rc = get(r, bytes + sizeof head, (size_t)p->length - sizeof head);
    if (!rc)
        rc = take_block(r, p, b, slice_make((const char *)bytes, (size_t)p->length));
    store_block_put(b);
    return rc;
}

static int read_prompt(struct reader *r, const struct part_head *p)
{
    unsigned char bytes[PROMPT_LOG_RECORD];
    struct prompt_record record;
    if (p->length != sizeof bytes || p->used_ns)
        return err_set(r->e, ERR_FORMAT, "a prompt record of %llu bytes",
                       (unsigned long long)p->length);
    int rc = get(r, bytes, sizeof bytes);
    if (!rc)
        rc = read_sum(r, p, slice_make((const char *)bytes, sizeof bytes));
    if (!rc && !prompt_log_decode(bytes, &record))
        rc = err_set(r->e, ERR_CHECKSUM, "a prompt record is damaged");
    if (!rc)
        rc = r->sink->prompt(r->arg, &record, r->e);
    r->count.prompts += !rc;
    return rc;
}

static int read_end(struct reader *r, const struct part_head *p)
{
    struct part_end end;
    if (p->length != sizeof end || p->used_ns)
        return err_set(r->e, ERR_FORMAT, "the end mark of the archive is not one");
    int rc = get(r, &end, sizeof end);
    if (!rc)
        rc = read_sum(r, p, slice_make((const char *)&end, sizeof end));
    if (rc)
        return rc;
    if (memcmp(&end, &r->count, sizeof end) != 0)
        return err_set(r->e, ERR_FORMAT, "the archive has lost blocks or prompts");
    return fgetc(r->in) == EOF
               ? 0
               : err_set(r->e, ERR_FORMAT, "something follows the end of the archive");
}

static int read_parts(struct reader *r)
{
    for (;;) {
        struct part_head p;
        int rc = get(r, &p, sizeof p);
        if (!rc && p.zero)
            rc = err_set(r->e, ERR_FORMAT, "the archive is damaged");
        if (!rc && p.kind == PART_END)
            return read_end(r, &p);
        if (!rc && p.kind == PART_BLOCK)
            rc = read_block(r, &p);
        else if (!rc && p.kind == PART_PROMPT)
            rc = read_prompt(r, &p);
        else if (!rc)
            rc = err_set(r->e, ERR_FORMAT, "the archive has a part of kind %u", p.kind);
        if (rc)
            return rc;
    }
}

int archive_format_read(FILE *in, const struct archive_sink *s, void *arg, struct err *e)
{
    struct err unused = {0};
    struct reader r = {.in = in, .sink = s, .arg = arg, .e = e ? e : &unused};
    int rc = read_header(&r);
    if (!rc)
        rc = read_parts(&r);
    for (size_t i = 0; i < r.seen.n_slots; i++)
        for (struct store_map_node *node = r.seen.slots[i], *next; node; node = next) {
            next = node->next;
            free(LIST_ENTRY(node, struct seen, node));
        }
    store_map_free(&r.seen);
    return rc;
}
