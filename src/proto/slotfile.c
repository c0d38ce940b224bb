/* SPDX-License-Identifier: MIT */
#include "proto/slotfile.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"

/*
 * A file, all little-endian (docs/slot-file.md has the byte table):
 *
 *   magic version W | W words of token payload | S | stream 0 … stream S-1
 *   stream: C, and only where C > 0:
 *           C cells {pos, n_seq, seq} | v_trans L [K and V rotation, version 4]
 *           L × {type, row bytes: u64, C rows of K} | L × {type, row bytes, C rows of V}
 *           V transposed: L × {type, bytes of an element, elements E, E × C elements}
 *   whole states: behind or instead of that a recurrent state, or streams of a window
 *
 * Reading goes through a cursor that hands out pointers and never moves past the end;
 * a count taken from the file is compared with what is left before it is used, and
 * nothing is allocated. The parser checks more than it needs: a file of a kind it does
 * not know (other records a cell, more than one cache) then goes wrong somewhere before
 * its last byte and is refused, instead of being cut in the wrong places.
 */

enum {
    MAGIC = 0x67677371, /* "qsgg" in the file */
    PAYLOAD_VERSION = 1,
    PAYLOAD_EXTRA = 4, /* words of a packed payload beside the tokens */
    CELL_BYTES = 12,
    LAYER_HEAD_BYTES = 12, /* before the rows of each layer, transposed or not */
    TILE = 32,             /* rows and columns that are turned at a time */
    TYPE_F32 = 0,
    TYPE_F16 = 1,
    TYPE_BF16 = 30,
};

static const uint32_t packed_marker = UINT32_MAX; /* no token id */

/* ---- little-endian words ----------------------------------------------------------- */

static uint32_t get_u32(const unsigned char *p)
{
    return (uint32_t)p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 |
           (uint32_t)p[3] << 24;
}

static uint64_t get_u64(const unsigned char *p)
{
    return get_u32(p) | (uint64_t)get_u32(p + 4) << 32;
}

static unsigned char *put_u32(unsigned char *p, uint32_t v)
{
    for (int i = 0; i < 4; i++)
        p[i] = (unsigned char)(v >> (8 * i));
    return p + 4;
}

static unsigned char *put_u64(unsigned char *p, uint64_t v)
{
    return put_u32(put_u32(p, (uint32_t)v), (uint32_t)(v >> 32));
}

/* ---- parsing ----------------------------------------------------------------------- */

struct cursor {
    const unsigned char *p;
    size_t left;
    bool cut; /* something did not fit: all that was read since is zero */
};

/* The next `n` bytes, or NULL where fewer are left. */
static const unsigned char *take(struct cursor *c, uint64_t n)
{
    if (c->cut || n > c->left) {
        c->cut = true;
        return NULL;
    }
    const unsigned char *p = c->p;
    c->p += n;
    c->left -= (size_t)n;
    return p;
}

static uint32_t take_u32(struct cursor *c)
{
    const unsigned char *p = take(c, 4);
    return p ? get_u32(p) : 0;
}

static uint64_t take_u64(struct cursor *c)
{
    const unsigned char *p = take(c, 8);
    return p ? get_u64(p) : 0;
}

static int cut_short(struct err *e)
{
    return err_set(e, ERR_FORMAT, "slot file is cut short");
}

static int parse_head(struct slotfile *f, struct cursor *c, struct err *e)
{
    const uint32_t magic = take_u32(c);
    f->frame.version = take_u32(c);
    if (c->cut || magic != MAGIC)
        return err_set(e, ERR_FORMAT, "not a llama-server slot file");
    if (f->frame.version != 2 && f->frame.version != 4)
        return err_set(e, ERR_UNSUPPORTED, "slot file version %u (2 and 4 are known)",
                       f->frame.version);
    return 0;
}

