/* SPDX-License-Identifier: MIT */
#include "prompt_oracle.h"

#include <jansson.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- recording --------------------------------------------------------------------- */

static void record_begin(void *ctx, enum prompt_part part)
{
    buf_append_char(ctx, RECORD_BEGIN);
    buf_append_char(ctx, (char)('0' + (int)part));
}

static void record_bytes(void *ctx, const char *ptr, size_t len)
{
    buf_append(ctx, ptr, len);
}

static void record_end(void *ctx)
{
    buf_append_char(ctx, RECORD_END);
}

struct prompt_sink record_sink(struct buf *b)
{
    return (struct prompt_sink){b, record_begin, record_bytes, record_end};
}

void record_prompt(const struct prompt *p, enum prompt_order order, struct buf *b)
{
    const struct prompt_sink sink = record_sink(b);
    prompt_emit(p, order, &sink);
}

/* Rewrites every number token to one spelling. */
static void normalise_numbers(struct slice in, struct buf *out)
{
    for (size_t i = 0; i < in.len;) {
        buf_append_char(out, in.ptr[i]);
        if (in.ptr[i++] != '\xFF' || i == in.len || in.ptr[i] != 'n')
            continue;
        char text[512];
        size_t n = 0;
        buf_append_char(out, in.ptr[i++]);
        while (i < in.len && (unsigned char)in.ptr[i] < 0x80 && n < sizeof text - 1)
            text[n++] = in.ptr[i++];
        text[n] = '\0';
        buf_printf(out, "%.17g", strtod(text, NULL));
    }
}

/* ---- the tree, in canonical order -------------------------------------------------- */

struct tree {
    struct buf *out;
    enum prompt_api api;
    bool media;
};

static void tag(struct tree *t, const char *tags)
{
    for (; *tags; tags++) {
        buf_append_char(t->out, '\xFF');
        buf_append_char(t->out, *tags);
    }
}

static void part_begin(struct tree *t, enum prompt_part part)
{
    record_begin(t->out, part);
}

static void part_end(struct tree *t)
{
    record_end(t->out);
}

static void string(struct tree *t, const json_t *v)
{
    tag(t, "s");
    buf_append(t->out, json_string_value(v), json_string_length(v));
}

static void name_tag(struct tree *t, const char *name)
{
    tag(t, "k");
    buf_append_str(t->out, name);
}

static bool is_mark(const char *key)
{
    return !strcmp(key, "cache_control") || !strcmp(key, "prompt_cache_breakpoint");
}

/* `marks`: how many levels below this value objects carry cache marks; 0: none do. */
static void value(struct tree *t, json_t *v, int marks)
{
    const char *key;
    json_t *item;
    size_t i;
    switch (json_typeof(v)) {
    case JSON_OBJECT:
        tag(t, "{");
        json_object_foreach(v, key, item)
        {
            if (marks == 1 && is_mark(key))
                continue;
            name_tag(t, key);
            value(t, item, marks - 1);
        }
        tag(t, "}");
        break;
    case JSON_ARRAY:
        tag(t, "[");
        json_array_foreach(v, i, item)
        {
            value(t, item, marks - 1);
        }
        tag(t, "]");
        break;
    case JSON_STRING:
        string(t, v);
        break;
    case JSON_INTEGER:
    case JSON_REAL:
        tag(t, "n");
        buf_printf(t->out, "%.17g", json_number_value(v));
        break;
    case JSON_TRUE:
        tag(t, "t");
        break;
    case JSON_FALSE:
        tag(t, "f");
        break;
    case JSON_NULL:
        tag(t, "z");
        break;
    }
}

/* A member under its letter, where it is there and not null. */
static void letter(struct tree *t, const json_t *object, const char *key,
                   const char *letters, int marks)
{
    json_t *v = json_object_get(object, key);
    if (!v || json_is_null(v))
        return;
    tag(t, letters);
    value(t, v, marks);
}

static bool listed(const char *key, const char *const *list)
{
    while (*list && strcmp(*list, key))
        list++;
    return *list != NULL;
}

/* All members that are neither null nor in one of the lists. */
static void rest(struct tree *t, json_t *object, const char *const *known)
{
    const char *key;
    json_t *v;
    json_object_foreach(object, key, v)
    {
        if (json_is_null(v) || listed(key, known))
            continue;
        name_tag(t, key);
        value(t, v, 0);
    }
}

