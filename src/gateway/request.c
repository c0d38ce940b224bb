/* SPDX-License-Identifier: MIT */
#include "gateway/request.h"

/*
 * States in the order of time. Each is entered by enter(), which stamps it; all phase
 * times are differences of these stamps. Deadlines: the queue's belongs to the driver
 * (timeouts.queue), those of sending and answering to the call (timeouts.connect,
 * first_byte, stall), that of a client that does not read to the front (timeouts.write),
 * that of it all to the request (timeouts.total).
 *
 *   state       entered when                        leaves by
 *   SCAN        the request is whole                inspect()
 *   PLAN        its prompt has been looked at       replica_admit()
 *   QUEUE       no slot is free                     on_phase(…), on_failed
 *   RESTORE     blocks are being put back           on_phase(READY)
 *   SEND        the replica is ready                on_sent
 *   FIRST_BYTE  the engine has all of it            on_head
 *   RELAY       the answer has begun                on_end, on_fail
 *   FINISH      once, from any of them              freed
 *
 * A client that leaves goes from any state straight to FINISH (on_gone); an engine that
 * fails, too (on_fail). With on_disconnect: drain, one that leaves when the engine has
 * the whole request makes it an orphan: it goes on without a client.
 */

#include <assert.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "base/mem.h"
#include "gateway/credential.h"
#include "gateway/cors.h"
#include "gateway/headers.h"
#include "gateway/inspect.h"
#include "gateway/ping.h"
#include "gateway/routes.h"
#include "proto/unpack.h"

struct request {
    struct request_world *w;
    struct front_request *client; /* NULL once it has gone or was answered */
    struct request_target *target;
    enum request_state state;
    uint64_t stamp_us[REQUEST_STATE_COUNT];
    char id[32];
    char line[160];              /* method and path, for the log */
    char key[KEYS_NAME_MAX + 1]; /* the name of the one it showed, or "-" */
    size_t body_bytes;

    struct route route;
    struct inspected in;
    uint64_t held; /* by that: its share of the memory for bodies */
    struct job job;
    bool admitted;
    char splice[64];

    struct call *call;
    struct answer *answer;
    int status; /* sent to the client; 0 none */
    uint64_t out_bytes;
    struct loop_timer deadline;
    struct ping ping;
    struct list orphan; /* in w->orphans, once its client has gone */
    bool whole;         /* an orphan whose answer came to its end */
    bool held_back;     /* the engine, for a client that reads slowly */
    bool stream, content_seen;
    enum stats_outcome outcome;
};

const char *request_state_name(enum request_state s)
{
    static const char *const names[] = {
#define X(state, name) [state] = name,
        REQUEST_STATES(X)
#undef X
    };
    assert(s < REQUEST_STATE_COUNT);
    return names[s];
}

static void enter(struct request *rq, enum request_state s)
{
    assert(s > rq->state || rq->stamp_us[rq->state] == 0);
    if (rq->stamp_us[rq->state])
        rq->w->in_state[rq->state]--;
    rq->state = s;
    rq->stamp_us[s] = loop_now_us(rq->w->loop);
    rq->w->in_state[s]++;
}

/* ---- finish ------------------------------------------------------------------------ */

static double ms_between(uint64_t from_us, uint64_t to_us)
{
    return from_us && to_us > from_us ? (double)(to_us - from_us) / 1e3 : 0;
}

static const struct answer_facts *facts_of(const struct request *rq)
{
    return rq->answer ? answer_facts(rq->answer) : NULL;
}

static double ttft_ms(const struct request *rq)
{
    const struct answer_facts *f = facts_of(rq);
    if (!f || !f->first_content_us)
        return -1;
    return ms_between(rq->stamp_us[REQUEST_SCAN], f->first_content_us);
}

static double queue_ms(const struct request *rq)
{
    const uint64_t *t = rq->stamp_us;
    return ms_between(t[REQUEST_QUEUE],
                      t[REQUEST_RESTORE] ? t[REQUEST_RESTORE] : t[REQUEST_SEND]);
}

static double restore_ms(const struct request *rq)
{
    return ms_between(rq->stamp_us[REQUEST_RESTORE], rq->stamp_us[REQUEST_SEND]);
}

