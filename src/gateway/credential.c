/* SPDX-License-Identifier: MIT */
#include "gateway/credential.h"

#include <nettle/memops.h>
#include <nettle/sha2.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>

struct slice credential_of(const struct http_head *h)
{
    struct slice s = http_head_get(h, SLICE_LIT("Authorization"));
    if (!s.ptr || !s.len)
        return http_head_get(h, SLICE_LIT("X-Api-Key"));
    if (s.len > 7 && strncasecmp(s.ptr, "Bearer ", 7) == 0) {
        s.ptr += 7;
        s.len -= 7;
        while (s.len && *s.ptr == ' ') {
            s.ptr++;
            s.len--;
        }
    }
    return s;
}

bool credential_is_header(struct slice name)
{
    return slice_eq_nocase(name, SLICE_LIT("Authorization")) ||
           slice_eq_nocase(name, SLICE_LIT("X-Api-Key"));
}

struct credential_digest credential_digest(struct slice text)
{
    struct credential_digest d;
    struct sha256_ctx ctx;
    sha256_init(&ctx);
    if (text.len)
        sha256_update(&ctx, text.len, (const uint8_t *)text.ptr);
    sha256_digest(&ctx, sizeof(d.sha256), d.sha256);
    return d;
}

bool credential_same(const struct credential_digest *a, const struct credential_digest *b)
{
    return memeql_sec(a->sha256, b->sha256, sizeof(a->sha256));
}

void credential_write(const struct credential_digest *d, char out[CREDENTIAL_HEX])
{
    static const char digits[] = "0123456789abcdef";
    for (size_t i = 0; i < CREDENTIAL_SHA256; i++) {
        out[2 * i] = digits[d->sha256[i] >> 4];
        out[2 * i + 1] = digits[d->sha256[i] & 15];
    }
}

bool credential_read(struct slice hex, struct credential_digest *out)
{
    static const char digits[] = "0123456789abcdef";
    if (hex.len != CREDENTIAL_HEX)
        return false;
    for (size_t i = 0; i < hex.len; i++) {
        const char *at = memchr(digits, hex.ptr[i], 16);
        if (!at)
            return false;
        const unsigned char low = (unsigned char)(at - digits);
        unsigned char *byte = &out->sha256[i / 2];
        *byte = (unsigned char)(i % 2 ? *byte << 4 | low : low);
    }
    return true;
}

int credential_file(const char *what, const char *path, char *out, size_t size,
                    struct err *e)
{
    *out = '\0';
    if (!*path)
        return 0;
    FILE *f = fopen(path, "re");
    if (!f)
        return err_errno(e, "reading the file of %s, %s", what, path);
    if (!fgets(out, (int)size, f))
        *out = '\0';
    fclose(f);
    out[strcspn(out, "\r\n")] = '\0';
    return *out ? 0
                : err_set(e, ERR_INVALID, "the file of %s, %s, begins with an empty line",
                          what, path);
}
