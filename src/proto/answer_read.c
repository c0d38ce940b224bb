/* SPDX-License-Identifier: MIT */

/*
 * The JSON of answers, by tables as in the scan of prompts: a row names a member and the
 * function that takes its value. Members without a row are skipped, and a member of an
 * unexpected type is no error: the engine's answer is the client's business.
 *
 *     chat, completions  {choices: [{index, delta | message | text, finish_reason}],
 *                         usage, timings}
 *     native             {content, stop, id_slot, timings, …}
 *     Messages           events {type, message, content_block, delta, usage};
 *                        document {content: [blocks], stop_reason, usage}
 *     others             whatever of these they have; Responses: events {type, delta,
 *                        response: {usage}}; SGLang's own: {text, meta_info}
 *
 * Where a value can be understood only with its neighbours (a delta with its index), the
 * neighbours are remembered as tokens and read when their object has ended.
 */

#include "answer_read.h"

#include <math.h>

#define MAX_COUNT ((int64_t)1 << 32) /* of tokens: beyond it nobody counted */
#define MAX_NESTED 16                /* tokens remembered of one object */

/* Where a walk stands: the lexer, and the members remembered of the present object. */
struct walk {
    struct answer *a;
    struct jlex j;
    struct jlex_token seen[MAX_NESTED]; /* type JLEX_ERROR: not there */
    bool keep;                          /* the text belongs to the first choice */
};

struct field {
    struct slice name;
    void (*take)(struct walk *w, struct jlex_token *value);
    unsigned seen; /* with take NULL: where the value is remembered */
};

/* ---- walking ----------------------------------------------------------------------- */

static const struct field *field_find(const struct field *f, struct slice name)
{
    while (f->name.ptr && !slice_eq(f->name, name))
        f++;
    return f->name.ptr ? f : NULL;
}

/* Takes the members of an object whose brace was read. Errors show in the lexer. */
static void walk_object(struct walk *w, const struct field *fields)
{
    struct jlex_token key, value;
    char tmp[64];
    while (jlex_next(&w->j, &key) == JLEX_KEY) {
        const struct field *f =
            field_find(fields, jlex_text(&w->j, &key, tmp, sizeof tmp));
        if (jlex_next(&w->j, &value) == JLEX_ERROR)
            return;
        if (f && f->take)
            f->take(w, &value);
        else if (jlex_skip(&w->j, &value) && f)
            w->seen[f->seen] = value;
    }
}

/* A value that should be an object; any other is skipped. */
static bool enter(struct walk *w, struct jlex_token *value, const struct field *fields)
{
    if (value->type != JLEX_OBJECT)
        return jlex_skip(&w->j, value) && false;
    walk_object(w, fields);
    return w->j.why == NULL;
}

/* Calls `each` for the objects of a list; skips all else. */
static void each_object(struct walk *w, struct jlex_token *value,
                        void (*each)(struct walk *w, size_t i))
{
    struct jlex_token t;
    if (value->type != JLEX_ARRAY) {
        jlex_skip(&w->j, value);
        return;
    }
    for (size_t i = 0;; i++) {
        const enum jlex_type type = jlex_next(&w->j, &t);
        if (type == JLEX_ARRAY_END || type == JLEX_ERROR)
            return;
        if (type == JLEX_OBJECT)
            each(w, i);
        else
            jlex_skip(&w->j, &t);
    }
}

static void forget(struct walk *w)
{
    for (size_t i = 0; i < MAX_NESTED; i++)
        w->seen[i].type = JLEX_ERROR;
}

/* A second walk over an object that was remembered. */
static struct walk walk_again(const struct walk *w, const struct jlex_token *object)
{
    struct walk inner = {.a = w->a, .keep = w->keep};
    forget(&inner);
    jlex_init(&inner.j,
              slice_make(w->j.text.ptr + object->start, object->end - object->start));
    return inner;
}

