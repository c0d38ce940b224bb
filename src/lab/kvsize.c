/* SPDX-License-Identifier: MIT */
#include "lab/kvsize.h"

/*
 * The arithmetic, and files. Rows are summed layer by layer: with 1,024 layers at most
 * that is fast enough to search for the longest sequence that fits by halving.
 */

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/mem.h"
#include "kvsize_facts.h"

#define FIRST_READ (4u << 20)  /* the metadata of most models, word list included */
#define LAST_READ (256u << 20) /* nothing that is a model's metadata is larger */

static const struct kvsize_type types[] = {
    {"f32", 1, 4},    {"f16", 1, 2},      {"bf16", 1, 2},   {"fp8", 1, 1},
    {"q8_0", 32, 34}, {"q5_1", 32, 24},   {"q5_0", 32, 22}, {"q4_1", 32, 20},
    {"q4_0", 32, 18}, {"iq4_nl", 32, 18},
};

const struct kvsize_type *kvsize_type_at(size_t i)
{
    return i < sizeof(types) / sizeof(types[0]) ? &types[i] : NULL;
}

const struct kvsize_type *kvsize_type_find(const char *name)
{
    for (size_t i = 0; i < sizeof(types) / sizeof(types[0]); i++)
        if (strcmp(types[i].name, name) == 0)
            return &types[i];
    return NULL;
}

int kvsize_check(const struct kvsize_model *m, struct kvsize_types t, struct err *e)
{
    for (uint32_t i = 0; i < m->n_layers; i++) {
        const struct kvsize_layer *l = &m->layers[i];
        if (l->k % t.k->block || l->v % t.v->block)
            return err_set(e, ERR_INVALID,
                           "%s keeps values in blocks of %u, and a row here has %u",
                           l->k % t.k->block ? t.k->name : t.v->name,
                           l->k % t.k->block ? t.k->block : t.v->block,
                           l->k % t.k->block ? l->k : l->v);
    }
    return 0;
}

uint64_t kvsize_row(const struct kvsize_type *t, uint32_t values)
{
    assert(values % t->block == 0);
    return (uint64_t)values / t->block * t->bytes;
}

uint64_t kvsize_layer(const struct kvsize_layer *l, struct kvsize_types t)
{
    return kvsize_row(t.k, l->k) + kvsize_row(t.v, l->v);
}

uint64_t kvsize_bytes(const struct kvsize_model *m, struct kvsize_types t,
                      uint32_t tokens)
{
    assert(tokens <= KVSIZE_MAX_TOKENS);
    uint64_t sum = 0;
    for (uint32_t i = 0; i < m->n_layers; i++) {
        const struct kvsize_layer *l = &m->layers[i];
        const uint32_t kept = l->window && l->window < tokens ? l->window : tokens;
        sum += kvsize_layer(l, t) * kept;
    }
    return sum;
}

uint64_t kvsize_next(const struct kvsize_model *m, struct kvsize_types t, uint32_t tokens)
{
    uint64_t sum = 0;
    for (uint32_t i = 0; i < m->n_layers; i++)
        if (!m->layers[i].window || tokens < m->layers[i].window)
            sum += kvsize_layer(&m->layers[i], t);
    return sum;
}

uint32_t kvsize_fit(const struct kvsize_model *m, struct kvsize_types t, uint64_t bytes)
{
    uint32_t low = 0, high = KVSIZE_MAX_TOKENS;
    while (low < high) {
        const uint32_t middle = high - (high - low) / 2;
        if (kvsize_bytes(m, t, middle) <= bytes)
            low = middle;
        else
            high = middle - 1;
    }
    return low;
}

uint32_t kvsize_window(const struct kvsize_model *m)
{
    uint32_t widest = 0;
    for (uint32_t i = 0; i < m->n_layers; i++)
        if (m->layers[i].window > widest)
            widest = m->layers[i].window;
    return widest;
}

int kvsize_from_flags(struct kvsize_model *m, const struct kvsize_given *given,
                      struct err *e)
{
    *m = (struct kvsize_model){0};
    struct kvsize_facts *f = mem_zalloc(sizeof(*f));
    const int rc = kvsize_facts_build(f, given, m, e);
    free(f);
    return rc;
}

/* ---- files ------------------------------------------------------------------------- */

/* Reads until the buffer has `want` bytes or the file ends. */
static int read_up_to(int fd, struct buf *b, uint64_t want, struct err *e)
{
    while (buf_len(b) < want) {
        const size_t n = (size_t)want - buf_len(b);
        const ssize_t got = read(fd, buf_reserve(b, n), n);
        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0)
            return err_errno(e, "reading");
        if (got == 0)
            return err_set(e, ERR_IO, "the file shrank while it was read");
        buf_commit(b, (size_t)got);
    }
    return 0;
}

static int read_gguf(struct kvsize_model *m, int fd, struct buf *b, uint64_t size,
                     const struct kvsize_given *given, struct err *e)
{
    for (uint64_t want = FIRST_READ;; want *= 4) {
        struct err again = {0};
        int rc = read_up_to(fd, b, want < size ? want : size, e);
        if (rc)
            return rc;
        rc = kvsize_from_gguf(m, buf_slice(b), size, given, &again);
        if (rc != ERR_LIMIT)
            return rc ? err_set(e, rc, "%s", again.text) : 0;
        if (want >= LAST_READ)
            return err_set(e, ERR_FORMAT, "more than %u MiB of metadata",
                           LAST_READ >> 20);
    }
}

static int read_file(struct kvsize_model *m, int fd, const struct kvsize_given *given,
                     struct err *e)
{
    struct stat st;
    if (fstat(fd, &st) != 0)
        return err_errno(e, "looking at it");
    if (!S_ISREG(st.st_mode))
        return err_set(e, ERR_INVALID, "not a file (a model's folder has a config.json)");
    const uint64_t size = (uint64_t)st.st_size;
    struct buf b = {0};
    int rc = read_up_to(fd, &b, size < 4 ? size : 4, e);
    if (rc == 0 && slice_eq(buf_slice(&b), SLICE_LIT("GGUF")))
        rc = read_gguf(m, fd, &b, size, given, e);
    else if (rc == 0 && size > FIRST_READ)
        rc = err_set(e, ERR_FORMAT, "neither GGUF nor a config.json");
    else if (rc == 0) {
        rc = read_up_to(fd, &b, size, e);
        if (rc == 0)
            rc = kvsize_from_config(m, buf_slice(&b), given, e);
    }
    buf_free(&b);
    return rc;
}

int kvsize_from_file(struct kvsize_model *m, const char *path,
                     const struct kvsize_given *given, struct err *e)
{
    *m = (struct kvsize_model){0};
    const int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0)
        return err_errno(e, "%s", path);
    int rc = read_file(m, fd, given, e);
    close(fd);
    if (rc)
        rc = err_wrap(e, "%s", path);
    return rc;
}
