/* SPDX-License-Identifier: MIT */
#ifndef LAB_SERVER_H
#define LAB_SERVER_H

/* What the files of the server share: routes call handlers, handlers answer. */

#include <jansson.h>

#include "lab/serve.h"
#include "lab_engine.h"
#include "lab_text.h"
#include "wire/front.h"

struct lab_server {
    struct loop *loop;
    struct front *front;
    const struct lab_serve_options *o;
    struct lab_engine engine;
    unsigned misbehave;
    struct list generations, actions;
    uint64_t n_generations;
    uint64_t start_ms;
};

static inline bool lab_server_does(const struct lab_server *s, enum lab_misbehaviour what)
{
    return s->misbehave & 1u << what;
}

/* A handler answers the request, at once or later. `rest` is what of the path and query
 * its route did not say. */
typedef void (*lab_handler)(struct lab_server *s, struct front_request *rq,
                            struct slice rest);

/* ---- answers, in lab_serve.c ---- */

void lab_answer_json(struct front_request *rq, int status, json_t *doc); /* takes doc */
void lab_answer_refusal(struct front_request *rq, const struct lab_refusal *no);

/* The body as JSON, or NULL after it was refused. */
json_t *lab_body_json(struct front_request *rq);

/* ---- handlers ---- */

/* lab_generation.c */
void lab_on_chat(struct lab_server *s, struct front_request *rq, struct slice rest);
void lab_on_completions(struct lab_server *s, struct front_request *rq,
                        struct slice rest);
void lab_on_native(struct lab_server *s, struct front_request *rq, struct slice rest);
void lab_on_messages(struct lab_server *s, struct front_request *rq, struct slice rest);
void lab_on_held(struct lab_server *s, struct front_request *rq, struct slice rest);
void lab_on_release(struct lab_server *s, struct front_request *rq, struct slice rest);
void lab_generations_end(struct lab_server *s); /* frees all; the clients have gone */

/* lab_pages.c */
void lab_on_health(struct lab_server *s, struct front_request *rq, struct slice rest);
void lab_on_props(struct lab_server *s, struct front_request *rq, struct slice rest);
void lab_on_models(struct lab_server *s, struct front_request *rq, struct slice rest);
void lab_on_slots(struct lab_server *s, struct front_request *rq, struct slice rest);
void lab_on_metrics(struct lab_server *s, struct front_request *rq, struct slice rest);
void lab_on_adapters(struct lab_server *s, struct front_request *rq, struct slice rest);
void lab_on_tokenize(struct lab_server *s, struct front_request *rq, struct slice rest);
void lab_on_detokenize(struct lab_server *s, struct front_request *rq, struct slice rest);
void lab_on_template(struct lab_server *s, struct front_request *rq, struct slice rest);
void lab_on_count(struct lab_server *s, struct front_request *rq, struct slice rest);
void lab_on_misbehave(struct lab_server *s, struct front_request *rq, struct slice rest);

/* lab_slotaction.c; `rest` is "{id}?action=…" */
void lab_on_slot_action(struct lab_server *s, struct front_request *rq,
                        struct slice rest);
void lab_slot_actions_end(struct lab_server *s);

#endif
