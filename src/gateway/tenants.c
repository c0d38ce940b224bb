/* SPDX-License-Identifier: MIT */
#include "gateway/tenants.h"

#include <nettle/hmac.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "gateway/credential.h"

#define SHOWN_DIGITS 8

struct tenants {
    const struct options *o;
    const char *header; /* of isolation header:NAME */
    unsigned char key[CHAIN_KEY_BYTES];
    struct cache_lifetime *listed;
};

/* What names are made from: each a name of its own, whatever the text says. */
enum label { LABEL_NOBODY, LABEL_CREDENTIAL, LABEL_HEADER, LABEL_SALT, LABEL_SALTED };

/* HMAC of label, the name before, and a text; never "none". */
static struct hash128 name_of(const struct tenants *t, enum label label,
                              struct hash128 before, struct slice text)
{
    struct hmac_sha256_ctx ctx;
    const uint8_t tag = (uint8_t)label;
    struct hash128 name;
    hmac_sha256_set_key(&ctx, sizeof(t->key), t->key);
    hmac_sha256_update(&ctx, 1, &tag);
    hmac_sha256_update(&ctx, sizeof(before), (const uint8_t *)&before);
    if (text.len)
        hmac_sha256_update(&ctx, text.len, (const uint8_t *)text.ptr);
    hmac_sha256_digest(&ctx, sizeof(name), (uint8_t *)&name);
    memset(&ctx, 0, sizeof(ctx));
    name.lo |= hash128_none(name);
    return name;
}

static const struct hash128 nothing = {0, 0};

/* The digits that people see. */
static uint32_t shown_of(struct hash128 name)
{
    const uint32_t shown = (uint32_t)(name.hi >> 32);
    return shown && shown != CACHE_EVERYBODY ? shown : 1;
}

/* ---- credentials ------------------------------------------------------------------- */

static struct hash128 by_credential(const struct tenants *t, const struct http_head *h)
{
    char hex[CREDENTIAL_HEX];
    const struct slice s = credential_of(h);
    if (!s.len)
        return name_of(t, LABEL_NOBODY, nothing, s);
    const struct credential_digest d = credential_digest(s);
    credential_write(&d, hex);
    return name_of(t, LABEL_CREDENTIAL, nothing, slice_make(hex, sizeof(hex)));
}

/* ---- the other modes --------------------------------------------------------------- */

static struct hash128 by_header(const struct tenants *t, const struct http_head *h)
{
    const struct slice s = http_head_get(h, slice_of(t->header));
    return name_of(t, s.len ? LABEL_HEADER : LABEL_NOBODY, nothing, s);
}

static struct hash128 by_salt(const struct tenants *t, struct slice header,
                              const struct prompt *p)
{
    struct buf decoded = {0};
    struct slice s = header;
    if (!s.len && p->cache_salt.ptr && prompt_unescape(p->cache_salt, &decoded))
        s = buf_slice(&decoded);
    const struct hash128 name = name_of(t, s.len ? LABEL_SALT : LABEL_NOBODY, nothing, s);
    buf_free(&decoded);
    return name;
}

struct tenant tenants_of(const struct tenants *t, const struct http_head *h,
                         const struct prompt *p)
{
    const struct slice salt = http_head_get(h, SLICE_LIT("X-Cache-Salt"));
    struct tenant who = {.salted = salt.len || p->cache_salt.len};
    switch (options_isolation(t->o)) {
    case OPTIONS_SHARED:
        break;
    case OPTIONS_SALT:
        who.name = by_salt(t, salt, p);
        break;
    case OPTIONS_HEADER:
        who.name = by_header(t, h);
        break;
    case OPTIONS_CREDENTIAL:
        who.name = by_credential(t, h);
        break;
    }
    if (!hash128_none(who.name))
        who.shown = shown_of(who.name);
    if (salt.len)
        who.name = name_of(t, LABEL_SALTED, who.name, salt);
    who.whose = who.name;
    if (p->cache_salt.len)
        who.whose = name_of(t, LABEL_SALTED, who.name, p->cache_salt);
    return who;
}

struct hash128 tenants_nobody(const struct tenants *t)
{
    if (options_isolation(t->o) == OPTIONS_SHARED)
        return nothing;
    return name_of(t, LABEL_NOBODY, nothing, (struct slice){0});
}

/* ---- those of the configuration ---------------------------------------------------- */

static struct hash128 name_of_listed(const struct tenants *t, const char *match)
{
    static const enum label labels[] = {[OPTIONS_SHARED] = LABEL_NOBODY,
                                        [OPTIONS_SALT] = LABEL_SALT,
                                        [OPTIONS_HEADER] = LABEL_HEADER,
                                        [OPTIONS_CREDENTIAL] = LABEL_CREDENTIAL};
    const enum label label = *match ? labels[options_isolation(t->o)] : LABEL_NOBODY;
    return name_of(t, label, nothing, slice_of(match));
}

struct tenants *tenants_new(const struct options *o, const unsigned char *key)
{
    struct tenants *t = mem_zalloc(sizeof(*t));
    t->o = o;
    const char *colon = strchr(o->isolation, ':');
    t->header = colon ? colon + 1 : "";
    memcpy(t->key, key, sizeof(t->key));
    t->listed = mem_zalloc((o->n_tenants + 1) * sizeof(*t->listed));
    for (size_t i = 0; i < o->n_tenants; i++) {
        const struct options_tenant *from = &o->tenants[i];
        const uint64_t ttl_ms = from->ttl_ms ? from->ttl_ms : o->store_ttl_ms;
        t->listed[i] =
            (struct cache_lifetime){.tenant = shown_of(name_of_listed(t, from->match)),
                                    .ttl_s = (uint32_t)((ttl_ms + 999) / 1000)};
    }
    return t;
}

void tenants_free(struct tenants *t)
{
    if (!t)
        return;
    free(t->listed);
    free(t);
}

bool tenants_find(const struct tenants *t, struct slice text, uint32_t *shown)
{
    char digits[SHOWN_DIGITS + 1];
    for (size_t i = 0; i < t->o->n_tenants; i++)
        if (slice_eq(text, slice_of(t->o->tenants[i].name))) {
            *shown = t->listed[i].tenant;
            return true;
        }
    if (text.len != SHOWN_DIGITS)
        return false;
    memcpy(digits, text.ptr, SHOWN_DIGITS);
    digits[SHOWN_DIGITS] = '\0';
    if (strspn(digits, "0123456789abcdef") != SHOWN_DIGITS)
        return false;
    *shown = (uint32_t)strtoul(digits, NULL, 16);
    return *shown != 0 && *shown != CACHE_EVERYBODY;
}

const struct cache_lifetime *tenants_lifetimes(const struct tenants *t, size_t *n)
{
    *n = t->o->n_tenants;
    return t->listed;
}