static void reread(const struct walk *w, const struct jlex_token *object,
                   const struct field *fields)
{
    struct walk inner = walk_again(w, object);
    struct jlex_token t;
    jlex_next(&inner.j, &t);
    enter(&inner, &t, fields);
}

/* ---- counts ------------------------------------------------------------------------ */

static void take_count(struct walk *w, struct jlex_token *value, int64_t *to)
{
    double d;
    int64_t n = -1;
    if (value->type == JLEX_NULL)
        return;
    if (!jlex_int(&w->j, value, &n) && jlex_double(&w->j, value, &d) && d >= 0 &&
        d <= (double)MAX_COUNT && d == (double)(int64_t)d)
        n = (int64_t)d;
    if (n >= 0 && n <= MAX_COUNT)
        *to = n;
    else
        w->a->facts.implausible = true;
    jlex_skip(&w->j, value);
}

#define COUNT(function, member)                                                          \
    static void function(struct walk *w, struct jlex_token *value)                       \
    {                                                                                    \
        take_count(w, value, &w->a->member);                                             \
    }
COUNT(take_prompt_tokens, counts.prompt)
COUNT(take_cached_tokens, counts.cached)
COUNT(take_completion_tokens, counts.completion)
COUNT(take_input_tokens, counts.input)
COUNT(take_output_tokens, counts.output)
COUNT(take_cache_read, counts.cache_read)
COUNT(take_cache_made, counts.cache_made)
COUNT(take_evaluated, counts.evaluated)
COUNT(take_cache_n, facts.cache_n)
COUNT(take_prompt_n, facts.prompt_n)
COUNT(take_predicted_n, counts.predicted)

static void take_prompt_ms(struct walk *w, struct jlex_token *value)
{
    double ms;
    if (jlex_double(&w->j, value, &ms) && ms >= 0)
        w->a->facts.prompt_ms = ms;
    else if (value->type != JLEX_NULL)
        w->a->facts.implausible = true;
    jlex_skip(&w->j, value);
}

static const struct field details_fields[] = {
    {SLICE_LIT("cached_tokens"), take_cached_tokens, 0},
    {{NULL, 0}, NULL, 0},
};

static void take_details(struct walk *w, struct jlex_token *value)
{
    enter(w, value, details_fields);
}

static const struct field usage_fields[] = {
    {SLICE_LIT("prompt_tokens"), take_prompt_tokens, 0},
    {SLICE_LIT("completion_tokens"), take_completion_tokens, 0},
    {SLICE_LIT("prompt_tokens_details"), take_details, 0},
    {SLICE_LIT("input_tokens"), take_input_tokens, 0},
    {SLICE_LIT("output_tokens"), take_output_tokens, 0},
    {SLICE_LIT("input_tokens_details"), take_details, 0},
    {SLICE_LIT("cache_read_input_tokens"), take_cache_read, 0},
    {SLICE_LIT("cache_creation_input_tokens"), take_cache_made, 0},
    {{NULL, 0}, NULL, 0},
};

static void take_usage(struct walk *w, struct jlex_token *value)
{
    enter(w, value, usage_fields);
}

static const struct field timings_fields[] = {
    {SLICE_LIT("cache_n"), take_cache_n, 0},
    {SLICE_LIT("prompt_n"), take_prompt_n, 0},
    {SLICE_LIT("prompt_ms"), take_prompt_ms, 0},
    {SLICE_LIT("predicted_n"), take_predicted_n, 0},
    {{NULL, 0}, NULL, 0},
};

static void take_timings(struct walk *w, struct jlex_token *value)
{
    enter(w, value, timings_fields);
}

/* ---- text -------------------------------------------------------------------------- */

static void note_content(struct walk *w)
{
    if (!w->a->stream)
        return;
    if (w->a->facts.first_content_us == 0)
        w->a->facts.first_content_us = w->a->now_us;
    w->a->event_has_content = true;
}

