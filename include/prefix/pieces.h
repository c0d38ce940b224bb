/* SPDX-License-Identifier: MIT */
#ifndef INCIPIT_PREFIX_PIECES_H
#define INCIPIT_PREFIX_PIECES_H

/*
 * A prompt's text as a chain of hashed pieces. Each part of a prompt (root options,
 * tools, one message …) is cut every PIECE_BYTES decoded bytes, and once more at its end;
 * each cut adds a piece whose hash covers everything before it. Two prompts share the
 * text up to their last common piece; a binary search finds it.
 *
 *     part 1: 700 bytes            part 2: 90 bytes      part 3: …
 *     |--256--|--256--|-188-|      |--90--|
 *     p0      p1      p2           p3
 *
 * The closing piece of a part is always there: it has 0 bytes where the part is empty or
 * a multiple of PIECE_BYTES long, so that a text shares its full pieces with every longer
 * one. How the caller cuts the bytes into runs makes no difference.
 *
 * Root parts give no pieces: they seed the chain. A medium is one piece whatever its
 * size, and no text: it does not count in end_bytes. The functions match what
 * proto/prompt.h hands out, without knowing it.
 *
 * Threads: a `struct pieces` belongs to one thread at a time; the key is only read.
 */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/hash128.h"
#include "prefix/chain.h"

#define PIECE_BYTES 256
#define PIECES_MAX 262144 /* of one prompt: 64 MiB of text; the rest is not looked at */

struct piece {
    struct hash128 hash; /* chained, 128 bits */
    uint64_t check;      /* chained with another secret: compared before a hit counts */
    uint64_t end_bytes;  /* decoded bytes of text from the first part to here */
    bool ends_part;
    bool is_media;
};

struct pieces_stream; /* state of the hashes of an open root or medium */

/* What the hashes of a piece cover besides its bytes. */
struct pieces_head {
    struct hash128 hash; /* of the piece before */
    uint64_t check;
    uint64_t label; /* kind, tag and end of the part */
};

struct pieces {
    const struct chain_key *key;
    struct piece *v;
    size_t n, cap;
    struct hash128 root; /* covers the seed and the root parts */
    bool full;           /* PIECES_MAX reached: what follows was not looked at */

    /* running state, private */
    bool open;
    unsigned char kind, tag;   /* of the open part, or of the last one */
    struct hash128 prior_hash; /* before the closing piece of the last part */
    uint64_t prior_check;
    uint64_t bytes;
    struct pieces_head head; /* of the open piece */
    size_t fill;             /* its bytes, in `block` */
    unsigned char block[PIECE_BYTES + sizeof(struct pieces_head)];
    struct pieces_stream *stream;
};

enum pieces_kind { PIECES_ROOT, PIECES_TEXT, PIECES_MEDIA };

/*
 * `seed` is hashed in front of everything (tenant, replica identity); may be empty. The
 * key must outlive the pieces.
 */
void pieces_init(struct pieces *p, const struct chain_key *key, struct slice seed);
void pieces_free(struct pieces *p);

/*
 * One part: begin, any number of runs of bytes, end. Parts do not nest. Root parts come
 * before all others. `tag` tells parts of different nature apart (a message from a tool
 * list). `ptr` may be NULL where len is 0.
 */
void pieces_begin(struct pieces *p, enum pieces_kind kind, unsigned char tag);
void pieces_bytes(struct pieces *p, const char *ptr, size_t len);
void pieces_end(struct pieces *p);

/*
 * Reopens the last part, which must be text and ended, as if it had not ended: its
 * closing piece is taken back and bytes may follow (the answer of a completion continues
 * its prompt). Ends with pieces_end() as usual.
 */
void pieces_reopen(struct pieces *p);

size_t pieces_held(const struct pieces *p); /* memory that they take */

/* Number of leading pieces that two prompts have in common (hash and check). */
size_t pieces_common(const struct piece *a, size_t n_a, const struct piece *b,
                     size_t n_b);

#endif
