/* SPDX-License-Identifier: MIT */
#ifndef INCIPIT_LAB_KVSIZE_H
#define INCIPIT_LAB_KVSIZE_H

/*
 * How many bytes of KV cache a model keeps for a token, for a context, and what fits into
 * given memory (docs/kvsize.md). A model is, for this, one pair of row widths per layer:
 * what a token leaves there as K and as V, and for how long. That covers
 *
 *     all heads alike     k = v = kv_heads × head_dim
 *     latent (MLA)        k = kv_lora_rank + qk_rope_head_dim, v = 0
 *     sliding window      the layer forgets what is more than `window` tokens back
 *     hybrid              layers without attention have k = v = 0; the state that they
 *                         keep instead does not grow with the tokens and is not counted
 *
 * Where a file does not say what is needed, or names an architecture that is not known
 * here, nothing is guessed: the error names the key and the flag to give instead.
 */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"
#include "base/slice.h"

#define KVSIZE_MAX_LAYERS 1024
#define KVSIZE_MAX_TOKENS (1u << 25) /* of one sequence: sums stay below 2^63 */

/* How numbers are kept: `block` of them in `bytes`. */
struct kvsize_type {
    const char *name;
    uint32_t block, bytes;
};

/* Row `i` of the table of types, NULL behind the last; and the type of a name or NULL. */
const struct kvsize_type *kvsize_type_at(size_t i);
const struct kvsize_type *kvsize_type_find(const char *name);

struct kvsize_types {
    const struct kvsize_type *k, *v;
};

struct kvsize_layer {
    uint32_t k, v;   /* values a token leaves; 0 and 0: no attention */
    uint32_t window; /* tokens that are kept; 0: all */
};

struct kvsize_model {
    char name[96];    /* as the file calls it, printable; may be empty */
    char arch[48];    /* "llama"; empty where flags alone describe it */
    uint32_t context; /* tokens it was made for; 0: not said */
    uint32_t n_layers;
    struct kvsize_layer layers[KVSIZE_MAX_LAYERS];
};

/* What the person said; 0: nothing. It comes before what a file says. */
struct kvsize_given {
    uint32_t layers, kv_heads, head_dim;
    uint32_t latent;        /* values of the one latent row, rotary part included */
    uint32_t window;        /* tokens */
    uint32_t window_layers; /* how many layers have it; with a window alone: all */
};

/* All from flags: layers, and latent or kv_heads and head_dim. ERR_INVALID. */
int kvsize_from_flags(struct kvsize_model *m, const struct kvsize_given *given,
                      struct err *e);

/* A Hugging Face config.json. ERR_FORMAT, ERR_UNSUPPORTED (architecture), ERR_NOT_FOUND
 * (a key is missing). */
int kvsize_from_config(struct kvsize_model *m, struct slice json,
                       const struct kvsize_given *given, struct err *e);

/* The first bytes of a GGUF file of `file_size` bytes; errors as above, and ERR_LIMIT
 * where more of the file is needed (gguf.h). */
int kvsize_from_gguf(struct kvsize_model *m, struct slice bytes, uint64_t file_size,
                     const struct kvsize_given *given, struct err *e);

/* A file of either kind, told apart by its first bytes. */
int kvsize_from_file(struct kvsize_model *m, const char *path,
                     const struct kvsize_given *given, struct err *e);

/* Do rows of these widths come out in whole blocks? ERR_INVALID where not. */
int kvsize_check(const struct kvsize_model *m, struct kvsize_types t, struct err *e);

/* Bytes of a row of so many values (whole blocks); of what a token leaves in a layer; of
 * a sequence of so many tokens (≤ KVSIZE_MAX_TOKENS). */
uint64_t kvsize_row(const struct kvsize_type *t, uint32_t values);
uint64_t kvsize_layer(const struct kvsize_layer *l, struct kvsize_types t);
uint64_t kvsize_bytes(const struct kvsize_model *m, struct kvsize_types t,
                      uint32_t tokens);

/* Bytes of one more token where the sequence has `tokens` already. */
uint64_t kvsize_next(const struct kvsize_model *m, struct kvsize_types t,
                     uint32_t tokens);

/* The longest sequence that fits; KVSIZE_MAX_TOKENS stands for "that, or more". */
uint32_t kvsize_fit(const struct kvsize_model *m, struct kvsize_types t, uint64_t bytes);

/* The widest window of any layer, 0 where none has one. */
uint32_t kvsize_window(const struct kvsize_model *m);

#endif
