/* SPDX-License-Identifier: MIT */

/*
 * The scan: one pass of the lexer over the body.
 *
 *     body ─ top_fields ─┬─ "messages", "system": prompt_chat.c
 *                        ├─ "prompt": text, ids, or lists of these
 *                        ├─ "model", "tools", …: one span each
 *                        └─ all others: skipped
 */

#include "prompt_scan.h"

#include <assert.h>
#include <stdlib.h>

#include "base/mem.h"

_Static_assert(PROMPT_MAX_DEPTH == JLEX_MAX_DEPTH, "the lexer keeps the limit");

/* Why each is here: docs/prompts.md. */
const struct prompt_root_field prompt_root_fields[] = {
    {SLICE_LIT("model"), ROOT_TEXT | ROOT_MODEL},
    {SLICE_LIT("cache_salt"), ROOT_TEXT | ROOT_KV | ROOT_SALT},
    {SLICE_LIT("lora"), ROOT_KV | ROOT_ADAPTER},
    {SLICE_LIT("lora_path"), ROOT_KV | ROOT_ADAPTER},
    {SLICE_LIT("tool_choice"), 0},
    {SLICE_LIT("parallel_tool_calls"), 0},
    {SLICE_LIT("functions"), 0},
    {SLICE_LIT("function_call"), 0},
    {SLICE_LIT("response_format"), 0},
    {SLICE_LIT("json_schema"), 0},
    {SLICE_LIT("structured_outputs"), 0},
    {SLICE_LIT("guided_json"), 0},
    {SLICE_LIT("guided_regex"), 0},
    {SLICE_LIT("guided_choice"), 0},
    {SLICE_LIT("guided_grammar"), 0},
    {SLICE_LIT("chat_template"), 0},
    {SLICE_LIT("chat_template_kwargs"), 0},
    {SLICE_LIT("reasoning_effort"), 0},
    {SLICE_LIT("reasoning"), 0},
    {SLICE_LIT("thinking"), 0},
    {SLICE_LIT("verbosity"), 0},
    {SLICE_LIT("output_config"), 0},
    {SLICE_LIT("context_management"), 0},
    {SLICE_LIT("documents"), 0},
    {SLICE_LIT("add_generation_prompt"), 0},
    {SLICE_LIT("continue_final_message"), 0},
    {SLICE_LIT("add_special_tokens"), 0},
    {SLICE_LIT("truncate_prompt_tokens"), 0},
    {SLICE_LIT("mm_processor_kwargs"), 0},
    {SLICE_LIT("prompt_embeds"), 0},
    {SLICE_LIT("suffix"), 0},
};
const size_t prompt_root_n_fields =
    sizeof prompt_root_fields / sizeof prompt_root_fields[0];

/* ---- prompts of the completion APIs ------------------------------------------------ */

/* What a list of prompts, or of ids, is made of. */
struct prompt_list {
    size_t ids, texts, lists, objects;
    bool mixed;              /* a list inside holds ids and text */
    struct jlex_token first; /* text or object */
};

static bool add_id(struct scan *s, const struct jlex_token *t)
{
    struct prompt *p = s->p;
    int64_t id;
    if (!jlex_int(&s->j, t, &id) || id < 0 || id > UINT32_MAX)
        return prompt_fail(s, "token id expected", t->start);
    if (p->n_ids == PROMPT_MAX_IDS)
        return prompt_fail(s, "too many token ids", t->start);
    if (p->n_ids == p->cap_ids) {
        p->cap_ids = p->cap_ids ? 2 * p->cap_ids : 1024;
        p->ids = mem_rearray(p->ids, p->cap_ids, sizeof *p->ids);
    }
    p->ids[p->n_ids++] = (uint32_t)id;
    return true;
}

static void drop_ids(struct prompt *p)
{
    free(p->ids);
    free(p->id_ends);
    p->ids = NULL;
    p->id_ends = NULL;
    p->n_ids = p->cap_ids = p->cap_ends = 0;
}

/* Notes where one prompt of a batch of ids ends. */
static void end_ids(struct prompt *p, size_t n_lists)
{
    if (n_lists > p->cap_ends) {
        p->cap_ends = p->cap_ends ? 2 * p->cap_ends : 8;
        p->id_ends = mem_rearray(p->id_ends, p->cap_ends, sizeof *p->id_ends);
    }
    p->id_ends[n_lists - 1] = p->n_ids;
}

