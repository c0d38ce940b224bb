/* SPDX-License-Identifier: MIT */
#include "lab_server.h"

/* What can be asked besides generations: who is there, how it is, and tokens. */

#include <stdio.h>
#include <stdlib.h>

#include "base/mem.h"

#define KV_TYPE_BYTES sizeof(float)

static const char media_mark[] = "<__media__>";

/* ---- who is there ------------------------------------------------------------------ */

void lab_on_health(struct lab_server *s, struct front_request *rq, struct slice rest)
{
    (void)s;
    (void)rest;
    lab_answer_json(rq, 200, json_pack("{s:s}", "status", "ok"));
}

/* There is no file: the path names what the weights were made of. */
static json_t *model_path(const struct lab_server *s)
{
    const struct lab_shape m = lab_model_shape(s->engine.model);
    char *path = mem_printf("incipit-lab/%ux%ux%u-seed-%llu", m.layers, m.heads, m.width,
                            (unsigned long long)s->o->seed);
    json_t *v = json_string(path);
    free(path);
    return v;
}

void lab_on_props(struct lab_server *s, struct front_request *rq, struct slice rest)
{
    (void)rest;
    json_t *doc =
        json_pack("{s:{s:{s:f, s:i}, s:I}, s:I, s:s, s:s, s:o}",
                  "default_generation_settings", "params", "temperature", 0.0,
                  "n_predict", -1, "n_ctx", (json_int_t)s->engine.context, "total_slots",
                  (json_int_t)s->engine.n_slots, "model_alias", s->o->alias,
                  "model_ftype", "all F32", "model_path", model_path(s));
    json_t *more = json_pack(
        "{s:{s:b, s:b, s:b}, s:s, s:b, s:b, s:b, s:s, s:{s:b, s:b}, s:s, s:s, s:s, s:b}",
        "modalities", "vision", 0, "video", 0, "audio", 0, "media_marker", media_mark,
        "endpoint_slots", !lab_server_does(s, LAB_NO_SLOTS), "endpoint_props", 0,
        "endpoint_metrics", 1, "chat_template", lab_chat_template, "chat_template_caps",
        "supports_tools", 1, "supports_system_role", 1, "bos_token", "<|bos|>",
        "eos_token", "<|eos|>", "build_info", "incipit-lab", "is_sleeping", 0);
    json_object_update(doc, more);
    json_decref(more);
    lab_answer_json(rq, 200, doc);
}

static json_int_t parameters(struct lab_shape m)
{
    const json_int_t d = m.width, layer = 12 * d * d + 13 * d;
    return layer * m.layers + d * (LAB_VOCAB + m.context + 2);
}

void lab_on_models(struct lab_server *s, struct front_request *rq, struct slice rest)
{
    (void)rest;
    const struct lab_shape m = lab_model_shape(s->engine.model);
    json_t *meta = json_pack(
        "{s:i, s:i, s:I, s:I, s:I, s:I, s:I, s:s}", "vocab_type", 1, "n_vocab", LAB_VOCAB,
        "n_ctx", (json_int_t)m.context, "n_ctx_train", (json_int_t)m.context, "n_embd",
        (json_int_t)m.width, "n_params", parameters(m), "size",
        parameters(m) * (json_int_t)KV_TYPE_BYTES, "ftype", "all F32");
    lab_answer_json(rq, 200,
                    json_pack("{s:s, s:[{s:s, s:[s], s:[], s:s, s:I, s:s, s:o}]}",
                              "object", "list", "data", "id", s->o->alias, "aliases",
                              s->o->alias, "tags", "object", "model", "created",
                              (json_int_t)(s->start_ms / 1000), "owned_by", "incipit",
                              "meta", meta));
}

void lab_on_adapters(struct lab_server *s, struct front_request *rq, struct slice rest)
{
    (void)s;
    (void)rest;
    lab_answer_json(rq, 200, json_array());
}

/* ---- how it is --------------------------------------------------------------------- */

