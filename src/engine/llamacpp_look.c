/* SPDX-License-Identifier: MIT */
#include "llamacpp_internal.h"

/*
 * The probe's work on files, on a worker: the slot that the self-test saved, and the
 * files of model and adapters.
 */

#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/mem.h"

#define MAX_FILE ((off_t)4 << 30) /* of a saved slot that is looked at */

/* Writes the same slot without its last tokens. */
static void write_cut(struct llama_look *k, const struct slotfile *f)
{
    const uint32_t n = f->n_tokens - k->cut_tokens;
    uint32_t *tokens = mem_array(n, sizeof(*tokens));
    unsigned char *rows = mem_array(n, f->frame.token_bytes);
    const size_t size = (size_t)slotfile_size(&f->frame, n);
    unsigned char *out = mem_alloc(size);
    for (uint32_t i = 0; i < n; i++)
        tokens[i] = slotfile_token(f, i);
    slotfile_cut(f, 0, n, rows);
    k->rows = chain_checksum(slice_make((const char *)rows, n * f->frame.token_bytes));
    const struct slotfile_part part = {rows, n, n};
    slotfile_compose(&f->frame, 0, tokens, n, &part, 1, out);
    const int error = llama_scratch_write(k->cut_path, out, size);
    if (error)
        err_set(&k->err, ERR_IO, "writing to the slot directory: %s", strerror(error));
    free(out);
    free(rows);
    free(tokens);
}

/* Writes the same slot with a cell more in its window. */
static void write_padded(struct llama_look *k, const struct slotfile *f,
                         struct slice bytes)
{
    const size_t size = bytes.len + (size_t)f->window_bytes;
    unsigned char *out = mem_alloc(size);
    slotfile_pad_window(bytes, out);
    const int error = llama_scratch_write(k->cut_path, out, size);
    if (error)
        err_set(&k->err, ERR_IO, "writing to the slot directory: %s", strerror(error));
    free(out);
}

static void put_ids(struct buf *b, const struct slotfile *f, uint32_t from, uint32_t to)
{
    for (uint32_t i = from; i < to; i++)
        buf_printf(b, "%s%u", i ? "," : "", slotfile_token(f, i));
}

/* Prompts that go on behind its very tokens, whatever a tokenizer makes of more text. */
static void note_ids(struct llama_look *k, const struct slotfile *f)
{
    const uint32_t n = f->n_tokens, cut = n - k->cut_tokens;
    uint32_t other = 0;
    while (other < cut && slotfile_token(f, other) == slotfile_token(f, cut))
        other++;
    buf_clear(&k->ids);
    buf_clear(&k->more);
    buf_clear(&k->parted);
    put_ids(&k->ids, f, 0, n);
    put_ids(&k->more, f, 1, 1 + k->cut_tokens);
    put_ids(&k->parted, f, 0, cut);
    buf_printf(&k->parted, ",%u", slotfile_token(f, other));
}

/* What is put back as it is has to fit in all that the engine compares. */
static void note_whole(struct llama_look *k, const struct slotfile *f, struct slice bytes)
{
    buf_append_str(&k->layout, "whole");
    buf_append(&k->layout, &f->frame.streams, sizeof(f->frame.streams));
    buf_append(&k->layout, &f->frame.v_transposed, sizeof(f->frame.v_transposed));
    buf_append(&k->layout, &f->window, sizeof(f->window));
    k->rows = chain_checksum(bytes);
    k->window = f->window;
    note_ids(k, f);
    if (f->window && f->window < f->n_tokens)
        write_padded(k, f, bytes);
}

static void look_at_slot(struct llama_look *k, struct slice bytes)
{
    struct slotfile *f = mem_alloc(sizeof(*f));
    struct err e = {0};
    const int rc = slotfile_parse(f, bytes, &e);
    k->whole = rc && slotfile_parse_whole(f, bytes, NULL) == 0;
    if (rc && !k->whole) {
        err_set(&k->err, e.code, "a saved slot cannot be cut into tokens: %s", e.text);
    } else if (f->n_tokens != k->n_tokens) {
        err_set(&k->err, ERR_MISMATCH, "a saved slot file does not hold its prompt");
    } else {
        *k->frame = f->frame;
        slotfile_layout_bytes(&f->frame, &k->layout);
        buf_append(&k->layout, &f->frame.version, sizeof(f->frame.version));
        if (k->whole)
            note_whole(k, f, bytes);
        else
            write_cut(k, f);
    }
    free(f);
}

static void read_slot(struct llama_look *k)
{
    struct stat st;
    const int fd = open(k->saved_path, O_RDONLY | O_NOFOLLOW | O_CLOEXEC);
    if (fd < 0 || fstat(fd, &st) != 0 || (uint64_t)st.st_size != k->written) {
        err_set(&k->err, ERR_NOT_FOUND,
                "what the engine saved is not in the slot directory: another directory?");
    } else if (st.st_size > MAX_FILE) {
        err_set(&k->err, ERR_LIMIT, "the slot that the self-test saved is too large");
    } else {
        unsigned char *bytes = mem_alloc((size_t)st.st_size);
        if (read(fd, bytes, (size_t)st.st_size) != st.st_size)
            err_errno(&k->err, "reading a saved slot");
        else
            look_at_slot(k, slice_make((char *)bytes, (size_t)st.st_size));
        free(bytes);
    }
    if (fd >= 0)
        close(fd);
}

static void read_models(struct llama_look *k)
{
    struct buf b = {0};
    k->model_read =
        k->model_path[0] && modelfile_hash(k->model_path, k->model_memo, &k->model);
    for (size_t i = 0; i < k->n_adapters; i++) {
        struct hash128 h = {0, 0};
        k->model_read &= modelfile_hash(k->adapter_paths[i], NULL, &h);
        buf_append(&b, &h, sizeof(h));
    }
    k->adapters = chain_checksum(buf_slice(&b));
    buf_free(&b);
}

void llama_look(struct llama_look *k)
{
    buf_clear(&k->layout);
    k->window = 0;
    k->err = (struct err){0};
    k->model = k->adapters = k->rows = (struct hash128){0, 0};
    read_slot(k);
    if (!k->err.code)
        read_models(k);
}