/* The words of a payload behind the marker: tokens, and nothing but tokens. */
static int parse_packed(struct slotfile *f, const unsigned char *p, uint32_t words,
                        struct err *e)
{
    if (words < PAYLOAD_EXTRA)
        return err_set(e, ERR_FORMAT, "token payload of %u words", words);
    if (get_u32(p + 4) != PAYLOAD_VERSION)
        return err_set(e, ERR_UNSUPPORTED, "token payload version %u", get_u32(p + 4));
    const uint32_t n = get_u32(p + 8);
    if (n > words - PAYLOAD_EXTRA)
        return err_set(e, ERR_FORMAT, "%u tokens in a payload of %u words", n, words);
    if (get_u32(p + 12 + 4 * (size_t)n) != 0)
        return err_set(e, ERR_UNSUPPORTED, "slot with media");
    if (n != words - PAYLOAD_EXTRA)
        return err_set(e, ERR_FORMAT, "%u tokens in a payload of %u words", n, words);
    f->frame.packed_tokens = true;
    f->n_tokens = n;
    f->tokens = p + 12;
    return 0;
}

static int parse_tokens(struct slotfile *f, struct cursor *c, struct err *e)
{
    const uint32_t words = take_u32(c);
    const unsigned char *p = take(c, 4 * (uint64_t)words);
    if (c->cut)
        return cut_short(e);
    f->n_tokens = words;
    f->tokens = p;
    if (words && get_u32(p) == packed_marker) {
        const int rc = parse_packed(f, p, words, e);
        if (rc)
            return rc;
    }
    for (size_t i = 0; i < f->n_tokens; i++) /* negative ids stand for pictures */
        if (slotfile_token(f, i) > INT32_MAX)
            return err_set(e, ERR_UNSUPPORTED, "slot with something else than text");
    return 0;
}

/* Where each token's row is: the cells must be its positions, each once. */
static int sort_cells(struct slotfile *f, const unsigned char *cells, struct err *e)
{
    uint32_t *order = mem_array(f->n_tokens, sizeof *order);
    memset(order, 0xff, f->n_tokens * sizeof *order);
    f->order = order;
    for (uint32_t i = 0; i < f->n_tokens; i++) {
        const uint32_t position = get_u32(cells + (size_t)i * CELL_BYTES);
        const uint32_t at = position - f->first;
        if (at >= f->n_tokens || order[at] != UINT32_MAX)
            return err_set(e, ERR_UNSUPPORTED, "position %u in cell %u", position, i);
        order[at] = i;
    }
    return 0;
}

/* Cells must be the tokens 0, 1, 2 … of one sequence: only then rows follow tokens. */
static int parse_cells(struct slotfile *f, struct cursor *c, struct err *e)
{
    const unsigned char *cells = take(c, (uint64_t)f->n_tokens * CELL_BYTES);
    const unsigned char *cell = cells;
    if (!cells)
        return cut_short(e);
    f->cells = cells;
    f->seq = get_u32(cell + 8);
    for (uint32_t i = 0; i < f->n_tokens; i++, cell += CELL_BYTES) {
        if (get_u32(cell) - f->first != i && !f->order && sort_cells(f, cells, e) != 0)
            return e ? e->code : ERR_UNSUPPORTED;
        if (get_u32(cell + 4) != 1 || get_u32(cell + 8) != f->seq)
            return err_set(e, ERR_UNSUPPORTED, "cell %u is not of one sequence", i);
    }
    return 0;
}

static bool good_rotation(uint32_t n)
{
    return (n & (n - 1)) == 0; /* 0, or a power of two: the size of a Hadamard matrix */
}

static int parse_shape(struct slotfile_frame *f, struct cursor *c, struct err *e)
{
    const uint32_t v_trans = take_u32(c);
    f->n_layers = take_u32(c);
    if (f->version == 4) {
        f->k_rot = take_u32(c);
        f->v_rot = take_u32(c);
    }
    if (c->cut)
        return cut_short(e);
    if (v_trans > 1 || f->n_layers == 0)
        return err_set(e, ERR_FORMAT, "bad layer header");
    f->v_transposed = v_trans;
    if (f->n_layers > SLOTFILE_MAX_LAYERS)
        return err_set(e, ERR_UNSUPPORTED, "%u layers", f->n_layers);
    if (!good_rotation(f->k_rot) || !good_rotation(f->v_rot))
        return err_set(e, ERR_UNSUPPORTED, "rotation %u/%u", f->k_rot, f->v_rot);
    return 0;
}

