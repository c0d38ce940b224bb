/* SPDX-License-Identifier: MIT */
#include "gateway/admin.h"

/*
 * POST /cache/forget: a body of JSON that says what, and an answer when it is done.
 */

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "gateway/inspect.h"
#include "gateway/routes.h"

/* An action under way; it may outlive its client. */
struct action {
    struct front_request *rq; /* NULL: has gone */
    unsigned left; /* parts that are not done, and one while they are started */
    size_t prompts, blocks;
};

static void on_gone(void *arg)
{
    struct action *a = arg;
    a->rq = NULL;
}

static void on_drained(void *arg)
{
    (void)arg; /* answers are made in one go */
}

static void refuse(struct front_request *rq, const char *message)
{
    front_error(rq, 400, "invalid_request_error", message, (struct slice){"", 0});
}

static void end_part(struct action *a)
{
    char text[96];
    if (--a->left)
        return;
    const int n =
        snprintf(text, sizeof(text), "{\"forgotten\":{\"prompts\":%zu,\"blocks\":%zu}}\n",
                 a->prompts, a->blocks);
    if (a->rq)
        front_reply(a->rq, 200, SLICE_LIT("Content-Type: application/json\r\n"),
                    slice_make(text, (size_t)n));
    free(a);
}

static void on_forgotten(void *arg, size_t n_prompts, size_t n_blocks)
{
    struct action *a = arg;
    a->prompts += n_prompts;
    a->blocks += n_blocks;
    end_part(a);
}

static void forget(const struct admin_world *w, struct action *a,
                   const struct cache_forget *what)
{
    const struct request_world *rw = w->requests;
    for (size_t i = 0; i < rw->n_targets; i++)
        replica_forget(rw->targets[i]->replica, what);
    a->left++;
    cache_forget(rw->cache, what, on_forgotten, a);
}

/* The texts that begin as the body of a request does, for every model there is; whose
 * they are is said by the head of this request, as by a client's. */
static bool forget_prefix(const struct admin_world *w, struct action *a, json_t *prefix,
                          const char *path)
{
    const struct route r = routes_find(SLICE_LIT("POST"), slice_of(path));
    const struct inspect_client who = {w->requests->tenants, front_head(a->rq)};
    char *body = json_dumps(prefix, JSON_COMPACT | JSON_REAL_PRECISION(17));
    bool readable = r.api != PROMPT_NONE && body;
    for (size_t i = 0; readable && i < w->requests->n_targets; i++) {
        struct inspected in = {0};
        struct job job = {0};
        inspect_body(&in, &job, w->requests->targets[i]->replica, &who, r.api,
                     slice_of(body));
        readable = job.cacheable && in.pieces.n > 0;
        if (readable)
            forget(w, a, &(struct cache_forget){.v = in.pieces.v, .n = in.pieces.n});
        inspect_free(&in);
    }
    free(body);
    return readable;
}

/* What is wrong with it, or NULL. */
static const char *start_forget(const struct admin_world *w, struct action *a,
                                json_t *doc)
{
    json_t *tenant = json_object_get(doc, "tenant"), *all = json_object_get(doc, "all");
    json_t *prefix = json_object_get(doc, "prefix");
    const char *path = json_string_value(json_object_get(doc, "path"));
    struct cache_forget what = {.tenant = CACHE_EVERYBODY};
    if (!!tenant + !!all + !!prefix != 1)
        return "say what to forget: {\"tenant\": \"…\"}, {\"prefix\": {…}} or "
               "{\"all\": true}";
    if (prefix)
        return forget_prefix(w, a, prefix, path ? path : "/v1/chat/completions")
                   ? NULL
                   : "prefix is no body of a request that could be cached (\"path\" says "
                     "where it would be sent)";
    if (all && !json_is_true(all))
        return "all is true or not given";
    if (tenant && (!json_is_string(tenant) ||
                   !tenants_find(w->requests->tenants,
                                 slice_of(json_string_value(tenant)), &what.tenant)))
        return "tenant is a name of the configuration or the 8 digits of the log";
    forget(w, a, &what);
    return NULL;
}

static void start(const struct admin_world *w, struct front_request *rq, json_t *doc)
{
    static const struct front_events events = {on_gone, on_drained};
    struct action *a = mem_zalloc(sizeof(*a));
    a->rq = rq;
    a->left = 1;
    front_set_events(rq, &events, a);
    const char *wrong = start_forget(w, a, doc);
    if (wrong) {
        refuse(rq, wrong);
        a->rq = NULL;
    }
    end_part(a);
}

void admin_forget(const struct admin_world *w, struct front_request *rq)
{
    const struct slice body = front_body(rq);
    json_t *doc = json_loadb(body.ptr ? body.ptr : "", body.len, 0, NULL);
    if (json_is_object(doc))
        start(w, rq, doc);
    else
        refuse(rq, "the body is a JSON object");
    json_decref(doc);
}
