/* SPDX-License-Identifier: MIT */
#include "gateway/inspect.h"

#include <string.h>

#include "proto/unpack.h"

#define IDS_TAG 0x80 /* a part of token ids, told apart from all parts of text */

static void emit_begin(void *ctx, enum prompt_part part)
{
    const enum pieces_kind kind = part == PROMPT_PART_ROOT    ? PIECES_ROOT
                                  : part == PROMPT_PART_MEDIA ? PIECES_MEDIA
                                                              : PIECES_TEXT;
    pieces_begin(ctx, kind, (unsigned char)part);
}

static void emit_bytes(void *ctx, const char *ptr, size_t len)
{
    pieces_bytes(ctx, ptr, len);
}

static void emit_end(void *ctx)
{
    pieces_end(ctx);
}

struct prompt_sink inspect_sink(struct pieces *pieces)
{
    return (struct prompt_sink){pieces, emit_begin, emit_bytes, emit_end};
}

static void link_job(struct inspected *in, struct job *job)
{
    job->prompt = &in->prompt;
    job->pieces = &in->pieces;
}

/* What keeps it apart from others stands in front of its text and of its blocks. */
static struct tenant find_tenant(struct inspected *in, struct job *job,
                                 const struct inspect_client *who)
{
    const struct tenant t = tenants_of(who->tenants, who->head, &in->prompt);
    job->tenant = t.shown;
    job->whose = t.whose;
    if (!hash128_none(t.name))
        buf_append(&in->kv_root, &t.name, sizeof(t.name));
    job->kv_root = buf_slice(&in->kv_root);
    return t;
}

static void begin_pieces(struct pieces *p, const struct replica *r, struct hash128 tenant)
{
    struct buf seed = {0};
    buf_append(&seed, &r->seed, sizeof(r->seed));
    if (!hash128_none(tenant))
        buf_append(&seed, &tenant, sizeof(tenant));
    pieces_init(p, cache_key(r->cache), buf_slice(&seed));
    buf_free(&seed);
}

/* ---- public starts ----------------------------------------------------------------- */

/* Hands on what so many pieces need. */
struct start_only {
    struct pieces *pieces;
    size_t most;
    bool over;
};

static void start_begin(void *ctx, enum prompt_part part)
{
    struct start_only *s = ctx;
    s->over |= s->pieces->n >= s->most;
    if (!s->over)
        emit_begin(s->pieces, part);
}

static void start_bytes(void *ctx, const char *ptr, size_t len)
{
    struct start_only *s = ctx;
    if (!s->over && s->pieces->n < s->most)
        pieces_bytes(s->pieces, ptr, len);
}

static void start_end(void *ctx)
{
    struct start_only *s = ctx;
    if (!s->over)
        pieces_end(s->pieces);
}

/* A prompt of a tenant may begin with what was pinned for all: its pieces so far, made as
 * of those who show nothing, find that. */
static void add_public(struct inspected *in, struct job *job, const struct replica *r,
                       const struct tenants *tenants, const struct tenant *t)
{
    struct start_only start = {&in->public, cache_public_pieces(r->cache, r->seed),
                               false};
    const struct prompt_sink sink = {&start, start_begin, start_bytes, start_end};
    if (!start.most || t->salted)
        return;
    const struct hash128 nobody = tenants_nobody(tenants);
    if (hash128_eq(t->name, nobody))
        return;
    begin_pieces(&in->public, r, nobody);
    prompt_emit(&in->prompt, r->order, &sink);
    job->public = &in->public;
}

/* ---- bodies ------------------------------------------------------------------------ */

void inspect_unreadable(struct inspected *in, struct job *job,
                        const struct inspect_client *who, const char *why)
{
    link_job(in, job);
    find_tenant(in, job, who);
    job->public = NULL;
    in->prompt.n = 1;
    in->prompt.bar = PROMPT_BAR_UNREADABLE;
    in->prompt.why = why;
}

