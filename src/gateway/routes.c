/* SPDX-License-Identifier: MIT */
#include "gateway/routes.h"

#include "proto/http.h"

static const struct {
    const char *path;
    enum prompt_api api;
} generating[] = {
    {"/v1/chat/completions", PROMPT_CHAT},
    {"/chat/completions", PROMPT_CHAT},
    {"/v1/completions", PROMPT_COMPLETIONS},
    {"/completion", PROMPT_NATIVE},
    {"/completions", PROMPT_NATIVE},
    {"/v1/messages", PROMPT_MESSAGES},
    {"/v1/responses", PROMPT_NONE},
    {"/responses", PROMPT_NONE},
    {"/infill", PROMPT_NONE},
    {"/generate", PROMPT_NONE},
    {"/embedding", PROMPT_NONE},
    {"/embeddings", PROMPT_NONE},
    {"/v1/embeddings", PROMPT_NONE},
    {"/rerank", PROMPT_NONE},
    {"/reranking", PROMPT_NONE},
    {"/v1/rerank", PROMPT_NONE},
    {"/v1/reranking", PROMPT_NONE},
};

/* The engine's own controls: with any method, or POST only (GET /props is harmless). */
static const struct {
    const char *path;
    bool post_only;
} admin[] = {
    {"/slots", false},
    {"/lora-adapters", false},
    {"/metrics", false},
    {"/props", true},
};

static bool same(struct slice path, const char *text)
{
    return slice_eq(path, slice_of(text));
}

/* The path itself or anything below it; engines may decode "%2F" where we do not. */
static bool at_or_below(struct slice path, const char *text)
{
    const struct slice t = slice_of(text);
    return slice_starts(path, t) &&
           (path.len == t.len || path.ptr[t.len] == '/' || path.ptr[t.len] == '%');
}

struct route routes_find(struct slice method, struct slice target)
{
    struct route r = {.api = PROMPT_NONE};
    struct buf normal = {0};
    const bool is_post = slice_eq(method, SLICE_LIT("POST"));
    r.bad_path = !http_normal_path(target, &normal);
    const struct slice path = buf_slice(&normal);
    for (size_t i = 0; i < sizeof(admin) / sizeof(admin[0]); i++)
        r.refused |= at_or_below(path, admin[i].path) && (is_post || !admin[i].post_only);
    for (size_t i = 0; is_post && i < sizeof(generating) / sizeof(generating[0]); i++) {
        if (!same(path, generating[i].path))
            continue;
        r.generates = true;
        r.api = generating[i].api;
    }
    buf_free(&normal);
    return r;
}