/* ---- parts and messages ------------------------------------------------------------ */

static bool is_textual(const json_t *part)
{
    static const char *const types[] = {"text",     "refusal",     "thinking",
                                        "tool_use", "tool_result", "redacted_thinking",
                                        NULL};
    const char *type = json_string_value(json_object_get(part, "type"));
    const size_t len = json_string_length(json_object_get(part, "type"));
    return type && strlen(type) == len && listed(type, types);
}

static bool is_media(const json_t *part)
{
    json_t *inner = json_object_get(part, "content"), *item;
    size_t i;
    if (!is_textual(part))
        return true;
    json_array_foreach(inner, i, item)
    {
        if (!is_textual(item))
            return true;
    }
    return false;
}

static void part(struct tree *t, json_t *p)
{
    static const char *const known[] = {
        "type",     "text",      "thinking",      "id",
        "name",     "input",     "tool_use_id",   "content",
        "is_error", "signature", "cache_control", "prompt_cache_breakpoint",
        NULL};
    const bool media = is_media(p);
    if (media) {
        t->media = true;
        part_end(t);
        part_begin(t, PROMPT_PART_MEDIA);
    }
    letter(t, p, "type", "P", 0);
    letter(t, p, "text", "T", 0);
    letter(t, p, "thinking", "H", 0);
    letter(t, p, "id", "i", 0);
    letter(t, p, "name", "N", 0);
    letter(t, p, "input", "u", 0);
    letter(t, p, "tool_use_id", "w", 0);
    letter(t, p, "content", "c", json_is_array(json_object_get(p, "content")) ? 2 : 0);
    letter(t, p, "is_error", "e", 0);
    rest(t, p, known);
    if (media) {
        part_end(t);
        part_begin(t, PROMPT_PART_MESSAGE);
    }
}

static void one_text(struct tree *t, const json_t *text)
{
    tag(t, "C[Ps");
    buf_append_str(t->out, "text");
    tag(t, "T");
    string(t, text);
    tag(t, "]");
}

static void content(struct tree *t, const json_t *c, bool calls)
{
    json_t *item;
    size_t i;
    if (!c)
        return;
    if (json_is_array(c)) {
        tag(t, "C[");
        json_array_foreach(c, i, item)
        {
            part(t, item);
        }
        tag(t, "]");
    } else if (calls && (json_is_null(c) || json_string_length(c) == 0)) {
        return;
    } else if (json_is_null(c)) {
        tag(t, "Cz");
    } else if (t->api == PROMPT_MESSAGES) {
        one_text(t, c);
    } else {
        tag(t, "C");
        string(t, c);
    }
}

static void call(struct tree *t, json_t *c)
{
    static const char *const known[] = {"id", "type", "function", "cache_control", NULL};
    static const char *const function_known[] = {"name", "arguments", NULL};
    json_t *f = json_object_get(c, "function");
    tag(t, "(");
    letter(t, c, "id", "i", 0);
    letter(t, c, "type", "y", 0);
    if (json_is_object(f)) {
        tag(t, "<");
        letter(t, f, "name", "N", 0);
        letter(t, f, "arguments", "a", 0);
        rest(t, f, function_known);
        tag(t, ">");
    }
    rest(t, c, known);
    tag(t, ")");
}

static void message(struct tree *t, json_t *m)
{
    static const char *const known[] = {"role",       "name",         "content",
                                        "tool_calls", "tool_call_id", "reasoning_content",
                                        "refusal",    "annotations",  "cache_control",
                                        NULL};
    json_t *calls = json_object_get(m, "tool_calls"), *item;
    size_t i;
    part_begin(t, PROMPT_PART_MESSAGE);
    letter(t, m, "role", "R", 0);
    letter(t, m, "name", "N", 0);
    content(t, json_object_get(m, "content"), json_array_size(calls) > 0);
    letter(t, m, "reasoning_content", "H", 0);
    json_array_foreach(calls, i, item)
    {
        call(t, item);
    }
    letter(t, m, "tool_call_id", "I", 0);
    rest(t, m, known);
    part_end(t);
}

static bool has_role(const json_t *m, const char *role)
{
    const json_t *r = json_object_get(m, "role");
    return json_is_string(r) && json_string_length(r) == strlen(role) &&
           !strcmp(json_string_value(r), role);
}