/* Room for `len` more bytes of text? Beyond the limit none of it is worth keeping. */
static bool may_keep(struct walk *w, size_t len)
{
    struct answer *a = w->a;
    if (!w->keep || a->broken)
        return false;
    a->text_bytes += len;
    if (a->text_bytes > ANSWER_MAX_TEXT)
        a->broken = true;
    return !a->broken;
}

/* A string's text is appended; a null is nothing; anything else cannot be quoted. */
static void keep_string(struct walk *w, const struct jlex_token *value, struct buf *to)
{
    const struct slice raw = jlex_raw(&w->j, value);
    if (value->type == JLEX_STRING && may_keep(w, raw.len))
        prompt_unescape(raw, to);
    else if (value->type != JLEX_STRING && value->type != JLEX_NULL && w->keep)
        w->a->broken = true;
}

static bool is_text(const struct walk *w, const struct jlex_token *value)
{
    return value->type == JLEX_STRING && jlex_raw(&w->j, value).len > 0;
}

static void take_content(struct walk *w, struct jlex_token *value)
{
    if (is_text(w, value))
        note_content(w);
    keep_string(w, value, &w->a->content);
    if (value->type == JLEX_STRING && w->keep)
        w->a->has_content = true;
    jlex_skip(&w->j, value);
}

/* vLLM writes the same text under both names in some versions: the first one counts. */
static void take_reasoning_as(struct walk *w, struct jlex_token *value, unsigned key)
{
    if (is_text(w, value)) {
        note_content(w);
        if (w->a->reasoning_key == 0)
            w->a->reasoning_key = key;
        if (w->a->reasoning_key == key)
            keep_string(w, value, &w->a->reasoning);
    }
    jlex_skip(&w->j, value);
}

static void take_reasoning_content(struct walk *w, struct jlex_token *value)
{
    take_reasoning_as(w, value, 1);
}

static void take_reasoning(struct walk *w, struct jlex_token *value)
{
    take_reasoning_as(w, value, 2);
}

/* Something generated that a prompt_answer has no place for. */
static void take_foreign(struct walk *w, struct jlex_token *value)
{
    if (value->type != JLEX_NULL) {
        note_content(w);
        w->a->broken = true;
    }
    jlex_skip(&w->j, value);
}

/* ---- tool calls of chats ----------------------------------------------------------- */

enum { CALL_INDEX, CALL_ID, CALL_FUNCTION, FUNCTION_NAME = 0, FUNCTION_ARGUMENTS };

static const struct field call_fields[] = {
    {SLICE_LIT("index"), NULL, CALL_INDEX},
    {SLICE_LIT("id"), NULL, CALL_ID},
    {SLICE_LIT("function"), NULL, CALL_FUNCTION},
    {{NULL, 0}, NULL, 0},
};

static const struct field function_fields[] = {
    {SLICE_LIT("name"), NULL, FUNCTION_NAME},
    {SLICE_LIT("arguments"), NULL, FUNCTION_ARGUMENTS},
    {{NULL, 0}, NULL, 0},
};

/* The call that a fragment belongs to; NULL where there is no place for it. */
static struct answer_call *call_at(struct walk *w, int64_t index)
{
    struct answer *a = w->a;
    if (!w->keep)
        return NULL;
    if (index < 0 || index >= ANSWER_MAX_CALLS || (size_t)index > a->n_calls) {
        a->broken = true;
        return NULL;
    }
    if ((size_t)index == a->n_calls)
        a->n_calls++;
    return &a->calls[index];
}

static int64_t call_index(const struct walk *w, size_t i)
{
    int64_t index;
    if (jlex_int(&w->j, &w->seen[CALL_INDEX], &index))
        return index;
    if (!w->a->stream)
        return (int64_t)i;
    /* Some engines leave the index out: an id starts a call, all else continues it. */
    return (int64_t)w->a->n_calls - !is_text(w, &w->seen[CALL_ID]);
}

static void keep_seen(struct walk *w, unsigned which, struct buf *to)
{
    if (w->seen[which].type != JLEX_ERROR)
        keep_string(w, &w->seen[which], to);
}

