/* SPDX-License-Identifier: MIT */
#include "lab/lesson.h"

/*
 * The lesson as one JSON object; its shape is promised in docs/lesson.md. The HTML page
 * carries the same object.
 */

#include <jansson.h>
#include <stdlib.h>

static json_t *cost(const struct lesson_cost *c)
{
    return json_pack("{sIsIsIsf}", "projections", (json_int_t)c->projections, "pairs",
                     (json_int_t)c->attended, "kept_bytes", (json_int_t)c->kept_bytes,
                     "ms", c->ms);
}

static json_t *passes(const struct lesson *l)
{
    json_t *list = json_array();
    for (int i = 0; i < LESSON_PASSES; i++) {
        const struct lesson_pass *p = &l->passes[i];
        char token[8];
        json_array_append_new(
            list,
            json_pack("{sIsssIsssososf}", "positions", (json_int_t)p->positions, "phase",
                      i == 0 ? "prefill" : "decode", "token", (json_int_t)p->token,
                      "text", lesson_token(p->token, token), "without", cost(&p->without),
                      "with", cost(&p->with), "difference", p->difference));
    }
    return list;
}

static json_t *requests(const struct lesson *l)
{
    json_t *list = json_array();
    for (int i = 0; i < LESSON_REQUESTS; i++) {
        const struct lesson_request *q = &l->requests[i];
        json_array_append_new(
            list, json_pack("{sssssssIsIsososf}", "name", q->name, "front", q->front,
                            "end", q->end, "tokens", (json_int_t)q->tokens, "kept",
                            (json_int_t)q->common, "without", cost(&q->without), "with",
                            cost(&q->with), "difference", q->difference));
    }
    return list;
}

static json_t *phase(const struct lesson_phase *p)
{
    return json_pack("{sIsf}", "tokens", (json_int_t)p->tokens, "ms", p->ms);
}

static json_t *model(const struct lesson *l)
{
    return json_pack("{sIsIsIsIsI}", "layers", (json_int_t)l->shape.layers, "heads",
                     (json_int_t)l->shape.heads, "width", (json_int_t)l->shape.width,
                     "seed", (json_int_t)l->seed, "bytes_per_token",
                     (json_int_t)l->token_bytes);
}

void lesson_json(const struct lesson *l, struct buf *out)
{
    json_t *total = json_pack("{sososf}", "without", cost(&l->without), "with",
                              cost(&l->with), "difference", l->difference);
    json_t *root = json_pack("{sososssisosososo}", "model", model(l), "total", total,
                             "prompt", LESSON_PROMPT, "generated", LESSON_GENERATED,
                             "passes", passes(l), "prefill", phase(&l->prefill), "decode",
                             phase(&l->decode), "requests", requests(l));
    char *text = json_dumps(root, JSON_INDENT(1) | JSON_REAL_PRECISION(9));
    buf_printf(out, "%s\n", text);
    free(text);
    json_decref(root);
}