static int parse_rows(struct cursor *c, uint32_t n_rows, uint64_t row, struct slice *rows,
                      struct err *e)
{
    if (c->cut || row > c->left / n_rows)
        return cut_short(e);
    if (row == 0)
        return err_set(e, ERR_UNSUPPORTED, "layer with empty rows");
    const size_t size = (size_t)row * n_rows;
    *rows = slice_make((const char *)take(c, size), size);
    return 0;
}

static int parse_k(struct slotfile *f, struct cursor *c, uint32_t i, struct err *e)
{
    struct slotfile_layer *l = &f->frame.layers[i];
    l->k_type = take_u32(c);
    l->k_row = take_u64(c);
    return parse_rows(c, f->n_tokens, l->k_row, &f->k[i], e);
}

static int parse_v(struct slotfile *f, struct cursor *c, uint32_t i, struct err *e)
{
    struct slotfile_layer *l = &f->frame.layers[i];
    l->v_type = take_u32(c);
    if (f->frame.v_transposed) {
        l->v_element = take_u32(c);
        l->v_row = (uint64_t)l->v_element * take_u32(c);
    } else {
        l->v_row = take_u64(c);
    }
    return parse_rows(c, f->n_tokens, l->v_row, &f->v[i], e);
}

static int parse_layers(struct slotfile *f, struct cursor *c, struct err *e)
{
    int rc = 0;
    for (uint32_t i = 0; !rc && i < f->frame.n_layers; i++)
        rc = parse_k(f, c, i, e);
    for (uint32_t i = 0; !rc && i < f->frame.n_layers; i++)
        rc = parse_v(f, c, i, e);
    for (uint32_t i = 0; !rc && i < f->frame.n_layers; i++)
        f->frame.token_bytes += f->frame.layers[i].k_row + f->frame.layers[i].v_row;
    return rc;
}

/* Plain numbers are never rotated; a quantized cache may be; version 2 does not say. */
static bool is_plain(uint32_t type)
{
    return type == TYPE_F32 || type == TYPE_F16 || type == TYPE_BF16;
}

static void guess_rotation(struct slotfile_frame *f)
{
    for (uint32_t i = 0; i < f->n_layers; i++) {
        if (!is_plain(f->layers[i].k_type))
            f->k_rot = SLOTFILE_ROT_UNKNOWN;
        if (!is_plain(f->layers[i].v_type))
            f->v_rot = SLOTFILE_ROT_UNKNOWN;
    }
}

static int parse_stream(struct slotfile *f, struct cursor *c, struct err *e)
{
    int rc = parse_cells(f, c, e);
    if (!rc)
        rc = parse_shape(&f->frame, c, e);
    if (!rc)
        rc = parse_layers(f, c, e);
    if (!rc && f->frame.version == 2)
        guess_rotation(&f->frame);
    return rc;
}

static int parse_streams(struct slotfile *f, struct cursor *c, struct err *e)
{
    f->frame.streams = take_u32(c);
    if (c->cut || f->frame.streams == 0 || f->frame.streams > c->left / 4)
        return err_set(e, ERR_FORMAT, "%u streams", f->frame.streams);
    bool found = f->n_tokens == 0;
    for (uint32_t s = 0; s < f->frame.streams; s++) {
        const uint32_t cells = take_u32(c);
        if (c->cut)
            return cut_short(e);
        if (cells == 0)
            continue;
        if (found || cells != f->n_tokens)
            return err_set(e, ERR_FORMAT, "%u cells in stream %u for %u tokens", cells, s,
                           f->n_tokens);
        found = true;
        f->stream = s;
        const int rc = parse_stream(f, c, e);
        if (rc)
            return rc;
    }
    return found ? 0 : err_set(e, ERR_FORMAT, "%u tokens without cells", f->n_tokens);
}

