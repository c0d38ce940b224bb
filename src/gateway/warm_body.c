/* SPDX-License-Identifier: MIT */
#include "warm_internal.h"

/*
 * From a file to the body of a request. Its text is never written anew, only put into: a
 * template prints some of it as it stands, and clients' bodies have to agree with it.
 */

#include <stdlib.h>

#include "base/mem.h"
#include "gateway/routes.h"
#include "proto/jlex.h"

/* Where things are in a body. */
struct layout {
    size_t behind_brace;
    bool has_model, has_messages, has_system, has_prompt, has_n_predict;
    size_t messages_end; /* of the closing bracket's place */
    size_t n_messages;
    bool has_user; /* a message that is neither of system nor of developer */
};

static bool is_key(const struct jlex *j, const struct jlex_token *t, const char *name)
{
    char tmp[64];
    return slice_eq(jlex_text(j, t, tmp, sizeof(tmp)), slice_of(name));
}

/* One message, whose brace was read. */
static bool read_message(struct jlex *j, struct layout *out)
{
    struct jlex_token t;
    bool system = false;
    while (jlex_next(j, &t) == JLEX_KEY) {
        const bool role = is_key(j, &t, "role");
        jlex_next(j, &t);
        if (role && t.type == JLEX_STRING)
            system = is_key(j, &t, "system") || is_key(j, &t, "developer");
        if (!jlex_skip(j, &t))
            return false;
    }
    out->has_user |= !system;
    return t.type == JLEX_OBJECT_END;
}

static bool read_messages(struct jlex *j, struct layout *out)
{
    struct jlex_token t;
    while (jlex_next(j, &t) == JLEX_OBJECT) {
        out->n_messages++;
        if (!read_message(j, out))
            return false;
    }
    out->messages_end = t.start;
    return t.type == JLEX_ARRAY_END;
}

static bool read_members(struct jlex *j, struct layout *out)
{
    struct jlex_token t;
    while (jlex_next(j, &t) == JLEX_KEY) {
        const struct jlex_token key = t;
        jlex_next(j, &t);
        const bool given = t.type != JLEX_NULL;
        out->has_model |= given && is_key(j, &key, "model");
        out->has_system |= given && is_key(j, &key, "system");
        out->has_prompt |= given && is_key(j, &key, "prompt");
        out->has_n_predict |= given && is_key(j, &key, "n_predict");
        if (t.type == JLEX_ARRAY && is_key(j, &key, "messages")) {
            out->has_messages = true;
            if (!read_messages(j, out))
                return false;
        } else if (!jlex_skip(j, &t)) {
            return false;
        }
    }
    return t.type == JLEX_OBJECT_END && jlex_next(j, &t) == JLEX_END;
}

static int read_layout(struct slice text, struct layout *out, struct err *e)
{
    struct jlex j;
    struct jlex_token t;
    jlex_init(&j, text);
    const bool object = jlex_next(&j, &t) == JLEX_OBJECT;
    out->behind_brace = t.end;
    if (object && read_members(&j, out))
        return 0;
    return err_set(e, ERR_FORMAT,
                   "it begins as a request body and is none: %s at byte %zu",
                   j.why ? j.why : "a message is no object", j.why ? j.why_at : 0);
}

static void put_string(struct buf *out, json_t *s)
{
    char *text = json_dumps(s, JSON_ENCODE_ANY);
    buf_append_str(out, text);
    free(text);
    json_decref(s);
}

static void put_model(struct buf *out, const char *model)
{
    if (!*model)
        return;
    buf_append_str(out, "\"model\":");
    put_string(out, json_string(model));
    buf_append_char(out, ',');
}

static void put_user(struct buf *out, const char *words)
{
    buf_printf(out, "{\"role\":\"user\",\"content\":\"%s\"}", words);
}

