/* SPDX-License-Identifier: MIT */

/*
 * Every piece is one link, hashed twice with two secrets over the same bytes:
 *
 *     | up to 256 bytes | hash | check | label |  ──XXH3-128──▶ hash   of the next link
 *                         16     8       8        ──XXH3-64───▶ check  of the next link
 *
 * The label holds kind and tag of the part and whether the piece closes it, and the
 * hashes depend on the length; so a chain tells one sequence of parts from any other.
 * Both hashes cover both of the link before: after an accidental collision of one of
 * them the chains part again with the next piece.
 *
 * Bytes are copied once, in front of the head of the link, where both hashes read them
 * from the first-level cache. The head comes last so that the processor can start on the
 * bytes of a piece while the hashes of the one before are still under way. Roots and
 * media have no bound on their size: the same link is streamed.
 *
 * xxHash is compiled in (XXH_INLINE_ALL): with pieces this short, calls into the shared
 * library are slower by a sixth (gcc) to a half (clang).
 */

#include "prefix/pieces.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

#include "base/mem.h"

#define SECRET sizeof((struct chain_key *)0)->secret
#define LABEL_SEED 0xFFU /* in place of a kind: the caller's seed */

struct pieces_stream {
    XXH3_state_t *hash, *check;
};

_Static_assert(SECRET >= XXH3_SECRET_SIZE_MIN, "xxHash wants longer secrets");
_Static_assert(sizeof((struct chain_key *)0)->check == SECRET, "one size for both");
_Static_assert(sizeof(struct pieces_head) == 32, "the head of a link has no padding");

static uint64_t label_of(unsigned kind, unsigned tag, bool closes)
{
    return (uint64_t)kind | (uint64_t)tag << 8 | (uint64_t)closes << 16;
}

static struct hash128 hash_of(XXH128_hash_t h)
{
    return (struct hash128){.lo = h.low64, .hi = h.high64};
}

/* Hashes the link with its `fill` bytes; the result is the head of the next one. */
static void advance(struct pieces *p)
{
    const struct chain_key *k = p->key;
    const size_t len = p->fill + sizeof(p->head);
    memcpy(p->block + p->fill, &p->head, sizeof(p->head));
    p->head.hash = hash_of(XXH3_128bits_withSecret(p->block, len, k->secret, SECRET));
    p->head.check = XXH3_64bits_withSecret(p->block, len, k->check, SECRET);
}

static void add_piece(struct pieces *p, bool ends_part)
{
    if (p->n == p->cap) {
        p->cap = p->cap ? 2 * p->cap : 64;
        p->v = mem_rearray(p->v, p->cap, sizeof(*p->v));
    }
    p->v[p->n++] = (struct piece){
        .hash = p->head.hash,
        .check = p->head.check,
        .end_bytes = p->bytes,
        .ends_part = ends_part,
        .is_media = p->kind == PIECES_MEDIA,
    };
    p->full = p->n == PIECES_MAX;
}

/* ---- roots and media: links of any size -------------------------------------------- */

static void stream_free(struct pieces_stream *s)
{
    if (!s)
        return;
    XXH3_freeState(s->hash);
    XXH3_freeState(s->check);
    free(s);
}

static void stream_bytes(struct pieces *p, const void *ptr, size_t len)
{
    XXH3_128bits_update(p->stream->hash, ptr, len);
    XXH3_64bits_update(p->stream->check, ptr, len);
}

static void stream_begin(struct pieces *p, unsigned kind, unsigned tag)
{
    const struct chain_key *k = p->key;
    if (!p->stream) {
        p->stream = mem_alloc(sizeof(*p->stream));
        *p->stream = (struct pieces_stream){XXH3_createState(), XXH3_createState()};
        assert(p->stream->hash && p->stream->check); /* out of memory */
    }
    XXH3_128bits_reset_withSecret(p->stream->hash, k->secret, SECRET);
    XXH3_64bits_reset_withSecret(p->stream->check, k->check, SECRET);
    p->head.label = label_of(kind, tag, true);
}

