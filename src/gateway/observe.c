/* SPDX-License-Identifier: MIT */
#include "gateway/observe.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "gateway/inspect.h"
#include "gateway/routes.h"
#include "gateway/stats.h"
#include "prefix/chain.h"
#include "proto/prompt.h"

/* ---- the report -------------------------------------------------------------------- */

static json_t *size_json(const struct outlook_figures *f, const struct outlook_size *s,
                         uint64_t token_bytes)
{
    const double all = f->prompt_tokens > 0 ? f->prompt_tokens : (double)NAN;
    json_t *o = json_pack(
        "{s:o,s:o,s:o,s:o,s:o,s:o}", "tokens", stats_real(s->tokens), "reused_tokens",
        stats_real(s->reused_tokens), "reused_share", stats_real(s->reused_tokens / all),
        "saved_ms", stats_real(s->saved_ms), "low", stats_real(s->saved_ms - s->half),
        "high", stats_real(s->saved_ms + s->half));
    json_object_set_new(o, "bytes",
                        token_bytes ? json_real(s->tokens * (double)token_bytes)
                                    : json_null());
    return o;
}

/* Sizes beyond the first one that holds all that was seen say nothing more. */
static json_t *sizes_json(const struct outlook_figures *f, uint64_t token_bytes)
{
    json_t *sizes = json_array();
    for (int k = 0; k < OUTLOOK_SIZES; k++) {
        json_array_append_new(sizes, size_json(f, &f->sizes[k], token_bytes));
        if (f->sizes[k].tokens >= f->distinct_tokens)
            break;
    }
    return sizes;
}

json_t *observe_json(struct outlook *o, uint64_t token_bytes)
{
    struct outlook_figures f;
    outlook_figures(o, &f);
    json_t *lost = json_object();
    for (int c = 0; c < OUTLOOK_CAUSE_KINDS; c++)
        json_object_set_new(lost, outlook_cause_name((enum outlook_cause)c),
                            json_real(f.lost[c]));
    return json_pack(
        "{s:I,s:I,s:I,s:f,s:f,s:o,s:f,s:o,s:o,s:o}", "requests", (json_int_t)f.requests,
        "counted", (json_int_t)f.counted, "timed", (json_int_t)f.timed, "prompt_tokens",
        f.prompt_tokens, "engine_reused_tokens", f.engine_tokens, "engine_reused_share",
        f.counted ? stats_real(f.engine_tokens / f.counted_tokens) : json_null(),
        "distinct_tokens", f.distinct_tokens, "token_bytes",
        token_bytes ? json_integer((json_int_t)token_bytes) : json_null(), "lost_tokens",
        lost, "sizes", sizes_json(&f, token_bytes));
}

/* ---- a file ------------------------------------------------------------------------ */

static double number_of(json_t *line, const char *key)
{
    json_t *v = json_object_get(line, key);
    return json_is_number(v) ? json_number_value(v) : -1;
}

/* False where it is no prompt, or one that takes no part. */
static bool add_body(struct outlook *o, json_t *line, enum prompt_api api,
                     struct slice body, const struct chain_key *key)
{
    struct prompt p = {.n = 1};
    struct pieces pieces;
    const bool fine =
        prompt_scan(&p, api, body) && p.bar == PROMPT_BAR_NONE && api != PROMPT_NONE;
    if (fine) {
        pieces_init(&pieces, key, (struct slice){"", 0});
        inspect_pieces(&p, PROMPT_ORDER_SYSTEM_FIRST, &pieces);
        const double bytes = pieces.n ? (double)pieces.v[pieces.n - 1].end_bytes : 0;
        const double told = number_of(line, "prompt_tokens");
        const struct outlook_request rq = {
            .v = pieces.v,
            .n = pieces.n,
            .n_prompt = pieces.n,
            .prompt_tokens = told >= 1 ? told : bytes / OBSERVE_TOKEN_BYTES,
            .cached_tokens = number_of(line, "cached_tokens"),
            .ttft_ms = number_of(line, "ttft_ms")};
        outlook_add(o, &rq);
        pieces_free(&pieces);
    }
    prompt_free(&p);
    return fine;
}

static enum prompt_api api_of(json_t *line, json_t *body)
{
    const char *path = json_string_value(json_object_get(line, "path"));
    if (path)
        return routes_find(SLICE_LIT("POST"), slice_of(path)).api;
    return json_object_get(body, "messages") ? PROMPT_CHAT : PROMPT_COMPLETIONS;
}

static int add_line(struct outlook *o, const char *text, size_t len, uint64_t *skipped,
                    const struct chain_key *key, struct err *e)
{
    json_error_t why;
    json_t *line = json_loadb(text, len, 0, &why);
    json_t *inner = json_object_get(line, "body");
    json_t *body = inner ? inner : line;
    if (!json_is_object(line) || !json_is_object(body)) {
        err_set(e, ERR_FORMAT, "no request body: %s", line ? "no object" : why.text);
        json_decref(line);
        return e->code;
    }
    char *bytes = inner ? json_dumps(inner, JSON_COMPACT) : NULL;
    const struct slice s = bytes ? slice_of(bytes) : slice_make(text, len);
    *skipped += !add_body(o, line, api_of(line, body), s, key);
    free(bytes);
    json_decref(line);
    return 0;
}

int observe_file(struct outlook *o, const char *path, uint64_t *skipped, struct err *e)
{
    static const unsigned char secret[CHAIN_KEY_BYTES] = "for one report";
    struct chain_key key;
    char *text = NULL;
    size_t size = 0, number = 0;
    ssize_t len;
    int rc = 0;
    FILE *f = strcmp(path, "-") == 0 ? stdin : fopen(path, "re");
    if (!f)
        return err_errno(e, "opening %s", path);
    chain_key_init(&key, secret);
    while (rc == 0 && (len = getline(&text, &size, f)) >= 0) {
        number++;
        if (strspn(text, " \t\r\n") < (size_t)len)
            rc = add_line(o, text, (size_t)len, skipped, &key, e);
        if (rc)
            err_wrap(e, "%s, line %zu", path, number);
    }
    if (rc == 0 && ferror(f))
        rc = err_errno(e, "reading %s", path);
    free(text);
    if (f != stdin)
        fclose(f);
    return rc;
}
