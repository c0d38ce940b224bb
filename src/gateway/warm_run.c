/* SPDX-License-Identifier: MIT */
#include "warm_internal.h"

/*
 * One start on one replica. It is a job like a client's, with an answer of one token: of
 * the answers that every API allows it is the shortest, and its token is never computed
 * into the slot.
 */

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/mem.h"

#define KEPT_ERROR 300 /* bytes of an engine's error */

struct warm_run {
    struct replica *r;
    const struct warm_body *body;
    struct inspected in;
    size_t n_start; /* pieces of the start */
    struct job job;
    bool admitted;
    struct call *call;
    struct answer *answer;
    struct buf error, sent;
    int status;
    warm_run_cb done;
    void *arg;
};

/* ---- looking ----------------------------------------------------------------------- */

/* Pieces of the start: those that do not depend on the user's words. */
static size_t count_start(const struct warm_run *run, const struct inspect_client *who)
{
    struct inspected other = {0};
    struct job unused = {0};
    if (!buf_len(&run->body->other))
        return run->in.pieces.n;
    inspect_body(&other, &unused, run->r, who, run->body->api,
                 buf_slice(&run->body->other));
    const size_t n =
        pieces_common(run->in.pieces.v, run->in.pieces.n, other.pieces.v, other.pieces.n);
    inspect_free(&other);
    return n;
}

static int check(const struct warm_run *run, struct err *e)
{
    const struct prompt *p = &run->in.prompt;
    if (p->bar == PROMPT_BAR_UNREADABLE)
        return err_set(e, ERR_FORMAT, "the body cannot be read: %s at byte %zu", p->why,
                       p->why_at);
    if (p->bar != PROMPT_BAR_NONE)
        return err_set(e, ERR_INVALID,
                       "the body takes no part in caching (docs/prompts.md)");
    if (p->has_media)
        return err_set(e, ERR_UNSUPPORTED, "prompts with pictures are not stored");
    if (!run->n_start)
        return err_set(e, ERR_INVALID, "there is no text in it");
    return 0;
}

struct warm_run *warm_run_new(struct replica *r, const struct tenants *t,
                              const struct warm_body *b, struct err *e)
{
    const struct http_head nothing = {0};
    const struct inspect_client who = {t, &nothing};
    struct warm_run *run = mem_zalloc(sizeof(*run));
    run->r = r;
    run->body = b;
    inspect_body(&run->in, &run->job, r, &who, b->api, buf_slice(&b->body));
    run->in.prompt.n = 1; /* whatever it says: one answer is asked for */
    run->n_start = count_start(run, &who);
    if (check(run, e) != 0) {
        warm_run_free(run);
        return NULL;
    }
    return run;
}

void warm_run_free(struct warm_run *run)
{
    if (!run)
        return;
    if (run->call)
        call_cancel(run->call);
    if (run->admitted)
        replica_leave(run->r, &run->job);
    answer_free(run->answer);
    inspect_free(&run->in);
    buf_free(&run->error);
    buf_free(&run->sent);
    free(run);
}

bool warm_run_stored(const struct warm_run *run, uint32_t *tokens)
{
    return cache_stored(run->r->cache, run->in.pieces.v, run->n_start, tokens);
}

int warm_run_pin(const struct warm_run *run, const char *name, bool public, struct err *e)
{
    return cache_pin(run->r->cache, run->job.seed, name, run->in.pieces.v, run->n_start,
                     public, e);
}

void warm_run_name(const struct warm_run *run, char out[32])
{
    snprintf(out, 32, "warm-%016" PRIx64, run->in.pieces.v[run->n_start - 1].hash.lo);
}

/* ---- running ----------------------------------------------------------------------- */

static void end(struct warm_run *run, enum job_outcome outcome, const char *why)
{
    const struct answer_facts *f = run->answer ? answer_facts(run->answer) : NULL;
    uint32_t computed = 0;
    run->call = NULL;
    run->admitted = false;
    run->job.outcome = outcome;
    run->job.facts = outcome == JOB_COMPLETE ? f : NULL;
    if (f && f->prompt_tokens > 0)
        computed =
            (uint32_t)(f->prompt_tokens - (f->cached_tokens > 0 ? f->cached_tokens : 0));
    replica_done(run->r, &run->job);
    run->done(run->arg, run->status, computed, why);
}

