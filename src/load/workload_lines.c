/* SPDX-License-Identifier: MIT */

/*
 * Requests of one's own: a body, or a body in an envelope. A body stays where it lies in
 * the file; what it lacks is written behind its last member, and nothing else changes.
 */

#include "workload_parts.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/buf.h"
#include "base/mem.h"

#define MAX_TEXT 4095 /* bytes */

enum lack { LACK_MODEL = 1, LACK_STREAM = 2, LACK_USAGE = 4, LACK_LIMIT = 8, EMPTY = 16 };

struct line {
    const char *body; /* from { to } */
    uint32_t len, lacks;
    const char *path;
    const char *expect; /* NULL: anything */
};

struct lines {
    struct workload_source s;
    struct input *in;
    struct line *lines;
    char **texts; /* paths, and what is expected: those that are owned */
    size_t n_texts;
};

/* ---- reading ----------------------------------------------------------------------- */

/* A path goes into a request line as it is. */
static bool is_path(const char *path)
{
    if (path[0] != '/')
        return false;
    for (const char *p = path; *p; p++)
        if (*p <= ' ' || *p >= 0x7f || *p == '#')
            return false;
    return true;
}

/* Most lines have the path of the line before. */
static const char *keep_text(struct lines *l, char *text)
{
    for (size_t i = l->n_texts; i-- > 0 && i + 8 >= l->n_texts;)
        if (strcmp(l->texts[i], text) == 0) {
            free(text);
            return l->texts[i];
        }
    l->texts = mem_rearray(l->texts, l->n_texts + 1, sizeof(*l->texts));
    return l->texts[l->n_texts++] = text;
}

/* A copy of a string without zeros and with at most MAX_TEXT bytes, or NULL. */
static char *decode(const struct input_value *v)
{
    char tmp[MAX_TEXT + JLEX_DECODE_ROOM];
    struct jlex j;
    struct jlex_token t;
    jlex_init(&j, v->text);
    if (jlex_next(&j, &t) != JLEX_STRING)
        return NULL;
    const struct slice text = jlex_text(&j, &t, tmp, sizeof(tmp));
    const bool good = text.ptr && text.len <= MAX_TEXT && !memchr(text.ptr, 0, text.len);
    return good ? mem_dup(text.ptr, text.len) : NULL;
}

/* `v`: the value of "path" or "url". */
static int take_path(struct lines *l, const struct input_value *v, const char **out,
                     struct err *e)
{
    if (v->type != JLEX_STRING)
        return err_set(e, ERR_FORMAT, "the path is no text");
    char *copy = decode(v);
    if (!copy || !is_path(copy)) {
        err_set(e, ERR_FORMAT, "\"%s\" is no path like /v1/completions",
                copy ? copy : "…");
        free(copy);
        return ERR_FORMAT;
    }
    *out = keep_text(l, copy);
    return 0;
}

static int take_expect(struct lines *l, const struct input_value *v, const char **out,
                       struct err *e)
{
    char *copy = decode(v);
    if (!copy || !*copy) {
        free(copy);
        return err_set(e, ERR_FORMAT, "\"expect\" is a text of 1 to %d bytes", MAX_TEXT);
    }
    *out = keep_text(l, copy);
    return 0;
}

/* What is around the body; a body alone is its own. */
static int unwrap(struct lines *l, struct slice item, struct line *line,
                  struct slice *body, struct err *e)
{
    static const char *const names[] = {"body", "path", "url", "method", "expect"};
    struct input_value v[5];
    if (input_members(item, names, 5, v, e))
        return e->code;
    *body = item;
    line->path = line->expect = NULL;
    if (v[0].type != JLEX_OBJECT)
        return 0;
    *body = v[0].text;
    if (v[3].type == JLEX_STRING && !slice_eq_nocase(v[3].text, SLICE_LIT("\"POST\"")))
        return err_set(e, ERR_UNSUPPORTED, "only requests with the method POST are sent");
    if (v[4].type != JLEX_END && take_expect(l, &v[4], &line->expect, e))
        return e->code;
    if (v[1].type != JLEX_END || v[2].type != JLEX_END)
        return take_path(l, v[1].type != JLEX_END ? &v[1] : &v[2], &line->path, e);
    return 0;
}

enum { MESSAGES, PROMPT, MODEL, STREAM, OPTIONS, LIMITS, N_MEMBERS = LIMITS + 3 };

static bool has(const struct input_value *v, int member)
{
    return v[member].type != JLEX_END;
}

