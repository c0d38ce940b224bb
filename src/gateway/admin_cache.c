/* SPDX-License-Identifier: MIT */
#include "gateway/admin.h"

/*
 * What changes the cache: POST on the admin listener, one row an action. What it is about
 * is in the query (`?name=support`), a prompt in the body.
 */

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"

struct action {
    const char *path, *does;
    void (*run)(const struct admin_world *w, struct front_request *rq);
};

/* ---- the question ------------------------------------------------------------------ */

static int hex_of(char c)
{
    static const char digits[] = "0123456789abcdefABCDEF";
    const char *at = c ? strchr(digits, c) : NULL;
    return !at ? -1 : at - digits < 16 ? (int)(at - digits) : (int)(at - digits) - 6;
}

/* Resolves %XX. Control characters are in no name and no path. */
static bool decode(struct slice in, struct buf *out)
{
    for (size_t i = 0; i < in.len; i++) {
        int c = (unsigned char)in.ptr[i];
        if (c == '%') {
            const bool whole = i + 2 < in.len;
            const int high = whole ? hex_of(in.ptr[i + 1]) : -1;
            const int low = whole ? hex_of(in.ptr[i + 2]) : -1;
            if (high < 0 || low < 0)
                return false;
            c = high * 16 + low;
            i += 2;
        }
        if (c < ' ' || c == 0x7f)
            return false;
        buf_append_char(out, (char)c);
    }
    return true;
}

/* The value of a field of the query; "" where it is absent. False where it is too long or
 * badly written. */
static bool query_field(const struct front_request *rq, const char *name, char *out,
                        size_t size)
{
    struct buf value = {0};
    bool good = true;
    const struct slice target = front_head(rq)->target;
    const char *at = memchr(target.ptr, '?', target.len), *end = target.ptr + target.len;
    *out = '\0';
    for (at = at ? at + 1 : end; good && at < end;) {
        const char *amp = memchr(at, '&', (size_t)(end - at));
        const struct slice pair = slice_make(at, (size_t)((amp ? amp : end) - at));
        const char *equals = memchr(pair.ptr, '=', pair.len);
        at = amp ? amp + 1 : end;
        if (!equals ||
            !slice_eq(slice_make(pair.ptr, (size_t)(equals - pair.ptr)), slice_of(name)))
            continue;
        buf_clear(&value);
        good = decode(slice_make(equals + 1, pair.len - (size_t)(equals + 1 - pair.ptr)),
                      &value) &&
               buf_len(&value) < size;
        if (good)
            snprintf(out, size, "%.*s", (int)buf_len(&value), buf_slice(&value).ptr);
    }
    buf_free(&value);
    return good;
}

static void refuse(struct front_request *rq, int status, const char *why)
{
    const char *type = status == 404  ? "not_found_error"
                       : status < 500 ? "invalid_request_error"
                                      : "unavailable_error";
    front_error(rq, status, type, why, (struct slice){"", 0});
}

static void bad_query(struct front_request *rq)
{
    refuse(rq, 400, "a field of the query is too long or badly written");
}

/* ---- warm and pin ------------------------------------------------------------------ */

/* Who waits for a command. */
struct waiting {
    struct front_request *rq;
    struct warm_entry *entry;
};

static void on_client_gone(void *arg)
{
    struct waiting *x = arg;
    warm_forget(x->entry);
    free(x);
}

static void on_client_drained(void *arg)
{
    (void)arg;
}

static json_t *outcome_json(const struct warm_outcome *o)
{
    return json_pack("{s:s,s:s,s:b,s:I,s:I,s:I,s:f}", "name", o->name, "replica",
                     o->replica, "pinned", o->pinned, "bytes", (json_int_t)o->bytes,
                     "tokens", (json_int_t)o->tokens, "computed_tokens",
                     (json_int_t)o->computed, "seconds", o->seconds);
}

/* The first replica that failed makes it an error. */
static void on_warmed(void *arg, const struct warm_outcome *v, size_t n)
{
    struct waiting *x = arg;
    json_t *all = json_array();
    const struct warm_outcome *bad = NULL;
    for (size_t i = 0; i < n; i++) {
        json_array_append_new(all, outcome_json(&v[i]));
        if (!bad && v[i].status != 200)
            bad = &v[i];
    }
    if (bad)
        refuse(x->rq, bad->status, bad->why);
    else
        admin_reply(x->rq, 200, json_pack("{s:O}", "warmed", all));
    json_decref(all);
    free(x);
}

