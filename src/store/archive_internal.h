/* SPDX-License-Identifier: MIT */
#ifndef INCIPIT_STORE_ARCHIVE_INTERNAL_H
#define INCIPIT_STORE_ARCHIVE_INTERNAL_H

/*
 * What the files of the archive share:
 *
 *     archive.c    between a directory and a stream      archive_format.c    the stream
 */

#include "store/archive.h"
#include "store/prompt_log.h"
#include "store_internal.h"

/* Tells keys apart without telling the key. */
struct hash128 archive_key_id(const unsigned char key[CHAIN_KEY_BYTES]);

struct archive_header {
    struct hash128 key_id;
    bool with_key;
    unsigned char key[CHAIN_KEY_BYTES]; /* zeros without */
};

/* ---- writing ----------------------------------------------------------------------- */

struct archive_writer {
    FILE *out;
    struct hash128 sum; /* over all that was written */
    struct archive_count n;
};

void archive_format_start(struct archive_writer *w, FILE *out,
                          const struct archive_header *h);
void archive_format_block(struct archive_writer *w, const struct store_block *b,
                          int64_t used_ns);
void archive_format_prompt(struct archive_writer *w, const struct prompt_record *r);
int archive_format_end(struct archive_writer *w, struct err *e); /* ERR_IO */

/* ---- reading ----------------------------------------------------------------------- */

/* Is told what was found right, in the order of the stream; an error ends the reading. */
struct archive_sink {
    /* Once, first. Says which key the hashes are to be checked with. */
    int (*header)(void *arg, const struct archive_header *h,
                  unsigned char key[CHAIN_KEY_BYTES], struct err *e);
    /* The block is borrowed. Its parent was told before, unless it needs none. */
    int (*block)(void *arg, struct store_block *b, int64_t used_ns, struct err *e);
    int (*prompt)(void *arg, const struct prompt_record *r, struct err *e);
};

/* 0: all of it was there, up to the end mark. ERR_FORMAT, ERR_CHECKSUM, ERR_UNSUPPORTED
 * (another version), ERR_MISMATCH (another key), ERR_IO, or what the sink returned. */
int archive_format_read(FILE *in, const struct archive_sink *s, void *arg, struct err *e);

#endif