/* How many messages stand before the tools. */
static size_t before_tools(const json_t *messages, enum prompt_order order)
{
    const size_t n = json_array_size(messages);
    size_t i = 0;
    if (order == PROMPT_ORDER_TOOLS_FIRST)
        return 0;
    if (order == PROMPT_ORDER_SYSTEM_FIRST) {
        while (i < n && (has_role(json_array_get(messages, i), "system") ||
                         has_role(json_array_get(messages, i), "developer")))
            i++;
        return i;
    }
    for (i = n; i > 0; i--)
        if (has_role(json_array_get(messages, i - 1), "user"))
            return i - 1;
    return n;
}

static void system_text(struct tree *t, json_t *system)
{
    json_t *item;
    size_t i;
    if (json_is_string(system)) {
        part_begin(t, PROMPT_PART_MESSAGE);
        tag(t, "Rs");
        buf_append_str(t->out, "system");
        one_text(t, system);
        part_end(t);
    }
    json_array_foreach(system, i, item)
    {
        part_begin(t, PROMPT_PART_MESSAGE);
        tag(t, "Rs");
        buf_append_str(t->out, "system");
        tag(t, "C[");
        part(t, item);
        tag(t, "]");
        part_end(t);
    }
}

static void tools(struct tree *t, const json_t *body)
{
    json_t *list = json_object_get(body, "tools");
    if (!json_is_array(list))
        return;
    part_begin(t, PROMPT_PART_TOOLS);
    value(t, list, 2);
    part_end(t);
}

static void chat(struct tree *t, const json_t *body, enum prompt_order order)
{
    json_t *messages = json_object_get(body, "messages"), *item;
    const size_t late = before_tools(messages, order);
    size_t i;
    if (order == PROMPT_ORDER_TOOLS_FIRST)
        tools(t, body);
    if (t->api == PROMPT_MESSAGES)
        system_text(t, json_object_get(body, "system"));
    json_array_foreach(messages, i, item)
    {
        if (i == late && order != PROMPT_ORDER_TOOLS_FIRST)
            tools(t, body);
        message(t, item);
    }
    if (late == json_array_size(messages) && order != PROMPT_ORDER_TOOLS_FIRST)
        tools(t, body);
}

static void text_prompt(struct tree *t, const json_t *body)
{
    json_t *p = json_object_get(body, "prompt");
    if (json_array_size(p) == 1)
        p = json_array_get(p, 0);
    if (json_is_string(p)) {
        part_begin(t, PROMPT_PART_TEXT);
        buf_append(t->out, json_string_value(p), json_string_length(p));
        part_end(t);
    } else if (json_is_object(p)) {
        t->media = true;
        part_begin(t, PROMPT_PART_MEDIA);
        value(t, p, 0);
        part_end(t);
    }
}

static void root(struct tree *t, const json_t *body)
{
    static const char *const in[] = {"model",
                                     "cache_salt",
                                     "lora",
                                     "lora_path",
                                     "tool_choice",
                                     "parallel_tool_calls",
                                     "functions",
                                     "function_call",
                                     "response_format",
                                     "json_schema",
                                     "structured_outputs",
                                     "guided_json",
                                     "guided_regex",
                                     "guided_choice",
                                     "guided_grammar",
                                     "chat_template",
                                     "chat_template_kwargs",
                                     "reasoning_effort",
                                     "reasoning",
                                     "thinking",
                                     "verbosity",
                                     "output_config",
                                     "context_management",
                                     "documents",
                                     "add_generation_prompt",
                                     "continue_final_message",
                                     "add_special_tokens",
                                     "truncate_prompt_tokens",
                                     "mm_processor_kwargs",
                                     "prompt_embeds",
                                     "suffix",
                                     NULL};
    static const char apis[] = "-ctnm";
    part_begin(t, PROMPT_PART_ROOT);
    tag(t, "A");
    buf_append_char(t->out, apis[t->api]);
    for (size_t i = 0; in[i]; i++) {
        json_t *v = json_object_get(body, in[i]);
        if (!v || json_is_null(v))
            continue;
        name_tag(t, in[i]);
        value(t, v, 0);
    }
    part_end(t);
}

