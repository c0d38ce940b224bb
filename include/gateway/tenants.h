/* SPDX-License-Identifier: MIT */
#ifndef INCIPIT_GATEWAY_TENANTS_H
#define INCIPIT_GATEWAY_TENANTS_H

/*
 * Whose request is it? Two tenants share nothing: what tells them apart goes in front of
 * the text pieces and of the block chains of their prompts (`isolation` in the
 * configuration says what it is). A salt, in the body (cache_salt) or in the header
 * X-Cache-Salt, separates further in every mode.
 *
 * A tenant's name here is HMAC-SHA-256 of what it showed (of a credential: of its
 * SHA-256) with the key of the store: nobody who sees it, or the whole store without
 * its key, can try credentials. Nothing of a credential is kept. People see the first 8
 * digits.
 *
 * For any thread; read-only after tenants_new().
 */

#include <stdbool.h>
#include <stdint.h>

#include "base/hash128.h"
#include "gateway/options.h"
#include "proto/http.h"
#include "proto/prompt.h"
#include "store/cache.h"

struct tenants;

struct tenant {
    struct hash128 name;  /* with the salt of the header; none: nothing to tell apart */
    struct hash128 whose; /* with the salt of the body as well */
    uint32_t shown;       /* of the tenant alone: its digits for people; 0: everybody */
    bool salted;          /* it showed a salt, wherever: it shares nothing at all */
};

/* `o` has passed options_check() and is borrowed, `key` is the store's and copied. */
struct tenants *tenants_new(const struct options *o, const unsigned char *key);
void tenants_free(struct tenants *t); /* NULL is allowed */

/* `p` has been scanned; it may be unreadable. */
struct tenant tenants_of(const struct tenants *t, const struct http_head *h,
                         const struct prompt *p);

/* Those who show nothing; their name is none where tenants are not told apart. */
struct hash128 tenants_nobody(const struct tenants *t);

/* A tenant that a person names: by its name in the configuration, or by its digits. False
 * where it is neither. */
bool tenants_find(const struct tenants *t, struct slice text, uint32_t *shown);

/* Those of the configuration, in its order: digits and time to live. */
const struct cache_lifetime *tenants_lifetimes(const struct tenants *t, size_t *n);

#endif