/* One list of ids inside the list of prompts. */
static bool scan_id_list(struct scan *s, struct prompt_list *l)
{
    struct jlex_token t;
    size_t texts = 0, n = 0;
    for (; jlex_next(&s->j, &t) != JLEX_ARRAY_END; n++) {
        if (t.type == JLEX_STRING)
            texts++;
        else if (!add_id(s, &t))
            return false;
    }
    l->mixed = l->mixed || texts > 0;
    end_ids(s->p, l->lists);
    return n > 0 || prompt_fail(s, "empty prompt", t.start);
}

static bool scan_prompt_item(struct scan *s, struct prompt_list *l, struct jlex_token *t)
{
    const bool first = l->ids + l->texts + l->lists + l->objects == 0;
    if (t->type == JLEX_ARRAY) {
        if (l->lists == PROMPT_MAX_SPANS)
            return prompt_fail(s, "too many prompts", t->start);
        l->lists++;
        return scan_id_list(s, l);
    }
    if (t->type == JLEX_NUMBER) {
        l->ids++;
        return add_id(s, t);
    }
    if (t->type == JLEX_STRING)
        l->texts++;
    else if (t->type == JLEX_OBJECT)
        l->objects++;
    else
        return prompt_fail(s, "prompt expected", t->start);
    if (!jlex_skip(&s->j, t))
        return false;
    if (first)
        l->first = *t;
    return true;
}

static bool note_prompt(struct scan *s, const struct field *f, const struct jlex_token *t)
{
    if (t->type == JLEX_OBJECT) /* llama-server: text with pictures for its markers */
        s->p->has_media = true;
    return prompt_note(s, f->what, t);
}

static bool scan_prompt_list(struct scan *s, const struct field *f)
{
    struct prompt_list l = {0};
    struct jlex_token t;
    while (jlex_next(&s->j, &t) != JLEX_ARRAY_END)
        if (!scan_prompt_item(s, &l, &t))
            return false;
    const size_t n = l.texts + l.lists + l.objects;
    if (n + l.ids == 0)
        return prompt_fail(s, "empty prompt", t.start);
    if (l.ids > 0 && l.lists + l.objects > 0)
        return prompt_fail(s, "ids beside lists", t.start);
    if (n > 1 && l.ids == 0)
        s->p->n_prompts = n;
    s->mixed = s->p->n_prompts == 1 && (l.mixed || (l.ids > 0 && l.texts > 0));
    if (s->mixed || l.mixed || (s->p->n_prompts > 1 && l.lists < n))
        drop_ids(s->p);
    else if (n == 1 && l.lists == 0)
        return note_prompt(s, f, &l.first);
    return true;
}

static bool take_prompt(struct scan *s, const struct field *f, struct jlex_token *value)
{
    s->has_prompt = true;
    if (value->type == JLEX_ARRAY)
        return scan_prompt_list(s, f);
    if (value->type != JLEX_STRING && value->type != JLEX_OBJECT)
        return prompt_fail(s, "prompt expected", value->start);
    return jlex_skip(&s->j, value) && note_prompt(s, f, value);
}

/* ---- the top object ---------------------------------------------------------------- */

/* All members without a row in top_fields: an option of the root, or of no interest. */
static bool take_root(struct scan *s, const struct field *f, struct jlex_token *value)
{
    char tmp[PROMPT_KEY_ROOM];
    const struct slice name = prompt_key_text(s, &s->key, tmp);
    size_t i = 0;
    while (i < prompt_root_n_fields && !slice_eq(prompt_root_fields[i].name, name))
        i++;
    if (i == prompt_root_n_fields)
        return prompt_take_skip(s, f, value);
    if (value->type == JLEX_NULL)
        return true;
    const unsigned flags = prompt_root_fields[i].flags;
    if ((flags & ROOT_TEXT) && value->type != JLEX_STRING)
        return prompt_fail(s, "string expected", value->start);
    if (flags & ROOT_MODEL)
        s->p->model = jlex_raw(&s->j, value);
    if (flags & ROOT_SALT)
        s->p->cache_salt = jlex_raw(&s->j, value);
    if (flags & ROOT_ADAPTER)
        s->p->has_lora = true;
    return jlex_skip(&s->j, value) && prompt_note(s, f->what + (uint32_t)i, value);
}

