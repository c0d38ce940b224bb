/* SPDX-License-Identifier: MIT */
#ifndef INCIPIT_PROTO_UNPACK_H
#define INCIPIT_PROTO_UNPACK_H

/*
 * Bodies that were packed for the way (Content-Encoding, RFC 9110 8.4.1): gzip (RFC
 * 1952, several members too), and deflate, which is zlib (RFC 1950) and by some clients
 * the bare stream (RFC 1951).
 *
 * A body of some kilobytes can stand for gigabytes: it ends at `max_bytes`, and, beyond
 * UNPACK_FREE bytes, where it becomes more than UNPACK_RATIO times what was packed.
 */

#include "base/buf.h"
#include "base/slice.h"

#define UNPACK_RATIO 100
#define UNPACK_FREE ((size_t)64 << 10)

enum unpack_coding { UNPACK_PLAIN, UNPACK_GZIP, UNPACK_DEFLATE, UNPACK_UNKNOWN };

/* What a value of Content-Encoding says; `value` with ptr NULL, or empty: plain. More
 * than one coding, and those not above, are unknown. */
enum unpack_coding unpack_coding(struct slice value);

/* Appends what `packed` (gzip or deflate) holds to `out`. NULL, or what is in the way as
 * static text, and `out` is as it was. */
const char *unpack(struct buf *out, enum unpack_coding coding, struct slice packed,
                   size_t max_bytes);

#endif
