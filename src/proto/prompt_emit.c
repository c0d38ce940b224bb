/* SPDX-License-Identifier: MIT */

/*
 * The walk over the spans in canonical order. Everything that reaches the sink is a
 * sequence of tokens, each 0xFF, a letter and perhaps text, so that no two different
 * sequences have the same bytes:
 *
 *     values   s text   n number   t true   f false   z null   { k key … }   [ … ]
 *     root     A api    k name value …
 *     message  R role   N name     C content   H reasoning   ( call ) …   I call id
 *              k name value …                  (all other members, as they stand)
 *     content  a value, or [ part … ]
 *     part     P type   T text   H thinking   i id   N name   u input   w call id
 *              c result   e is error   k name value …
 *     call     i id   y type   < N name  a arguments  k name value … >   k name value …
 *
 * The prompts of the completion APIs are the exception: their text stands alone, so that
 * the answer can be appended to it.
 *
 * Long runs of a body go to the sink as they lie there; short ones and decoded text are
 * gathered first, because the sink is called through a pointer.
 */

#include "prompt_spans.h"

#include <assert.h>

#include "proto/jlex.h"

#define GATHER 4096
#define PASS_ON 512 /* runs from here on are not worth copying */
#define MAX_ROOT_FIELDS 64

struct emit {
    const struct prompt *p; /* NULL while an answer is emitted */
    const struct prompt_sink *sink;
    size_t n;
    char buf[GATHER];
};

struct row {
    uint32_t what;
    char tag;
};

/* ---- bytes and tokens -------------------------------------------------------------- */

static void flush(struct emit *e)
{
    if (e->n)
        e->sink->bytes(e->sink->ctx, e->buf, e->n);
    e->n = 0;
}

static void begin(struct emit *e, enum prompt_part part)
{
    e->sink->begin(e->sink->ctx, part);
}

static void end(struct emit *e)
{
    flush(e);
    e->sink->end(e->sink->ctx);
}

static void put(struct emit *e, struct slice s)
{
    if (s.len >= PASS_ON) {
        flush(e);
        e->sink->bytes(e->sink->ctx, s.ptr, s.len);
        return;
    }
    if (s.len > GATHER - e->n)
        flush(e);
    if (s.len)
        memcpy(e->buf + e->n, s.ptr, s.len);
    e->n += s.len;
}

static void put_tag(struct emit *e, char tag)
{
    const char token[2] = {'\xFF', tag};
    put(e, slice_make(token, 2));
}

static void put_escaped(struct emit *e, struct slice inside)
{
    while (inside.len) {
        if (GATHER - e->n < JLEX_DECODE_ROOM)
            flush(e);
        e->n += jlex_decode(&inside, e->buf + e->n, GATHER - e->n);
    }
}

static void put_inside(struct emit *e, struct slice inside, bool escaped)
{
    if (escaped)
        put_escaped(e, inside);
    else
        put(e, inside);
}

/* A string that is decoded already. */
static void put_text(struct emit *e, struct slice text)
{
    put_tag(e, 's');
    put(e, text);
}

/* ---- values of free shape ---------------------------------------------------------- */

static bool is_mark(const struct jlex *j, const struct jlex_token *key)
{
    char tmp[64];
    const struct slice name = jlex_text(j, key, tmp, sizeof tmp);
    return slice_eq(name, SLICE_LIT("cache_control")) ||
           slice_eq(name, SLICE_LIT("prompt_cache_breakpoint"));
}

static void emit_token(struct emit *e, const struct jlex *j, const struct jlex_token *t)
{
    static const char tags[] = {
        [JLEX_OBJECT] = '{',    [JLEX_OBJECT_END] = '}', [JLEX_ARRAY] = '[',
        [JLEX_ARRAY_END] = ']', [JLEX_KEY] = 'k',        [JLEX_STRING] = 's',
        [JLEX_NUMBER] = 'n',    [JLEX_TRUE] = 't',       [JLEX_FALSE] = 'f',
        [JLEX_NULL] = 'z',
    };
    put_tag(e, tags[t->type]);
    if (t->type == JLEX_KEY || t->type == JLEX_STRING || t->type == JLEX_NUMBER)
        put_inside(e, jlex_raw(j, t), t->escaped);
}

/*
 * Tokens in the order of the body. Cache marks are left out of the objects at
 * `mark_level` (0: kept everywhere), where they are marks and not somebody's own data.
 */
