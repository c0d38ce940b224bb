/* SPDX-License-Identifier: MIT */
#ifndef INCIPIT_GATEWAY_CREDENTIAL_H
#define INCIPIT_GATEWAY_CREDENTIAL_H

/*
 * What a client shows of itself, and secrets that are read from files. Nothing of either
 * is kept but digests, and nothing is logged.
 */

#include <stdbool.h>
#include <stddef.h>

#include "base/err.h"
#include "base/slice.h"
#include "proto/http.h"

#define CREDENTIAL_SHA256 32
#define CREDENTIAL_HEX 64

struct credential_digest {
    unsigned char sha256[CREDENTIAL_SHA256];
};

/* The token of "Authorization: Bearer", another scheme with its name, or x-api-key; empty
 * where there is none. Engines look in this order as well. */
struct slice credential_of(const struct http_head *h);
bool credential_is_header(struct slice name); /* one of these two */

struct credential_digest credential_digest(struct slice text);

/* Takes as long wherever they differ. */
bool credential_same(const struct credential_digest *a,
                     const struct credential_digest *b);

/* 64 digits 0-9a-f, as sha256sum writes them; false where they are not. */
void credential_write(const struct credential_digest *d, char out[CREDENTIAL_HEX]);
bool credential_read(struct slice hex, struct credential_digest *out);

/* The first line of a file, "" where `path` is. ERR_INVALID where that line is empty.
 * `what` is for people: "the API key". */
int credential_file(const char *what, const char *path, char *out, size_t size,
                    struct err *e);

#endif
