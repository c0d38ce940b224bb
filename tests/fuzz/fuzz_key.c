/* SPDX-License-Identifier: MIT */

/*
 * From bodies to keys. Two bodies, the second behind a zero (else it is the first): what
 * their keys have in common is exactly what their canonical texts have in common, piece by
 * piece; written in another way, a body keeps its key; another tenant shares nothing. The
 * first byte chooses the API, the order of the template and the spelling.
 */

#include <assert.h>
#include <stdint.h>
#include <string.h>

#include "../lib/prompt_oracle.h"
#include "gateway/inspect.h"
#include "prefix/pieces.h"
#include "proto/jlex.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#define LONG_KEY 256
#define IDS_PART '9' /* of a record: ids, eight digits each */

struct keyed {
    struct prompt prompt;
    struct pieces pieces, foreign; /* of two tenants */
    struct buf record;             /* prompt_oracle.h */
    bool readable;
};

/* What the pieces are made of: ids as one more part. */
static void record_pieces(const struct prompt *p, enum prompt_order order, struct buf *b)
{
    record_prompt(p, order, b);
    if (!p->n_ids)
        return;
    buf_append_char(b, RECORD_BEGIN);
    buf_append_char(b, IDS_PART);
    for (size_t i = 0; i < p->n_ids; i++)
        buf_printf(b, "%08x", p->ids[i]);
    buf_append_char(b, RECORD_END);
}

static void key_of(struct keyed *k, enum prompt_api api, enum prompt_order order,
                   struct slice body)
{
    static const unsigned char secret[CHAIN_KEY_BYTES] =
        "a key for tests and for no more";
    static struct chain_key key;
    chain_key_init(&key, secret);
    *k = (struct keyed){0};
    k->readable = prompt_scan(&k->prompt, api, body);
    pieces_init(&k->pieces, &key, SLICE_LIT("one"));
    pieces_init(&k->foreign, &key, SLICE_LIT("another"));
    if (!k->readable)
        return;
    inspect_pieces(&k->prompt, order, &k->pieces);
    inspect_pieces(&k->prompt, order, &k->foreign);
    record_pieces(&k->prompt, order, &k->record);
    assert(pieces_common(k->pieces.v, k->pieces.n, k->foreign.v, k->foreign.n) == 0);
    assert(!hash128_eq(k->pieces.root, k->foreign.root));
}

static void key_free(struct keyed *k)
{
    prompt_free(&k->prompt);
    pieces_free(&k->pieces);
    pieces_free(&k->foreign);
    buf_free(&k->record);
}

/* ---- another spelling -------------------------------------------------------------- */

static uint32_t draw(uint32_t *seed)
{
    *seed = *seed * 1664525u + 1013904223u;
    return *seed >> 24;
}

static void put_space(struct buf *out, uint32_t *seed)
{
    static const char spaces[] = "  \n\t\r";
    while (draw(seed) % 3 == 0)
        buf_append_char(out, spaces[draw(seed) % (sizeof(spaces) - 1)]);
}

/* Some letters of one byte as escapes, all others as they are. (A long key with escapes is
 * not read.) */
static void put_string(struct buf *out, struct slice raw, bool key, uint32_t *seed)
{
    const uint32_t of = key && raw.len > LONG_KEY ? 0 : 4;
    buf_append_char(out, '"');
    for (size_t i = 0; i < raw.len; i++) {
        const char c = raw.ptr[i];
        if (c == '\\') {
            const size_t n = raw.ptr[i + 1] == 'u' ? 6 : 2;
            buf_append(out, raw.ptr + i, n);
            i += n - 1;
        } else if ((unsigned char)c < 0x80 && of && draw(seed) % of == 0) {
            buf_printf(out, draw(seed) % 2 ? "\\u%04x" : "\\u%04X", (unsigned)c);
        } else {
            buf_append_char(out, c);
        }
    }
    buf_append_char(out, '"');
}

