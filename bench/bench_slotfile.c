/* SPDX-License-Identifier: MIT */

/*
 * How fast slot files are read, cut into blocks of 64 tokens, and put together again, in
 * RAM and on one thread. Each line is the fastest and the middle one of several runs, and
 * the speed of the middle one (a parser reads no rows: none there).
 */

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/mem.h"
#include "proto/slotfile.h"
#include "store/store.h"

#define BLOCK 64
#define RUNS 15

struct shape {
    const char *name;
    uint32_t layers, row, tokens;
};

struct work {
    struct slotfile_frame *frame;
    struct slotfile *parsed;
    struct slotfile_part *parts; /* the blocks */
    size_t n_parts;
    unsigned char **rows;
    uint32_t *tokens;
    uint32_t n_tokens;
    unsigned char *file, *composed;
    size_t size;
};

static void make_file(struct work *w, const struct shape *s)
{
    w->frame = mem_zalloc(sizeof *w->frame);
    *w->frame = (struct slotfile_frame){
        .version = 4, .packed_tokens = true, .streams = 2, .n_layers = s->layers};
    for (uint32_t i = 0; i < s->layers; i++)
        w->frame->layers[i] = (struct slotfile_layer){1, 1, s->row, s->row};
    w->frame->token_bytes = 2 * (uint64_t)s->layers * s->row;
    w->n_tokens = s->tokens;
    w->tokens = mem_zalloc(s->tokens * sizeof *w->tokens);
    w->size = slotfile_size(w->frame, s->tokens);
    w->file = mem_alloc(w->size);
    w->composed = mem_alloc(w->size);
    memset(w->composed, 1, w->size); /* no page faults while it is measured */
    w->parsed = mem_alloc(sizeof *w->parsed);
    unsigned char *rows = mem_alloc(s->tokens * w->frame->token_bytes);
    for (size_t i = 0; i < s->tokens * w->frame->token_bytes; i++)
        rows[i] = (unsigned char)(i * 2654435761u >> 13);
    const struct slotfile_part whole = {rows, s->tokens, s->tokens};
    slotfile_compose(w->frame, 0, w->tokens, s->tokens, &whole, 1, w->file);
    free(rows);
}

static void make_parts(struct work *w)
{
    w->n_parts = (w->n_tokens + BLOCK - 1) / BLOCK;
    w->parts = mem_array(w->n_parts, sizeof *w->parts);
    w->rows = mem_array(w->n_parts, sizeof *w->rows);
    for (size_t i = 0; i < w->n_parts; i++) {
        const uint32_t left = w->n_tokens - (uint32_t)i * BLOCK;
        const uint32_t n = left < BLOCK ? left : BLOCK;
        w->rows[i] = mem_zalloc(n * w->frame->token_bytes);
        memset(w->rows[i], 1, n * w->frame->token_bytes);
        w->parts[i] = (struct slotfile_part){w->rows[i], n, n};
    }
}

static void run_parse(struct work *w)
{
    if (slotfile_parse(w->parsed, slice_make((const char *)w->file, w->size), NULL))
        abort();
}

static void run_cut(struct work *w)
{
    for (size_t i = 0; i < w->n_parts; i++)
        slotfile_cut(w->parsed, i * BLOCK, w->parts[i].n, w->rows[i]);
}

static void run_compose(struct work *w)
{
    slotfile_compose(w->frame, 0, w->tokens, w->n_tokens, w->parts, w->n_parts,
                     w->composed);
}

/* What saving costs beside the disk: rows into new blocks, and their checksums. */
static void run_blocks(struct work *w)
{
    for (size_t i = 0; i < w->n_parts; i++) {
        const struct store_head head = {
            .n_tokens = w->parts[i].n,
            .rows_bytes = w->parts[i].n * w->frame->token_bytes,
        };
        uint32_t *tokens;
        unsigned char *rows;
        struct store_block *b = store_block_new(&head, &tokens, &rows);
        memcpy(tokens, w->tokens + i * BLOCK, head.n_tokens * sizeof *tokens);
        slotfile_cut(w->parsed, i * BLOCK, head.n_tokens, rows);
        store_block_seal(b);
        store_block_put(b);
    }
}

static int by_time(const void *a, const void *b)
{
    const uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return x < y ? -1 : x > y;
}

static void measure(const char *what, const struct shape *s, struct work *w,
                    void (*run)(struct work *w))
{
    uint64_t us[RUNS];
    for (int i = 0; i < RUNS; i++) {
        const uint64_t start = clock_mono_us();
        run(w);
        us[i] = clock_mono_us() - start;
    }
    qsort(us, RUNS, sizeof *us, by_time);
    const double bytes = (double)w->size, middle = (double)us[RUNS / 2];
    printf("%-22s %-9s %6.1f MB  best %7.2f ms  middle %7.2f ms", s->name, what,
           bytes / 1e6, (double)us[0] / 1e3, middle / 1e3);
    if (run != run_parse)
        printf("  %5.2f GB/s", bytes / 1e3 / middle);
    printf("\n");
}

static void bench_shape(const struct shape *s)
{
    struct work w = {0};
    make_file(&w, s);
    make_parts(&w);
    measure("parse", s, &w, run_parse);
    measure("cut", s, &w, run_cut);
    measure("compose", s, &w, run_compose);
    measure("cut+seal", s, &w, run_blocks);
    if (memcmp(w.file, w.composed, w.size) != 0)
        abort(); /* what was cut and composed is the file again */
    for (size_t i = 0; i < w.n_parts; i++)
        free(w.rows[i]);
    free(w.rows);
    free(w.parts);
    free(w.tokens);
    free(w.file);
    free(w.composed);
    free(w.parsed);
    free(w.frame);
}

int main(void)
{
    static const struct shape shapes[] = {
        {"30 layers, 384 B rows", 30, 384, 1500},
        {"30 layers, 384 B rows", 30, 384, 8000},
        {"32 layers, 2 KiB rows", 32, 2048, 2000},
    };
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++)
        bench_shape(&shapes[i]);
    return 0;
}
