/* SPDX-License-Identifier: MIT */
#ifndef INCIPIT_PROTO_SLOTFILE_H
#define INCIPIT_PROTO_SLOTFILE_H

/*
 * llama-server's slot files (docs/slot-file.md): one sequence, its token ids and, layer
 * by layer, one K row and one V row per token. Rows are plain, so a file can be cut at
 * any token and put together again from parts of others with the same layout.
 *
 * "Layout" is what makes rows interchangeable: layers, type and row size of K and V in
 * each, and how rows were rotated. "Frame" is layout plus what a replica wants around it:
 * state version and number of streams. Rows of one block are one piece of memory:
 *
 *     for each layer: K rows of token 0 … n-1      (n × k_row[layer] bytes)
 *     for each layer: V rows of token 0 … n-1      (n × v_row[layer] bytes)
 *
 * Without flash attention files have V transposed, one row for each element. That is
 * undone where they are cut and done where they are composed, so blocks are the same.
 *
 * Pure byte work, meant for worker threads. A file that is not understood to its last
 * byte is refused: versions other than 2 and 4, media, several caches.
 */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/buf.h"
#include "base/err.h"
#include "base/slice.h"

#define SLOTFILE_MAX_LAYERS 1024
#define SLOTFILE_ROT_UNKNOWN UINT32_MAX

struct slotfile_layer {
    uint32_t k_type, v_type; /* ggml types: 0 f32, 1 f16, 8 q8_0 … */
    uint64_t k_row, v_row;   /* bytes a token */
    uint32_t v_element;      /* bytes, where V is transposed; else 0 */
};

struct slotfile_frame {
    uint32_t version;   /* 2 or 4 */
    bool packed_tokens; /* tokens behind the marker (all builds seen); else bare list */
    uint32_t streams;   /* 1 with unified KV, else the number of slots */
    bool v_transposed;  /* in files; blocks never are */
    /* Engines rotate rows of quantized types by groups of so many values before they
     * round them; 0: not rotated. Version 2 does not say: unknown where quantized. */
    uint32_t k_rot, v_rot;
    uint32_t n_layers;
    struct slotfile_layer layers[SLOTFILE_MAX_LAYERS];
    uint64_t token_bytes; /* of KV for one token: sum of all rows */
};

/* A parsed file: slices into the caller's bytes. */
struct slotfile {
    struct slotfile_frame frame;
    uint32_t n_tokens;
    const unsigned char *tokens; /* n_tokens little-endian u32, maybe unaligned */
    uint32_t stream, seq;        /* where the cells were: stream, and their sequence id */
    uint32_t *order;             /* row of each token; NULL: they lie in order */
    uint32_t window;       /* of a whole state: cells of a second cache, the last ones */
    uint64_t window_bytes; /* of one of them, with its rows */
    uint32_t first;        /* inside: position of the first token … */
    const unsigned char *cells; /* … and where its cell is */
    struct slice k[SLOTFILE_MAX_LAYERS], v[SLOTFILE_MAX_LAYERS]; /* rows of each layer */
};

/*
 * Reads `bytes` whole. 0, or ERR_FORMAT (not a slot file, cut short, bytes left over),
 * ERR_UNSUPPORTED (understood, but not to be cut: version, media, gaps in the
 * positions). `f` is large: allocate it. The file of an empty slot is fine: it has no
 * tokens and says nothing of the layout (n_layers and token_bytes are 0).
 */
int slotfile_parse(struct slotfile *f, struct slice bytes, struct err *e);

/*
 * The same for files whose cells lie in any order, as slots of a unified KV do that were
 * filled here and there. Where they do `*order` is set: the caller frees it behind the
 * last use of `f`. NULL otherwise, and after an error.
 */
int slotfile_parse_any(struct slotfile *f, struct slice bytes, uint32_t **order,
                       struct err *e);

/*
 * The file of a model whose state cannot be cut, but put back whole: with recurrent
 * layers, with or without attention layers beside them; or with layers that look back
 * over a window, which have a cache of their own with the last tokens alone. Only what is
 * proof that it is one is read, not the bytes of a recurrent state, nor what stands
 * behind. Of `f` tokens and frame are set (that of the layers that look back to the
 * start; n_layers is 0 without any; an empty slot has no tokens), and the window's cells
 * and their size; order is NULL. ERR_UNSUPPORTED, ERR_FORMAT: it is none.
 */
int slotfile_parse_whole(struct slotfile *f, struct slice bytes, struct err *e);

/*
 * The same file with one cell more in its window, before the others. An engine goes on
 * behind a state only if its window's first cell lies before what the next token looks
 * back to, and files have exactly as many cells as that one is wide. No token that comes
 * looks at the new cell, so its rows are zeros (docs/slot-file.md: tried). `out` has room
 * for the file and window_bytes. ERR_UNSUPPORTED, and nothing written: the file has no
 * window, or one that holds all of its tokens.
 */
int slotfile_pad_window(struct slice bytes, unsigned char *out);

uint32_t slotfile_token(const struct slotfile *f, size_t i);

/* Same layout (rows interchangeable), whatever version and streams are. */
bool slotfile_same_layout(const struct slotfile_frame *a, const struct slotfile_frame *b);

/* Canonical bytes of a layout, for fingerprints and for the store. */
void slotfile_layout_bytes(const struct slotfile_frame *f, struct buf *out);

/* Copies the rows of tokens [first, first + n) into `out`, n × token_bytes, in block
 * order (above). */
void slotfile_cut(const struct slotfile *f, size_t first, size_t n, unsigned char *out);

/* Rows of consecutive tokens, in block order; only the first `use` of `n` are taken. */
struct slotfile_part {
    const unsigned char *rows;
    uint32_t n, use;
};

/* Size of a composed file of n tokens. */
uint64_t slotfile_size(const struct slotfile_frame *f, size_t n_tokens);

/*
 * Writes a slot file of the parts put end to end: n_tokens = Σ use, tokens given
 * alongside, cells in stream `stream` (< f->streams), sequence id `stream`. `out` has
 * slotfile_size() bytes. Parsing the result gives back frame, tokens and rows. Engines
 * put the cells into the slot they are asked to restore, whatever stream and sequence
 * the file names, so stream 0 is right for all slots (tried, docs/slot-file.md).
 */
void slotfile_compose(const struct slotfile_frame *f, uint32_t stream,
                      const uint32_t *tokens, size_t n_tokens,
                      const struct slotfile_part *parts, size_t n_parts,
                      unsigned char *out);

/* "f16", "q8_0" … for a ggml type, "type N" otherwise (static or thread-local text). */
const char *slotfile_type_name(uint32_t type);

#endif