static void emit_tokens(struct emit *e, struct slice value, unsigned mark_level)
{
    struct jlex j;
    struct jlex_token t;
    jlex_init(&j, value);
    while (jlex_next(&j, &t) != JLEX_END) {
        assert(t.type != JLEX_ERROR); /* the scan has read it */
        if (t.type == JLEX_KEY && j.depth == mark_level && is_mark(&j, &t)) {
            jlex_next(&j, &t);
            jlex_skip(&j, &t);
            continue;
        }
        emit_token(e, &j, &t);
    }
}

/* ---- spans ------------------------------------------------------------------------- */

static struct slice span_text(const struct emit *e, const struct prompt_span *s)
{
    return slice_make(e->p->body.ptr + s->start, s->end - s->start);
}

static bool span_is_string(const struct emit *e, const struct prompt_span *s)
{
    return e->p->body.ptr[s->start] == '"';
}

static bool span_is_list(const struct emit *e, const struct prompt_span *s)
{
    return e->p->body.ptr[s->start] == '[';
}

/* Of a string: the text between the quotes. */
static struct slice span_inside(const struct emit *e, const struct prompt_span *s)
{
    assert(span_is_string(e, s));
    return slice_make(e->p->body.ptr + s->start + 1, s->end - s->start - 2);
}

static bool span_escaped(const struct prompt_span *s)
{
    return s->what & SPAN_ESCAPED;
}

static void emit_string(struct emit *e, const struct prompt_span *s)
{
    put_tag(e, 's');
    put_inside(e, span_inside(e, s), span_escaped(s));
}

static void emit_value(struct emit *e, const struct prompt_span *s, unsigned mark_level)
{
    if (span_is_string(e, s))
        emit_string(e, s);
    else
        emit_tokens(e, span_text(e, s), mark_level);
}

/* The first span after `from` that belongs to `owner` and is a `what`; NULL: none. */
static const struct prompt_span *span_next(const struct emit *e, uint32_t owner,
                                           const struct prompt_span *from, uint32_t what)
{
    const struct prompt_span *spans = e->p->spans;
    const struct prompt_span *stop = spans + e->p->n_spans;
    const size_t limit = owner == SPAN_NONE ? SIZE_MAX : spans[owner].end;
    for (const struct prompt_span *s = from; s < stop && s->start < limit; s++)
        if (s->owner == owner && SPAN_WHAT(s) == what)
            return s;
    return NULL;
}

static uint32_t span_index(const struct emit *e, const struct prompt_span *s)
{
    return (uint32_t)(s - e->p->spans);
}

static const struct prompt_span *member(const struct emit *e, uint32_t frame,
                                        uint32_t what)
{
    return span_next(e, frame, e->p->spans + frame + 1, what);
}

static const struct prompt_span *top(const struct emit *e, uint32_t what)
{
    return span_next(e, SPAN_NONE, e->p->spans, what);
}

static void emit_row(struct emit *e, uint32_t frame, struct row row)
{
    const struct prompt_span *s = member(e, frame, row.what);
    if (!s)
        return;
    put_tag(e, row.tag);
    /* The parts inside a tool result are the only list here, and may carry marks. */
    emit_value(e, s, row.what == SPAN_CONTENT && span_is_list(e, s) ? 2 : 0);
}

static void emit_rows(struct emit *e, uint32_t frame, const struct row *rows, size_t n)
{
    for (size_t i = 0; i < n; i++)
        emit_row(e, frame, rows[i]);
}

/* Members without a row, as they stand. */
static void emit_others(struct emit *e, uint32_t frame)
{
    const struct prompt_span *s = e->p->spans + frame + 1;
    while ((s = span_next(e, frame, s, SPAN_OTHER_KEY)) != NULL) {
        put_tag(e, 'k');
        put_inside(e, span_inside(e, s), span_escaped(s));
        s++;
        assert(SPAN_WHAT(s) == SPAN_OTHER);
        emit_value(e, s, 0);
    }
}

#define EMIT_ROWS(e, frame, rows)                                                        \
    emit_rows(e, frame, rows, sizeof(rows) / sizeof(rows)[0])

/* ---- messages ---------------------------------------------------------------------- */

