/* SPDX-License-Identifier: MIT */
#ifndef INCIPIT_LOAD_SERVICE_H
#define INCIPIT_LOAD_SERVICE_H

/* What a service says of itself at GET /v1/models: its first model, and who owns it
 * ("llamacpp", "vllm"): with engines, their own name. */

#include <stdint.h>

#include "base/err.h"
#include "io/loop.h"

struct service_facts {
    char *model, *engine; /* NULL: not told */
};

/* Runs the loop until it is known. An error only where the URL is none; what is not
 * answered is not known. `headers`: complete lines or "". */
int service_ask(struct loop *l, const char *url, const char *headers, uint64_t timeout_ms,
                struct service_facts *out, struct err *e);
void service_facts_free(struct service_facts *f);

#endif
