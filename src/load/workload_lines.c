/* SPDX-License-Identifier: MIT */
#include "workload_parts.h"

#include <errno.h>
#include <inttypes.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"

/* By the body's shape, where the line names none. */
static const char *path_of(const json_t *body)
{
    if (json_object_get(body, "messages"))
        return WORKLOAD_CHAT;
    return json_object_get(body, "prompt") ? "/v1/completions" : NULL;
}

/* What the body does not say: the model, and whether it is streamed. */
static void complete(json_t *body, const char *path, const struct workload_options *o)
{
    const enum prompt_api api = workload_api(path);
    if (!json_object_get(body, "model") && api != PROMPT_NATIVE)
        json_object_set_new(body, "model", json_string(o->model ? o->model : "default"));
    if (!o->stream || api == PROMPT_NONE || json_object_get(body, "stream"))
        return;
    json_object_set_new(body, "stream", json_true());
    if ((api == PROMPT_CHAT || api == PROMPT_COMPLETIONS) &&
        !json_object_get(body, "stream_options"))
        json_object_set_new(body, "stream_options",
                            json_pack("{s:b}", "include_usage", 1));
}

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

static int take_line(const struct workload_options *o, json_t *doc,
                     struct workload_line *line, struct err *e)
{
    json_t *body = json_object_get(doc, "body");
    const char *path = json_string_value(json_object_get(doc, "path"));
    const bool wrapped = json_is_object(body);
    if (!json_is_object(doc))
        return err_set(e, ERR_FORMAT, "no JSON object");
    if (!wrapped) {
        body = doc;
        path = NULL;
    }
    if (!path)
        path = path_of(body);
    if (!path)
        return err_set(e, ERR_FORMAT,
                       "a body has \"messages\" or \"prompt\", or a \"path\" beside it");
    if (!is_path(path))
        return err_set(e, ERR_FORMAT, "\"%s\" is no path like /v1/completions", path);
    complete(body, path, o);
    line->path = mem_strdup(path);
    line->body = json_dumps(body, JSON_COMPACT);
    return 0;
}

static bool is_blank(const char *text)
{
    return text[strspn(text, " \t\r\n")] == '\0';
}

static int add_line(const struct workload_options *o, const char *text, size_t len,
                    struct workload_line **lines, uint64_t *n, struct err *e)
{
    json_error_t why;
    if (is_blank(text))
        return 0;
    if (len > WORKLOAD_MAX_LINE || *n == WORKLOAD_MAX_LINES)
        return err_set(e, ERR_LIMIT, "at most %u lines of %zu bytes", WORKLOAD_MAX_LINES,
                       WORKLOAD_MAX_LINE);
    json_t *doc = json_loadb(text, len, JSON_REJECT_DUPLICATES, &why);
    if (!doc)
        return err_set(e, ERR_FORMAT, "%s", why.text);
    if ((*n & (*n - 1)) == 0) /* full at each power of two */
        *lines = mem_rearray(*lines, *n ? 2 * *n : 1, sizeof(**lines));
    const int rc = take_line(o, doc, &(*lines)[*n], e);
    *n += rc == 0;
    json_decref(doc);
    return rc;
}

int workload_lines(const struct workload_options *o, struct workload_line **lines,
                   uint64_t *n, struct err *e)
{
    char *text = NULL;
    size_t room = 0;
    uint64_t number = 0;
    int rc = 0;
    FILE *f = fopen(o->file, "re");
    if (!f)
        return err_errno(e, "%s", o->file);
    for (ssize_t len; rc == 0 && (len = getline(&text, &room, f)) >= 0;) {
        number++;
        rc = add_line(o, text, (size_t)len, lines, n, e);
    }
    if (rc)
        err_wrap(e, "%s:%" PRIu64, o->file, number);
    else if (ferror(f))
        rc = err_errno(e, "%s", o->file);
    else if (*n == 0)
        rc = err_set(e, ERR_INVALID, "%s holds no request", o->file);
    fclose(f);
    free(text);
    return rc;
}
