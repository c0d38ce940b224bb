/* SPDX-License-Identifier: MIT */

/*
 * The only loop over the members of an object. It comes back to itself through the
 * tables of fields, at most five deep, because the tables are nested that deep and no
 * further; values of free shape are skipped by the lexer, which does not recurse.
 */

#include "prompt_scan.h"

#include "base/mem.h"

#define MAX_KEYS 128 /* members of one object that matters */

bool prompt_fail(struct scan *s, const char *why, size_t at)
{
    return jlex_fail(&s->j, why, at);
}

/* Index of the new span, or SPAN_NONE where there are too many. */
uint32_t prompt_note_index(struct scan *s, uint32_t what, const struct jlex_token *t)
{
    struct prompt *p = s->p;
    if (p->n_spans == PROMPT_MAX_SPANS) {
        prompt_fail(s, "too many fields", t->start);
        return SPAN_NONE;
    }
    if (p->n_spans == p->cap_spans) {
        p->cap_spans *= 2;
        p->spans = mem_rearray(p->spans, p->cap_spans, sizeof *p->spans);
    }
    if (t->escaped)
        what |= SPAN_ESCAPED;
    p->spans[p->n_spans] = (struct prompt_span){what, s->frame, t->start, t->end};
    return (uint32_t)p->n_spans++;
}

bool prompt_note(struct scan *s, uint32_t what, const struct jlex_token *t)
{
    return prompt_note_index(s, what, t) != SPAN_NONE;
}

struct slice prompt_key_text(const struct scan *s, const struct jlex_token *t,
                             char tmp[PROMPT_KEY_ROOM])
{
    const struct slice text = jlex_text(&s->j, t, tmp, PROMPT_KEY_ROOM);
    return t->escaped && text.len > PROMPT_MAX_KEY ? slice_make(NULL, 0) : text;
}

/* FNV-1a. A collision makes a body unreadable, which costs no more than a hit. */
static uint64_t key_hash(struct slice name)
{
    uint64_t h = 0xcbf29ce484222325ULL;
    for (size_t i = 0; i < name.len; i++)
        h = (h ^ (unsigned char)name.ptr[i]) * 0x100000001b3ULL;
    return h;
}

static const struct field *field_find(const struct scan *s, const struct field *f,
                                      struct slice name)
{
    while (f->name.ptr &&
           !(slice_eq(f->name, name) && (f->apis == 0 || f->apis & 1U << s->p->api)))
        f++;
    return f;
}

/* Remembers the keys of one object; false where one comes back. */
struct keys {
    size_t n;
    uint64_t hash[MAX_KEYS];
};

static bool keys_add(struct scan *s, struct keys *keys, struct slice name)
{
    const uint64_t hash = key_hash(name);
    if (!name.ptr)
        return prompt_fail(s, "key too long", s->key.start);
    if (keys->n == MAX_KEYS)
        return prompt_fail(s, "too many keys", s->key.start);
    for (size_t i = 0; i < keys->n; i++)
        if (keys->hash[i] == hash)
            return prompt_fail(s, "duplicate key", s->key.start);
    keys->hash[keys->n++] = hash;
    return true;
}

/* Takes the members of an object whose opening brace was read. */
bool prompt_members(struct scan *s, const struct field *fields)
{
    char tmp[PROMPT_KEY_ROOM];
    struct keys keys;
    keys.n = 0;
    while (jlex_next(&s->j, &s->key) == JLEX_KEY) {
        const struct slice name = prompt_key_text(s, &s->key, tmp);
        if (!keys_add(s, &keys, name))
            return false;
        const struct field *f = field_find(s, fields, name);
        struct jlex_token value;
        if (jlex_next(&s->j, &value) == JLEX_ERROR || !f->take(s, f, &value))
            return false;
    }
    return s->key.type == JLEX_OBJECT_END;
}

/* Notes an object as a frame and takes its members. */
bool prompt_frame(struct scan *s, uint32_t what, const struct field *fields,
                  const struct jlex_token *t, uint32_t *index)
{
    const uint32_t outer = s->frame;
    if (t->type != JLEX_OBJECT)
        return prompt_fail(s, "object expected", t->start);
    *index = prompt_note_index(s, what, t);
    if (*index == SPAN_NONE)
        return false;
    s->frame = *index;
    const bool ok = prompt_members(s, fields);
    s->frame = outer;
    s->p->spans[*index].end = s->key.end;
    return ok;
}

/* ---- values of any object ---------------------------------------------------------- */

bool prompt_take_skip(struct scan *s, const struct field *f, struct jlex_token *value)
{
    (void)f;
    return jlex_skip(&s->j, value);
}

/* Any value but null, which counts as not given. */
bool prompt_take_any(struct scan *s, const struct field *f, struct jlex_token *value)
{
    if (value->type == JLEX_NULL)
        return true;
    return jlex_skip(&s->j, value) && prompt_note(s, f->what, value);
}

bool prompt_take_other(struct scan *s, const struct field *f, struct jlex_token *value)
{
    if (value->type == JLEX_NULL)
        return true;
    const struct jlex_token key = s->key;
    return prompt_note(s, SPAN_OTHER_KEY, &key) && prompt_take_any(s, f, value);
}

bool prompt_take_text(struct scan *s, const struct field *f, struct jlex_token *value)
{
    if (value->type != JLEX_STRING)
        return prompt_fail(s, "string expected", value->start);
    return prompt_note(s, f->what, value);
}

bool prompt_take_text_or_null(struct scan *s, const struct field *f,
                              struct jlex_token *value)
{
    return value->type == JLEX_NULL || prompt_take_text(s, f, value);
}

bool prompt_bool(struct scan *s, const struct jlex_token *value, bool *out)
{
    if (value->type != JLEX_TRUE && value->type != JLEX_FALSE && value->type != JLEX_NULL)
        return prompt_fail(s, "boolean expected", value->start);
    *out = value->type == JLEX_TRUE;
    return true;
}
