/* SPDX-License-Identifier: MIT */
#include "lab_answer.h"

#include <stdio.h>

#define WRONG_BY 1000

/* ---- parts ------------------------------------------------------------------------- */

static json_t *string_of(struct buf *text)
{
    const struct slice s = buf_slice(text);
    json_t *v = json_stringn(s.ptr, s.len);
    buf_free(text);
    return v;
}

void lab_answer_text(const struct lab_task *t, struct buf *out)
{
    struct buf raw = {0};
    for (uint32_t i = 0; i < t->n_answer; i++)
        lab_text_put(&raw, t->answer[i], false);
    lab_text_clean(&raw, true, out);
    buf_free(&raw);
}

static json_t *text_of(const struct lab_task *t)
{
    struct buf text = {0};
    lab_answer_text(t, &text);
    return string_of(&text);
}

static json_t *ids_of(const uint32_t *tokens, size_t n)
{
    json_t *list = json_array();
    for (size_t i = 0; i < n; i++)
        json_array_append_new(list, json_integer(tokens[i]));
    return list;
}

static json_int_t cached(const struct lab_result *r, const struct lab_task *t)
{
    return (json_int_t)t->cached + (r->wrong_counts ? WRONG_BY : 0);
}

static double ms(uint64_t from_us, uint64_t to_us)
{
    return (double)(to_us > from_us ? to_us - from_us : 1) / 1e3;
}

static json_t *timings(const struct lab_result *r, const struct lab_task *t)
{
    const uint32_t computed = t->n_tokens - t->cached;
    const double prompt = ms(t->start_us, t->first_us);
    const double predicted = ms(t->first_us, t->last_us);
    return json_pack(
        "{s:I, s:I, s:f, s:f, s:f, s:I, s:f, s:f, s:f}", "cache_n", cached(r, t),
        "prompt_n", (json_int_t)computed, "prompt_ms", prompt, "prompt_per_token_ms",
        prompt / computed, "prompt_per_second", 1e3 * computed / prompt, "predicted_n",
        (json_int_t)t->n_answer, "predicted_ms", predicted, "predicted_per_token_ms",
        predicted / t->n_answer, "predicted_per_second", 1e3 * t->n_answer / predicted);
}

static json_t *usage(const struct lab_result *r)
{
    json_int_t prompt = 0, reused = 0, made = 0;
    for (size_t i = 0; i < r->q->n; i++) {
        made += r->tasks[i].n_answer;
        if (i && !r->q->batch) /* "n" answers share one prompt */
            continue;
        prompt += r->tasks[i].n_tokens;
        reused += cached(r, &r->tasks[i]);
    }
    return json_pack("{s:I, s:I, s:I, s:{s:I}}", "completion_tokens", made,
                     "prompt_tokens", prompt, "total_tokens", prompt + made,
                     "prompt_tokens_details", "cached_tokens", reused);
}

static json_t *common(const struct lab_result *r, const char *object)
{
    char id[48];
    snprintf(id, sizeof(id), "%s-%032llx", r->q->api == LAB_MESSAGES ? "msg" : "chatcmpl",
             (unsigned long long)r->number);
    return json_pack("{s:I, s:s, s:s, s:s, s:s}", "created", (json_int_t)r->created_s,
                     "model", r->alias, "system_fingerprint", "incipit-lab", "object",
                     object, "id", id);
}

static const char *finish_reason(const struct lab_task *t)
{
    return t->ended_itself ? "stop" : "length";
}

static json_t *with(json_t *doc, const char *key, json_t *value)
{
    json_object_set_new(doc, key, value);
    return doc;
}

/* ---- /v1/chat/completions ---------------------------------------------------------- */

static json_t *chat_whole(const struct lab_result *r)
{
    json_t *doc = common(r, "chat.completion"), *choices = json_array();
    for (size_t i = 0; i < r->q->n; i++)
        json_array_append_new(choices,
                              json_pack("{s:s, s:I, s:{s:s, s:o}}", "finish_reason",
                                        finish_reason(&r->tasks[i]), "index",
                                        (json_int_t)i, "message", "role", "assistant",
                                        "content", text_of(&r->tasks[i])));
    with(doc, "choices", choices);
    with(doc, "usage", usage(r));
    return with(doc, "timings", timings(r, &r->tasks[0]));
}

/* One chunk with one choice; `reason` NULL: not the last. */
static json_t *chat_chunk(const struct lab_result *r, json_t *delta, const char *reason)
{
    return with(common(r, "chat.completion.chunk"), "choices",
                json_pack("[{s:s?, s:i, s:o}]", "finish_reason", reason, "index", 0,
                          "delta", delta));
}

