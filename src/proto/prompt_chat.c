/* SPDX-License-Identifier: MIT */

/*
 * Messages, their parts and calls: the tables of fields, from the inside out because C
 * wants it so.
 *
 *     message_fields ─┬─ "content" ─ part_fields ─ "content" ─ inner_fields
 *                     └─ "tool_calls" ─ call_fields ─ "function" ─ function_fields
 */

#include "prompt_scan.h"

/* A part of one of these types is text, or prints as text; any other is media. */
static const struct slice text_types[] = {
    {"text", 4},     {"refusal", 7},      {"thinking", 8}, {"redacted_thinking", 17},
    {"tool_use", 8}, {"tool_result", 11},
};

static bool is_text_type(struct slice type)
{
    for (size_t i = 0; i < sizeof text_types / sizeof text_types[0]; i++)
        if (slice_eq(type, text_types[i]))
            return true;
    return false;
}

static bool take_type(struct scan *s, const struct field *f, struct jlex_token *value)
{
    char tmp[PROMPT_KEY_ROOM];
    if (value->type != JLEX_STRING)
        return prompt_fail(s, "string expected", value->start);
    s->text_type = is_text_type(prompt_key_text(s, value, tmp));
    return f->what == SPAN_NONE || prompt_note(s, f->what, value);
}

/* What a tool result holds: looked at for media, but kept as one value. */
static const struct field inner_fields[] = {
    {SLICE_LIT("type"), take_type, SPAN_NONE, 0},
    {{NULL, 0}, prompt_take_skip, 0, 0},
};

static bool scan_inner(struct scan *s, struct jlex_token *list)
{
    const bool outer = s->text_type;
    struct jlex_token t;
    while (jlex_next(&s->j, &t) != JLEX_ARRAY_END) {
        s->text_type = false;
        const bool ok = t.type == JLEX_OBJECT ? prompt_members(s, inner_fields)
                                              : jlex_skip(&s->j, &t);
        if (!ok)
            return false;
        s->media = s->media || !s->text_type;
    }
    s->text_type = outer;
    list->end = t.end;
    return true;
}

static bool take_inner(struct scan *s, const struct field *f, struct jlex_token *value)
{
    if (value->type == JLEX_ARRAY)
        return scan_inner(s, value) && prompt_note(s, f->what, value);
    return prompt_take_any(s, f, value);
}

static const struct field part_fields[] = {
    {SLICE_LIT("type"), take_type, SPAN_TYPE, 0},
    {SLICE_LIT("text"), prompt_take_text, SPAN_TEXT, 0},
    {SLICE_LIT("thinking"), prompt_take_text, SPAN_THINKING, 0},
    {SLICE_LIT("id"), prompt_take_any, SPAN_ID, 0},
    {SLICE_LIT("name"), prompt_take_any, SPAN_NAME, 0},
    {SLICE_LIT("input"), prompt_take_any, SPAN_INPUT, 0},
    {SLICE_LIT("tool_use_id"), prompt_take_any, SPAN_TOOL_USE_ID, 0},
    {SLICE_LIT("content"), take_inner, SPAN_CONTENT, 0},
    {SLICE_LIT("is_error"), prompt_take_any, SPAN_IS_ERROR, 0},
    {SLICE_LIT("signature"), prompt_take_skip, 0, 0},
    {SLICE_LIT("cache_control"), prompt_take_skip, 0, 0},
    {SLICE_LIT("prompt_cache_breakpoint"), prompt_take_skip, 0, 0},
    {{NULL, 0}, prompt_take_other, SPAN_OTHER, 0},
};

static bool scan_part(struct scan *s, const struct jlex_token *t)
{
    uint32_t part = SPAN_NONE;
    s->media = false;
    s->text_type = false; /* stays so where the part does not say what it is */
    if (!prompt_frame(s, SPAN_PART, part_fields, t, &part))
        return false;
    if (s->media || !s->text_type) {
        s->p->spans[part].what = SPAN_MEDIA;
        s->p->has_media = true;
    }
    return true;
}

/* The parts of a list whose bracket was read; `list` is stretched over all of it. */
static bool scan_parts(struct scan *s, struct jlex_token *list)
{
    struct jlex_token t;
    while (jlex_next(&s->j, &t) != JLEX_ARRAY_END)
        if (!scan_part(s, &t))
            return false;
    list->end = t.end;
    return true;
}

