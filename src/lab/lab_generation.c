/* SPDX-License-Identifier: MIT */
#include "lab_server.h"

/*
 * One request for a generation, from its body to the end of its answer:
 *
 *     body ─► question ─► (late) ─► tasks ─► token … ─► all ended ─► answer, free
 *                                     └─ client gone: a stream is cancelled and freed;
 *                                        any other runs to its end, as in the real engine
 */

#include <stdlib.h>

#include "base/clock.h"
#include "base/mem.h"
#include "base/units.h"
#include "lab_answer.h"

#define LATE_MS 2000

struct generation {
    struct list link;
    struct lab_server *s;
    struct front_request *rq; /* NULL: the client has left */
    struct lab_question q;
    struct lab_task *tasks; /* q.n of them */
    size_t left;            /* of them, not ended */
    uint64_t number;
    uint64_t hold; /* what a test calls it that holds it; 0: nobody does */
    struct loop_timer late;
    bool begun;     /* the head of a stream is out */
    struct buf raw; /* the start of a character that has not ended */
};

static struct lab_result result_of(const struct generation *g)
{
    return (struct lab_result){
        .q = &g->q,
        .tasks = g->tasks,
        .alias = g->s->o->alias,
        .number = g->number,
        .created_s = (int64_t)(clock_wall_ms() / 1000),
        .wrong_counts = lab_server_does(g->s, LAB_WRONG_COUNTS),
    };
}

static void free_generation(struct generation *g)
{
    for (size_t i = 0; i < g->q.n; i++)
        free(g->tasks[i].answer);
    free(g->tasks);
    lab_question_fini(&g->q);
    timer_fini(&g->late);
    buf_free(&g->raw);
    list_del(&g->link);
    free(g);
}

void lab_generations_end(struct lab_server *s)
{
    while (!list_empty(&s->generations))
        free_generation(LIST_ENTRY(s->generations.next, struct generation, link));
}

/* ---- streams ----------------------------------------------------------------------- */

/* A stream has one task. */
static void give_up(struct generation *g)
{
    g->rq = NULL;
    lab_engine_cancel(&g->s->engine, &g->tasks[0]);
    free_generation(g);
}

static void put_event(void *arg, const char *name, json_t *doc)
{
    struct generation *g = arg;
    struct buf b = {0};
    char *text = json_dumps(doc, JSON_COMPACT | JSON_REAL_PRECISION(9));
    if (name)
        buf_printf(&b, "event: %s\n", name);
    buf_append_str(&b, "data: ");
    buf_append_str(&b, text);
    buf_append_str(&b, "\n\n");
    front_data(g->rq, buf_slice(&b));
    buf_free(&b);
    free(text);
    json_decref(doc);
}

static void put_done(void *arg)
{
    struct generation *g = arg;
    front_data(g->rq, SLICE_LIT("data: [DONE]\n\n"));
}

static struct lab_answer_sink sink_of(struct generation *g)
{
    return (struct lab_answer_sink){put_event, put_done, g};
}

static void begin_stream(struct generation *g)
{
    const struct lab_result r = result_of(g);
    const struct lab_answer_sink to = sink_of(g);
    const struct front_answer head = {
        .status = 200,
        .headers = SLICE_LIT("Content-Type: text/event-stream\r\n"),
        .length = -1};
    g->begun = true;
    front_start(g->rq, &head);
    lab_answer_begin(&r, &to);
}

/* Sends what is whole of the text; true where there was something. */
static bool send_text(struct generation *g, uint32_t token, bool end)
{
    struct buf text = {0};
    lab_text_clean(&g->raw, end, &text);
    const bool any = buf_len(&text) > 0;
    if (any) {
        const struct lab_result r = result_of(g);
        const struct lab_answer_sink to = sink_of(g);
        lab_answer_piece(&r, buf_slice(&text), token, &to);
    }
    buf_free(&text);
    return any;
}

static void on_token(void *arg, uint32_t token)
{
    struct generation *g = arg;
    if (!g->q.stream)
        return;
    if (!g->begun && lab_server_does(g->s, LAB_RESET)) {
        front_reset(g->rq);
        give_up(g);
        return;
    }
    if (!g->begun)
        begin_stream(g);
    lab_text_put(&g->raw, token, false);
    if (send_text(g, token, false) && lab_server_does(g->s, LAB_CUT)) {
        front_abort(g->rq);
        give_up(g);
    }
}

static void end_stream(struct generation *g)
{
    const struct lab_task *t = &g->tasks[0];
    const struct lab_result r = result_of(g);
    const struct lab_answer_sink to = sink_of(g);
    send_text(g, t->answer[t->n_answer - 1], true);
    lab_answer_end(&r, &to);
    front_end(g->rq);
}

/* ---- whole answers ----------------------------------------------------------------- */

static void answer_half(struct front_request *rq, json_t *doc)
{
    char *text = json_dumps(doc, JSON_COMPACT | JSON_REAL_PRECISION(9));
    const struct slice whole = slice_of(text);
    const struct front_answer head = {.status = 200,
                                      .headers =
                                          SLICE_LIT("Content-Type: application/json\r\n"),
                                      .length = (int64_t)whole.len};
    front_start(rq, &head);
    front_data(rq, slice_make(whole.ptr, whole.len / 2));
    front_abort(rq);
    free(text);
    json_decref(doc);
}

