/* SPDX-License-Identifier: MIT */
#ifndef INCIPIT_GATEWAY_OBSERVE_H
#define INCIPIT_GATEWAY_OBSERVE_H

/*
 * `incipit serve --observe` and `incipit observe FILE`: what would a store gain on these
 * prompts (prefix/outlook.h)? The same report from real traffic and from a file.
 */

#include <jansson.h>

#include "base/err.h"
#include "prefix/outlook.h"

/* The report (docs/measuring.md). `token_bytes`: KV bytes of a token; 0 where not known:
 * sizes are then told in tokens only. */
json_t *observe_json(struct outlook *o, uint64_t token_bytes);

/*
 * Prompts from a file, one JSON document a line: a request body, or an object with "body"
 * and, as far as they are known, "path" (/v1/chat/completions where the body has
 * messages, /v1/completions where it has a prompt), "prompt_tokens", "cached_tokens" and
 * "ttft_ms". Without "prompt_tokens" a token is taken for OBSERVE_TOKEN_BYTES bytes of
 * text. ERR_IO; ERR_FORMAT names the line. `skipped`: bodies that are no prompt or barred
 * from caching.
 */
#define OBSERVE_TOKEN_BYTES 4.0
int observe_file(struct outlook *o, const char *path, uint64_t *skipped, struct err *e);

#endif