static const struct row part_rows[] = {
    {SPAN_TYPE, 'P'},        {SPAN_TEXT, 'T'},    {SPAN_THINKING, 'H'},
    {SPAN_ID, 'i'},          {SPAN_NAME, 'N'},    {SPAN_INPUT, 'u'},
    {SPAN_TOOL_USE_ID, 'w'}, {SPAN_CONTENT, 'c'}, {SPAN_IS_ERROR, 'e'},
};

static void emit_part(struct emit *e, const struct prompt_span *s)
{
    const bool media = SPAN_WHAT(s) == SPAN_MEDIA;
    if (media) {
        end(e);
        begin(e, PROMPT_PART_MEDIA);
    }
    EMIT_ROWS(e, span_index(e, s), part_rows);
    emit_others(e, span_index(e, s));
    if (media) {
        end(e);
        begin(e, PROMPT_PART_MESSAGE);
    }
}

static bool is_part(const struct prompt_span *s, uint32_t owner)
{
    return s->owner == owner && (SPAN_WHAT(s) == SPAN_PART || SPAN_WHAT(s) == SPAN_MEDIA);
}

static void emit_parts(struct emit *e, uint32_t owner)
{
    const struct prompt_span *frame = e->p->spans + owner;
    const struct prompt_span *stop = e->p->spans + e->p->n_spans;
    put_tag(e, 'C');
    put_tag(e, '[');
    for (const struct prompt_span *s = frame + 1; s < stop && s->start < frame->end; s++)
        if (is_part(s, owner))
            emit_part(e, s);
    put_tag(e, ']');
}

/* The tags of a text part; its text follows. */
static void open_text_part(struct emit *e)
{
    put_tag(e, 'P');
    put_text(e, SLICE_LIT("text"));
    put_tag(e, 'T');
}

/* The Messages API lets a string stand for one text part. */
static void emit_string_as_part(struct emit *e, const struct prompt_span *s)
{
    put_tag(e, 'C');
    put_tag(e, '[');
    open_text_part(e);
    emit_string(e, s);
    put_tag(e, ']');
}

static void emit_content(struct emit *e, uint32_t message, bool has_calls)
{
    const struct prompt_span *s = member(e, message, SPAN_CONTENT);
    if (!s)
        return;
    if (span_is_list(e, s)) {
        emit_parts(e, message);
        return;
    }
    /* Beside calls, clients write no content as null or "" as they please. */
    if (has_calls && (!span_is_string(e, s) || span_inside(e, s).len == 0))
        return;
    if (e->p->api == PROMPT_MESSAGES && span_is_string(e, s)) {
        emit_string_as_part(e, s);
        return;
    }
    put_tag(e, 'C');
    emit_value(e, s, 0);
}

static const struct row call_rows[] = {{SPAN_ID, 'i'}, {SPAN_TYPE, 'y'}};
static const struct row function_rows[] = {{SPAN_NAME, 'N'}, {SPAN_ARGUMENTS, 'a'}};

static void emit_call(struct emit *e, uint32_t call)
{
    const struct prompt_span *function = member(e, call, SPAN_FUNCTION);
    put_tag(e, '(');
    EMIT_ROWS(e, call, call_rows);
    if (function) {
        put_tag(e, '<');
        EMIT_ROWS(e, span_index(e, function), function_rows);
        emit_others(e, span_index(e, function));
        put_tag(e, '>');
    }
    emit_others(e, call);
    put_tag(e, ')');
}

static void emit_calls(struct emit *e, uint32_t message)
{
    const struct prompt_span *s = e->p->spans + message + 1;
    for (; (s = span_next(e, message, s, SPAN_CALL)) != NULL; s++)
        emit_call(e, span_index(e, s));
}

static void emit_message(struct emit *e, uint32_t message)
{
    begin(e, PROMPT_PART_MESSAGE);
    emit_row(e, message, (struct row){SPAN_ROLE, 'R'});
    emit_row(e, message, (struct row){SPAN_NAME, 'N'});
    emit_content(e, message, member(e, message, SPAN_CALL) != NULL);
    emit_row(e, message, (struct row){SPAN_REASONING, 'H'});
    emit_calls(e, message);
    emit_row(e, message, (struct row){SPAN_TOOL_CALL_ID, 'I'});
    emit_others(e, message);
    end(e);
}

/* ---- the order of the template ----------------------------------------------------- */