static void each_call(struct walk *w, size_t i)
{
    forget(w);
    walk_object(w, call_fields);
    if (w->j.why)
        return;
    note_content(w);
    struct answer_call *call = call_at(w, call_index(w, i));
    if (!call)
        return;
    if (buf_len(&call->id) == 0)
        keep_seen(w, CALL_ID, &call->id);
    if (w->seen[CALL_FUNCTION].type != JLEX_OBJECT)
        return;
    struct walk inner = walk_again(w, &w->seen[CALL_FUNCTION]);
    struct jlex_token t;
    jlex_next(&inner.j, &t);
    walk_object(&inner, function_fields);
    keep_seen(&inner, FUNCTION_NAME, &call->name);
    keep_seen(&inner, FUNCTION_ARGUMENTS, &call->arguments);
}

static void take_calls(struct walk *w, struct jlex_token *value)
{
    each_object(w, value, each_call);
}

/* ---- log-probabilities ------------------------------------------------------------- */

enum { LOGPROB_TOKEN, LOGPROB_VALUE };

static const struct field logprob_fields[] = {
    {SLICE_LIT("token"), NULL, LOGPROB_TOKEN},
    {SLICE_LIT("logprob"), NULL, LOGPROB_VALUE},
    {{NULL, 0}, NULL, 0},
};

static void each_logprob(struct walk *w, size_t i)
{
    struct answer_steps *s = &w->a->steps;
    double logprob = (double)NAN;
    (void)i;
    forget(w);
    walk_object(w, logprob_fields);
    if (w->j.why || w->seen[LOGPROB_TOKEN].type != JLEX_STRING)
        return;
    s->tokens = true;
    prompt_unescape(jlex_raw(&w->j, &w->seen[LOGPROB_TOKEN]), &s->text);
    jlex_double(&w->j, &w->seen[LOGPROB_VALUE], &logprob);
    answer_end_unit(w->a, logprob);
}

static void take_logprob_list(struct walk *w, struct jlex_token *value)
{
    each_object(w, value, each_logprob);
}

static const struct field logprobs_fields[] = {
    {SLICE_LIT("content"), take_logprob_list, 0},
    {{NULL, 0}, NULL, 0},
};

/* ---- choices ----------------------------------------------------------------------- */

enum {
    CHOICE_INDEX,
    CHOICE_DELTA,
    CHOICE_MESSAGE,
    CHOICE_TEXT,
    CHOICE_FINISH,
    CHOICE_LOGPROBS
};

static const struct field choice_fields[] = {
    {SLICE_LIT("index"), NULL, CHOICE_INDEX},
    {SLICE_LIT("delta"), NULL, CHOICE_DELTA},
    {SLICE_LIT("message"), NULL, CHOICE_MESSAGE},
    {SLICE_LIT("text"), NULL, CHOICE_TEXT},
    {SLICE_LIT("finish_reason"), NULL, CHOICE_FINISH},
    {SLICE_LIT("logprobs"), NULL, CHOICE_LOGPROBS},
    {{NULL, 0}, NULL, 0},
};

static const struct field delta_fields[] = {
    {SLICE_LIT("content"), take_content, 0},
    {SLICE_LIT("reasoning_content"), take_reasoning_content, 0},
    {SLICE_LIT("reasoning"), take_reasoning, 0},
    {SLICE_LIT("tool_calls"), take_calls, 0},
    {SLICE_LIT("function_call"), take_foreign, 0},
    {SLICE_LIT("refusal"), take_foreign, 0},
    {SLICE_LIT("audio"), take_foreign, 0},
    {{NULL, 0}, NULL, 0},
};

