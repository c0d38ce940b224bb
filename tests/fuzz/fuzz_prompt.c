/* SPDX-License-Identifier: MIT */

/*
 * Bodies that the scanner calls readable must mean the same to jansson. The first byte
 * chooses the API and the order of the template; the rest is the body.
 */

#include <stdio.h>
#include <stdlib.h>

#include "../lib/prompt_oracle.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size == 0)
        return 0;
    const enum prompt_api api = (enum prompt_api)(data[0] % 5);
    const enum prompt_order order = (enum prompt_order)(data[0] / 5 % 3);
    const char *differs =
        oracle_check(api, order, slice_make((const char *)data + 1, size - 1));
    if (differs) {
        fprintf(stderr, "scanner and tree differ: %s\n", differs);
        abort();
    }
    return 0;
}