static bool is_success(const struct request *rq)
{
    return rq->status >= 200 && rq->status < 300;
}

/* Where the answer was whole and has the engine's own counts; what it saved, NAN where
 * that is not known. */
static double measure(struct request *rq, double ttft)
{
    const struct answer_facts *f = facts_of(rq);
    const struct plan *plan = &rq->job.plan;
    if (!f || rq->outcome != STATS_COMPLETED || f->prompt_tokens <= 0 ||
        f->cached_tokens < 0)
        return NAN;
    struct replica *r = rq->target->replica;
    const struct measure_request m = {.ttft_ms = ttft,
                                      .before_ms = queue_ms(rq) + restore_ms(rq),
                                      .prompt_tokens = (double)f->prompt_tokens,
                                      .cached_tokens = (double)f->cached_tokens,
                                      .overlapped = plan->overlap || plan->behind_others,
                                      .restored = plan->restored,
                                      .drawn = plan->drawn,
                                      .held_out = plan->held_out,
                                      .group = rq->in.pieces.n ? rq->in.pieces.v[0].hash
                                                               : (struct hash128){0, 0},
                                      .block_tokens = cache_block_tokens(rq->w->cache)};
    return measure_add(&rq->target->measure, &r->ttft, r->holdout, &m);
}

/* Once the answer's pieces have been added: the next turn quotes both. */
static void observe(struct request *rq, double ttft)
{
    const struct answer_facts *f = facts_of(rq);
    const struct plan *plan = &rq->job.plan;
    if (!rq->w->outlook || !f || rq->outcome != STATS_COMPLETED || !rq->job.cacheable)
        return;
    const struct outlook_request o = {.v = rq->in.pieces.v,
                                      .n = rq->in.pieces.n,
                                      .n_prompt = rq->job.n_prompt_pieces,
                                      .prompt_tokens = (double)f->prompt_tokens,
                                      .cached_tokens = (double)f->cached_tokens,
                                      .ttft_ms = plan->overlap ? -1 : ttft};
    outlook_add(rq->w->outlook, &o);
}

static struct stats_sample sample_of(struct request *rq)
{
    const struct answer_facts *f = facts_of(rq);
    const enum prompt_bar bar = rq->in.prompt.bar;
    const double ttft = ttft_ms(rq);
    return (struct stats_sample){
        .outcome = rq->outcome,
        .generates = rq->route.generates,
        .uninspected =
            rq->route.generates &&
            (rq->route.api == PROMPT_NONE || rq->in.prompt.bar == PROMPT_BAR_UNREADABLE),
        .ineligible =
            rq->route.generates && bar != PROMPT_BAR_NONE && bar != PROMPT_BAR_UNREADABLE,
        .without_cache = bar == PROMPT_BAR_NO_CACHE || bar == PROMPT_BAR_ECHO,
        .restored = rq->job.plan.restored,
        .implausible = f && f->implausible,
        .unterminated = f && rq->stream && rq->outcome == STATS_COMPLETED && !f->terminal,
        .prompt_tokens = f ? f->prompt_tokens : -1,
        .cached_tokens = f ? f->cached_tokens : -1,
        .generated_tokens = f ? f->predicted_n : -1,
        .available = rq->job.plan.available,
        .captured = rq->job.plan.promised,
        .ttft_ms = ttft,
        .saved_ms = measure(rq, ttft),
        .miss = rq->job.plan.miss,
        .block_tokens = cache_block_tokens(rq->w->cache)};
}