static void on_head(void *arg, const struct http_head *h)
{
    struct warm_run *run = arg;
    run->status = h->status;
    if (h->status >= 200 && h->status < 300)
        run->answer = answer_new(run->body->api, false);
}

static void on_body(void *arg, struct slice bytes)
{
    struct warm_run *run = arg;
    if (run->answer)
        answer_feed(run->answer, bytes, loop_now_us(run->r->loop));
    else if (buf_len(&run->error) < KEPT_ERROR)
        buf_append_slice(&run->error, bytes);
}

/* What an engine says is wrong: error.message, or nothing. */
static const char *message_of(const json_t *doc)
{
    const json_t *error = json_object_get(doc, "error");
    const char *text = json_string_value(json_object_get(error, "message"));
    return text ? text : "";
}

static void on_end(void *arg)
{
    struct warm_run *run = arg;
    const struct slice s = buf_slice(&run->error);
    if (run->answer) {
        answer_finish(run->answer);
        end(run, JOB_COMPLETE, "");
        return;
    }
    json_t *doc = json_loadb(s.ptr, s.len, 0, NULL);
    char *why =
        mem_printf("the engine answered %d: %.200s", run->status, message_of(doc));
    for (char *c = why; *c; c++) /* it may have been cut inside a character */
        if (*c < ' ' || *c > '~')
            *c = '?';
    json_decref(doc);
    end(run, JOB_REFUSED, why);
    free(why);
}

static void on_fail(void *arg, const struct err *why)
{
    struct warm_run *run = arg;
    run->status = 0;
    end(run, JOB_BROKEN, why->text);
}

static void send_it(struct warm_run *run)
{
    static const struct call_events events = {
        .on_head = on_head, .on_body = on_body, .on_end = on_end, .on_fail = on_fail};
    static const char tail[] = ",\"stream\":false,\"n\":1,\"max_tokens\":1,"
                               "\"max_completion_tokens\":1,\"n_predict\":1}";
    const struct prompt *p = &run->in.prompt;
    const struct slice body = buf_slice(&run->body->body);
    const char *brace = memrchr(body.ptr, '}', body.len);
    struct buf head = {0};
    buf_append(&run->sent, body.ptr, p->splice_at);
    if (run->job.plan.splice_slot)
        buf_printf(&run->sent, "\"id_slot\":%d,", run->job.plan.slot);
    buf_append(&run->sent, body.ptr + p->splice_at,
               (size_t)(brace - body.ptr) - p->splice_at);
    buf_append_str(&run->sent, tail); /* of two values the later one counts */
    buf_printf(&head,
               "POST %s%s HTTP/1.1\r\nHost: %s\r\nAccept: application/json\r\n%s"
               "Content-Type: application/json\r\nContent-Length: %zu\r\n\r\n",
               upstream_prefix(run->r->up), run->body->path, upstream_host(run->r->up),
               run->r->authorization, buf_len(&run->sent));
    const struct call_request cr = {.head = buf_slice(&head),
                                    .body = {buf_slice(&run->sent), {0}, {0}}};
    run->call = call_start(run->r->up, &cr, &events, run);
    buf_free(&head);
}

static void on_phase(struct job *job, enum job_phase phase)
{
    if (phase == JOB_READY)
        send_it(LIST_ENTRY(job, struct warm_run, job));
}

static void on_failed(struct job *job, int status, const char *why)
{
    struct warm_run *run = LIST_ENTRY(job, struct warm_run, job);
    run->admitted = false;
    run->done(run->arg, status, 0, why);
}

void warm_run_go(struct warm_run *run, warm_run_cb done, void *arg)
{
    run->done = done;
    run->arg = arg;
    run->job.generates = true;
    run->job.background = run->job.keep = true;
    run->job.on_phase = on_phase;
    run->job.on_failed = on_failed;
    run->admitted = true;
    replica_admit(run->r, &run->job);
}
