/* SPDX-License-Identifier: MIT */
#ifndef INCIPIT_LOAD_SERVICE_H
#define INCIPIT_LOAD_SERVICE_H

/* What a service says of itself at GET /v1/models: its first model, and who owns it
 * ("llamacpp", "vllm"): with engines, their own name. */

#include <stdint.h>

#include "base/err.h"
#include "io/loop.h"
#include "io/tls.h"

struct service_facts {
    char *model, *engine; /* NULL: not told */
    struct err why;       /* it did not answer; code 0: it did */
};

/* Runs the loop until it is known. An error only where the URL, or a file of `tls`, is
 * none; what is not answered is not known. `headers`: complete lines or "". */
int service_ask(struct loop *l, const char *url, const struct tls_options *tls,
                const char *headers, uint64_t timeout_ms, struct service_facts *out,
                struct err *e);
void service_facts_free(struct service_facts *f);

#endif