static void write_log(const struct request *rq, const struct stats_sample *s)
{
    static const char *const outcomes[STATS_OUTCOMES] = {
        "completed", "refused-by-engine", "client-gone", "upstream-failed", "rejected"};
    const uint64_t *t = rq->stamp_us;
    log_event(LOG_INFO, "access", "id", "%s", rq->id, "request", "%s", rq->line, "status",
              "%d", rq->status, "outcome", "%s", outcomes[rq->outcome], "replica", "%s",
              rq->target ? rq->target->replica->name : "-", "slot", "%d",
              rq->job.plan.slot, "key", "%s", rq->key, "tenant", "%08x", rq->job.tenant,
              "in_bytes", "%zu", rq->body_bytes, "out_bytes", "%llu",
              (unsigned long long)rq->out_bytes, "prompt_tokens", "%lld",
              (long long)s->prompt_tokens, "cached_tokens", "%lld",
              (long long)s->cached_tokens, "promised", "%lld", (long long)s->captured,
              "restored", "%d", (int)s->restored, "miss", "%s", s->miss ? s->miss : "-",
              "known_bytes", "%llu", (unsigned long long)rq->job.plan.known_bytes,
              "text_bytes", "%llu", (unsigned long long)rq->job.text_bytes, "ttft_ms",
              "%.1f", s->ttft_ms, "saved_ms", "%.1f", s->saved_ms, "queue_ms", "%.1f",
              queue_ms(rq), "restore_ms", "%.1f", restore_ms(rq), "total_ms", "%.1f",
              ms_between(t[REQUEST_SCAN], t[REQUEST_FINISH]), NULL);
}

static enum job_outcome job_outcome(const struct request *rq)
{
    const bool ended =
        rq->whole || rq->outcome == STATS_COMPLETED || rq->outcome == STATS_REFUSED;
    return !ended ? JOB_BROKEN : is_success(rq) ? JOB_COMPLETE : JOB_REFUSED;
}

static void tell_replica(struct request *rq)
{
    struct replica *r = rq->target->replica;
    if (!rq->admitted)
        return;
    rq->admitted = false;
    if (!rq->job.sent || (rq->outcome == STATS_CLIENT_GONE && !rq->whole)) {
        replica_leave(r, &rq->job);
        return;
    }
    rq->job.facts = facts_of(rq);
    rq->job.outcome = job_outcome(rq);
    if (rq->job.outcome == JOB_COMPLETE && rq->answer && rq->job.cacheable)
        inspect_answer(&rq->in, answer_text(rq->answer));
    if (rq->job.facts && rq->job.outcome == JOB_COMPLETE)
        cache_pin_hit(rq->w->cache, rq->in.pieces.v, rq->job.n_prompt_pieces,
                      rq->job.facts->cached_tokens);
    if (rq->job.facts && rq->job.outcome == JOB_COMPLETE && rq->job.public)
        cache_pin_hit(rq->w->cache, rq->in.public.v, rq->in.public.n,
                      rq->job.facts->cached_tokens);
    replica_done(r, &rq->job);
}

static void finish(struct request *rq, enum stats_outcome outcome)
{
    rq->outcome = outcome;
    rq->client = NULL;
    enter(rq, REQUEST_FINISH);
    const struct stats_sample s = sample_of(rq);
    stats_add(rq->w->total, &s);
    if (rq->target) {
        stats_add(&rq->target->figures, &s);
        tell_replica(rq);
        observe(rq, s.ttft_ms);
    }
    if (rq->w->access_log)
        write_log(rq, &s);
    rq->w->in_state[REQUEST_FINISH]--;
    if (rq->call)
        call_cancel(rq->call);
    timer_fini(&rq->deadline);
    ping_stop(&rq->ping);
    list_del(&rq->orphan);
    answer_free(rq->answer);
    inspect_free(&rq->in);
    budget_set(&rq->w->memory, &rq->held, 0);
    free(rq);
}

/* Many clients hang up at the last event, before the end of the stream's framing. They
 * have it all, and the engine freed the slot before it sent that event. */
static bool has_all(const struct request *rq)
{
    const struct answer_facts *f = facts_of(rq);
    return f && rq->stream && f->last && !rq->job.wants_all;
}

/* The engine has the whole request, and is to end it although nobody waits. */
static bool goes_on(const struct request *rq)
{
    return rq->w->drain_gone && rq->call && !has_all(rq) && call_release_body(rq->call);
}

static void make_orphan(struct request *rq)
{
    rq->client = NULL;
    list_push_back(&rq->w->orphans, &rq->orphan);
    ping_stop(&rq->ping);
    if (rq->held_back)
        call_resume(rq->call);
}

void request_drop_orphans(struct request_world *w)
{
    LIST_EACH_SAFE (it, next, &w->orphans)
        finish(LIST_ENTRY(it, struct request, orphan), STATS_CLIENT_GONE);
}

