/* SPDX-License-Identifier: MIT */
#include "load/workload.h"

#include <inttypes.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "base/nearest.h"
#include "base/units.h"
#include "base/draw.h"
#include "workload_parts.h"

enum shape { ALONE, MIX, MEET, SHARED, CHAT };

struct profile {
    const char *name;
    enum shape shape;
    uint32_t in, ask, out, groups, rounds;
    uint32_t reply; /* of MEET: the answer to the short one */
};

#define MEETING 4 /* requests that belong together */

/* in: the prompt (of MEET: the long one), the document, or the chat's system message. */
static const struct profile profiles[] = {
    {"short", ALONE, 128, 0, 32, 1, 1, 0},
    {"long-in", ALONE, 4000, 0, 32, 1, 1, 0},
    {"long-out", ALONE, 128, 0, 512, 1, 1, 0},
    {"mix", MIX, 0, 0, 0, 1, 1, 0},
    {"interrupt", MEET, 4000, 60, 256, 25, MEETING, 32},
    {"shared", SHARED, 2000, 40, 64, 8, 4, 0},
    {"chat", CHAT, 400, 60, 64, 8, 4, 0},
};
#define N_PROFILES (sizeof(profiles) / sizeof(profiles[0]))

/* Of ten requests of the mix: the profiles of six, two and two. */
static const uint8_t mixture[10] = {0, 0, 0, 0, 0, 0, 1, 1, 2, 2};
static const enum kind mixed_kinds[] = {KIND_SHORT, KIND_LONG_IN, KIND_LONG_OUT};

struct workload {
    struct workload_common common;
    struct profile p;
    char *name;
    struct workload_source *source; /* a file instead of the profile, or NULL */
};

/* ---- profiles ---------------------------------------------------------------------- */

struct key {
    const char *name;
    size_t at; /* in struct profile */
    uint32_t kinds, most;
};

#define KEY(name, field, kinds, most)                                                    \
    {                                                                                    \
        name, offsetof(struct profile, field), kinds, most                               \
    }
#define IS(kind) (1u << (kind))

static const struct key keys[] = {
    KEY("in", in, IS(ALONE) | IS(MEET) | IS(SHARED) | IS(CHAT), WORKLOAD_MAX_TOKENS),
    KEY("ask", ask, IS(MEET) | IS(SHARED) | IS(CHAT), WORKLOAD_MAX_TOKENS),
    KEY("out", out, IS(ALONE) | IS(MEET) | IS(SHARED) | IS(CHAT), WORKLOAD_MAX_TOKENS),
    KEY("reply", reply, IS(MEET), WORKLOAD_MAX_TOKENS),
    KEY("meetings", groups, IS(MEET), WORKLOAD_MAX_GROUPS),
    KEY("documents", groups, IS(SHARED), WORKLOAD_MAX_GROUPS),
    KEY("questions", rounds, IS(SHARED), WORKLOAD_MAX_ROUNDS),
    KEY("chats", groups, IS(CHAT), WORKLOAD_MAX_GROUPS),
    KEY("turns", rounds, IS(CHAT), WORKLOAD_MAX_ROUNDS),
};
#define N_KEYS (sizeof(keys) / sizeof(keys[0]))

static uint32_t *field_of(struct profile *p, const struct key *k)
{
    return (uint32_t *)(void *)((char *)p + k->at);
}

static int unknown_profile(const char *name, struct err *e)
{
    struct nearest n = nearest_to(name);
    struct buf all = {0};
    for (size_t i = 0; i < N_PROFILES; i++) {
        nearest_offer(&n, profiles[i].name);
        buf_printf(&all, "%s%s", i ? ", " : "", profiles[i].name);
    }
    const char *near = nearest_get(&n);
    char *text = buf_take_str(&all);
    err_set(e, ERR_INVALID, "unknown profile \"%s\"%s%s%s: there are %s", name,
            near ? "; did you mean \"" : "", near ? near : "", near ? "\"?" : "", text);
    free(text);
    return ERR_INVALID;
}

