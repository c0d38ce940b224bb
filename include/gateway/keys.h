/* SPDX-License-Identifier: MIT */
#ifndef INCIPIT_GATEWAY_KEYS_H
#define INCIPIT_GATEWAY_KEYS_H

/*
 * Who may ask? Keys of the gateway's own, each with a name. Only SHA-256 digests are
 * known: of what was drawn at random (32 bytes, say) nobody finds the text to a digest,
 * so neither salt nor a slow hash would add anything; of what people think up they do,
 * and such keys should not be used.
 *
 * For any thread; read-only after keys_new().
 */

#include "gateway/options.h"
#include "proto/http.h"

#define KEYS_MAX 4096
#define KEYS_NAME_MAX 64

struct keys;

/* Those of `keys` and of `keys_file`, which has lines "NAME DIGEST" and # before what is
 * for people. NULL with `e`, which names file and line, where one is wrong. */
struct keys *keys_new(const struct options *o, struct err *e);
void keys_free(struct keys *k); /* NULL is allowed */

size_t keys_count(const struct keys *k); /* 0: everybody may */

/* The name of the key that a client shows; NULL where it shows none of these. All are
 * compared, so the time tells nothing. Lives as long as `k`. */
const char *keys_name(const struct keys *k, const struct http_head *h);

#endif
