/* SPDX-License-Identifier: MIT */
#include "lab/serve.h"

/*
 * Start, routes and stop. A row of the table is a method and a path; a path that ends in
 * "*" takes what follows. Every request is answered by its row's handler.
 */

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/clock.h"
#include "base/mem.h"
#include "base/nearest.h"
#include "lab_server.h"

static const char *const misbehaviours[] = {
#define X(code, name) [code] = name,
    LAB_MISBEHAVIOURS(X)
#undef X
};

/* ---- answers ----------------------------------------------------------------------- */

void lab_answer_json(struct front_request *rq, int status, json_t *doc)
{
    char *text = json_dumps(doc, JSON_COMPACT | JSON_REAL_PRECISION(9));
    front_reply(rq, status,
                SLICE_LIT("Content-Type: application/json; charset=utf-8\r\n"),
                slice_of(text));
    free(text);
    json_decref(doc);
}

void lab_answer_refusal(struct front_request *rq, const struct lab_refusal *no)
{
    json_t *error = json_pack("{s:i, s:s, s:s}", "code", no->status, "message", no->text,
                              "type", no->type);
    if (no->n_ctx) {
        json_object_set_new(error, "n_prompt_tokens", json_integer(no->n_prompt));
        json_object_set_new(error, "n_ctx", json_integer(no->n_ctx));
    }
    lab_answer_json(rq, no->status, json_pack("{s:o}", "error", error));
}

json_t *lab_body_json(struct front_request *rq)
{
    struct lab_refusal no;
    json_error_t where;
    const struct slice body = front_body(rq);
    json_t *doc = json_loadb(body.ptr, body.len, JSON_ALLOW_NUL, &where);
    if (!doc) {
        lab_refuse(&no, 500, "the body is no JSON");
        lab_answer_refusal(rq, &no);
    }
    return doc;
}

/* ---- routes ------------------------------------------------------------------------ */

static const struct {
    const char *method, *path;
    lab_handler handler;
} routes[] = {
    {"GET", "/health", lab_on_health},
    {"GET", "/v1/health", lab_on_health},
    {"GET", "/props", lab_on_props},
    {"GET", "/v1/models", lab_on_models},
    {"GET", "/models", lab_on_models},
    {"GET", "/slots", lab_on_slots},
    {"GET", "/metrics", lab_on_metrics},
    {"GET", "/lora-adapters", lab_on_adapters},
    {"POST", "/completion", lab_on_native},
    {"POST", "/completions", lab_on_native},
    {"POST", "/v1/completions", lab_on_completions},
    {"POST", "/v1/chat/completions", lab_on_chat},
    {"POST", "/chat/completions", lab_on_chat},
    {"POST", "/v1/messages", lab_on_messages},
    {"POST", "/v1/messages/count_tokens", lab_on_count},
    {"POST", "/v1/chat/completions/input_tokens", lab_on_count},
    {"POST", "/tokenize", lab_on_tokenize},
    {"POST", "/detokenize", lab_on_detokenize},
    {"POST", "/apply-template", lab_on_template},
    {"POST", "/slots/*", lab_on_slot_action},
    {"POST", "/lab/misbehave", lab_on_misbehave},
    {"GET", "/lab/held", lab_on_held},
    {"POST", "/lab/release", lab_on_release},
};

static bool method_fits(struct slice given, const char *wanted)
{
    return slice_eq(given, slice_of(wanted)) ||
           (slice_eq(given, SLICE_LIT("HEAD")) && strcmp(wanted, "GET") == 0);
}

/* `rest`: what of the target follows the path. */
static bool path_fits(struct slice target, const char *path, struct slice *rest)
{
    const size_t n = strlen(path), len = path[n - 1] == '*' ? n - 1 : n;
    if (!slice_starts(target, slice_make(path, len)))
        return false;
    *rest = slice_make(target.ptr + len, target.len - len);
    return len < n || rest->len == 0 || rest->ptr[0] == '?';
}

