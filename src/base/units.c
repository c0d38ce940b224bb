/* SPDX-License-Identifier: MIT */
#include "base/units.h"

#include <ctype.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

struct unit {
    const char *name;
    uint64_t factor;
};

/* Digits and an optional fraction of at most six digits, in millionths. */
static const char *number(const char *p, uint64_t *whole, uint64_t *millionths)
{
    *whole = *millionths = 0;
    if (!isdigit((unsigned char)*p))
        return NULL;
    for (; isdigit((unsigned char)*p); p++)
        if (__builtin_mul_overflow(*whole, 10u, whole) ||
            __builtin_add_overflow(*whole, (uint64_t)(*p - '0'), whole))
            return NULL;
    if (*p != '.')
        return p;
    uint64_t scale = 100000;
    if (!isdigit((unsigned char)*++p))
        return NULL;
    for (; isdigit((unsigned char)*p); p++, scale /= 10)
        if (scale == 0)
            return NULL;
        else
            *millionths += scale * (uint64_t)(*p - '0');
    return p;
}

static bool parse(const char *text, const struct unit *units, size_t n, uint64_t *out)
{
    uint64_t whole, millionths, value;
    const char *p = number(text, &whole, &millionths);
    if (!p)
        return false;
    for (size_t i = 0; i < n; i++) {
        if (strcmp(p, units[i].name) != 0)
            continue;
        if (units[i].factor == 1 && millionths)
            return false;
        const uint64_t part =
            (uint64_t)((unsigned __int128)millionths * units[i].factor / 1000000u);
        if (__builtin_mul_overflow(whole, units[i].factor, &value) ||
            __builtin_add_overflow(value, part, &value))
            return false;
        *out = value;
        return true;
    }
    return false;
}

bool units_parse_bytes(const char *text, uint64_t *bytes)
{
    static const struct unit units[] = {
        {"", 1},
        {"B", 1},
        {"KiB", 1024},
        {"MiB", 1u << 20},
        {"GiB", 1u << 30},
        {"TiB", 1ull << 40},
        {"kB", 1000},
        {"MB", 1000000},
        {"GB", 1000000000},
        {"TB", 1000000000000ull},
    };
    return parse(text, units, sizeof(units) / sizeof(units[0]), bytes);
}

bool units_parse_ms(const char *text, uint64_t *ms)
{
    static const struct unit units[] = {
        {"ms", 1}, {"s", 1000}, {"m", 60000}, {"h", 3600000}, {"d", 86400000}};
    if (strcmp(text, "0") == 0) {
        *ms = 0;
        return true;
    }
    return parse(text, units, sizeof(units) / sizeof(units[0]), ms);
}

bool units_parse_count(const char *text, uint64_t *n)
{
    uint64_t millionths;
    const char *p = number(text, n, &millionths);
    return p && *p == '\0' && !strchr(text, '.');
}

char *units_format_bytes(uint64_t bytes, char out[24])
{
    static const char *const names[] = {"B", "KiB", "MiB", "GiB", "TiB"};
    double value = (double)bytes;
    size_t i = 0;
    for (; value >= 1024 && i < 4; i++)
        value /= 1024;
    snprintf(out, 24, i ? "%.1f %s" : "%.0f %s", value, names[i]);
    return out;
}