/* "key=N" of a profile. */
static int take_key(struct profile *p, const char *word, struct err *e)
{
    const char *equals = strchr(word, '=');
    const size_t len = equals ? (size_t)(equals - word) : strlen(word);
    uint64_t n = 0;
    for (size_t i = 0; i < N_KEYS; i++) {
        if (!(keys[i].kinds & IS(p->shape)) || strlen(keys[i].name) != len ||
            memcmp(keys[i].name, word, len) != 0)
            continue;
        if (!equals || !units_parse_count(equals + 1, &n) || n < 1 || n > keys[i].most)
            return err_set(e, ERR_INVALID, "profile %s: %s is a number from 1 to %u",
                           p->name, keys[i].name, keys[i].most);
        *field_of(p, &keys[i]) = (uint32_t)n;
        return 0;
    }
    return err_set(e, ERR_INVALID, "profile %s has no \"%.*s\"", p->name, (int)len, word);
}

static int parse_profile(struct profile *p, const char *text, struct err *e)
{
    char *copy = mem_strdup(text), *rest = copy;
    const char *name = strsep(&rest, ",");
    int rc = 0;
    *p = (struct profile){0};
    for (size_t i = 0; i < N_PROFILES; i++)
        if (strcmp(profiles[i].name, name) == 0)
            *p = profiles[i];
    if (!p->name)
        rc = unknown_profile(name, e);
    while (rc == 0 && rest)
        rc = take_key(p, strsep(&rest, ","), e);
    free(copy);
    return rc;
}

static char *name_of(struct workload *w)
{
    struct buf out = {0};
    struct profile *p = &w->p;
    buf_append_str(&out, w->source ? w->source->name : p->name);
    for (size_t i = 0; !w->source && i < N_KEYS; i++)
        if (keys[i].kinds & IS(p->shape))
            buf_printf(&out, ",%s=%u", keys[i].name, *field_of(p, &keys[i]));
    if (w->common.max_tokens)
        buf_printf(&out, ",max-tokens=%u", w->common.max_tokens);
    return buf_take_str(&out);
}

/* ---- life -------------------------------------------------------------------------- */

static int take_common(struct workload *w, const struct workload_options *o,
                       struct err *e)
{
    json_t *model = json_string(o->model ? o->model : "default");
    if (!model)
        return err_set(e, ERR_INVALID, "the model's name is not UTF-8");
    w->common = (struct workload_common){.model = json_dumps(model, JSON_ENCODE_ANY),
                                         .seed = o->seed,
                                         .max_tokens = o->max_tokens,
                                         .fixed = o->fixed,
                                         .logprobs = o->logprobs,
                                         .stream = o->stream};
    json_decref(model);
    return 0;
}

/* Options that would do nothing. */
static int refuse_idle(const struct workload_options *o, enum input_format f,
                       struct err *e)
{
    if (o->at_once && f != INPUT_TALKS)
        return err_set(e, ERR_INVALID, "--at-once is for conversations (--input)");
    if (o->scale > 0 && f != INPUT_TRACE && f != INPUT_TABLE)
        return err_set(e, ERR_INVALID, "--scale is for a trace (--input)");
    return 0;
}

static int open_source(struct workload *w, const struct workload_options *o,
                       struct err *e)
{
    struct input *in = input_open(o->file, e);
    if (!in)
        return e->code;
    if (refuse_idle(o, input_format(in), e)) {
        input_free(in);
        return e->code;
    }
    switch (input_format(in)) {
    case INPUT_BODIES:
        w->source = workload_lines(o, &w->common, in, e);
        break;
    case INPUT_TALKS:
        w->source = workload_talks(o, &w->common, in, e);
        break;
    case INPUT_TRACE:
    case INPUT_TABLE:
        w->source = workload_trace(o, &w->common, in, e);
        break;
    }
    return w->source ? 0 : ERR_INVALID;
}

struct workload *workload_new(const struct workload_options *o, struct err *e)
{
    struct workload *w = mem_zalloc(sizeof(*w));
    int rc = take_common(w, o, e);
    if (rc == 0 && o->file)
        rc = open_source(w, o, e);
    else if (rc == 0 && (rc = refuse_idle(o, INPUT_BODIES, e)) == 0)
        rc = parse_profile(&w->p, o->profile ? o->profile : "short", e);
    if (rc) {
        workload_free(w);
        return NULL;
    }
    w->name = name_of(w);
    return w;
}

void workload_free(struct workload *w)
{
    if (!w)
        return;
    if (w->source) {
        w->source->free(w->source);
        free(w->source->name);
        free(w->source->note);
        free(w->source);
    }
    free(w->common.model);
    free(w->name);
    free(w);
}