static void answer_whole(struct generation *g)
{
    const struct lab_result r = result_of(g);
    if (lab_server_does(g->s, LAB_RESET))
        front_reset(g->rq);
    else if (lab_server_does(g->s, LAB_CUT))
        answer_half(g->rq, lab_answer_whole(&r));
    else
        lab_answer_json(g->rq, 200, lab_answer_whole(&r));
}

static void on_end(void *arg)
{
    struct generation *g = arg;
    if (--g->left)
        return;
    if (g->rq && g->q.stream)
        end_stream(g);
    else if (g->rq)
        answer_whole(g);
    free_generation(g);
}

/* ---- from the body to tasks -------------------------------------------------------- */

static void on_gone(void *arg)
{
    struct generation *g = arg;
    g->rq = NULL;
    if (!g->q.stream)
        return;
    if (g->late.armed)
        free_generation(g);
    else
        give_up(g);
}

static void on_drained(void *arg)
{
    (void)arg; /* answers are small: they are queued without looking */
}

static void submit(void *arg)
{
    struct generation *g = arg;
    for (size_t i = 0; i < g->q.n; i++)
        lab_engine_submit(&g->s->engine, &g->tasks[i]);
}

static void make_tasks(struct generation *g)
{
    const struct lab_question *q = &g->q;
    g->left = q->n;
    g->tasks = mem_zalloc(q->n * sizeof(*g->tasks));
    for (size_t i = 0; i < q->n; i++)
        g->tasks[i] = (struct lab_task){.tokens = q->prompts[i].v,
                                        .n_tokens = (uint32_t)q->prompts[i].n,
                                        .wants_slot = q->id_slot,
                                        .cache_prompt = q->cache_prompt,
                                        .ignore_eos = q->ignore_eos,
                                        .stream = q->stream,
                                        .held = g->hold > 0,
                                        .limit = q->limit,
                                        .on_token = on_token,
                                        .on_end = on_end,
                                        .arg = g};
}

/* "X-Lab-Hold: N": it takes its slot and is not computed before N is released. */
static uint64_t read_hold(struct front_request *rq)
{
    const struct slice v = http_head_get(front_head(rq), SLICE_LIT("X-Lab-Hold"));
    uint64_t n = 0;
    if (v.ptr) {
        char *text = mem_dup(v.ptr, v.len);
        if (!units_parse_count(text, &n))
            n = 0;
        free(text);
    }
    return n;
}

static void start(struct lab_server *s, struct front_request *rq, enum lab_api api)
{
    static const struct front_events events = {on_gone, on_drained};
    struct lab_refusal no;
    struct lab_question q;
    json_t *body = lab_body_json(rq);
    if (!body)
        return;
    const bool fine =
        lab_question_read(&q, api, body, s->engine.n_slots, s->engine.context, &no);
    json_decref(body);
    if (!fine) {
        lab_question_fini(&q);
        lab_answer_refusal(rq, &no);
        return;
    }
    struct generation *g = mem_zalloc(sizeof(*g));
    g->s = s;
    g->rq = rq;
    g->q = q;
    if (q.limit < 0)
        g->q.limit = s->o->predict;
    g->number = ++s->n_generations;
    g->hold = read_hold(rq);
    list_push_back(&s->generations, &g->link);
    timer_init(&g->late, s->loop, submit, g);
    make_tasks(g);
    front_set_events(rq, &events, g);
    if (lab_server_does(s, LAB_LATE))
        timer_start(&g->late, LATE_MS);
    else
        submit(g);
}

/* ---- held by a test ---------------------------------------------------------------- */

static bool has_slots(const struct generation *g)
{
    for (size_t i = 0; i < g->q.n; i++)
        if (!g->tasks[i].slot)
            return false;
    return true;
}

void lab_on_held(struct lab_server *s, struct front_request *rq, struct slice rest)
{
    json_t *list = json_array();
    (void)rest;
    LIST_EACH (it, &s->generations) {
        const struct generation *g = LIST_ENTRY(it, struct generation, link);
        if (g->hold && has_slots(g))
            json_array_append_new(list, json_integer((json_int_t)g->hold));
    }
    lab_answer_json(rq, 200, list);
}

void lab_on_release(struct lab_server *s, struct front_request *rq, struct slice rest)
{
    json_t *body = lab_body_json(rq);
    (void)rest;
    if (!body)
        return;
    const json_int_t hold = json_integer_value(json_object_get(body, "hold"));
    json_decref(body);
    LIST_EACH (it, &s->generations) {
        struct generation *g = LIST_ENTRY(it, struct generation, link);
        if (g->hold != (uint64_t)hold)
            continue;
        g->hold = 0;
        for (size_t i = 0; i < g->q.n; i++)
            lab_engine_unhold(&s->engine, &g->tasks[i]);
    }
    lab_answer_json(rq, 200, json_pack("{s:b}", "success", 1));
}

/* ---- handlers ---------------------------------------------------------------------- */

void lab_on_chat(struct lab_server *s, struct front_request *rq, struct slice rest)
{
    (void)rest;
    start(s, rq, LAB_CHAT);
}

void lab_on_completions(struct lab_server *s, struct front_request *rq, struct slice rest)
{
    (void)rest;
    start(s, rq, LAB_COMPLETIONS);
}

void lab_on_native(struct lab_server *s, struct front_request *rq, struct slice rest)
{
    (void)rest;
    start(s, rq, LAB_NATIVE);
}

void lab_on_messages(struct lab_server *s, struct front_request *rq, struct slice rest)
{
    (void)rest;
    start(s, rq, LAB_MESSAGES);
}
