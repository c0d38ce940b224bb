/* SPDX-License-Identifier: MIT */
#ifndef INCIPIT_GATEWAY_ADMIN_CACHE_H
#define INCIPIT_GATEWAY_ADMIN_CACHE_H

/*
 * What the admin listener can do to the cache, by POST with a body of JSON:
 *
 *   /cache/forget   {"tenant": NAME or DIGITS}, {"all": true}, or {"prefix": BODY}, the
 *                   body of a request with which the texts begin; "path" says where it
 *                   would be sent (/v1/chat/completions), and the credential, header or
 *                   salt of this request whose it is. Answers when all is gone.
 */

#include "gateway/admin.h"

/* Runs the action of that path; false where there is none. */
bool admin_cache_post(const struct admin_world *w, struct front_request *rq,
                      struct slice path);

#endif