const char *workload_name(const struct workload *w)
{
    return w->name;
}

const char *workload_note(const struct workload *w)
{
    return w->source ? w->source->note : NULL;
}

uint64_t workload_pass(const struct workload *w)
{
    if (w->source)
        return w->source->pass;
    const uint64_t pass = (uint64_t)w->p.groups * w->p.rounds;
    return pass > 1 || w->p.shape >= SHARED ? pass : 100;
}

bool workload_timed(const struct workload *w)
{
    return w->source && w->source->timed;
}

uint64_t workload_due_us(const struct workload *w, uint64_t i)
{
    return w->source->due_us(w->source, i);
}

bool workload_meets(const struct workload *w)
{
    return !w->source && w->p.shape == MEET;
}

/* Every second one comes before the first token is expected. */
double workload_moment(const struct workload *w, uint64_t i)
{
    if (!workload_meets(w) || i % MEETING != MEETING - 1)
        return 0;
    uint64_t state = draw_key(w->common.seed, WHAT_MOMENT, i, 0);
    return draw_unit(&state) + (double)(i / MEETING % 2);
}

enum prompt_api workload_api(const char *path)
{
    static const struct {
        const char *end;
        enum prompt_api api;
    } ends[] = {
        {"/chat/completions", PROMPT_CHAT}, {"/v1/completions", PROMPT_COMPLETIONS},
        {"/completion", PROMPT_NATIVE},     {"/completions", PROMPT_NATIVE},
        {"/v1/messages", PROMPT_MESSAGES},
    };
    const size_t len = strcspn(path, "?");
    for (size_t i = 0; i < sizeof(ends) / sizeof(ends[0]); i++) {
        const size_t n = strlen(ends[i].end);
        if (len >= n && memcmp(path + len - n, ends[i].end, n) == 0)
            return ends[i].api;
    }
    return PROMPT_NONE;
}

/* ---- requests ---------------------------------------------------------------------- */

/* Evenly from 3/4 to 5/4 of `aim`, at least 1: the same for both arms. */
static uint32_t length_of(const struct workload *w, uint32_t aim, uint64_t i, uint64_t j)
{
    uint64_t state = draw_key(w->common.seed, WHAT_LENGTH, i, j);
    const uint32_t n = aim - aim / 4 + draw_below(&state, aim / 2 + 1);
    return n ? n : 1;
}

static void put_message(struct buf *out, const char *role, uint64_t state, uint32_t words)
{
    buf_printf(out, "{\"role\":\"%s\",\"content\":\"", role);
    workload_words(out, state, words);
    buf_append_str(out, "\"}");
}

static uint64_t text_key(const struct workload *w, uint32_t arm, uint64_t what,
                         uint64_t i, uint64_t j)
{
    return draw_key(w->common.seed, what + 16 * arm, i, j);
}

/* Which of the groups has its turn at place `at` of a round: a shuffle by the seed. */
static uint32_t group_at(const struct workload *w, uint64_t round, uint32_t at)
{
    const uint32_t n = w->p.groups;
    uint32_t *order = mem_array(n, sizeof(*order));
    uint64_t state = draw_key(w->common.seed, WHAT_ORDER, round, 0);
    for (uint32_t i = 0; i < n; i++) {
        const uint32_t j = draw_below(&state, i + 1);
        order[i] = order[j];
        order[j] = i;
    }
    const uint32_t group = order[at];
    free(order);
    return group;
}

static void make_alone(const struct workload *w, const struct profile *p, uint64_t i,
                       uint32_t arm, struct buf *out, struct workload_request *rq)
{
    rq->in_tokens = length_of(w, p->in, i, 0);
    rq->out_tokens = p->out;
    put_message(out, "user", text_key(w, arm, WHAT_TEXT, i, 0), rq->in_tokens);
}

static void make_meeting(const struct workload *w, uint64_t i, uint32_t arm,
                         struct buf *out, struct workload_request *rq)
{
    static const enum kind kinds[MEETING] = {KIND_SHORT_ALONE, KIND_LONG_ALONE,
                                             KIND_LONG_MET, KIND_SHORT_IN_PREFILL};
    struct profile p = w->p;
    rq->kind = kinds[i % MEETING];
    if (i % MEETING == 0 || i % MEETING == MEETING - 1) {
        p.in = p.ask;
        p.out = p.reply;
    }
    make_alone(w, &p, i, arm, out, rq);
}