static void each_choice(struct walk *w, size_t i)
{
    int64_t index = (int64_t)i;
    forget(w);
    walk_object(w, choice_fields);
    if (w->j.why)
        return;
    jlex_int(&w->j, &w->seen[CHOICE_INDEX], &index);
    w->keep = index == 0;
    w->a->understood = true;
    if (!w->keep)
        w->a->broken = true;
    if (w->seen[CHOICE_DELTA].type == JLEX_OBJECT)
        reread(w, &w->seen[CHOICE_DELTA], delta_fields);
    if (w->seen[CHOICE_MESSAGE].type == JLEX_OBJECT)
        reread(w, &w->seen[CHOICE_MESSAGE], delta_fields);
    if (w->seen[CHOICE_TEXT].type == JLEX_STRING)
        take_content(w, &w->seen[CHOICE_TEXT]);
    if (w->keep && w->a->steps.wanted && w->seen[CHOICE_LOGPROBS].type == JLEX_OBJECT)
        reread(w, &w->seen[CHOICE_LOGPROBS], logprobs_fields);
    if (w->seen[CHOICE_FINISH].type == JLEX_STRING)
        w->a->facts.terminal = true;
}

static void take_choices(struct walk *w, struct jlex_token *value)
{
    each_object(w, value, each_choice);
}

/* ---- the top of chat, completions and native answers ------------------------------- */

static void take_error(struct walk *w, struct jlex_token *value)
{
    if (value->type != JLEX_NULL)
        w->a->facts.error = w->a->broken = true;
    jlex_skip(&w->j, value);
}

static void take_id_slot(struct walk *w, struct jlex_token *value)
{
    int64_t id;
    if (jlex_int(&w->j, value, &id) && id >= 0)
        w->a->facts.id_slot = id;
    jlex_skip(&w->j, value);
}

static void take_native_content(struct walk *w, struct jlex_token *value)
{
    w->keep = w->a->understood = true;
    take_content(w, value);
}

static void take_native_stop(struct walk *w, struct jlex_token *value)
{
    if (value->type == JLEX_TRUE)
        w->a->facts.terminal = w->a->facts.last = true;
    jlex_skip(&w->j, value);
}

static const struct field openai_fields[] = {
    {SLICE_LIT("choices"), take_choices, 0}, {SLICE_LIT("usage"), take_usage, 0},
    {SLICE_LIT("timings"), take_timings, 0}, {SLICE_LIT("id_slot"), take_id_slot, 0},
    {SLICE_LIT("error"), take_error, 0},     {{NULL, 0}, NULL, 0},
};

/* tokens_cached is missing on purpose: it is the fill of the slot, not the reuse. */
static const struct field native_fields[] = {
    {SLICE_LIT("content"), take_native_content, 0},
    {SLICE_LIT("stop"), take_native_stop, 0},
    {SLICE_LIT("timings"), take_timings, 0},
    {SLICE_LIT("id_slot"), take_id_slot, 0},
    {SLICE_LIT("tokens_evaluated"), take_evaluated, 0},
    {SLICE_LIT("error"), take_error, 0},
    {{NULL, 0}, NULL, 0},
};

/* ---- the Messages API -------------------------------------------------------------- */

enum { BLOCK_TYPE, BLOCK_TEXT, BLOCK_THINKING, BLOCK_ID, BLOCK_NAME, BLOCK_INPUT };

/* In the order in which blocks must come to be quoted as one answer. */
enum { KIND_NONE, KIND_THINKING, KIND_TEXT, KIND_CALL };

static const struct field block_fields[] = {
    {SLICE_LIT("type"), NULL, BLOCK_TYPE},
    {SLICE_LIT("text"), NULL, BLOCK_TEXT},
    {SLICE_LIT("id"), NULL, BLOCK_ID},
    {SLICE_LIT("thinking"), NULL, BLOCK_THINKING},
    {SLICE_LIT("name"), NULL, BLOCK_NAME},
    {SLICE_LIT("input"), NULL, BLOCK_INPUT},
    {{NULL, 0}, NULL, 0},
};

static unsigned block_kind(const struct walk *w)
{
    char tmp[32];
    if (w->seen[BLOCK_TYPE].type != JLEX_STRING)
        return KIND_NONE;
    const struct slice type = jlex_text(&w->j, &w->seen[BLOCK_TYPE], tmp, sizeof tmp);
    if (slice_eq(type, SLICE_LIT("text")))
        return KIND_TEXT;
    if (slice_eq(type, SLICE_LIT("thinking")))
        return KIND_THINKING;
    return slice_eq(type, SLICE_LIT("tool_use")) ? KIND_CALL : KIND_NONE;
}

