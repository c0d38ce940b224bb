/* SPDX-License-Identifier: MIT */
#include "base/hash128.h"

#include <inttypes.h>
#include <stdio.h>

char *hash128_hex(struct hash128 h, char out[HASH128_HEX])
{
    snprintf(out, HASH128_HEX, "%016" PRIx64 "%016" PRIx64, h.hi, h.lo);
    return out;
}

static int digit(char c)
{
    if (c >= '0' && c <= '9')
        return c - '0';
    c = (char)(c | 0x20);
    return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

bool hash128_parse(const char *hex, struct hash128 *out)
{
    uint64_t half[2] = {0, 0};
    for (int i = 0; i < 32; i++) {
        int d = digit(hex[i]);
        if (d < 0)
            return false;
        half[i / 16] = half[i / 16] << 4 | (uint64_t)d;
    }
    if (hex[32] != '\0')
        return false;
    *out = (struct hash128){.lo = half[1], .hi = half[0]};
    return true;
}
