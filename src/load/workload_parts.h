/* SPDX-License-Identifier: MIT */
#ifndef INCIPIT_LOAD_WORKLOAD_PARTS_H
#define INCIPIT_LOAD_WORKLOAD_PARTS_H

/* What workload.c (profiles and their requests) and workload_lines.c (files) share. */

#include "load/workload.h"

#define WORKLOAD_CHAT "/v1/chat/completions"

struct workload_line {
    char *path;
    char *body;
};

/* Reads a file of requests; *lines and its strings belong to the caller, in case of an
 * error too. */
int workload_lines(const struct workload_options *o, struct workload_line **lines,
                   uint64_t *n, struct err *e);

/* `n` words, the first without a space before it. */
void workload_words(struct buf *out, uint64_t state, uint32_t n);

#endif