int slotfile_parse_any(struct slotfile *f, struct slice bytes, uint32_t **order,
                       struct err *e)
{
    struct cursor c = {(const unsigned char *)bytes.ptr, bytes.len, false};
    memset(f, 0, sizeof *f);
    int rc = parse_head(f, &c, e);
    if (!rc)
        rc = parse_tokens(f, &c, e);
    if (!rc)
        rc = parse_streams(f, &c, e);
    if (!rc && c.left)
        rc = err_set(e, ERR_FORMAT, "%zu bytes behind the cache (a second one?)", c.left);
    *order = f->order;
    if (rc) {
        free(*order);
        f->order = *order = NULL;
    }
    return rc;
}

/* What recurrent layers write: one cell that stands for all tokens up to the last, and of
 * no sequence. A second cache of attention cannot look so: its cells have sequences. */
static int check_state(const struct slotfile *f, struct cursor *c, struct err *e)
{
    const uint32_t cells = take_u32(c), position = take_u32(c), sequences = take_u32(c);
    if (c->cut)
        return cut_short(e);
    if (cells != 1 || position + 1 != f->n_tokens || sequences != 0)
        return err_set(e, ERR_UNSUPPORTED, "neither rows nor a recurrent state");
    return 0;
}

/* Cells in the first stream that has any. */
static uint32_t peek_cells(struct cursor c)
{
    uint32_t cells = 0;
    for (uint32_t streams = take_u32(&c); streams && !cells && !c.cut; streams--)
        cells = take_u32(&c);
    return cells;
}

/* What layers with a sliding window write: a cache of the last tokens. `w` is read like
 * a file of these alone. */
static int parse_window(struct slotfile *w, const struct slotfile *f, struct cursor *c,
                        struct err *e)
{
    memset(w, 0, sizeof *w);
    w->n_tokens = peek_cells(*c);
    if (w->n_tokens == 0)
        return err_set(e, ERR_FORMAT, "neither a recurrent state nor a window");
    if (w->n_tokens > f->n_tokens)
        return err_set(e, ERR_UNSUPPORTED, "a second cache of more cells than the first");
    w->first = f->n_tokens - w->n_tokens;
    w->frame.version = f->frame.version;
    int rc = parse_streams(w, c, e);
    free(w->order);
    w->order = NULL;
    if (!rc && w->frame.streams != f->frame.streams)
        rc = err_set(e, ERR_UNSUPPORTED, "caches with other numbers of streams");
    return rc;
}

/* Reads `f`, and `w` where it has a window. */
static int parse_whole(struct slotfile *f, struct slotfile *w, struct slice bytes,
                       struct err *e)
{
    struct cursor c = {(const unsigned char *)bytes.ptr, bytes.len, false};
    memset(f, 0, sizeof *f);
    int rc = parse_head(f, &c, e);
    if (!rc)
        rc = parse_tokens(f, &c, e);
    if (rc || !f->n_tokens) /* an empty slot */
        return rc;
    struct cursor at = c;
    if (check_state(f, &at, NULL) == 0) /* without attention */
        return 0;
    rc = parse_streams(f, &c, e);
    free(f->order);
    f->order = NULL;
    at = c;
    if (rc || check_state(f, &at, NULL) == 0)
        return rc;
    rc = parse_window(w, f, &c, e);
    f->window = w->n_tokens;
    f->window_bytes = CELL_BYTES + w->frame.token_bytes;
    return rc;
}

int slotfile_parse_whole(struct slotfile *f, struct slice bytes, struct err *e)
{
    struct slotfile *w = mem_alloc(sizeof *w);
    const int rc = parse_whole(f, w, bytes, e);
    free(w);
    return rc;
}

int slotfile_parse(struct slotfile *f, struct slice bytes, struct err *e)
{
    uint32_t *order;
    const int rc = slotfile_parse_any(f, bytes, &order, e);
    if (rc || !order)
        return rc;
    free(order);
    f->order = NULL;
    return err_set(e, ERR_UNSUPPORTED, "positions are not in order");
}

/* ---- layout ------------------------------------------------------------------------ */

uint32_t slotfile_token(const struct slotfile *f, size_t i)
{
    assert(i < f->n_tokens);
    return get_u32(f->tokens + 4 * i);
}

static bool same_layer(const struct slotfile_layer *a, const struct slotfile_layer *b)
{
    return a->k_type == b->k_type && a->v_type == b->v_type && a->k_row == b->k_row &&
           a->v_row == b->v_row;
}