static void on_gone(void *arg)
{
    struct request *rq = arg;
    if (goes_on(rq)) {
        make_orphan(rq);
        return;
    }
    if (rq->call)
        call_cancel(rq->call); /* at once: the engine stops, its slot becomes a zombie */
    rq->call = NULL;
    if (has_all(rq)) {
        answer_finish(rq->answer);
        finish(rq, STATS_COMPLETED);
    } else {
        finish(rq, STATS_CLIENT_GONE);
    }
}

/* Answers with an error of our own; nothing of the engine's has gone out. */
static void reject(struct request *rq, int status, const char *type, const char *message,
                   enum stats_outcome outcome)
{
    struct buf headers = {0};
    headers_id(&headers, rq->id);
    cors_put(&headers, rq->w->allow_origin, front_head(rq->client));
    if (status == 503)
        buf_append_str(&headers, "Retry-After: 1\r\n");
    rq->status = status;
    front_error(rq->client, status, type, message, buf_slice(&headers));
    buf_free(&headers);
    finish(rq, outcome);
}

/* ---- the answer -------------------------------------------------------------------- */

/* Nothing has come from the engine for a while. */
static void on_silence(void *arg)
{
    struct request *rq = arg;
    if (!front_congested(rq->client))
        front_data(rq->client, ping_text());
}

static void relay_head(struct request *rq, const struct http_head *h, bool plain)
{
    struct buf out = {0};
    headers_to_client(&out, h, rq->stream);
    headers_id(&out, rq->id);
    cors_put(&out, rq->w->allow_origin, front_head(rq->client));
    if (rq->w->cache_status && rq->route.generates)
        headers_cache_status(&out, &rq->job.plan, rq->job.cacheable);
    if (rq->w->server_timing && rq->route.generates)
        headers_server_timing(&out, rq->stamp_us);
    const bool is_head = slice_eq(front_head(rq->client)->method, SLICE_LIT("HEAD"));
    const struct front_answer a = {.status = h->status,
                                   .reason = h->reason,
                                   .headers = buf_slice(&out),
                                   .length = headers_length(h, is_head),
                                   .bodiless = is_head || h->body == HTTP_BODY_NONE};
    front_start(rq->client, &a);
    if (rq->stream && plain && a.length < 0 && !a.bodiless)
        ping_start(&rq->ping, rq->w->loop, rq->w->ping_ms, on_silence, rq);
    buf_free(&out);
}

static void on_head(void *arg, const struct http_head *h)
{
    struct request *rq = arg;
    enter(rq, REQUEST_RELAY);
    rq->status = h->status;
    rq->stream = headers_are_event_stream(h);
    const bool plain = !http_head_get(h, SLICE_LIT("Content-Encoding")).ptr;
    if (rq->route.generates && is_success(rq) && plain)
        rq->answer = answer_new(rq->route.api, rq->stream);
    if (rq->client)
        relay_head(rq, h, plain);
}

static void on_body(void *arg, struct slice bytes)
{
    struct request *rq = arg;
    if (rq->client) { /* first the client, then we look */
        front_data(rq->client, bytes);
        rq->out_bytes += bytes.len;
        ping_note(&rq->ping, bytes);
    }
    if (rq->answer) {
        answer_feed(rq->answer, bytes, loop_now_us(rq->w->loop));
        if (!rq->content_seen && answer_facts(rq->answer)->first_content_us) {
            rq->content_seen = true;
            replica_first_content(rq->target->replica, &rq->job);
        }
    }
    if (rq->client && front_congested(rq->client)) {
        rq->held_back = true;
        call_pause(rq->call);
    }
}

static void on_drained(void *arg)
{
    struct request *rq = arg;
    rq->held_back = false;
    if (rq->call)
        call_resume(rq->call);
}

static void on_end(void *arg)
{
    struct request *rq = arg;
    rq->call = NULL;
    if (rq->answer)
        answer_finish(rq->answer);
    if (!rq->client) {
        rq->whole = true;
        finish(rq, STATS_CLIENT_GONE);
        return;
    }
    front_end(rq->client);
    finish(rq, is_success(rq) ? STATS_COMPLETED : STATS_REFUSED);
}