/* An object without members is how a stream announces the fragments to come. */
static void keep_input(struct walk *w, const struct jlex_token *input, struct buf *to)
{
    const struct slice raw = jlex_raw(&w->j, input);
    const bool empty = raw.len >= 2 && !memchr(raw.ptr, '"', raw.len);
    if (input->type == JLEX_OBJECT && !empty && may_keep(w, raw.len))
        buf_append_slice(to, raw);
}

static void open_call(struct walk *w)
{
    struct answer_call *call = call_at(w, (int64_t)w->a->n_calls);
    note_content(w);
    if (!call)
        return;
    keep_seen(w, BLOCK_ID, &call->id);
    keep_seen(w, BLOCK_NAME, &call->name);
    if (w->seen[BLOCK_INPUT].type != JLEX_ERROR)
        keep_input(w, &w->seen[BLOCK_INPUT], &call->arguments);
}

static void each_block(struct walk *w, size_t i)
{
    (void)i;
    forget(w);
    walk_object(w, block_fields);
    if (w->j.why)
        return;
    const unsigned kind = block_kind(w);
    w->keep = w->a->understood = true;
    if (kind == KIND_NONE || kind < w->a->last_block ||
        (kind == w->a->last_block && kind != KIND_CALL))
        w->a->broken = true; /* a prompt_answer cannot say it */
    w->a->last_block = kind;
    if (kind == KIND_CALL)
        open_call(w);
    else if (kind == KIND_TEXT && w->seen[BLOCK_TEXT].type == JLEX_STRING)
        take_content(w, &w->seen[BLOCK_TEXT]);
    else if (kind == KIND_THINKING)
        take_reasoning_content(w, &w->seen[BLOCK_THINKING]);
}

static void take_blocks(struct walk *w, struct jlex_token *value)
{
    each_object(w, value, each_block);
}

static void take_block(struct walk *w, struct jlex_token *value)
{
    if (value->type == JLEX_OBJECT)
        each_block(w, 0);
    else
        jlex_skip(&w->j, value);
}

static void take_partial_json(struct walk *w, struct jlex_token *value)
{
    if (w->a->n_calls > 0)
        keep_string(w, value, &w->a->calls[w->a->n_calls - 1].arguments);
    jlex_skip(&w->j, value);
}

static void take_stop_reason(struct walk *w, struct jlex_token *value)
{
    if (value->type == JLEX_STRING)
        w->a->facts.terminal = true;
    jlex_skip(&w->j, value);
}

static const struct field block_delta_fields[] = {
    {SLICE_LIT("text"), take_content, 0},
    {SLICE_LIT("thinking"), take_reasoning_content, 0},
    {SLICE_LIT("partial_json"), take_partial_json, 0},
    {SLICE_LIT("citation"), take_foreign, 0},
    {SLICE_LIT("stop_reason"), take_stop_reason, 0},
    {{NULL, 0}, NULL, 0},
};

static void take_block_delta(struct walk *w, struct jlex_token *value)
{
    w->keep = true;
    enter(w, value, block_delta_fields);
}

static void take_event_type(struct walk *w, struct jlex_token *value)
{
    if (value->type == JLEX_STRING &&
        slice_eq(jlex_raw(&w->j, value), SLICE_LIT("message_stop")))
        w->a->facts.terminal = w->a->facts.last = true;
    jlex_skip(&w->j, value);
}

static const struct field message_fields[] = {
    {SLICE_LIT("usage"), take_usage, 0},
    {{NULL, 0}, NULL, 0},
};

static void take_message(struct walk *w, struct jlex_token *value)
{
    w->a->understood = true;
    enter(w, value, message_fields);
}