static bool role_is(const struct emit *e, const struct prompt_span *message,
                    struct slice role)
{
    char tmp[128];
    const struct prompt_span *s = member(e, span_index(e, message), SPAN_ROLE);
    if (!s)
        return false;
    struct slice inside = span_inside(e, s);
    if (!span_escaped(s))
        return slice_eq(inside, role);
    const size_t n = jlex_decode(&inside, tmp, sizeof tmp);
    return inside.len == 0 && slice_eq(slice_make(tmp, n), role);
}

static bool is_system(const struct emit *e, const struct prompt_span *message)
{
    return role_is(e, message, SLICE_LIT("system")) ||
           role_is(e, message, SLICE_LIT("developer"));
}

/* The first message behind the tools; NULL where all are before them. */
static const struct prompt_span *tools_before(const struct emit *e,
                                              enum prompt_order order)
{
    const struct prompt_span *s = top(e, SPAN_MESSAGE), *last_user = NULL;
    if (order == PROMPT_ORDER_TOOLS_FIRST)
        return s;
    for (; s; s = span_next(e, SPAN_NONE, s + 1, SPAN_MESSAGE)) {
        if (order == PROMPT_ORDER_SYSTEM_FIRST && !is_system(e, s))
            return s;
        if (role_is(e, s, SLICE_LIT("user")))
            last_user = s;
    }
    return last_user;
}

static void emit_system(struct emit *e)
{
    const struct prompt_span *s = top(e, SPAN_SYSTEM);
    const struct prompt_span *stop = e->p->spans + e->p->n_spans;
    if (!s)
        return;
    const uint32_t owner = span_index(e, s);
    const size_t limit = s->end;
    const bool whole = span_is_string(e, s);
    for (s += !whole; s < stop && s->start < limit; s++) {
        if (!whole && !is_part(s, owner))
            continue;
        begin(e, PROMPT_PART_MESSAGE);
        put_tag(e, 'R');
        put_text(e, SLICE_LIT("system"));
        if (whole) {
            emit_string_as_part(e, s);
        } else {
            put_tag(e, 'C');
            put_tag(e, '[');
            emit_part(e, s);
            put_tag(e, ']');
        }
        end(e);
    }
}

static void emit_tools(struct emit *e)
{
    const struct prompt_span *s = top(e, SPAN_TOOLS);
    if (!s)
        return;
    begin(e, PROMPT_PART_TOOLS);
    emit_tokens(e, span_text(e, s), 2);
    end(e);
}

static void emit_chat(struct emit *e, enum prompt_order order)
{
    const struct prompt_span *late = tools_before(e, order);
    const struct prompt_span *s = top(e, SPAN_MESSAGE);
    if (order == PROMPT_ORDER_TOOLS_FIRST)
        emit_tools(e);
    emit_system(e);
    for (; s && s != late; s = span_next(e, SPAN_NONE, s + 1, SPAN_MESSAGE))
        emit_message(e, span_index(e, s));
    if (order != PROMPT_ORDER_TOOLS_FIRST)
        emit_tools(e);
    for (; s; s = span_next(e, SPAN_NONE, s + 1, SPAN_MESSAGE))
        emit_message(e, span_index(e, s));
}

static void emit_prompt(struct emit *e)
{
    const struct prompt_span *s = top(e, SPAN_PROMPT);
    if (!s)
        return;
    if (span_is_string(e, s)) {
        begin(e, PROMPT_PART_TEXT);
        put_inside(e, span_inside(e, s), span_escaped(s));
    } else {
        begin(e, PROMPT_PART_MEDIA);
        emit_tokens(e, span_text(e, s), 0);
    }
    end(e);
}

/* The options with all of `flags`, in the order of their table. */
static void emit_options(struct emit *e, unsigned flags)
{
    const struct prompt_span *found[MAX_ROOT_FIELDS] = {NULL};
    assert(prompt_root_n_fields <= MAX_ROOT_FIELDS);
    for (size_t i = 0; i < e->p->n_spans; i++)
        if (SPAN_WHAT(&e->p->spans[i]) >= SPAN_ROOT)
            found[SPAN_WHAT(&e->p->spans[i]) - SPAN_ROOT] = &e->p->spans[i];
    for (size_t i = 0; i < prompt_root_n_fields; i++) {
        const struct prompt_root_field *f = &prompt_root_fields[i];
        if (!found[i] || (f->flags & flags) != flags)
            continue;
        put_tag(e, 'k');
        put(e, f->name);
        emit_value(e, found[i], 0);
    }
}