static void fail(struct request *rq, const struct err *why)
{
    log_event(LOG_WARN, "upstream-failed", "id", "%s", rq->id, "state", "%s",
              request_state_name(rq->state), "why", "%s", why->text, NULL);
    if (!rq->client) {
        finish(rq, STATS_CLIENT_GONE);
    } else if (rq->state < REQUEST_RELAY && why->code == ERR_TIMEOUT) {
        reject(rq, 504, "timeout_error", "the inference engine did not answer in time",
               STATS_UPSTREAM);
    } else if (rq->state < REQUEST_RELAY) {
        reject(rq, 502, "upstream_error", "the inference engine cannot be reached",
               STATS_UPSTREAM);
    } else {
        front_abort(rq->client); /* the client sees that it is not whole */
        finish(rq, STATS_UPSTREAM);
    }
}

static void on_fail(void *arg, const struct err *why)
{
    struct request *rq = arg;
    rq->call = NULL;
    fail(rq, why);
}

/* However far it has come. */
static void on_deadline(void *arg)
{
    struct request *rq = arg;
    struct err why = {0};
    if (rq->call)
        call_cancel(rq->call);
    rq->call = NULL;
    err_set(&why, ERR_TIMEOUT, "timeouts.total has passed");
    fail(rq, &why);
}

static void on_sent(void *arg)
{
    struct request *rq = arg;
    if (rq->state == REQUEST_SEND)
        enter(rq, REQUEST_FIRST_BYTE);
}

/* ---- sending ----------------------------------------------------------------------- */

/*
 * What the gateway puts into a body, in rq->splice: "" for nothing. Returns where: behind
 * the opening brace, or before the closing one where it must win over what the client
 * said (the later of two counts).
 */
static size_t write_splice(struct request *rq, struct slice body)
{
    const struct plan *plan = &rq->job.plan;
    const bool said_so = rq->in.prompt.bar == PROMPT_BAR_NO_CACHE;
    const bool cold = (plan->fresh || plan->held_out) && !said_so;
    const bool at_end = cold && rq->in.prompt.has_cache_prompt;
    const char *comma = rq->in.prompt.splice_comma ? "," : "";
    char slot[24] = "";
    size_t at = rq->in.prompt.splice_at;
    rq->splice[0] = '\0';
    if (rq->job.packed)
        return at;
    if (plan->splice_slot)
        snprintf(slot, sizeof(slot), "\"id_slot\":%d", plan->slot);
    if (!*slot && !cold)
        return at;
    snprintf(rq->splice, sizeof(rq->splice), "%s%s%s%s%s", at_end ? comma : "", slot,
             *slot && cold ? "," : "", cold ? "\"cache_prompt\":false" : "",
             at_end ? "" : comma);
    if (at_end)
        for (at = body.len - 1; body.ptr[at] != '}';)
            at--;
    return at;
}

static void send_upstream(struct request *rq)
{
    static const struct call_events events = {.on_head = on_head,
                                              .on_body = on_body,
                                              .on_end = on_end,
                                              .on_fail = on_fail,
                                              .on_sent = on_sent};
    const struct http_head *h = front_head(rq->client);
    struct slice body = front_body(rq->client);
    struct call_request cr = {.body = {body, {0}, {0}},
                              .is_head = slice_eq(h->method, SLICE_LIT("HEAD")),
                              .hold = rq->job.plan.guarded};
    size_t length = body.len;
    if (rq->state < REQUEST_SEND) /* else it is sent again */
        enter(rq, REQUEST_SEND);
    const size_t at = write_splice(rq, body);
    if (rq->splice[0]) {
        cr.body[0] = slice_make(body.ptr, at);
        cr.body[1] = slice_of(rq->splice);
        cr.body[2] = slice_make(body.ptr + at, body.len - at);
        length += cr.body[1].len;
    }
    struct buf head = {0};
    const struct headers_rules rules = {.credentials = rq->target->credentials,
                                        .hidden_line_ends = rq->w->hidden_line_ends,
                                        .forwarded_for = rq->w->forwarded_for,
                                        .peer = front_peer(rq->client),
                                        .id = rq->id};
    headers_to_engine(&head, h, rq->target->replica, &rules, length);
    cr.head = buf_slice(&head);
    rq->call = call_start(rq->target->replica->up, &cr, &events, rq);
    buf_free(&head);
}