static bool take_tools(struct scan *s, const struct field *f, struct jlex_token *value)
{
    if (value->type != JLEX_ARRAY && value->type != JLEX_NULL)
        return prompt_fail(s, "list of tools expected", value->start);
    return prompt_take_any(s, f, value);
}

static bool take_stream(struct scan *s, const struct field *f, struct jlex_token *value)
{
    (void)f;
    return prompt_bool(s, value, &s->p->stream);
}

static bool take_usage(struct scan *s, const struct field *f, struct jlex_token *value)
{
    (void)f;
    return prompt_bool(s, value, &s->p->include_usage);
}

static const struct field stream_fields[] = {
    {SLICE_LIT("include_usage"), take_usage, 0, 0},
    {{NULL, 0}, prompt_take_skip, 0, 0},
};

static bool take_stream_options(struct scan *s, const struct field *f,
                                struct jlex_token *value)
{
    (void)f;
    if (value->type == JLEX_NULL)
        return true;
    if (value->type != JLEX_OBJECT)
        return prompt_fail(s, "object expected", value->start);
    return prompt_members(s, stream_fields);
}

static bool take_cache_prompt(struct scan *s, const struct field *f,
                              struct jlex_token *value)
{
    bool on = false;
    (void)f;
    if (!prompt_bool(s, value, &on))
        return false;
    s->p->has_cache_prompt = value->type != JLEX_NULL;
    s->no_cache = value->type == JLEX_FALSE;
    return true;
}

static bool take_echo(struct scan *s, const struct field *f, struct jlex_token *value)
{
    bool on = false;
    (void)f;
    if (!prompt_bool(s, value, &on))
        return false;
    s->echo = s->echo || on;
    return true;
}

static bool take_logprobs(struct scan *s, const struct field *f, struct jlex_token *value)
{
    (void)f;
    s->echo = s->echo || value->type != JLEX_NULL;
    return jlex_skip(&s->j, value);
}

static bool take_id_slot(struct scan *s, const struct field *f, struct jlex_token *value)
{
    (void)f;
    if (value->type == JLEX_NULL)
        return true;
    s->p->has_id_slot = true;
    return jlex_int(&s->j, value, &s->p->id_slot) ||
           prompt_fail(s, "integer expected", value->start);
}

static bool take_n(struct scan *s, const struct field *f, struct jlex_token *value)
{
    int64_t n = 1;
    (void)f;
    if (value->type != JLEX_NULL && !jlex_int(&s->j, value, &n))
        return prompt_fail(s, "integer expected", value->start);
    if (n > s->p->n)
        s->p->n = n;
    return true;
}

/* Only a hint, so a number of any form will do. */
static bool take_max_tokens(struct scan *s, const struct field *f,
                            struct jlex_token *value)
{
    int64_t n;
    (void)f;
    if (value->type == JLEX_NULL)
        return true;
    if (value->type != JLEX_NUMBER)
        return prompt_fail(s, "number expected", value->start);
    if (jlex_int(&s->j, value, &n) && n >= 0)
        s->p->max_tokens = n;
    return true;
}

#define API(name) (1U << PROMPT_##name)
#define CHATS (API(CHAT) | API(MESSAGES))
#define TEXTS (API(COMPLETIONS) | API(NATIVE))

