/* SPDX-License-Identifier: MIT */

/*
 * Configuration files: any bytes are read or refused, an error always has a text, and
 * what was read can be printed and read again with the same result.
 */

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "gateway/options.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static char *printed(const struct options *o)
{
    char *text = NULL;
    size_t len = 0;
    FILE *f = open_memstream(&text, &len);
    options_print(o, f);
    fclose(f);
    return text;
}

static void check_round_trip(const struct options *o)
{
    struct options again;
    char *before = printed(o);
    options_default(&again);
    if (options_parse(&again, slice_of(before), "printed", NULL) != 0)
        abort();
    char *after = printed(&again);
    if (strcmp(before, after) != 0)
        abort();
    free(before);
    free(after);
    options_free(&again);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct options o;
    struct err e = {0};
    options_default(&o);
    const int rc = options_parse(&o, slice_make((const char *)data, size), "fuzz", &e);
    if (rc != e.code || (rc != 0 && e.text[0] == '\0'))
        abort();
    check_round_trip(&o);
    options_free(&o);
    return 0;
}