static const struct field messages_fields[] = {
    {SLICE_LIT("type"), take_event_type, 0},
    {SLICE_LIT("message"), take_message, 0},
    {SLICE_LIT("content_block"), take_block, 0},
    {SLICE_LIT("delta"), take_block_delta, 0},
    {SLICE_LIT("content"), take_blocks, 0},
    {SLICE_LIT("stop_reason"), take_stop_reason, 0},
    {SLICE_LIT("usage"), take_usage, 0},
    {SLICE_LIT("timings"), take_timings, 0},
    {SLICE_LIT("error"), take_error, 0},
    {{NULL, 0}, NULL, 0},
};

/* ---- answers to requests whose prompts are not read -------------------------------- */

static void take_any_text(struct walk *w, struct jlex_token *value)
{
    if (is_text(w, value))
        note_content(w);
    jlex_skip(&w->j, value);
}

static void take_response_type(struct walk *w, struct jlex_token *value)
{
    static const struct slice last[] = {SLICE_LIT("response.completed"),
                                        SLICE_LIT("response.incomplete"),
                                        SLICE_LIT("response.failed")};
    const struct slice type = jlex_raw(&w->j, value);
    for (size_t i = 0; i < sizeof(last) / sizeof(last[0]); i++)
        if (value->type == JLEX_STRING && slice_eq(type, last[i]))
            w->a->facts.terminal = w->a->facts.last = true;
    jlex_skip(&w->j, value);
}

static const struct field response_fields[] = {
    {SLICE_LIT("usage"), take_usage, 0},
    {SLICE_LIT("error"), take_error, 0},
    {{NULL, 0}, NULL, 0},
};

static void take_response(struct walk *w, struct jlex_token *value)
{
    enter(w, value, response_fields);
}

static void take_reason(struct walk *w, struct jlex_token *value)
{
    if (value->type != JLEX_NULL)
        w->a->facts.terminal = true;
    jlex_skip(&w->j, value);
}

static const struct field meta_fields[] = {
    {SLICE_LIT("prompt_tokens"), take_prompt_tokens, 0},
    {SLICE_LIT("completion_tokens"), take_completion_tokens, 0},
    {SLICE_LIT("cached_tokens"), take_cached_tokens, 0},
    {SLICE_LIT("finish_reason"), take_reason, 0},
    {{NULL, 0}, NULL, 0},
};

static void take_meta(struct walk *w, struct jlex_token *value)
{
    enter(w, value, meta_fields);
}

static const struct field other_fields[] = {
    {SLICE_LIT("choices"), take_choices, 0},
    {SLICE_LIT("usage"), take_usage, 0},
    {SLICE_LIT("timings"), take_timings, 0},
    {SLICE_LIT("id_slot"), take_id_slot, 0},
    {SLICE_LIT("tokens_evaluated"), take_evaluated, 0},
    {SLICE_LIT("content"), take_any_text, 0},
    {SLICE_LIT("stop"), take_native_stop, 0},
    {SLICE_LIT("type"), take_response_type, 0},
    {SLICE_LIT("delta"), take_any_text, 0},
    {SLICE_LIT("response"), take_response, 0},
    {SLICE_LIT("text"), take_any_text, 0},
    {SLICE_LIT("meta_info"), take_meta, 0},
    {SLICE_LIT("error"), take_error, 0},
    {{NULL, 0}, NULL, 0},
};

bool answer_read(struct answer *a, struct slice json)
{
    static const struct field *const tables[] = {
        [PROMPT_NONE] = other_fields,         [PROMPT_CHAT] = openai_fields,
        [PROMPT_COMPLETIONS] = openai_fields, [PROMPT_NATIVE] = native_fields,
        [PROMPT_MESSAGES] = messages_fields,
    };
    struct walk w = {.a = a};
    struct jlex_token t;
    forget(&w);
    jlex_init(&w.j, json);
    jlex_next(&w.j, &t);
    enter(&w, &t, tables[a->api]);
    return jlex_next(&w.j, &t) == JLEX_END;
}
