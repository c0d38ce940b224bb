/* SPDX-License-Identifier: MIT */
#include "load/service.h"

#include <stdlib.h>

#include "base/mem.h"
#include "wire/ask.h"

struct asking {
    struct loop *loop;
    struct service_facts *facts;
};

static char *text_of(const json_t *o, const char *key)
{
    const char *s = json_string_value(json_object_get(o, key));
    return s ? mem_strdup(s) : NULL;
}

static void on_answer(void *arg, int status, json_t *doc, const struct err *err)
{
    struct asking *a = arg;
    const json_t *first = json_array_get(json_object_get(doc, "data"), 0);
    if (err->code)
        a->facts->why = *err;
    if (status == 200) {
        a->facts->model = text_of(first, "id");
        a->facts->engine = text_of(first, "owned_by");
    }
    loop_stop(a->loop);
}

int service_ask(struct loop *l, const char *url, const struct tls_options *tls,
                const char *headers, uint64_t timeout_ms, struct service_facts *out,
                struct err *e)
{
    const struct upstream_options o = {.url = url,
                                       .tls = *tls,
                                       .connect_ms = timeout_ms,
                                       .first_byte_ms = timeout_ms,
                                       .stall_ms = timeout_ms};
    struct asking a = {l, out};
    *out = (struct service_facts){0};
    struct upstream *u = upstream_new(l, &o, e);
    if (!u)
        return e->code;
    ask_json(u, "/v1/models", NULL, headers, timeout_ms, l, on_answer, &a);
    loop_run(l);
    upstream_free(u);
    return 0;
}

void service_facts_free(struct service_facts *f)
{
    free(f->model);
    free(f->engine);
    *f = (struct service_facts){0};
}
