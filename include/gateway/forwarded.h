/* SPDX-License-Identifier: MIT */
#ifndef INCIPIT_GATEWAY_FORWARDED_H
#define INCIPIT_GATEWAY_FORWARDED_H

/*
 * X-Forwarded-For: whom a request came from, as each proxy on its way adds it. What a
 * client puts there itself nobody can trust, and some readers end over one that holds no
 * address (CVE-2026-46527: cpp-httplib before 0.45, where it is told to trust proxies).
 */

#include "base/buf.h"
#include "proto/http.h"

bool forwarded_is_header(struct slice name);

/* All of these headers are lists of addresses: IPv4, or IPv6 with or without brackets,
 * each with or without ":PORT", or "unknown"; a comma between two. */
bool forwarded_is_sound(const struct http_head *h);

/* One header line: what `h` has (NULL: nothing), and the address of the client behind it.
 * `peer` is text of io/addr.h. A UNIX socket has no address; of nothing comes no line. */
void forwarded_put(struct buf *out, const struct http_head *h, const char *peer);

#endif
