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
 * 0 in 4 bytes · checksum 4 (low bits of XXH3-128 over the 76 before).
 */

#include <stdint.h>

#include "base/hash128.h"
#include "io/workers.h"
#include "prefix/index.h"

struct prompt_log;

/* Never fails: without a writable file nothing is kept (logged once). */
struct prompt_log *prompt_log_open(const char *dir, uint64_t max_bytes,
                                   struct workers *w);
/* Writes what was added and not flushed. Flush the workers first. NULL is allowed. */
void prompt_log_close(struct prompt_log *l);

void prompt_log_add(struct prompt_log *l, const struct index_record *r,
                    struct hash128 block, uint32_t n_blocks);

/* Hands what was added to a worker for writing. */
void prompt_log_flush(struct prompt_log *l);

/*
 * Imports all records whose block `place` finds (it sets the mark, clear where unknown),
 * oldest first. Returns how many.
 */
typedef void (*prompt_log_place)(void *arg, struct hash128 block, uint32_t n_blocks,
                                 struct tree_mark *m);
size_t prompt_log_replay(struct prompt_log *l, struct index *ix, struct tree *t,
                         prompt_log_place place, void *arg);

#endif