static void emit_root(struct emit *e)
{
    static const char apis[][2] = {[PROMPT_NONE] = "-",
                                   [PROMPT_CHAT] = "c",
                                   [PROMPT_COMPLETIONS] = "t",
                                   [PROMPT_NATIVE] = "n",
                                   [PROMPT_MESSAGES] = "m"};
    begin(e, PROMPT_PART_ROOT);
    put_tag(e, 'A');
    put(e, slice_of(apis[e->p->api]));
    emit_options(e, 0);
    end(e);
}

void prompt_emit(const struct prompt *p, enum prompt_order order,
                 const struct prompt_sink *sink)
{
    struct emit e;
    assert(p->bar != PROMPT_BAR_UNREADABLE);
    e.p = p;
    e.sink = sink;
    e.n = 0;
    emit_root(&e);
    emit_chat(&e, order);
    emit_prompt(&e);
}

void prompt_emit_kv(const struct prompt *p, const struct prompt_sink *sink)
{
    struct emit e;
    e.p = p;
    e.sink = sink;
    e.n = 0;
    if (p->bar != PROMPT_BAR_UNREADABLE)
        emit_options(&e, ROOT_KV);
    flush(&e);
}

/* ---- answers ----------------------------------------------------------------------- */

/* Arguments that are JSON become its tokens, as they will when they come back. */
static void emit_input(struct emit *e, struct slice arguments)
{
    struct jlex j;
    struct jlex_token t;
    jlex_init(&j, arguments);
    while (jlex_next(&j, &t) != JLEX_ERROR && t.type != JLEX_END)
        ;
    if (t.type == JLEX_END)
        emit_tokens(e, arguments, 0);
    else if (arguments.len == 0)
        emit_tokens(e, SLICE_LIT("{}"), 0);
    else
        put_text(e, arguments);
}

static void answer_messages(struct emit *e, const struct prompt_answer *a)
{
    put_tag(e, 'C');
    put_tag(e, '[');
    if (a->reasoning.ptr) {
        put_tag(e, 'P');
        put_text(e, SLICE_LIT("thinking"));
        put_tag(e, 'H');
        put_text(e, a->reasoning);
    }
    if (a->content.len) {
        open_text_part(e);
        put_text(e, a->content);
    }
    for (size_t i = 0; i < a->n_calls; i++) {
        put_tag(e, 'P');
        put_text(e, SLICE_LIT("tool_use"));
        put_tag(e, 'i');
        put_text(e, a->calls[i].id);
        put_tag(e, 'N');
        put_text(e, a->calls[i].name);
        put_tag(e, 'u');
        emit_input(e, a->calls[i].arguments);
    }
    put_tag(e, ']');
}

static void answer_call(struct emit *e, const struct prompt_tool_call *call)
{
    put_tag(e, '(');
    put_tag(e, 'i');
    put_text(e, call->id);
    put_tag(e, 'y');
    put_text(e, SLICE_LIT("function"));
    put_tag(e, '<');
    put_tag(e, 'N');
    put_text(e, call->name);
    put_tag(e, 'a');
    put_text(e, call->arguments);
    put_tag(e, '>');
    put_tag(e, ')');
}

static void answer_chat(struct emit *e, const struct prompt_answer *a)
{
    if (a->content.len || (a->content.ptr && a->n_calls == 0)) {
        put_tag(e, 'C');
        put_text(e, a->content);
    } else if (a->n_calls == 0) {
        put_tag(e, 'C');
        put_tag(e, 'z');
    }
    if (a->reasoning.ptr) {
        put_tag(e, 'H');
        put_text(e, a->reasoning);
    }
    for (size_t i = 0; i < a->n_calls; i++)
        answer_call(e, &a->calls[i]);
}

void prompt_emit_answer(enum prompt_api api, const struct prompt_answer *answer,
                        const struct prompt_sink *sink)
{
    struct emit e;
    e.p = NULL;
    e.sink = sink;
    e.n = 0;
    if (api == PROMPT_COMPLETIONS || api == PROMPT_NATIVE) {
        begin(&e, PROMPT_PART_TEXT);
        put(&e, answer->content);
        end(&e);
        return;
    }
    begin(&e, PROMPT_PART_MESSAGE);
    put_tag(&e, 'R');
    put_text(&e, SLICE_LIT("assistant"));
    if (api == PROMPT_MESSAGES)
        answer_messages(&e, answer);
    else
        answer_chat(&e, answer);
    end(&e);
}