/* The same value with other white space and other escapes. */
static struct buf respelled(struct slice body, uint32_t seed)
{
    struct buf out = {0};
    struct jlex j;
    struct jlex_token t;
    enum jlex_type before = JLEX_ERROR;
    jlex_init(&j, body);
    while (jlex_next(&j, &t) > JLEX_END) {
        const bool first = before == JLEX_OBJECT || before == JLEX_ARRAY ||
                           before == JLEX_KEY || before == JLEX_ERROR;
        if (!first && t.type != JLEX_OBJECT_END && t.type != JLEX_ARRAY_END)
            buf_append_char(&out, ',');
        put_space(&out, &seed);
        if (t.type == JLEX_KEY || t.type == JLEX_STRING)
            put_string(&out, jlex_raw(&j, &t), t.type == JLEX_KEY, &seed);
        else
            buf_append_slice(&out, jlex_raw(&j, &t));
        put_space(&out, &seed);
        if (t.type == JLEX_KEY)
            buf_append_char(&out, ':');
        before = t.type;
    }
    assert(t.type == JLEX_END);
    put_space(&out, &seed);
    return out;
}

static void check_spelling(const struct keyed *k, enum prompt_api api,
                           enum prompt_order order, struct slice body, uint32_t seed)
{
    struct buf other = respelled(body, seed);
    struct keyed again;
    key_of(&again, api, order, buf_slice(&other));
    assert(again.readable && again.prompt.bar == k->prompt.bar);
    assert(again.pieces.n == k->pieces.n);
    assert(hash128_eq(again.pieces.root, k->pieces.root));
    assert(pieces_common(again.pieces.v, again.pieces.n, k->pieces.v, k->pieces.n) ==
           k->pieces.n);
    key_free(&again);
    buf_free(&other);
}

/* ---- what two of them share -------------------------------------------------------- */

static size_t same_bytes(struct slice a, struct slice b)
{
    size_t n = 0;
    while (n < a.len && n < b.len && a.ptr[n] == b.ptr[n])
        n++;
    return n;
}

/* Pieces of a recorded prompt that end within its first `most` bytes. */
static size_t pieces_within(struct slice record, size_t most)
{
    size_t n = 0, fill = 0;
    char part = 0;
    for (size_t at = 0; at < most; at++) {
        if (record.ptr[at] == RECORD_BEGIN) {
            part = at + 1 < most ? record.ptr[++at] : 0;
            fill = 0;
        } else if (record.ptr[at] == RECORD_END) {
            n += part != '0' + PROMPT_PART_ROOT;
        } else if (++fill % (part == IDS_PART ? 2 * PIECE_BYTES : PIECE_BYTES) == 0) {
            n += part != '0' + PROMPT_PART_ROOT && part != '0' + PROMPT_PART_MEDIA;
        }
    }
    return n;
}

static void check_shared(const struct keyed *a, const struct keyed *b)
{
    const struct slice x = buf_slice(&a->record), y = buf_slice(&b->record);
    const size_t same = same_bytes(x, y);
    assert(pieces_common(a->pieces.v, a->pieces.n, b->pieces.v, b->pieces.n) ==
           pieces_within(x, same));
    assert(pieces_within(x, x.len) == a->pieces.n);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size == 0)
        return 0;
    const enum prompt_api api = (enum prompt_api)(data[0] % 5);
    const enum prompt_order order = (enum prompt_order)(data[0] / 5 % 3);
    const char *text = (const char *)data + 1;
    const size_t len = strnlen(text, size - 1);
    const bool two = len < size - 1;
    const struct slice first = slice_make(text, len);
    const struct slice second = two ? slice_make(text + len + 1, size - 2 - len) : first;
    struct keyed a, b;
    key_of(&a, api, order, first);
    key_of(&b, api, order, second);
    if (a.readable)
        check_spelling(&a, api, order, first, data[0]);
    if (a.readable && b.readable)
        check_shared(&a, &b);
    key_free(&a);
    key_free(&b);
    return 0;
}
