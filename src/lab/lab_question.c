/* SPDX-License-Identifier: MIT */
#include "lab_question.h"

#include <stdio.h>
#include <stdlib.h>

#include "base/mem.h"
#include "lab/model.h"

/* ---- fields ------------------------------------------------------------------------ */

static bool read_flag(const json_t *body, const char *key, bool otherwise)
{
    const json_t *v = json_object_get(body, key);
    return json_is_boolean(v) ? json_is_true(v) : otherwise;
}

static bool read_number(const json_t *body, const char *key, int64_t *out,
                        struct lab_refusal *no)
{
    const json_t *v = json_object_get(body, key);
    if (!v || json_is_null(v))
        return true;
    if (!json_is_integer(v))
        return lab_refuse(no, 400, "a number has another type");
    *out = json_integer_value(v);
    return true;
}

/* The last of these that is given counts, so the first one goes last. */
static bool read_limit(const json_t *body, int64_t *limit, struct lab_refusal *no)
{
    *limit = -1;
    return read_number(body, "max_tokens", limit, no) &&
           read_number(body, "max_completion_tokens", limit, no) &&
           read_number(body, "n_predict", limit, no);
}

/* Anthropic's bodies are made anew by the real engine: what steers the cache is lost. */
static bool read_fields(struct lab_question *q, const json_t *body,
                        struct lab_refusal *no)
{
    const bool is_native = q->api != LAB_MESSAGES;
    const json_t *options = json_object_get(body, "stream_options");
    q->stream = read_flag(body, "stream", false);
    q->include_usage = read_flag(options, "include_usage", false);
    q->return_tokens = read_flag(body, "return_tokens", false);
    q->ignore_eos = read_flag(body, "ignore_eos", false);
    q->cache_prompt = !is_native || read_flag(body, "cache_prompt", true);
    q->id_slot = -1;
    return read_limit(body, &q->limit, no) &&
           (!is_native || read_number(body, "id_slot", &q->id_slot, no));
}

/* ---- prompts ----------------------------------------------------------------------- */

static const char prompt_elements[] = "\"prompt\" elements must be a string, a list of "
                                      "tokens, a list of mixed strings & tokens";

static bool put_element(struct lab_tokens *out, const json_t *v, struct lab_refusal *no)
{
    if (json_is_string(v))
        lab_text_tokens(slice_make(json_string_value(v), json_string_length(v)), out);
    else if (!json_is_integer(v))
        return lab_refuse(no, 400, prompt_elements);
    else if (json_integer_value(v) < 0 || json_integer_value(v) >= LAB_VOCAB)
        return lab_refuse(no, 400, "Prompt contains invalid tokens");
    else
        lab_tokens_push(out, (uint32_t)json_integer_value(v));
    return true;
}

/* A string, or a list of token ids and strings. */
static bool put_prompt(struct lab_tokens *out, const json_t *v, struct lab_refusal *no)
{
    if (!json_is_array(v))
        return put_element(out, v, no);
    for (size_t i = 0; i < json_array_size(v); i++)
        if (!put_element(out, json_array_get(v, i), no))
            return false;
    return true;
}

/* A list without a number right in it is a list of prompts. */
static bool is_batch(const json_t *v)
{
    for (size_t i = 0; i < json_array_size(v); i++)
        if (!json_is_string(json_array_get(v, i)) && !json_is_array(json_array_get(v, i)))
            return false;
    return json_array_size(v) > 0;
}

static void want_prompts(struct lab_question *q, size_t n)
{
    q->n = n;
    q->prompts = mem_zalloc(n * sizeof(*q->prompts));
}

static bool read_text_prompts(struct lab_question *q, const json_t *body,
                              struct lab_refusal *no)
{
    const json_t *v = json_object_get(body, "prompt");
    if (!v)
        return lab_refuse(no, 400, "\"prompt\" must be provided");
    q->batch = is_batch(v);
    want_prompts(q, q->batch ? json_array_size(v) : 1);
    for (size_t i = 0; i < q->n; i++)
        if (!put_prompt(&q->prompts[i], q->batch ? json_array_get(v, i) : v, no))
            return false;
    return true;
}

static bool read_chat_prompt(struct lab_question *q, const json_t *body,
                             struct lab_refusal *no)
{
    struct buf text = {0};
    want_prompts(q, 1);
    const bool fine = lab_chat_prompt(body, &text, no);
    if (fine)
        lab_text_tokens(buf_slice(&text), &q->prompts[0]);
    buf_free(&text);
    return fine;
}

/* "n": the same prompt several times. */
static bool repeat_prompt(struct lab_question *q, const json_t *body, uint32_t slots,
                          struct lab_refusal *no)
{
    int64_t n = 1;
    if (!read_number(body, "n", &n, no))
        return false;
    if (n < 1 || n > (int64_t)slots || (n > 1 && q->n > 1)) {
        lab_refuse(no, 400, "");
        snprintf(no->text, sizeof(no->text),
                 "Field 'n': Value must be between 1 <= value <= %u, but got %lld", slots,
                 (long long)n);
        return false;
    }
    if (n == 1)
        return true;
    q->n = (size_t)n;
    q->prompts = mem_rearray(q->prompts, q->n, sizeof(*q->prompts));
    for (size_t i = 1; i < q->n; i++) {
        q->prompts[i] = (struct lab_tokens){0};
        for (size_t k = 0; k < q->prompts[0].n; k++)
            lab_tokens_push(&q->prompts[i], q->prompts[0].v[k]);
    }
    return true;
}

static bool check_lengths(struct lab_question *q, uint32_t context,
                          struct lab_refusal *no)
{
    for (size_t i = 0; i < q->n; i++) {
        struct lab_tokens *p = &q->prompts[i];
        if (p->n == 0)
            lab_tokens_push(p, LAB_BOS);
        if (p->n < context)
            continue;
        lab_refuse(no, 400, "");
        no->type = "exceed_context_size_error";
        no->n_prompt = (int64_t)p->n;
        no->n_ctx = context;
        snprintf(no->text, sizeof(no->text),
                 "request (%zu tokens) exceeds the available context size (%u tokens), "
                 "try increasing it",
                 p->n, context);
        return false;
    }
    return true;
}

bool lab_question_read(struct lab_question *q, enum lab_api api, const json_t *body,
                       uint32_t slots, uint32_t context, struct lab_refusal *no)
{
    *q = (struct lab_question){.api = api};
    if (!json_is_object(body))
        return lab_refuse(no, 400, "the body is no JSON object");
    const bool is_text = api == LAB_COMPLETIONS || api == LAB_NATIVE;
    if (!read_fields(q, body, no))
        return false;
    if (!(is_text ? read_text_prompts(q, body, no) : read_chat_prompt(q, body, no)))
        return false;
    if (api != LAB_MESSAGES && !repeat_prompt(q, body, slots, no))
        return false;
    if (q->n > 1 && q->stream && !q->batch)
        return lab_refuse(no, 400, "streams of several answers are not made here");
    q->stream = q->stream && !q->batch;
    return check_lengths(q, context, no);
}

void lab_question_fini(struct lab_question *q)
{
    for (size_t i = 0; i < q->n; i++)
        lab_tokens_free(&q->prompts[i]);
    free(q->prompts);
}