static uint32_t lacks(const struct workload_common *c, const char *path,
                      const struct input_value *v)
{
    const enum prompt_api api = workload_api(path);
    const bool openai = api == PROMPT_CHAT || api == PROMPT_COMPLETIONS;
    uint32_t out = 0;
    if (!has(v, MODEL) && api != PROMPT_NATIVE)
        out |= LACK_MODEL;
    if (c->stream && api != PROMPT_NONE && !has(v, STREAM)) {
        out |= LACK_STREAM;
        if (openai && !has(v, OPTIONS))
            out |= LACK_USAGE;
    }
    if (c->max_tokens && api != PROMPT_NONE && !has(v, LIMITS) && !has(v, LIMITS + 1) &&
        !has(v, LIMITS + 2))
        out |= LACK_LIMIT;
    return out;
}

/* An object without a member. */
static bool is_empty(struct slice body)
{
    size_t at = 1;
    while (strchr(" \t\r\n", body.ptr[at]))
        at++;
    return body.ptr[at] == '}';
}

static int take_line(struct lines *l, struct slice item, struct line *line, struct err *e)
{
    static const char *const names[N_MEMBERS] = {"messages",
                                                 "prompt",
                                                 "model",
                                                 "stream",
                                                 "stream_options",
                                                 "max_tokens",
                                                 "max_completion_tokens",
                                                 "n_predict"};
    struct input_value v[N_MEMBERS];
    struct slice body;
    if (unwrap(l, item, line, &body, e) || input_members(body, names, N_MEMBERS, v, e))
        return e->code;
    if (!line->path && has(v, MESSAGES))
        line->path = WORKLOAD_CHAT;
    else if (!line->path && has(v, PROMPT))
        line->path = "/v1/completions";
    if (!line->path)
        return err_set(e, ERR_FORMAT,
                       "a body has \"messages\" or \"prompt\", or a \"path\" beside it");
    line->body = body.ptr;
    line->len = (uint32_t)body.len;
    line->lacks = lacks(l->s.common, line->path, v);
    if (is_empty(body))
        line->lacks |= EMPTY;
    return 0;
}

static int read_lines(struct lines *l, struct err *e)
{
    struct slice item;
    uint64_t n = 0;
    int rc;
    while ((rc = input_next(l->in, &item, e)) > 0) {
        struct line line;
        if (n == INPUT_MAX_ITEMS)
            rc = err_set(e, ERR_LIMIT, "more than %u requests", INPUT_MAX_ITEMS);
        else
            rc = take_line(l, item, &line, e);
        if (rc)
            return input_blame(l->in, e);
        if ((n & (n - 1)) == 0) /* full at each power of two */
            l->lines = mem_rearray(l->lines, n ? 2 * n : 1, sizeof(*l->lines));
        l->lines[n++] = line;
    }
    l->s.pass = n;
    return rc;
}

/* ---- requests ---------------------------------------------------------------------- */

static void put_lacks(const struct workload_common *c, const struct line *line,
                      enum prompt_api api, struct buf *out)
{
    const char *comma = line->lacks & EMPTY ? "" : ",";
    if (line->lacks & LACK_MODEL) {
        buf_printf(out, "%s\"model\":%s", comma, c->model);
        comma = ",";
    }
    if (line->lacks & LACK_LIMIT) {
        buf_printf(out, "%s\"%s\":%u", comma,
                   api == PROMPT_NATIVE ? "n_predict" : "max_tokens", c->max_tokens);
        comma = ",";
    }
    if (line->lacks & LACK_STREAM)
        buf_printf(out, "%s\"stream\":true", comma);
    if (line->lacks & LACK_USAGE)
        buf_append_str(out, ",\"stream_options\":{\"include_usage\":true}");
}

static void make_line(const struct workload_source *s, uint64_t i, uint32_t arm,
                      struct buf *body, struct workload_request *rq)
{
    const struct lines *l = (const struct lines *)s;
    const struct line *line = &l->lines[i % s->pass];
    (void)arm;
    rq->path = line->path;
    rq->api = workload_api(line->path);
    rq->expect = line->expect;
    rq->out_tokens = line->lacks & LACK_LIMIT ? s->common->max_tokens : 0;
    buf_append(body, line->body, line->len - 1);
    put_lacks(s->common, line, rq->api, body);
    buf_append_char(body, '}');
}

static void free_lines(struct workload_source *s)
{
    struct lines *l = (struct lines *)s;
    for (size_t i = 0; i < l->n_texts; i++)
        free(l->texts[i]);
    free(l->texts);
    free(l->lines);
    input_free(l->in);
}

struct workload_source *workload_lines(const struct workload_options *o,
                                       const struct workload_common *c, struct input *in,
                                       struct err *e)
{
    struct lines *l = mem_zalloc(sizeof(*l));
    (void)o;
    l->s = (struct workload_source){.common = c, .make = make_line, .free = free_lines};
    l->in = in;
    if (read_lines(l, e)) {
        free_lines(&l->s);
        free(l);
        return NULL;
    }
    l->s.name =
        mem_printf("bodies,requests=%" PRIu64 ",sum=%08x", l->s.pass, input_sum(in));
    return &l->s;
}