bool slotfile_same_layout(const struct slotfile_frame *a, const struct slotfile_frame *b)
{
    if (a->n_layers != b->n_layers || a->k_rot != b->k_rot || a->v_rot != b->v_rot)
        return false;
    for (uint32_t i = 0; i < a->n_layers; i++)
        if (!same_layer(&a->layers[i], &b->layers[i]))
            return false;
    return true;
}

void slotfile_layout_bytes(const struct slotfile_frame *f, struct buf *out)
{
    const size_t size = 12 + 24 * (size_t)f->n_layers;
    unsigned char *p = (unsigned char *)buf_reserve(out, size);
    p = put_u32(put_u32(put_u32(p, f->n_layers), f->k_rot), f->v_rot);
    for (uint32_t i = 0; i < f->n_layers; i++) {
        p = put_u32(p, f->layers[i].k_type);
        p = put_u64(p, f->layers[i].k_row);
        p = put_u32(p, f->layers[i].v_type);
        p = put_u64(p, f->layers[i].v_row);
    }
    buf_commit(out, size);
}

/* ---- cutting and composing --------------------------------------------------------- */

static unsigned char *put_bytes(unsigned char *p, const void *from, size_t n)
{
    memcpy(p, from, n);
    return p + n;
}

static void turn_tile(unsigned char *to, size_t to_step, const unsigned char *from,
                      size_t from_step, size_t n_rows, size_t n_columns, size_t size)
{
    for (size_t r = 0; r < n_rows; r++)
        for (size_t c = 0; c < n_columns; c++) {
            unsigned char *out = to + c * to_step + r * size;
            const unsigned char *in = from + r * from_step + c * size;
            if (size == 2) /* f16, bf16: one move */
                memcpy(out, in, 2);
            else
                memcpy(out, in, size);
        }
}

/* Row r, column c of `from` becomes row c, column r of `to`; rows lie *_step bytes apart,
 * elements have `size` bytes. In tiles: neither side leaves the processor's cache. */
static void turn(unsigned char *to, size_t to_step, const unsigned char *from,
                 size_t from_step, size_t n_rows, size_t n_columns, size_t size)
{
    for (size_t r = 0; r < n_rows; r += TILE)
        for (size_t c = 0; c < n_columns; c += TILE)
            turn_tile(to + c * to_step + r * size, to_step,
                      from + r * from_step + c * size, from_step,
                      n_rows - r < TILE ? n_rows - r : TILE,
                      n_columns - c < TILE ? n_columns - c : TILE, size);
}

static unsigned char *cut_rows(unsigned char *out, const struct slotfile *f,
                               const char *rows, uint64_t row_bytes, size_t first,
                               size_t n)
{
    const size_t row = (size_t)row_bytes;
    if (!f->order)
        return put_bytes(out, rows + first * row, n * row);
    for (size_t i = first; i < first + n; i++)
        out = put_bytes(out, rows + f->order[i] * row, row);
    return out;
}

/* Rows of V that lie as columns. */
static unsigned char *cut_columns(unsigned char *out, const struct slotfile *f,
                                  uint32_t layer, size_t first, size_t n)
{
    const struct slotfile_layer *l = &f->frame.layers[layer];
    const unsigned char *v = (const unsigned char *)f->v[layer].ptr;
    const size_t size = l->v_element, row = (size_t)l->v_row;
    const size_t step = f->n_tokens * size;
    if (!f->order)
        turn(out, row, v + first * size, step, row / size, n, size);
    for (size_t i = 0; f->order && i < n; i++)
        turn(out + i * row, row, v + f->order[first + i] * size, step, row / size, 1,
             size);
    return out + n * row;
}

void slotfile_cut(const struct slotfile *f, size_t first, size_t n, unsigned char *out)
{
    assert(first <= f->n_tokens && n <= f->n_tokens - first);
    if (n == 0)
        return;
    for (uint32_t i = 0; i < f->frame.n_layers; i++)
        out = cut_rows(out, f, f->k[i].ptr, f->frame.layers[i].k_row, first, n);
    for (uint32_t i = 0; i < f->frame.n_layers; i++)
        out = f->frame.v_transposed
                  ? cut_columns(out, f, i, first, n)
                  : cut_rows(out, f, f->v[i].ptr, f->frame.layers[i].v_row, first, n);
}