void inspect_forget(struct inspected *in, struct job *job,
                    const struct inspect_client *who, const char *why)
{
    inspect_free(in);
    job->cacheable = false;
    job->n_prompt_pieces = 0;
    inspect_unreadable(in, job, who, why);
}

void inspect_pieces(const struct prompt *p, enum prompt_order order,
                    struct pieces *pieces)
{
    const struct prompt_sink sink = inspect_sink(pieces);
    prompt_emit(p, order, &sink);
    if (!p->n_ids)
        return;
    pieces_begin(pieces, PIECES_TEXT, IDS_TAG);
    pieces_bytes(pieces, (const char *)p->ids, p->n_ids * sizeof(*p->ids));
    pieces_end(pieces);
}

void inspect_body(struct inspected *in, struct job *job, const struct replica *r,
                  const struct inspect_client *who, enum prompt_api api,
                  struct slice body)
{
    link_job(in, job);
    job->seed = r->seed;
    job->text_bytes = body.len;
    const bool readable = prompt_scan(&in->prompt, api, body);
    const struct tenant t = find_tenant(in, job, who);
    begin_pieces(&in->pieces, r, t.name);
    if (!readable)
        return;
    job->cacheable = in->prompt.bar == PROMPT_BAR_NONE;
    prompt_kv_root(&in->prompt, &in->kv_root);
    job->kv_root = buf_slice(&in->kv_root);
    inspect_pieces(&in->prompt, r->order, &in->pieces);
    job->n_prompt_pieces = in->pieces.n;
    if (in->pieces.n)
        job->text_bytes = in->pieces.v[in->pieces.n - 1].end_bytes;
    if (job->cacheable)
        add_public(in, job, r, who->tenants, &t);
}

/* Several answers need every slot, which the engine would have to be told in the body. */
static bool wants_changes(const struct prompt *p)
{
    return p->bar != PROMPT_BAR_UNREADABLE && p->n > 1;
}

void inspect_packed(struct inspected *in, struct job *job, const struct replica *r,
                    const struct inspect_client *who, enum prompt_api api,
                    struct slice body, size_t max_bytes)
{
    const struct slice coding = http_head_get(who->head, SLICE_LIT("Content-Encoding"));
    const enum unpack_coding c = unpack_coding(coding);
    const char *why = c == UNPACK_UNKNOWN ? "packed body: unknown coding"
                                          : unpack(&in->unpacked, c, body, max_bytes);
    job->packed = true;
    if (!why) {
        inspect_body(in, job, r, who, api, buf_slice(&in->unpacked));
        why = wants_changes(&in->prompt) ? "packed body: several answers" : NULL;
        if (why) {
            job->cacheable = false;
            in->prompt.n = 1;
            in->prompt.bar = PROMPT_BAR_UNREADABLE;
            in->prompt.why = why;
        }
    } else {
        inspect_unreadable(in, job, who, why);
    }
}

void inspect_answer(struct inspected *in, const struct prompt_answer *text)
{
    const struct prompt_sink sink = inspect_sink(&in->pieces);
    const enum prompt_api api = in->prompt.api;
    if (!text || !in->pieces.n)
        return;
    if (api == PROMPT_CHAT || api == PROMPT_MESSAGES) {
        prompt_emit_answer(api, text, &sink);
    } else if (text->content.ptr && !in->prompt.n_ids) {
        pieces_reopen(&in->pieces);
        pieces_bytes(&in->pieces, text->content.ptr, text->content.len);
        pieces_end(&in->pieces);
    }
}

uint64_t inspect_held(const struct inspected *in)
{
    return prompt_held(&in->prompt) + pieces_held(&in->pieces) +
           pieces_held(&in->public) + buf_held(&in->kv_root) + buf_held(&in->unpacked);
}

void inspect_free(struct inspected *in)
{
    prompt_free(&in->prompt);
    pieces_free(&in->pieces);
    pieces_free(&in->public);
    buf_free(&in->kv_root);
    buf_free(&in->unpacked);
}