/* Its answer is not to be seen; it waits for another one, where anybody does. */
static void drop_call(struct request *rq)
{
    call_cancel(rq->call);
    rq->call = NULL;
    if (!rq->client)
        finish(rq, STATS_CLIENT_GONE);
}

static void on_phase(struct job *job, enum job_phase phase)
{
    struct request *rq = LIST_ENTRY(job, struct request, job);
    switch (phase) {
    case JOB_QUEUED:
        enter(rq, REQUEST_QUEUE);
        break;
    case JOB_RESTORING:
        if (rq->state < REQUEST_RESTORE)
            enter(rq, REQUEST_RESTORE);
        break;
    case JOB_READY:
        send_upstream(rq);
        break;
    case JOB_BOUND:
        if (rq->call)
            call_release(rq->call);
        break;
    case JOB_AGAIN:
        drop_call(rq);
        break;
    }
}

static void on_failed(struct job *job, int status, const char *why)
{
    struct request *rq = LIST_ENTRY(job, struct request, job);
    rq->admitted = false; /* the replica has let go of it */
    reject(rq, status, "unavailable_error", why, STATS_REJECTED);
}

/* ---- looking and planning ---------------------------------------------------------- */

/* Counts what was read. Where there is no room for it, it goes; false, and the request
 * was refused, where there would be but for others. */
static bool hold_inspected(struct request *rq, const struct inspect_client *who)
{
    struct budget *memory = &rq->w->memory;
    const uint64_t needs = inspect_held(&rq->in);
    if (budget_set(memory, &rq->held, needs))
        return true;
    if (needs + mem_held(rq->body_bytes, rq->body_bytes) <= memory->max) {
        reject(rq, 503, "unavailable_error",
               "too many request bodies are under way at once", STATS_REJECTED);
        return false;
    }
    inspect_forget(&rq->in, &rq->job, who, "no room beside it: limits.buffered_bytes");
    return true;
}

/* Reads the prompt, of a packed body that of a copy, and hashes its text. False where the
 * request was refused. */
static bool inspect(struct request *rq, const struct replica *r)
{
    struct request_world *w = rq->w;
    const struct inspect_client who = {w->tenants, front_head(rq->client)};
    const struct slice body = front_body(rq->client);
    const struct slice coding = http_head_get(who.head, SLICE_LIT("Content-Encoding"));
    if (unpack_coding(coding) == UNPACK_PLAIN) {
        inspect_body(&rq->in, &rq->job, r, &who, rq->route.api, body);
    } else {
        const uint64_t room =
            w->memory.max > w->memory.used ? w->memory.max - w->memory.used : 0;
        const uint64_t max = w->unpack_bytes < room ? w->unpack_bytes : room;
        inspect_packed(&rq->in, &rq->job, r, &who, rq->route.api, body, (size_t)max);
    }
    if (!hold_inspected(rq, &who))
        return false;
    if (rq->in.prompt.bar == PROMPT_BAR_UNREADABLE)
        log_event(LOG_DEBUG, "uninspected", "id", "%s", rq->id, "why", "%s",
                  rq->in.prompt.why, "at", "%zu", rq->in.prompt.why_at, NULL);
    return true;
}

/* Who takes requests now, who soon, who does not. */
static int readiness(const struct replica *r)
{
    return r->mode >= REPLICA_OBSERVE ? 2 : r->mode == REPLICA_STARTING ? 1 : 0;
}

/* Of the readiest replicas the one that has the least to do. */
static struct request_target *choose_target(struct request_world *w)
{
    struct request_target *best = w->targets[0];
    for (size_t i = 1; i < w->n_targets; i++) {
        struct request_target *t = w->targets[i];
        const int more = readiness(t->replica) - readiness(best->replica);
        if (more > 0 || (more == 0 && t->replica->in_flight < best->replica->in_flight))
            best = t;
    }
    return best;
}