uint64_t slotfile_size(const struct slotfile_frame *f, size_t n_tokens)
{
    const uint64_t words = n_tokens + (f->packed_tokens ? PAYLOAD_EXTRA : 0);
    const uint64_t frame = 4 * (3 + words + 1 + f->streams);
    if (n_tokens == 0)
        return frame;
    return frame + n_tokens * (CELL_BYTES + f->token_bytes) + 8 +
           (f->version == 4 ? 8 : 0) + 2 * LAYER_HEAD_BYTES * (uint64_t)f->n_layers;
}

static unsigned char *put_tokens(unsigned char *p, const struct slotfile_frame *f,
                                 const uint32_t *tokens, size_t n)
{
    const uint32_t count = (uint32_t)n;
    p = put_u32(p, f->packed_tokens ? count + PAYLOAD_EXTRA : count);
    if (f->packed_tokens)
        p = put_u32(put_u32(put_u32(p, packed_marker), PAYLOAD_VERSION), count);
    for (size_t i = 0; i < n; i++)
        p = put_u32(p, tokens[i]);
    return f->packed_tokens ? put_u32(p, 0) : p; /* no media */
}

static unsigned char *put_cells(unsigned char *p, uint32_t seq, size_t n)
{
    for (size_t i = 0; i < n; i++)
        p = put_u32(put_u32(put_u32(p, (uint32_t)i), 1), seq);
    return p;
}

/* The rows of one layer out of all parts. In a part they lie behind those of the layers
 * before, `ahead` bytes a token. */
static unsigned char *put_rows(unsigned char *p, const struct slotfile_part *parts,
                               size_t n_parts, uint64_t ahead, uint64_t row)
{
    for (size_t i = 0; i < n_parts; i++)
        p = put_bytes(p, parts[i].rows + parts[i].n * ahead,
                      (size_t)(parts[i].use * row));
    return p;
}

/* The same as columns of a table that is `n` tokens wide. */
static unsigned char *put_columns(unsigned char *p, const struct slotfile_part *parts,
                                  size_t n_parts, uint64_t ahead,
                                  const struct slotfile_layer *l, size_t n)
{
    const size_t size = l->v_element, row = (size_t)l->v_row;
    size_t at = 0;
    for (size_t i = 0; i < n_parts; at += parts[i++].use)
        turn(p + at * size, n * size, parts[i].rows + parts[i].n * ahead, row,
             parts[i].use, row / size, size);
    return p + n * row;
}

static unsigned char *put_layers(unsigned char *p, const struct slotfile_frame *f,
                                 const struct slotfile_part *parts, size_t n_parts,
                                 size_t n_tokens)
{
    uint64_t ahead = 0;
    p = put_u32(put_u32(p, f->v_transposed), f->n_layers);
    if (f->version == 4)
        p = put_u32(put_u32(p, f->k_rot), f->v_rot);
    for (uint32_t i = 0; i < f->n_layers; ahead += f->layers[i++].k_row) {
        p = put_u64(put_u32(p, f->layers[i].k_type), f->layers[i].k_row);
        p = put_rows(p, parts, n_parts, ahead, f->layers[i].k_row);
    }
    for (uint32_t i = 0; i < f->n_layers; ahead += f->layers[i++].v_row) {
        const struct slotfile_layer *l = &f->layers[i];
        p = put_u32(p, l->v_type);
        if (f->v_transposed) {
            p = put_u32(put_u32(p, l->v_element), (uint32_t)(l->v_row / l->v_element));
            p = put_columns(p, parts, n_parts, ahead, l, n_tokens);
        } else {
            p = put_rows(put_u64(p, l->v_row), parts, n_parts, ahead, l->v_row);
        }
    }
    assert(ahead == f->token_bytes);
    return p;
}

static size_t tokens_used(const struct slotfile_part *parts, size_t n_parts)
{
    size_t n = 0;
    for (size_t i = 0; i < n_parts; i++) {
        assert(parts[i].use <= parts[i].n);
        n += parts[i].use;
    }
    return n;
}