/* The options of prompt_root_fields come last, through take_root(). */
static const struct field top_fields[] = {
    {SLICE_LIT("messages"), prompt_chat_messages, SPAN_MESSAGE, CHATS},
    {SLICE_LIT("system"), prompt_chat_system, SPAN_SYSTEM, API(MESSAGES)},
    {SLICE_LIT("tools"), take_tools, SPAN_TOOLS, CHATS},
    {SLICE_LIT("prompt"), take_prompt, SPAN_PROMPT, TEXTS},
    {SLICE_LIT("stream"), take_stream, 0, 0},
    {SLICE_LIT("stream_options"), take_stream_options, 0, 0},
    {SLICE_LIT("cache_prompt"), take_cache_prompt, 0, 0},
    {SLICE_LIT("id_slot"), take_id_slot, 0, 0},
    {SLICE_LIT("echo"), take_echo, 0, 0},
    {SLICE_LIT("prompt_logprobs"), take_logprobs, 0, 0},
    {SLICE_LIT("n"), take_n, 0, 0},
    {SLICE_LIT("n_cmpl"), take_n, 0, 0},
    {SLICE_LIT("max_tokens"), take_max_tokens, 0, 0},
    {SLICE_LIT("max_completion_tokens"), take_max_tokens, 0, 0},
    {SLICE_LIT("n_predict"), take_max_tokens, 0, 0},
    {{NULL, 0}, take_root, SPAN_ROOT, 0},
};

static bool is_blank(struct slice text, size_t from, size_t to)
{
    while (from < to && strchr(" \t\r\n", text.ptr[from]))
        from++;
    return from == to;
}

static bool scan_body(struct scan *s)
{
    struct jlex_token t;
    if (jlex_next(&s->j, &t) != JLEX_OBJECT)
        return prompt_fail(s, "object expected", t.start);
    s->p->splice_at = t.end;
    if (!prompt_members(s, top_fields))
        return false;
    s->p->splice_comma = !is_blank(s->p->body, t.end, s->key.start);
    if (jlex_next(&s->j, &t) != JLEX_END)
        return false;
    return s->has_prompt || s->p->api == PROMPT_NONE || prompt_fail(s, "no prompt", 0);
}

static enum prompt_bar bar_of(const struct scan *s)
{
    if (s->no_cache)
        return PROMPT_BAR_NO_CACHE;
    if (s->echo)
        return PROMPT_BAR_ECHO;
    if (s->p->n_prompts > 1)
        return PROMPT_BAR_BATCH;
    return s->mixed ? PROMPT_BAR_MIXED : PROMPT_BAR_NONE;
}

bool prompt_scan(struct prompt *p, enum prompt_api api, struct slice body)
{
    *p = (struct prompt){.api = api,
                         .bar = PROMPT_BAR_UNREADABLE,
                         .n = 1,
                         .max_tokens = -1,
                         .n_prompts = 1,
                         .body = body,
                         .spans = mem_array(PROMPT_FIRST_SPANS, sizeof *p->spans),
                         .cap_spans = PROMPT_FIRST_SPANS};
    struct scan s = {.p = p, .frame = SPAN_NONE};
    jlex_init(&s.j, body);
    if (!scan_body(&s)) {
        assert(s.j.why);
        p->why = s.j.why;
        p->why_at = s.j.why_at;
        return false;
    }
    p->bar = bar_of(&s);
    return true;
}

size_t prompt_held(const struct prompt *p)
{
    return mem_held(p->cap_spans * sizeof *p->spans, p->n_spans * sizeof *p->spans) +
           mem_held(p->cap_ids * sizeof *p->ids, p->n_ids * sizeof *p->ids) +
           p->cap_ends * sizeof *p->id_ends;
}

void prompt_free(struct prompt *p)
{
    free(p->spans);
    free(p->ids);
    free(p->id_ends);
    *p = (struct prompt){0};
}

/* ---- small things ------------------------------------------------------------------ */

static void ignore_begin(void *ctx, enum prompt_part part)
{
    (void)ctx;
    (void)part;
}

static void append_bytes(void *ctx, const char *ptr, size_t len)
{
    buf_append(ctx, ptr, len);
}

static void ignore_end(void *ctx)
{
    (void)ctx;
}

void prompt_kv_root(const struct prompt *p, struct buf *out)
{
    const struct prompt_sink sink = {out, ignore_begin, append_bytes, ignore_end};
    prompt_emit_kv(p, &sink);
}

bool prompt_unescape(struct slice raw, struct buf *out)
{
    if (!jlex_inside_ok(raw))
        return false;
    while (raw.len) {
        const size_t room = raw.len < 4096 ? raw.len + JLEX_DECODE_ROOM : 4096;
        char *to = buf_reserve(out, room);
        buf_commit(out, jlex_decode(&raw, to, room));
    }
    return true;
}
