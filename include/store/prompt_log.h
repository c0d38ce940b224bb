/* SPDX-License-Identifier: MIT */
#ifndef INCIPIT_STORE_PROMPT_LOG_H
#define INCIPIT_STORE_PROMPT_LOG_H

/*
 * `prompts.log`: the prompt index on disk, so that text finds its blocks again after a
 * restart. Append-only records of fixed size, each with its own checksum; two
 * generations (`prompts.log`, `prompts.log.1`), the newer one rotated at its limit. It
 * holds keyed hashes and counts, no text. Losing any of it costs hits, never an answer.
 *
 * Record, 80 bytes, little-endian: piece hash 16 · hash of the piece before 16 · check 8
 * · low 4 · high 4 · reach 4 · chain hash of the covering block 16 · number of blocks 4 ·
 * tenant 4 · checksum 4 (low bits of XXH3-128 over the 76 before).
 *
 * For the loop's thread, files are touched on workers; prompt_log_load(), _encode() and
 * _decode() are for any thread.
 */

#include <stdbool.h>
#include <stdint.h>

#include "base/hash128.h"
#include "io/workers.h"
#include "prefix/index.h"

#define PROMPT_LOG_RECORD 80 /* bytes */

struct prompt_record {
    struct index_record boundary;
    struct hash128 block; /* the one that covers the boundary; none: no block does */
    uint32_t n_blocks;    /* from the root to it */
};

void prompt_log_encode(const struct prompt_record *r,
                       unsigned char out[PROMPT_LOG_RECORD]);
bool prompt_log_decode(const unsigned char bytes[PROMPT_LOG_RECORD],
                       struct prompt_record *r);

/* All records in `dir` that check out, oldest first, into a new array (NULL for none). */
size_t prompt_log_load(const char *dir, struct prompt_record **v);

struct prompt_log;

/* Never fails: while there is no writable file nothing is kept (logged once). */
struct prompt_log *prompt_log_open(const char *dir, uint64_t max_bytes,
                                   struct workers *w);
/* Writes what was added and not flushed. Flush the workers first. NULL is allowed. */
void prompt_log_close(struct prompt_log *l);

void prompt_log_add(struct prompt_log *l, const struct prompt_record *r);

/* Number of the newer file, from 1 on: another one after a rotation. What was written to
 * an earlier one will be gone some time, and is worth writing again. */
uint32_t prompt_log_file(const struct prompt_log *l);

/* Hands what was added to a worker for writing. */
void prompt_log_flush(struct prompt_log *l);

/*
 * Takes records out of both files, in its turn between writes, and calls done: those of
 * an owner (or of all), those of `gone`, and those that continue one of them. The array
 * is taken over.
 */
struct prompt_log_forget {
    uint32_t owner; /* INDEX_ANY_OWNER: all records; 0: none */
    struct hash128 *gone;
    size_t n_gone;
};
void prompt_log_forget(struct prompt_log *l, const struct prompt_log_forget *what,
                       void (*done)(void *arg), void *arg);

/* prompt_log_load() on a worker; the array belongs to the callback. */
typedef void (*prompt_log_read_cb)(void *arg, struct prompt_record *v, size_t n);
void prompt_log_read(struct prompt_log *l, prompt_log_read_cb done, void *arg);

#endif