void slotfile_compose(const struct slotfile_frame *f, uint32_t stream,
                      const uint32_t *tokens, size_t n_tokens,
                      const struct slotfile_part *parts, size_t n_parts,
                      unsigned char *out)
{
    assert(stream < f->streams && n_tokens <= INT32_MAX);
    assert(n_tokens == tokens_used(parts, n_parts));
    assert(n_tokens == 0 || f->n_layers > 0);
    assert(f->version == 2 ||
           (f->k_rot != SLOTFILE_ROT_UNKNOWN && f->v_rot != SLOTFILE_ROT_UNKNOWN));
    unsigned char *p = put_u32(put_u32(out, MAGIC), f->version);
    p = put_tokens(p, f, tokens, n_tokens);
    p = put_u32(p, f->streams);
    for (uint32_t s = 0; s < f->streams; s++) {
        const bool here = s == stream && n_tokens > 0;
        p = put_u32(p, here ? (uint32_t)n_tokens : 0);
        if (here) {
            p = put_cells(p, stream, n_tokens);
            p = put_layers(p, f, parts, n_parts, n_tokens);
        }
    }
    assert((uint64_t)(p - out) == slotfile_size(f, n_tokens));
}

/* ---- a window with one cell more --------------------------------------------------- */

/* Copies up to `to` and moves `*from` there. */
static unsigned char *put_until(unsigned char *p, const unsigned char **from,
                                const void *to)
{
    const size_t n = (size_t)((const unsigned char *)to - *from);
    p = put_bytes(p, *from, n);
    *from += n;
    return p;
}

static unsigned char *put_zeros(unsigned char *p, size_t n)
{
    memset(p, 0, n);
    return p + n;
}

/* The new cell is the first of all, so its part of each layer is, too: a row, or the
 * first element of each row where V is transposed. */
static unsigned char *put_padded_layers(unsigned char *p, const struct slotfile *w,
                                        const unsigned char **from)
{
    for (uint32_t i = 0; i < w->frame.n_layers; i++) {
        p = put_until(p, from, w->k[i].ptr);
        p = put_zeros(p, (size_t)w->frame.layers[i].k_row);
    }
    for (uint32_t i = 0; i < w->frame.n_layers; i++) {
        const struct slotfile_layer *l = &w->frame.layers[i];
        const size_t size = w->frame.v_transposed ? l->v_element : (size_t)l->v_row;
        for (size_t at = 0; at < l->v_row; at += size) {
            p = put_until(p, from, w->v[i].ptr + at * w->n_tokens);
            p = put_zeros(p, size);
        }
    }
    return p;
}

int slotfile_pad_window(struct slice bytes, unsigned char *out)
{
    struct slotfile *f = mem_alloc(sizeof *f), *w = mem_alloc(sizeof *w);
    const int rc = parse_whole(f, w, bytes, NULL);
    const bool fits = !rc && f->window && f->window < f->n_tokens;
    const unsigned char *from = (const unsigned char *)bytes.ptr, *end = from + bytes.len;
    if (fits) {
        out = put_until(out, &from, w->cells - 4);
        from += 4;
        out = put_u32(out, w->n_tokens + 1);
        out = put_u32(put_u32(put_u32(out, w->first - 1), 1), w->seq);
        out = put_padded_layers(out, w, &from);
        put_until(out, &from, end);
    }
    free(w);
    free(f);
    return fits ? 0 : ERR_UNSUPPORTED;
}

/* ---- names ------------------------------------------------------------------------- */

const char *slotfile_type_name(uint32_t type)
{
    static const char *const names[] = {
        [TYPE_F32] = "f32", [TYPE_F16] = "f16", [2] = "q4_0",
        [3] = "q4_1",       [6] = "q5_0",       [7] = "q5_1",
        [8] = "q8_0",       [20] = "iq4_nl",    [TYPE_BF16] = "bf16",
    };
    static _Thread_local char other[24];
    if (type < sizeof names / sizeof *names && names[type])
        return names[type];
    snprintf(other, sizeof other, "type %u", type);
    return other;
}
