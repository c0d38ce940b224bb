/* SPDX-License-Identifier: MIT */
#ifndef INCIPIT_BASE_UNITS_H
#define INCIPIT_BASE_UNITS_H

/*
 * Numbers as people write them in configurations: "4GiB", "30s", "1.5h", "4096".
 * Digits only (with a fraction of at most six digits, where there is a smaller unit to
 * take it), no sign, no exponent, no hexadecimal; overflow is an error. The whole string
 * must be used up.
 */

#include <stdbool.h>
#include <stdint.h>

/* Bytes: B, KiB MiB GiB TiB (1024), kB MB GB TB (1000); a bare number is bytes. */
bool units_parse_bytes(const char *text, uint64_t *bytes);

/* Durations to milliseconds: ms, s, m, h, d; "0" needs no unit, all others do. */
bool units_parse_ms(const char *text, uint64_t *ms);

/* Plain decimal count, digits only. */
bool units_parse_count(const char *text, uint64_t *n);

/* "1.5 GiB", "23.0 KiB", "512 B" into `out`; returns `out`. */
char *units_format_bytes(uint64_t bytes, char out[24]);

#endif