/* The body with the model that it lacks and, where it says nothing as a user, `words`. */
static void put_body(struct buf *out, struct slice text, const struct layout *l,
                     const char *model, const char *words)
{
    size_t at = l->behind_brace;
    buf_append(out, text.ptr, at);
    if (!l->has_model)
        put_model(out, model);
    if (words) {
        buf_append(out, text.ptr + at, l->messages_end - at);
        if (l->n_messages)
            buf_append_char(out, ',');
        put_user(out, words);
        at = l->messages_end;
    }
    buf_append(out, text.ptr + at, text.len - at);
}

static const char *path_by_shape(const struct layout *l)
{
    if (l->has_messages)
        return l->has_system ? "/v1/messages" : "/v1/chat/completions";
    return l->has_n_predict ? "/completion" : "/v1/completions";
}

static int set_path(struct warm_body *b, const char *path, struct err *e)
{
    const struct route route = routes_find(SLICE_LIT("POST"), slice_of(path));
    b->path = mem_strdup(path);
    b->api = route.api;
    if (route.bad_path || route.api == PROMPT_NONE)
        return err_set(e, ERR_INVALID,
                       "the path %.100s takes no prompt that can be read: give that of a "
                       "chat, messages or completions API",
                       path);
    return 0;
}

static int from_request(struct warm_body *b, struct slice text, const char *path,
                        const char *model, struct err *e)
{
    struct layout l = {0};
    if (read_layout(text, &l, e) != 0 ||
        set_path(b, *path ? path : path_by_shape(&l), e) != 0)
        return e->code;
    const bool open = l.has_messages && !l.has_user;
    if (!l.has_messages && !l.has_prompt)
        return err_set(e, ERR_FORMAT, "the body has neither messages nor a prompt");
    put_body(&b->body, text, &l, model, open ? "" : NULL);
    if (open)
        put_body(&b->other, text, &l, model, "x");
    return 0;
}

/* The line end that editors leave at the end of a file is not part of a prompt. */
static struct slice without_last_line_end(struct slice text)
{
    if (text.len && text.ptr[text.len - 1] == '\n')
        text.len--;
    if (text.len && text.ptr[text.len - 1] == '\r')
        text.len--;
    return text;
}

static void put_system(struct buf *out, enum prompt_api api, const char *model,
                       json_t *text, const char *words)
{
    buf_append_char(out, '{');
    put_model(out, model);
    buf_append_str(out, api == PROMPT_CHAT
                            ? "\"messages\":[{\"role\":\"system\",\"content\":"
                        : api == PROMPT_MESSAGES ? "\"system\":"
                                                 : "\"prompt\":");
    put_string(out, json_incref(text));
    if (api == PROMPT_CHAT || api == PROMPT_MESSAGES) {
        buf_append_str(out, api == PROMPT_CHAT ? "}," : ",\"messages\":[");
        put_user(out, words);
        buf_append_char(out, ']');
    }
    buf_append_char(out, '}');
}

static int from_text(struct warm_body *b, struct slice text, const char *path,
                     const char *model, struct err *e)
{
    text = without_last_line_end(text);
    json_t *s = text.len ? json_stringn(text.ptr, text.len) : NULL;
    int rc = 0;
    if (!s)
        rc = err_set(e, ERR_FORMAT, "%s", text.len ? "it is not UTF-8" : "it is empty");
    else
        rc = set_path(b, *path ? path : "/v1/chat/completions", e);
    if (rc == 0) {
        put_system(&b->body, b->api, model, s, "");
        if (b->api == PROMPT_CHAT || b->api == PROMPT_MESSAGES)
            put_system(&b->other, b->api, model, s, "x");
    }
    json_decref(s);
    return rc;
}

int warm_body_make(struct warm_body *b, struct slice text, const char *path,
                   const char *model, struct err *e)
{
    size_t at = 0;
    while (at < text.len && strchr(" \t\r\n", text.ptr[at]) && text.ptr[at])
        at++;
    const bool request = at < text.len && text.ptr[at] == '{';
    return request ? from_request(b, text, path, model, e)
                   : from_text(b, text, path, model, e);
}

void warm_body_free(struct warm_body *b)
{
    free(b->path);
    buf_free(&b->body);
    buf_free(&b->other);
}