/* ---- comparing --------------------------------------------------------------------- */

static bool is_true(const json_t *body, const char *key)
{
    return json_is_true(json_object_get(body, key));
}

/* Ids `from` on, against one list of them; NULL with *n moved on where they are equal. */
static const char *check_id_list(const struct prompt *p, json_t *list, size_t *n)
{
    json_t *item;
    size_t i;
    json_array_foreach(list, i, item)
    {
        if (*n >= p->n_ids || json_number_value(item) != (double)p->ids[*n])
            return "ids";
        ++*n;
    }
    return NULL;
}

static const char *check_ids(const struct prompt *p, json_t *list)
{
    const char *wrong = NULL;
    json_t *item;
    size_t i, n = 0;
    if (!json_is_array(json_array_get(list, 0))) {
        wrong = check_id_list(p, list, &n);
    } else {
        json_array_foreach(list, i, item)
        {
            wrong = wrong ? wrong : check_id_list(p, item, &n);
            if (!wrong && p->id_ends[i] != n)
                wrong = "end of a prompt of ids";
        }
    }
    return wrong ? wrong : n == p->n_ids ? NULL : "number of ids";
}

static const char *check_facts(const struct prompt *p, json_t *body)
{
    struct buf model = {0};
    json_t *m = json_object_get(body, "model");
    const json_t *slot = json_object_get(body, "id_slot");
    const bool chats = p->api == PROMPT_CHAT || p->api == PROMPT_MESSAGES;
    prompt_unescape(p->model, &model);
    const bool same = slice_eq(buf_slice(&model),
                               slice_make(json_string_value(m), json_string_length(m)));
    buf_free(&model);
    if (!same)
        return "model";
    if (p->stream != is_true(body, "stream") ||
        p->include_usage !=
            is_true(json_object_get(body, "stream_options"), "include_usage"))
        return "stream";
    if (p->has_id_slot != json_is_number(slot) ||
        (p->has_id_slot && (double)p->id_slot != json_number_value(slot)))
        return "id_slot";
    if (chats && p->n_messages != json_array_size(json_object_get(body, "messages")))
        return "number of messages";
    if (p->ids)
        return check_ids(p, json_object_get(body, "prompt"));
    return NULL;
}

static const char *check_stream(const struct prompt *p, enum prompt_order order,
                                const json_t *body)
{
    struct buf ours = {0}, normal = {0}, theirs = {0};
    struct tree t = {.out = &theirs, .api = p->api};
    record_prompt(p, order, &ours);
    normalise_numbers(buf_slice(&ours), &normal);
    root(&t, body);
    if (p->api == PROMPT_CHAT || p->api == PROMPT_MESSAGES)
        chat(&t, body, order);
    else if (p->api != PROMPT_NONE && p->bar != PROMPT_BAR_BATCH &&
             p->bar != PROMPT_BAR_MIXED && p->n_prompts == 1)
        text_prompt(&t, body);
    const bool same = slice_eq(buf_slice(&normal), buf_slice(&theirs));
    const bool media = t.media == p->has_media || p->n_prompts > 1;
    buf_free(&ours);
    buf_free(&normal);
    buf_free(&theirs);
    return !same ? "what is emitted" : media ? NULL : "has_media";
}

static const char *check_tree(const struct prompt *p, enum prompt_order order,
                              json_t *body)
{
    const char *differs = check_facts(p, body);
    return differs ? differs : check_stream(p, order, body);
}

const char *oracle_check(enum prompt_api api, enum prompt_order order, struct slice body)
{
    const size_t flags = JSON_ALLOW_NUL | JSON_DECODE_INT_AS_REAL;
    const char *differs = NULL;
    struct prompt p;
    json_error_t error, unused;
    if (prompt_scan(&p, api, body)) {
        json_t *tree = json_loadb(body.ptr, body.len, flags, &error);
        json_t *unique =
            json_loadb(body.ptr, body.len, flags | JSON_REJECT_DUPLICATES, &unused);
        if (!tree && json_error_code(&error) != json_error_numeric_overflow)
            differs = "only the scanner reads it";
        else if (unique) /* of a key that comes twice, the tree keeps one */
            differs = check_tree(&p, order, unique);
        json_decref(tree);
        json_decref(unique);
    }
    prompt_free(&p);
    return differs;
}