static void make_shared(const struct workload *w, uint32_t arm, struct buf *out,
                        struct workload_request *rq)
{
    const uint32_t document = length_of(w, w->p.in, rq->group, 0),
                   ask = length_of(w, w->p.ask, rq->group, 1 + rq->turn);
    put_message(out, "system", text_key(w, arm, WHAT_TEXT, rq->group, 0), document);
    buf_append_char(out, ',');
    put_message(out, "user", text_key(w, arm, WHAT_ASK, rq->group, rq->turn), ask);
    rq->in_tokens = document + ask;
    rq->shared_tokens = rq->turn ? document : 0;
}

static void make_chat(const struct workload *w, uint32_t arm, struct buf *out,
                      struct workload_request *rq)
{
    rq->in_tokens = length_of(w, w->p.in, rq->group, 0);
    put_message(out, "system", text_key(w, arm, WHAT_TEXT, rq->group, 0), rq->in_tokens);
    for (uint32_t turn = 0; turn <= rq->turn; turn++) {
        const uint32_t ask = length_of(w, w->p.ask, rq->group, 1 + turn);
        buf_append_char(out, ',');
        put_message(out, "user", text_key(w, arm, WHAT_ASK, rq->group, turn), ask);
        rq->in_tokens += ask;
        if (turn == rq->turn)
            break;
        rq->shared_tokens = rq->in_tokens;
        buf_append_char(out, ',');
        put_message(out, "assistant", text_key(w, arm, WHAT_REPLY, rq->group, turn),
                    w->p.out);
        rq->in_tokens += w->p.out;
    }
}

static void make_grouped(const struct workload *w, uint64_t i, uint32_t arm,
                         struct buf *out, struct workload_request *rq)
{
    const uint64_t round = i / w->p.groups, set = round / w->p.rounds;
    rq->group = set * w->p.groups + group_at(w, round, (uint32_t)(i % w->p.groups));
    rq->turn = (uint32_t)(round % w->p.rounds);
    rq->out_tokens = w->p.out;
    if (w->p.shape == SHARED)
        make_shared(w, arm, out, rq);
    else
        make_chat(w, arm, out, rq);
}

uint32_t workload_limit(const struct workload_common *c, uint32_t out_tokens)
{
    return c->max_tokens && c->max_tokens < out_tokens ? c->max_tokens : out_tokens;
}

void workload_chat_begin(struct buf *out, const struct workload_common *c)
{
    buf_printf(out, "{\"model\":%s,\"messages\":[", c->model);
}

void workload_chat_end(struct buf *out, const struct workload_common *c,
                       uint32_t out_tokens)
{
    buf_printf(out, ",\"max_tokens\":%u,\"temperature\":0", out_tokens);
    if (c->fixed)
        buf_append_str(out, ",\"seed\":1");
    if (c->logprobs)
        buf_append_str(out, ",\"logprobs\":true");
    if (c->stream)
        buf_append_str(out,
                       ",\"stream\":true,\"stream_options\":{\"include_usage\":true}");
    buf_append_char(out, '}');
}

void workload_make(const struct workload *w, uint64_t i, uint32_t arm, struct buf *body,
                   struct workload_request *rq)
{
    *rq = (struct workload_request){
        .path = WORKLOAD_CHAT, .api = PROMPT_CHAT, .group = WORKLOAD_ALONE};
    buf_clear(body);
    if (w->source) {
        w->source->make(w->source, i, arm, body, rq);
        return;
    }
    uint64_t state = draw_key(w->common.seed, WHAT_MIX, i, 0);
    const struct profile *p = &w->p;
    if (p->shape == MIX) {
        const uint8_t which = mixture[draw_below(&state, 10)];
        p = &profiles[which];
        rq->kind = mixed_kinds[which];
    }
    workload_chat_begin(body, &w->common);
    if (p->shape == ALONE)
        make_alone(w, p, i, arm, body, rq);
    else if (p->shape == MEET)
        make_meeting(w, i, arm, body, rq);
    else
        make_grouped(w, i, arm, body, rq);
    rq->out_tokens = workload_limit(&w->common, rq->out_tokens);
    buf_append_char(body, ']');
    workload_chat_end(body, &w->common, rq->out_tokens);
}