static void on_request(void *arg, struct front_request *rq)
{
    struct lab_server *s = arg;
    const struct http_head *h = front_head(rq);
    struct slice rest;
    for (size_t i = 0; i < sizeof(routes) / sizeof(routes[0]); i++)
        if (method_fits(h->method, routes[i].method) &&
            path_fits(h->target, routes[i].path, &rest)) {
            routes[i].handler(s, rq, rest);
            return;
        }
    struct lab_refusal no;
    lab_refuse(&no, 404, "File Not Found");
    lab_answer_refusal(rq, &no);
}

/* ---- start and stop ---------------------------------------------------------------- */

int lab_misbehave_parse(const char *names, unsigned *set, struct err *e)
{
    *set = 0;
    while (*names) {
        const size_t len = strcspn(names, ",");
        size_t i = 0;
        while (i < LAB_MISBEHAVIOUR_KINDS &&
               !slice_eq(slice_of(misbehaviours[i]), slice_make(names, len)))
            i++;
        if (i == LAB_MISBEHAVIOUR_KINDS) {
            char *name = mem_dup(names, len);
            struct nearest n = nearest_to(name);
            for (i = 0; i < LAB_MISBEHAVIOUR_KINDS; i++)
                nearest_offer(&n, misbehaviours[i]);
            const char *near = nearest_get(&n);
            err_set(e, ERR_INVALID, "\"%.40s\" is no way to misbehave%s%s%s", name,
                    near ? "; did you mean \"" : "", near ? near : "", near ? "\"?" : "");
            free(name);
            return ERR_INVALID;
        }
        *set |= 1u << i;
        names += len + (names[len] == ',');
    }
    return 0;
}

static void on_stop(void *arg)
{
    struct lab_server *s = arg;
    loop_stop(s->loop);
}

static struct budget memory = {.max = (uint64_t)256 << 20};

/* As the real engine: a kept connection lives 5 seconds. */
static const struct front_options limits = {.head = {32768, 128},
                                            .body_bytes = (uint64_t)64 << 20,
                                            .memory = &memory,
                                            .connections = 1024,
                                            .head_ms = 10000,
                                            .body_ms = 60000,
                                            .idle_ms = 5000,
                                            .write_ms = 60000};

static int listen_at(struct lab_server *s, struct err *e)
{
    struct addr at;
    if (addr_resolve(&at, s->o->listen, e) != 0)
        return e->code;
    s->front = front_open(s->loop, &at, &limits, on_request, s, e);
    if (!s->front)
        return e->code;
    printf("listening on %s\n", front_addr(s->front)->text);
    fflush(stdout);
    return 0;
}

static struct lab_model *make_model(const struct lab_serve_options *o)
{
    struct lab_shape shape = LAB_SHAPE_DEFAULT;
    shape.context = o->context;
    return lab_model_new(shape, o->seed);
}

int lab_serve_run(const struct lab_serve_options *o, struct err *e)
{
    struct lab_server s = {.o = o, .misbehave = o->misbehave};
    struct lab_model *model = make_model(o);
    s.loop = loop_new();
    s.start_ms = clock_wall_ms();
    list_init(&s.generations);
    list_init(&s.actions);
    lab_engine_init(&s.engine, s.loop, model, o->slots);
    s.engine.token_cost_us = o->token_cost_us;
    s.engine.keeps_left_slots = lab_server_does(&s, LAB_STAYS_BUSY);
    s.engine.recurrent = lab_server_does(&s, LAB_RECURRENT);
    /* Before it says that it listens: who reads that may stop it at once. */
    loop_on_signal(s.loop, SIGTERM, on_stop, &s);
    loop_on_signal(s.loop, SIGINT, on_stop, &s);
    const int rc = listen_at(&s, e);
    if (rc == 0)
        loop_run(s.loop);
    lab_engine_stop(&s.engine);
    front_close(s.front);
    lab_generations_end(&s);
    lab_slot_actions_end(&s);
    loop_free(s.loop);
    lab_engine_fini(&s.engine);
    lab_model_free(model);
    return rc;
}
