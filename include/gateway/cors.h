/* SPDX-License-Identifier: MIT */
#ifndef INCIPIT_GATEWAY_CORS_H
#define INCIPIT_GATEWAY_CORS_H

/*
 * What pages of other origins may read (the Fetch standard, "CORS protocol"). Engines
 * answer browsers themselves, and what they say passes. Where `headers.allow_origin`
 * names origins, the gateway says it where the engine did not, on its own refusals, and
 * instead of the engine where a browser asks beforehand. Never both: some clients refuse
 * that.
 */

#include <stdbool.h>

#include "base/buf.h"
#include "proto/http.h"

/* "", "*", or origins with a blank between them. */
bool cors_is_list(const char *origins);

/* Adds "Access-Control-Allow-Origin" and "Vary" unless `out` has the first, or `origins`
 * is "". `h`: head of the request, NULL where it could not be read. */
void cors_put(struct buf *out, const char *origins, const struct http_head *h);

/* A browser asks whether a page may send what it wants to. */
bool cors_is_preflight(const struct http_head *h);

/* Headers of the answer: what it asks for is allowed where its origin is. */
void cors_put_preflight(struct buf *out, const char *origins, const struct http_head *h);

#endif