static void note_line(struct request *rq, const struct http_head *h)
{
    const char *mark = memchr(h->target.ptr, '?', h->target.len);
    const size_t query = mark ? (size_t)(mark - h->target.ptr) : h->target.len;
    snprintf(rq->line, sizeof(rq->line), "%.*s %.*s",
             (int)(h->method.len < 20 ? h->method.len : 20), h->method.ptr,
             (int)(query < 120 ? query : 120), h->target.ptr);
}

/* A browser asks with OPTIONS, and no credential, whether a page may. */
bool request_may(const struct request_world *w, const struct http_head *h,
                 struct front_refusal *why)
{
    if (!keys_count(w->keys) || keys_name(w->keys, h) ||
        slice_eq(h->method, SLICE_LIT("OPTIONS")))
        return true;
    *why = (struct front_refusal){
        .status = 401,
        .type = "authentication_error",
        .message = credential_of(h).len
                       ? "this key is not known here"
                       : "a key is needed: Authorization: Bearer KEY, or x-api-key: KEY",
        .headers = "WWW-Authenticate: Bearer\r\n"};
    return false;
}

void request_refusing(const struct request_world *w, const struct http_head *h,
                      struct buf *headers)
{
    cors_put(headers, w->allow_origin, h);
}

static void answer_preflight(struct request *rq)
{
    struct buf headers = {0};
    headers_id(&headers, rq->id);
    cors_put_preflight(&headers, rq->w->allow_origin, front_head(rq->client));
    rq->status = 204;
    const struct front_answer a = {
        .status = 204, .headers = buf_slice(&headers), .length = -1, .bodiless = true};
    front_start(rq->client, &a);
    front_end(rq->client);
    buf_free(&headers);
    finish(rq, STATS_COMPLETED);
}

static void note_key(struct request *rq, const struct http_head *h)
{
    const char *name = keys_count(rq->w->keys) ? keys_name(rq->w->keys, h) : NULL;
    snprintf(rq->key, sizeof(rq->key), "%s", name ? name : "-");
}

void request_start(struct request_world *w, struct front_request *client)
{
    static const struct front_events events = {on_gone, on_drained};
    const struct http_head *h = front_head(client);
    struct request *rq = mem_zalloc(sizeof(*rq));
    rq->w = w;
    rq->client = client;
    list_init(&rq->orphan);
    rq->in.prompt.n = 1;
    front_set_events(client, &events, rq);
    enter(rq, REQUEST_SCAN);
    rq->stamp_us[REQUEST_SCAN] = front_received_us(client);
    snprintf(rq->id, sizeof(rq->id), "%08" PRIx64 "-%" PRIx64, w->id_salt & 0xffffffffu,
             w->next_id++);
    timer_init(&rq->deadline, w->loop, on_deadline, rq);
    timer_start(&rq->deadline, w->total_ms);
    rq->body_bytes = front_body(client).len;
    note_line(rq, h);
    note_key(rq, h);
    rq->route = routes_find(h->method, h->target);
    if (*w->allow_origin && cors_is_preflight(h)) {
        answer_preflight(rq);
        return;
    }
    if (rq->route.bad_path) {
        reject(rq, 400, "invalid_request_error", "the path cannot be normalised",
               STATS_REJECTED);
        return;
    }
    if (w->hidden_line_ends == OPTIONS_HIDDEN_REFUSE && headers_hide_line_end(h)) {
        reject(rq, 400, "invalid_request_error",
               "a header has %0D, %0A or %00 in its value; headers.hidden_line_ends "
               "decides on it",
               STATS_REJECTED);
        return;
    }
    if (rq->route.refused && !w->relay_admin_paths) {
        reject(rq, 403, "permission_error",
               "this path is the engine's own; admin_paths decides on it",
               STATS_REJECTED);
        return;
    }
    rq->target = choose_target(w);
    if (rq->route.api != PROMPT_NONE && !inspect(rq, rq->target->replica))
        return;
    rq->job.prompt = &rq->in.prompt;
    rq->job.pieces = &rq->in.pieces;
    rq->job.generates = rq->route.generates;
    rq->job.on_phase = on_phase;
    rq->job.on_failed = on_failed;
    enter(rq, REQUEST_PLAN);
    rq->admitted = true;
    replica_admit(rq->target->replica, &rq->job);
}
