/* SPDX-License-Identifier: MIT */
#include "gateway/keys.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "gateway/credential.h"

#define LINE_MAX_BYTES 512

struct key {
    char name[KEYS_NAME_MAX + 1];
    struct credential_digest digest;
};

struct keys {
    struct key *v;
    size_t n;
};

static int add(struct keys *k, const char *name, const char *hex, struct err *e)
{
    struct key fresh = {.name = ""};
    if (k->n == KEYS_MAX)
        return err_set(e, ERR_LIMIT, "more than %d keys", KEYS_MAX);
    if (!*name || strlen(name) > KEYS_NAME_MAX)
        return err_set(e, ERR_INVALID, "a name has 1 to %d bytes", KEYS_NAME_MAX);
    if (!credential_read(slice_of(hex), &fresh.digest))
        return err_set(e, ERR_INVALID,
                       "key \"%s\": its digest is the SHA-256 in 64 digits 0-9a-f "
                       "(printf %%s KEY | sha256sum)",
                       name);
    for (size_t i = 0; i < k->n; i++) {
        if (strcmp(k->v[i].name, name) == 0)
            return err_set(e, ERR_INVALID, "key \"%s\" is there twice", name);
        if (credential_same(&k->v[i].digest, &fresh.digest))
            return err_set(e, ERR_INVALID, "\"%s\" and \"%s\" are the same key",
                           k->v[i].name, name);
    }
    snprintf(fresh.name, sizeof(fresh.name), "%s", name);
    struct key *grown = mem_array(k->n + 1, sizeof(*grown));
    if (k->n)
        memcpy(grown, k->v, k->n * sizeof(*grown));
    grown[k->n++] = fresh;
    free(k->v);
    k->v = grown;
    return 0;
}

/* "NAME DIGEST", or nothing. */
static int add_line(struct keys *k, char *line, struct err *e)
{
    static const char blank[] = " \t\r\n";
    char *rest = NULL;
    line[strcspn(line, "#")] = '\0';
    char *name = strtok_r(line, blank, &rest);
    char *hex = name ? strtok_r(NULL, blank, &rest) : NULL;
    if (!name)
        return 0;
    if (!hex || strtok_r(NULL, blank, &rest))
        return err_set(e, ERR_FORMAT, "a line is NAME DIGEST");
    return add(k, name, hex, e);
}

static int add_file(struct keys *k, const char *path, struct err *e)
{
    char line[LINE_MAX_BYTES];
    int rc = 0;
    FILE *f = fopen(path, "re");
    if (!f)
        return err_errno(e, "reading keys_file %s", path);
    for (size_t n = 1; rc == 0 && fgets(line, sizeof(line), f); n++) {
        struct err why = {0};
        const bool whole = strchr(line, '\n') || feof(f);
        rc = whole ? add_line(k, line, &why)
                   : err_set(&why, ERR_LIMIT, "a line of more than %d bytes",
                             LINE_MAX_BYTES - 2);
        if (rc != 0)
            err_set(e, rc, "%s:%zu: %s", path, n, why.text);
    }
    if (rc == 0 && ferror(f))
        rc = err_errno(e, "reading keys_file %s", path);
    fclose(f);
    return rc;
}

struct keys *keys_new(const struct options *o, struct err *e)
{
    struct keys *k = mem_zalloc(sizeof(*k));
    int rc = 0;
    for (size_t i = 0; rc == 0 && i < o->n_keys; i++)
        if ((rc = add(k, o->keys[i].name, o->keys[i].digest, e)) != 0)
            err_wrap(e, "keys");
    if (rc == 0 && *o->keys_file)
        rc = add_file(k, o->keys_file, e);
    if (rc == 0 && *o->keys_file && !k->n)
        rc = err_set(e, ERR_INVALID, "keys_file %s: no key is in it", o->keys_file);
    if (rc == 0)
        return k;
    keys_free(k);
    return NULL;
}

void keys_free(struct keys *k)
{
    if (!k)
        return;
    free(k->v);
    free(k);
}

size_t keys_count(const struct keys *k)
{
    return k->n;
}

const char *keys_name(const struct keys *k, const struct http_head *h)
{
    const struct slice shown = credential_of(h);
    const char *name = NULL;
    if (!shown.len)
        return NULL;
    const struct credential_digest d = credential_digest(shown);
    for (size_t i = 0; i < k->n; i++)
        if (credential_same(&k->v[i].digest, &d))
            name = k->v[i].name;
    return name;
}