static json_t *slot_entry(const struct lab_server *s, const struct lab_slot *slot)
{
    const bool busy = lab_slot_busy(slot);
    json_t *entry =
        json_pack("{s:i, s:I, s:b, s:b}", "id", slot->id, "n_ctx",
                  (json_int_t)s->engine.context, "speculative", 0, "is_processing", busy);
    if (slot->id_task < 0)
        return entry;
    json_t *more =
        json_pack("{s:I, s:I, s:I, s:I, s:{s:b, s:i}, s:[{s:b, s:b, s:i, s:I}]}",
                  "id_task", (json_int_t)slot->id_task, "n_prompt_tokens",
                  (json_int_t)lab_cache_len(slot->cache), "n_prompt_tokens_processed",
                  (json_int_t)slot->processed, "n_prompt_tokens_cache",
                  (json_int_t)slot->cached, "params", "stream", slot->stream, "n_keep", 0,
                  "next_token", "has_next_token", busy, "has_new_line", 0, "n_remain", -1,
                  "n_decoded", (json_int_t)(slot->task ? slot->task->n_answer : 0));
    json_object_update(entry, more);
    json_decref(more);
    return entry;
}

void lab_on_slots(struct lab_server *s, struct front_request *rq, struct slice rest)
{
    struct lab_refusal no;
    if (lab_server_does(s, LAB_NO_SLOTS)) {
        lab_refuse(
            &no, 501,
            "This server does not support slots endpoint. Start it with `--slots`");
        lab_answer_refusal(rq, &no);
        return;
    }
    const struct slice when_busy = SLICE_LIT("?fail_on_no_slot=1");
    if (slice_eq(rest, when_busy) &&
        lab_engine_running(&s->engine) == s->engine.n_slots) {
        lab_refuse(&no, 503, "no slot available");
        no.type = "unavailable_error";
        lab_answer_refusal(rq, &no);
        return;
    }
    s->engine.next_task++; /* looking is a task as well */
    json_t *list = json_array();
    for (uint32_t i = 0; i < s->engine.n_slots; i++)
        json_array_append_new(list, slot_entry(s, &s->engine.slots[i]));
    lab_answer_json(rq, 200, list);
}

void lab_on_metrics(struct lab_server *s, struct front_request *rq, struct slice rest)
{
    const struct lab_totals *t = &s->engine.totals;
    const struct {
        const char *name, *kind, *help;
        double value;
    } rows[] = {
        {"prompt_tokens_total", "counter", "Number of prompt tokens processed.",
         (double)t->prompt_tokens},
        {"prompt_tokens_cached_total", "counter", "Number of prompt tokens reused.",
         (double)t->cached_tokens},
        {"prompt_seconds_total", "counter", "Prompt process time",
         (double)t->prompt_us / 1e6},
        {"tokens_predicted_total", "counter", "Number of generation tokens processed.",
         (double)t->predicted_tokens},
        {"tokens_predicted_seconds_total", "counter", "Predict process time",
         (double)t->predicted_us / 1e6},
        {"n_decode_total", "counter", "Total number of batches", (double)t->batches},
        {"requests_processing", "gauge", "Number of requests processing.",
         (double)lab_engine_running(&s->engine)},
        {"requests_deferred", "gauge", "Number of requests deferred.",
         (double)lab_engine_waiting(&s->engine)},
    };
    struct buf body = {0}, headers = {0};
    (void)rest;
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++)
        buf_printf(&body,
                   "# HELP llamacpp:%s %s\n# TYPE llamacpp:%s %s\nllamacpp:%s %.15g\n",
                   rows[i].name, rows[i].help, rows[i].name, rows[i].kind, rows[i].name,
                   rows[i].value);
    buf_printf(&headers,
               "Content-Type: text/plain; version=0.0.4\r\n"
               "Process-Start-Time-Unix: %llu\r\n",
               (unsigned long long)s->start_ms);
    front_reply(rq, 200, buf_slice(&headers), buf_slice(&body));
    buf_free(&headers);
    buf_free(&body);
}

/* ---- tokens ------------------------------------------------------------------------ */

static json_t *string_from(struct buf *text)
{
    const struct slice s = buf_slice(text);
    json_t *v = json_stringn(s.ptr, s.len);
    buf_free(text);
    return v;
}