static void start_command(const struct admin_world *w, struct front_request *rq,
                          bool compute)
{
    static const struct front_events events = {on_client_gone, on_client_drained};
    char name[80], path[128], model[256], replica[80], pin[8], public[8];
    if (!query_field(rq, "name", name, sizeof(name)) ||
        !query_field(rq, "path", path, sizeof(path)) ||
        !query_field(rq, "model", model, sizeof(model)) ||
        !query_field(rq, "replica", replica, sizeof(replica)) ||
        !query_field(rq, "pin", pin, sizeof(pin)) ||
        !query_field(rq, "public", public, sizeof(public))) {
        bad_query(rq);
        return;
    }
    if (!w->warm) {
        refuse(rq, 503, "the gateway is stopping");
        return;
    }
    const struct warm_command c = {.text = front_body(rq),
                                   .name = name,
                                   .path = path,
                                   .model = model,
                                   .replica = replica,
                                   .pin = strcmp(pin, "off") != 0,
                                   .public = strcmp(public, "on") == 0,
                                   .compute = compute};
    struct waiting *x = mem_zalloc(sizeof(*x));
    x->rq = rq;
    front_set_events(rq, &events, x);
    x->entry = warm_start(w->warm, &c, on_warmed, x);
}

static void on_warm(const struct admin_world *w, struct front_request *rq)
{
    start_command(w, rq, true);
}

static void on_pin(const struct admin_world *w, struct front_request *rq)
{
    start_command(w, rq, false);
}

/* ---- unpin, drop, flush ------------------------------------------------------------ */

static bool pin_name(struct front_request *rq, char *out, size_t size)
{
    if (!query_field(rq, "name", out, size))
        bad_query(rq);
    else if (!*out)
        refuse(rq, 400, "which pin? say it with ?name=NAME");
    else
        return true;
    return false;
}

static void on_unpin(const struct admin_world *w, struct front_request *rq)
{
    char name[80];
    if (!pin_name(rq, name, sizeof(name)))
        return;
    if (cache_unpin(w->requests->cache, name))
        admin_reply(rq, 200, json_pack("{s:s}", "unpinned", name));
    else
        refuse(rq, 404, "there is no pin of that name: GET /cache lists them");
}

/* What is about all that is stored waits until it is known what that is. The client may
 * leave meanwhile; it is done all the same. */
struct patient {
    struct cache *cache;
    struct front_request *rq; /* NULL: gone */
    char name[80];
};

static void on_patient_gone(void *arg)
{
    struct patient *p = arg;
    p->rq = NULL;
}

static void when_recovered(const struct admin_world *w, struct front_request *rq,
                           const char *name, void (*act)(void *patient))
{
    static const struct front_events events = {on_patient_gone, on_client_drained};
    struct patient *p = mem_zalloc(sizeof(*p));
    p->cache = w->requests->cache;
    p->rq = rq;
    snprintf(p->name, sizeof(p->name), "%s", name);
    front_set_events(rq, &events, p);
    cache_when_recovered(p->cache, act, p);
}

static void drop(void *arg)
{
    struct patient *p = arg;
    size_t n = 0;
    struct err e = {0};
    const int rc = cache_drop(p->cache, p->name, &n, &e);
    if (p->rq && rc == 0)
        admin_reply(p->rq, 200,
                    json_pack("{s:s,s:I}", "dropped", p->name, "blocks", (json_int_t)n));
    else if (p->rq)
        refuse(p->rq, 404, e.text);
    free(p);
}

static void on_drop(const struct admin_world *w, struct front_request *rq)
{
    char name[80];
    if (pin_name(rq, name, sizeof(name)))
        when_recovered(w, rq, name, drop);
}

static void flush(void *arg)
{
    struct patient *p = arg;
    const size_t n = cache_flush(p->cache);
    if (p->rq)
        admin_reply(p->rq, 200, json_pack("{s:I}", "blocks", (json_int_t)n));
    free(p);
}

static void on_flush(const struct admin_world *w, struct front_request *rq)
{
    when_recovered(w, rq, "", flush);
}

/* ---- the table --------------------------------------------------------------------- */

static const struct action actions[] = {
    {"/cache/warm", "compute, store and pin", on_warm},
    {"/cache/pin", "pin what is stored", on_pin},
    {"/cache/unpin", "let a pin go", on_unpin},
    {"/cache/drop", "let a pin go and drop its blocks", on_drop},
    {"/cache/flush", "drop all that is not pinned", on_flush},
    {"/cache/forget", "forget a tenant, a text or all", admin_forget},
};

#define N_ACTIONS (sizeof(actions) / sizeof(actions[0]))

static void unknown_action(struct front_request *rq)
{
    struct buf text = {0};
    buf_append_str(&text, "what can be posted:");
    for (size_t i = 0; i < N_ACTIONS; i++)
        buf_printf(&text, "%s %s (%s)", i ? "," : "", actions[i].path, actions[i].does);
    char *s = buf_take_str(&text);
    refuse(rq, 404, s);
    free(s);
}

bool admin_is_action(struct slice path)
{
    for (size_t i = 0; i < N_ACTIONS; i++)
        if (slice_eq(path, slice_of(actions[i].path)))
            return true;
    return false;
}

void admin_post(const struct admin_world *w, struct slice path, struct front_request *rq)
{
    for (size_t i = 0; i < N_ACTIONS; i++)
        if (slice_eq(path, slice_of(actions[i].path))) {
            actions[i].run(w, rq);
            return;
        }
    unknown_action(rq);
}