static bool take_content(struct scan *s, const struct field *f, struct jlex_token *value)
{
    if (value->type == JLEX_STRING || value->type == JLEX_NULL)
        return prompt_note(s, f->what, value);
    if (value->type != JLEX_ARRAY)
        return prompt_fail(s, "content expected", value->start);
    const uint32_t index = prompt_note_index(s, f->what, value);
    if (index == SPAN_NONE || !scan_parts(s, value))
        return false;
    s->p->spans[index].end = value->end;
    return true;
}

static const struct field function_fields[] = {
    {SLICE_LIT("name"), prompt_take_any, SPAN_NAME, 0},
    {SLICE_LIT("arguments"), prompt_take_any, SPAN_ARGUMENTS, 0},
    {{NULL, 0}, prompt_take_other, SPAN_OTHER, 0},
};

static bool take_function(struct scan *s, const struct field *f, struct jlex_token *value)
{
    uint32_t index;
    return value->type == JLEX_NULL ||
           prompt_frame(s, f->what, function_fields, value, &index);
}

static const struct field call_fields[] = {
    {SLICE_LIT("id"), prompt_take_any, SPAN_ID, 0},
    {SLICE_LIT("type"), prompt_take_any, SPAN_TYPE, 0},
    {SLICE_LIT("function"), take_function, SPAN_FUNCTION, 0},
    {SLICE_LIT("cache_control"), prompt_take_skip, 0, 0},
    {{NULL, 0}, prompt_take_other, SPAN_OTHER, 0},
};

/* An empty list of calls is no list: engines answer with one, and clients quote it. */
static bool take_calls(struct scan *s, const struct field *f, struct jlex_token *value)
{
    struct jlex_token t;
    uint32_t index;
    if (value->type == JLEX_NULL)
        return true;
    if (value->type != JLEX_ARRAY)
        return prompt_fail(s, "list of calls expected", value->start);
    while (jlex_next(&s->j, &t) != JLEX_ARRAY_END)
        if (!prompt_frame(s, f->what, call_fields, &t, &index))
            return false;
    return true;
}

static const struct field message_fields[] = {
    {SLICE_LIT("role"), prompt_take_text, SPAN_ROLE, 0},
    {SLICE_LIT("content"), take_content, SPAN_CONTENT, 0},
    {SLICE_LIT("name"), prompt_take_text_or_null, SPAN_NAME, 0},
    {SLICE_LIT("reasoning_content"), prompt_take_text_or_null, SPAN_REASONING, 0},
    {SLICE_LIT("tool_calls"), take_calls, SPAN_CALL, 0},
    {SLICE_LIT("tool_call_id"), prompt_take_text_or_null, SPAN_TOOL_CALL_ID, 0},
    {SLICE_LIT("refusal"), prompt_take_skip, 0, 0},
    {SLICE_LIT("annotations"), prompt_take_skip, 0, 0},
    {SLICE_LIT("cache_control"), prompt_take_skip, 0, 0},
    {{NULL, 0}, prompt_take_other, SPAN_OTHER, 0},
};

bool prompt_chat_messages(struct scan *s, const struct field *f, struct jlex_token *value)
{
    struct jlex_token t;
    uint32_t index;
    if (value->type != JLEX_ARRAY)
        return prompt_fail(s, "list of messages expected", value->start);
    while (jlex_next(&s->j, &t) != JLEX_ARRAY_END) {
        if (!prompt_frame(s, f->what, message_fields, &t, &index))
            return false;
        s->p->n_messages++;
    }
    return s->has_prompt = true;
}

/* The system text of the Messages API. */
bool prompt_chat_system(struct scan *s, const struct field *f, struct jlex_token *value)
{
    if (value->type == JLEX_NULL)
        return true;
    if (value->type != JLEX_STRING && value->type != JLEX_ARRAY)
        return prompt_fail(s, "system text expected", value->start);
    const uint32_t index = prompt_note_index(s, f->what, value);
    if (index == SPAN_NONE || value->type == JLEX_STRING)
        return index != SPAN_NONE;
    s->frame = index;
    if (!scan_parts(s, value))
        return false;
    s->frame = SPAN_NONE;
    s->p->spans[index].end = value->end;
    return true;
}