static void chat_begin(const struct lab_result *r, const struct lab_answer_sink *to)
{
    to->event(
        to->arg, NULL,
        chat_chunk(r, json_pack("{s:s, s:n}", "role", "assistant", "content"), NULL));
}

static void chat_piece(const struct lab_result *r, json_t *text, uint32_t token,
                       const struct lab_answer_sink *to)
{
    (void)token;
    to->event(to->arg, NULL, chat_chunk(r, json_pack("{s:o}", "content", text), NULL));
}

/* With include_usage the last chunk with a choice is followed by one without. */
static void chat_end(const struct lab_result *r, const struct lab_answer_sink *to)
{
    json_t *last = chat_chunk(r, json_object(), finish_reason(&r->tasks[0]));
    if (r->q->include_usage) {
        to->event(to->arg, NULL, last);
        last = with(common(r, "chat.completion.chunk"), "choices", json_array());
        with(last, "usage", usage(r));
    }
    to->event(to->arg, NULL, with(last, "timings", timings(r, &r->tasks[0])));
    to->done(to->arg);
}

/* ---- /v1/completions --------------------------------------------------------------- */

static json_t *text_choice(size_t index, json_t *text, const char *reason)
{
    return json_pack("{s:o, s:I, s:n, s:s?}", "text", text, "index", (json_int_t)index,
                     "logprobs", "finish_reason", reason);
}

static json_t *text_whole(const struct lab_result *r)
{
    json_t *doc = common(r, "text_completion"), *choices = json_array();
    for (size_t i = 0; i < r->q->n; i++)
        json_array_append_new(
            choices, text_choice(i, text_of(&r->tasks[i]), finish_reason(&r->tasks[i])));
    with(doc, "choices", choices);
    with(doc, "usage", usage(r));
    return with(doc, "timings", timings(r, &r->tasks[0]));
}

static json_t *text_chunk(const struct lab_result *r, json_t *text, const char *reason)
{
    return with(common(r, "text_completion"), "choices",
                json_pack("[o]", text_choice(0, text, reason)));
}

static void nothing(const struct lab_result *r, const struct lab_answer_sink *to)
{
    (void)r;
    (void)to;
}

static void text_piece(const struct lab_result *r, json_t *text, uint32_t token,
                       const struct lab_answer_sink *to)
{
    (void)token;
    to->event(to->arg, NULL, text_chunk(r, text, NULL));
}

static void text_end(const struct lab_result *r, const struct lab_answer_sink *to)
{
    json_t *last = text_chunk(r, json_string(""), finish_reason(&r->tasks[0]));
    with(last, "usage", usage(r));
    to->event(to->arg, NULL, with(last, "timings", timings(r, &r->tasks[0])));
    to->done(to->arg);
}

/* ---- /completion ------------------------------------------------------------------- */

static json_t *native_one(const struct lab_result *r, size_t i, json_t *text)
{
    const struct lab_task *t = &r->tasks[i];
    struct buf raw = {0}, prompt = {0};
    for (uint32_t k = 0; k < t->n_tokens; k++)
        lab_text_put(&raw, t->tokens[k], true);
    lab_text_clean(&raw, true, &prompt);
    buf_free(&raw);
    json_t *doc = json_pack(
        "{s:I, s:o, s:i, s:b, s:s, s:I, s:I, s:{s:I, s:b}, s:b, s:s, s:s, s:I}", "index",
        (json_int_t)i, "content", text, "id_slot", t->slot_id, "stop", 1, "model",
        r->alias, "tokens_predicted", (json_int_t)t->n_answer, "tokens_evaluated",
        (json_int_t)t->n_tokens, "generation_settings", "n_predict", (json_int_t)t->limit,
        "stream", t->stream, "truncated", t->truncated, "stop_type",
        t->ended_itself ? "eos" : "limit", "stopping_word", "", "tokens_cached",
        (json_int_t)t->n_tokens + t->n_answer - 1);
    with(doc, "tokens", ids_of(t->answer, r->q->return_tokens ? t->n_answer : 0));
    with(doc, "prompt", string_of(&prompt));
    return with(doc, "timings", timings(r, t));
}

static json_t *native_whole(const struct lab_result *r)
{
    json_t *list = json_array();
    for (size_t i = 0; i < r->q->n; i++)
        json_array_append_new(list, native_one(r, i, text_of(&r->tasks[i])));
    if (r->q->n > 1 || r->q->batch)
        return list;
    json_t *only = json_incref(json_array_get(list, 0));
    json_decref(list);
    return only;
}