/* A string, or strings and token ids mixed; anything else is passed over. */
static void tokenize(const json_t *content, struct lab_tokens *out)
{
    const size_t n = json_is_array(content) ? json_array_size(content) : 1;
    for (size_t i = 0; i < n; i++) {
        const json_t *v = json_is_array(content) ? json_array_get(content, i) : content;
        if (json_is_string(v))
            lab_text_tokens(slice_make(json_string_value(v), json_string_length(v)), out);
        else if (json_is_integer(v))
            lab_tokens_push(out, (uint32_t)json_integer_value(v));
    }
}

void lab_on_tokenize(struct lab_server *s, struct front_request *rq, struct slice rest)
{
    struct lab_tokens tokens = {0};
    json_t *body = lab_body_json(rq), *list = json_array();
    (void)s;
    (void)rest;
    if (body) {
        tokenize(json_object_get(body, "content"), &tokens);
        for (size_t i = 0; i < tokens.n; i++)
            json_array_append_new(list, json_integer(tokens.v[i]));
        lab_answer_json(rq, 200, json_pack("{s:O}", "tokens", list));
    }
    json_decref(list);
    json_decref(body);
    lab_tokens_free(&tokens);
}

void lab_on_detokenize(struct lab_server *s, struct front_request *rq, struct slice rest)
{
    struct buf raw = {0}, text = {0};
    json_t *body = lab_body_json(rq);
    (void)s;
    (void)rest;
    if (!body)
        return;
    const json_t *tokens = json_object_get(body, "tokens");
    for (size_t i = 0; i < json_array_size(tokens); i++)
        lab_text_put(&raw, (uint32_t)json_integer_value(json_array_get(tokens, i)), true);
    lab_text_clean(&raw, true, &text);
    buf_free(&raw);
    json_decref(body);
    lab_answer_json(rq, 200, json_pack("{s:o}", "content", string_from(&text)));
}

/* The prompt of a body with messages, or false after it was refused. */
static bool read_chat(struct front_request *rq, struct buf *text)
{
    struct lab_refusal no;
    json_t *body = lab_body_json(rq);
    if (!body)
        return false;
    const bool fine = lab_chat_prompt(body, text, &no);
    json_decref(body);
    if (!fine) {
        lab_answer_refusal(rq, &no);
        buf_free(text);
    }
    return fine;
}

void lab_on_template(struct lab_server *s, struct front_request *rq, struct slice rest)
{
    struct buf text = {0};
    (void)s;
    (void)rest;
    if (read_chat(rq, &text))
        lab_answer_json(rq, 200, json_pack("{s:o}", "prompt", string_from(&text)));
}

void lab_on_count(struct lab_server *s, struct front_request *rq, struct slice rest)
{
    struct buf text = {0};
    struct lab_tokens tokens = {0};
    (void)s;
    (void)rest;
    if (!read_chat(rq, &text))
        return;
    lab_text_tokens(buf_slice(&text), &tokens);
    lab_answer_json(rq, 200, json_pack("{s:I}", "input_tokens", (json_int_t)tokens.n));
    lab_tokens_free(&tokens);
    buf_free(&text);
}

/* ---- misbehaving on demand --------------------------------------------------------- */

void lab_on_misbehave(struct lab_server *s, struct front_request *rq, struct slice rest)
{
    struct err e = {0};
    struct lab_refusal no;
    unsigned set = 0;
    json_t *body = lab_body_json(rq);
    (void)rest;
    if (!body)
        return;
    const char *names = json_string_value(json_object_get(body, "misbehave"));
    const int rc = lab_misbehave_parse(names ? names : "", &set, &e);
    json_decref(body);
    if (rc != 0) {
        lab_refuse(&no, 400, e.text);
        lab_answer_refusal(rq, &no);
        return;
    }
    s->misbehave = set;
    s->engine.keeps_left_slots = lab_server_does(s, LAB_STAYS_BUSY);
    s->engine.recurrent = lab_server_does(s, LAB_RECURRENT);
    if (!s->engine.keeps_left_slots)
        lab_engine_unstick(&s->engine);
    lab_answer_json(rq, 200, json_pack("{s:b}", "success", 1));
}