static void stream_end(struct pieces *p)
{
    stream_bytes(p, &p->head, sizeof(p->head));
    p->head.hash = hash_of(XXH3_128bits_digest(p->stream->hash));
    p->head.check = XXH3_64bits_digest(p->stream->check);
}

/* ---- text: links of PIECE_BYTES and a closing one ---------------------------------- */

static void text_bytes(struct pieces *p, const char *ptr, size_t len)
{
    while (len && !p->full) {
        const size_t room = PIECE_BYTES - p->fill;
        const size_t take = len < room ? len : room;
        memcpy(p->block + p->fill, ptr, take);
        p->fill += take;
        p->bytes += take;
        ptr += take;
        len -= take;
        if (p->fill == PIECE_BYTES) {
            advance(p);
            add_piece(p, false);
            p->fill = 0;
        }
    }
}

/* The bytes stay in the block: the part may be reopened. */
static void text_end(struct pieces *p)
{
    p->prior_hash = p->head.hash;
    p->prior_check = p->head.check;
    p->head.label = label_of(p->kind, p->tag, true);
    advance(p);
    add_piece(p, true);
}

/* ---- the interface ----------------------------------------------------------------- */

void pieces_init(struct pieces *p, const struct chain_key *key, struct slice seed)
{
    assert(key);
    memset(p, 0, sizeof(*p));
    p->key = key;
    stream_begin(p, LABEL_SEED, 0);
    if (seed.len)
        stream_bytes(p, seed.ptr, seed.len);
    stream_end(p);
    p->root = p->head.hash;
}

void pieces_free(struct pieces *p)
{
    stream_free(p->stream);
    free(p->v);
    memset(p, 0, sizeof(*p));
}

void pieces_begin(struct pieces *p, enum pieces_kind kind, unsigned char tag)
{
    assert(!p->open && kind <= PIECES_MEDIA);
    assert(kind != PIECES_ROOT || p->n == 0);
    p->open = true;
    p->kind = (unsigned char)kind;
    p->tag = tag;
    p->fill = 0;
    if (kind == PIECES_TEXT)
        p->head.label = label_of(kind, tag, false);
    else
        stream_begin(p, kind, tag);
}

void pieces_bytes(struct pieces *p, const char *ptr, size_t len)
{
    assert(p->open);
    if (!len || p->full)
        return;
    if (p->kind == PIECES_TEXT)
        text_bytes(p, ptr, len);
    else
        stream_bytes(p, ptr, len);
}

void pieces_end(struct pieces *p)
{
    assert(p->open);
    p->open = false;
    if (p->full)
        return;
    if (p->kind == PIECES_TEXT) {
        text_end(p);
        return;
    }
    stream_end(p);
    if (p->kind == PIECES_ROOT)
        p->root = p->head.hash;
    else
        add_piece(p, true);
}

void pieces_reopen(struct pieces *p)
{
    assert(!p->open && p->kind == PIECES_TEXT);
    p->open = true;
    if (p->full)
        return; /* what was cut off has no end to take back */
    assert(p->n > 0 && p->v[p->n - 1].ends_part);
    p->n--;
    p->head.hash = p->prior_hash;
    p->head.check = p->prior_check;
    p->head.label = label_of(p->kind, p->tag, false);
}

size_t pieces_held(const struct pieces *p)
{
    return mem_held(p->cap * sizeof(*p->v), p->n * sizeof(*p->v));
}

/* Chained hashes: where one piece is equal, all before it are. */
size_t pieces_common(const struct piece *a, size_t n_a, const struct piece *b, size_t n_b)
{
    size_t low = 0, high = n_a < n_b ? n_a : n_b;
    while (low < high) {
        const size_t mid = low + (high - low) / 2;
        if (hash128_eq(a[mid].hash, b[mid].hash) && a[mid].check == b[mid].check)
            low = mid + 1;
        else
            high = mid;
    }
    return low;
}