static void native_piece(const struct lab_result *r, json_t *text, uint32_t token,
                         const struct lab_answer_sink *to)
{
    const struct lab_task *t = &r->tasks[0];
    to->event(to->arg, NULL,
              json_pack("{s:i, s:o, s:[I], s:b, s:i, s:I, s:I}", "index", 0, "content",
                        text, "tokens", (json_int_t)token, "stop", 0, "id_slot",
                        t->slot_id, "tokens_predicted", (json_int_t)t->n_answer,
                        "tokens_evaluated", (json_int_t)t->n_tokens));
}

static void native_end(const struct lab_result *r, const struct lab_answer_sink *to)
{
    to->event(to->arg, NULL, native_one(r, 0, json_string("")));
}

/* ---- /v1/messages ------------------------------------------------------------------ */

/* Anthropic's count leaves out what was reused, and there are no timings. */
static json_t *message(const struct lab_result *r, json_t *content, const char *reason)
{
    const struct lab_task *t = &r->tasks[0];
    json_t *doc = common(r, "message");
    json_t *id = json_incref(json_object_get(doc, "id"));
    json_decref(doc);
    return json_pack("{s:o, s:s, s:s, s:o, s:s, s:s?, s:n, s:{s:I, s:I, s:I}}", "id", id,
                     "type", "message", "role", "assistant", "content", content, "model",
                     r->alias, "stop_reason", reason, "stop_sequence", "usage",
                     "cache_read_input_tokens", cached(r, t), "input_tokens",
                     (json_int_t)t->n_tokens - t->cached, "output_tokens",
                     (json_int_t)t->n_answer);
}

static const char *stop_reason(const struct lab_result *r)
{
    return r->tasks[0].ended_itself ? "end_turn" : "max_tokens";
}

static json_t *message_whole(const struct lab_result *r)
{
    return message(
        r, json_pack("[{s:s, s:o}]", "type", "text", "text", text_of(&r->tasks[0])),
        stop_reason(r));
}

static void message_begin(const struct lab_result *r, const struct lab_answer_sink *to)
{
    to->event(to->arg, "message_start",
              json_pack("{s:s, s:o}", "type", "message_start", "message",
                        message(r, json_array(), NULL)));
    to->event(to->arg, "content_block_start",
              json_pack("{s:s, s:i, s:{s:s, s:s}}", "type", "content_block_start",
                        "index", 0, "content_block", "type", "text", "text", ""));
}

static void message_piece(const struct lab_result *r, json_t *text, uint32_t token,
                          const struct lab_answer_sink *to)
{
    (void)r;
    (void)token;
    to->event(to->arg, "content_block_delta",
              json_pack("{s:s, s:i, s:{s:s, s:o}}", "type", "content_block_delta",
                        "index", 0, "delta", "type", "text_delta", "text", text));
}

static void message_end(const struct lab_result *r, const struct lab_answer_sink *to)
{
    to->event(to->arg, "content_block_stop",
              json_pack("{s:s, s:i}", "type", "content_block_stop", "index", 0));
    to->event(to->arg, "message_delta",
              json_pack("{s:s, s:{s:I}, s:{s:s, s:n}}", "type", "message_delta", "usage",
                        "output_tokens", (json_int_t)r->tasks[0].n_answer, "delta",
                        "stop_reason", stop_reason(r), "stop_sequence"));
    to->event(to->arg, "message_stop", json_pack("{s:s}", "type", "message_stop"));
}

/* ---- the table --------------------------------------------------------------------- */

static const struct {
    json_t *(*whole)(const struct lab_result *r);
    void (*begin)(const struct lab_result *r, const struct lab_answer_sink *to);
    void (*piece)(const struct lab_result *r, json_t *text, uint32_t token,
                  const struct lab_answer_sink *to);
    void (*end)(const struct lab_result *r, const struct lab_answer_sink *to);
} apis[] = {
    [LAB_CHAT] = {chat_whole, chat_begin, chat_piece, chat_end},
    [LAB_COMPLETIONS] = {text_whole, nothing, text_piece, text_end},
    [LAB_NATIVE] = {native_whole, nothing, native_piece, native_end},
    [LAB_MESSAGES] = {message_whole, message_begin, message_piece, message_end},
};

json_t *lab_answer_whole(const struct lab_result *r)
{
    return apis[r->q->api].whole(r);
}

void lab_answer_begin(const struct lab_result *r, const struct lab_answer_sink *to)
{
    apis[r->q->api].begin(r, to);
}

void lab_answer_piece(const struct lab_result *r, struct slice text, uint32_t token,
                      const struct lab_answer_sink *to)
{
    apis[r->q->api].piece(r, json_stringn(text.ptr, text.len), token, to);
}

void lab_answer_end(const struct lab_result *r, const struct lab_answer_sink *to)
{
    apis[r->q->api].end(r, to);
}
