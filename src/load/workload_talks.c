/* SPDX-License-Identifier: MIT */

/*
 * Conversations: each answer in the file is a request for it, with all that was said
 * before as the file has it. Two ways to write one down:
 *
 *   {"conversations": [{"from": "human", "value": "…"}, {"from": "gpt", …}, …]}
 *   {"messages": [{"role": "user", "content": "…"}, …], "tools": […]}
 *
 * Texts are copied as they are written, escapes included.
 */

#include "workload_parts.h"

#include <inttypes.h>
#include <stdlib.h>

#include "base/buf.h"
#include "base/draw.h"
#include "base/mem.h"

#define AT_ONCE 8u          /* conversations, unless somebody says otherwise */
#define BYTES_OF_A_TOKEN 4u /* of an answer in the file */
#define UNKNOWN_ANSWER 256u /* tokens, where the file has none */
#define COUNT_ALL UINT32_MAX

struct talk {
    struct slice item;
    uint32_t turns;
};

struct turn {
    uint32_t talk, number;
};

struct talks {
    struct workload_source s;
    struct input *in;
    struct talk *talks;
    struct turn *plan;
    uint64_t n, skipped;
    uint32_t at_once;
};

/* ---- one conversation -------------------------------------------------------------- */

enum role { ROLE_NONE, ROLE_SYSTEM, ROLE_USER, ROLE_ANSWER, ROLE_OTHER };

struct message {
    enum role role;
    struct slice content; /* as it is written */
    struct slice whole;   /* the object */
};

struct walk {
    bool shared; /* "conversations" of "from" and "value" */
    bool asked;  /* something came that an answer may follow */
    bool begun;  /* a question came */
    uint32_t turn, wanted;
    struct buf *out; /* NULL: only count */
    bool any;        /* a message is in `out` */
    size_t answer;   /* bytes of the wanted one; 0: not in the file */
};

static enum role role_of(struct slice name, bool shared)
{
    static const struct {
        const char *name;
        enum role role;
        bool shared;
    } roles[] = {
        {"\"human\"", ROLE_USER, true},        {"\"gpt\"", ROLE_ANSWER, true},
        {"\"user\"", ROLE_USER, true},         {"\"assistant\"", ROLE_ANSWER, true},
        {"\"system\"", ROLE_SYSTEM, true},     {"\"chatgpt\"", ROLE_ANSWER, true},
        {"\"bing\"", ROLE_ANSWER, true},       {"\"bard\"", ROLE_ANSWER, true},
        {"\"model\"", ROLE_ANSWER, true},      {"\"user\"", ROLE_USER, false},
        {"\"system\"", ROLE_SYSTEM, false},    {"\"developer\"", ROLE_SYSTEM, false},
        {"\"tool\"", ROLE_OTHER, false},       {"\"function\"", ROLE_OTHER, false},
        {"\"assistant\"", ROLE_ANSWER, false},
    };
    for (size_t i = 0; i < sizeof(roles) / sizeof(roles[0]); i++)
        if (roles[i].shared == shared && slice_eq(name, slice_of(roles[i].name)))
            return roles[i].role;
    return ROLE_NONE;
}

static int unknown_role(const struct input_value *v, bool shared, struct err *e)
{
    const struct slice name = v->type == JLEX_STRING ? v->text : SLICE_LIT("no text");
    return err_set(e, ERR_FORMAT, "\"%s\" of a message is %.*s: known are %s",
                   shared ? "from" : "role", name.len < 40 ? (int)name.len : 40, name.ptr,
                   shared ? "human, gpt, system, user, assistant, chatgpt, bing, bard, "
                            "model"
                          : "system, developer, user, assistant, tool, function");
}

static int read_message(struct slice text, bool shared, struct message *m, struct err *e)
{
    static const char *const names[2][2] = {{"role", "content"}, {"from", "value"}};
    struct input_value v[2];
    *m = (struct message){.whole = text};
    if (input_members(text, names[shared], 2, v, e))
        return e->code;
    m->content = v[1].text;
    m->role = v[0].type == JLEX_STRING ? role_of(v[0].text, shared) : ROLE_NONE;
    if (m->role == ROLE_NONE)
        return unknown_role(&v[0], shared, e);
    if (shared && v[1].type != JLEX_STRING)
        return err_set(e, ERR_FORMAT, "\"value\" of a message is no text");
    return 0;
}

static void put_message(struct walk *w, const struct message *m)
{
    static const char *const names[] = {
        [ROLE_SYSTEM] = "system", [ROLE_USER] = "user", [ROLE_ANSWER] = "assistant"};
    if (!w->out)
        return;
    if (w->any)
        buf_append_char(w->out, ',');
    w->any = true;
    if (!w->shared) {
        buf_append_slice(w->out, m->whole);
        return;
    }
    buf_printf(w->out, "{\"role\":\"%s\",\"content\":", names[m->role]);
    buf_append_slice(w->out, m->content);
    buf_append_char(w->out, '}');
}

/* False: the wanted turn's messages are complete. */
static bool step(struct walk *w, const struct message *m)
{
    if (m->role == ROLE_ANSWER && w->asked) {
        if (w->turn == w->wanted) {
            w->answer = m->content.len > 2 ? m->content.len : m->whole.len;
            return false;
        }
        w->turn++;
        w->asked = false;
    }
    if (m->role == ROLE_USER || m->role == ROLE_OTHER)
        w->asked = w->begun = true;
    /* A piece of a longer conversation may start with an answer to what is not here. */
    if (m->role != ROLE_ANSWER || w->begun || !w->shared)
        put_message(w, m);
    return true;
}

/* Up to the wanted turn, or through all of them: `turn` is their number then. */
static int walk(struct walk *w, struct slice list, struct err *e)
{
    struct jlex j;
    struct jlex_token t;
    struct message m;
    jlex_init(&j, list);
    jlex_next(&j, &t);
    while (jlex_next(&j, &t) == JLEX_OBJECT && jlex_skip(&j, &t)) {
        if (read_message(slice_make(list.ptr + t.start, t.end - t.start), w->shared, &m,
                         e))
            return e->code;
        if (!step(w, &m))
            return 0;
    }
    if (t.type != JLEX_ARRAY_END)
        return err_set(e, ERR_FORMAT, "a message is no JSON object");
    w->turn += w->asked;
    return 0;
}

/* Where its messages are, and what goes beside them. */
static int open_talk(struct slice item, struct walk *w, struct slice *list,
                     struct slice *tools, struct err *e)
{
    static const char *const names[] = {"conversations", "messages", "tools"};
    struct input_value v[3];
    if (input_members(item, names, 3, v, e))
        return e->code;
    w->shared = v[0].type != JLEX_END;
    const struct input_value *found = w->shared ? &v[0] : &v[1];
    if (found->type != JLEX_ARRAY)
        return err_set(e, ERR_FORMAT,
                       "a conversation has a list \"conversations\" or \"messages\"");
    *list = found->text;
    *tools = v[2].type == JLEX_ARRAY ? v[2].text : slice_make("", 0);
    return 0;
}

/* ---- reading ----------------------------------------------------------------------- */

static int take_talk(struct talks *t, struct slice item, struct err *e)
{
    struct walk w = {.wanted = COUNT_ALL};
    struct slice list, tools;
    if (open_talk(item, &w, &list, &tools, e) || walk(&w, list, e))
        return e->code;
    if (w.turn == 0) {
        t->skipped++;
        return 0;
    }
    if (t->n == INPUT_MAX_ITEMS || t->s.pass + w.turn > WORKLOAD_MAX_LINES)
        return err_set(e, ERR_LIMIT, "more than %u requests", WORKLOAD_MAX_LINES);
    if ((t->n & (t->n - 1)) == 0)
        t->talks = mem_rearray(t->talks, t->n ? 2 * t->n : 1, sizeof(*t->talks));
    t->talks[t->n++] = (struct talk){item, w.turn};
    t->s.pass += w.turn;
    return 0;
}

static int read_talks(struct talks *t, struct err *e)
{
    struct slice item;
    int rc;
    while ((rc = input_next(t->in, &item, e)) > 0)
        if (take_talk(t, item, e))
            return input_blame(t->in, e);
    if (rc == 0 && t->n == 0)
        rc = err_set(e, ERR_INVALID, "no conversation of the file holds a question");
    return rc;
}

/*
 * In rounds: each of those at once has a turn, in an order that is drawn; where one is
 * over, the next of the file takes its place.
 */
static void make_plan(struct talks *t)
{
    uint32_t n = t->n < t->at_once ? (uint32_t)t->n : t->at_once, next = n;
    struct turn *open = mem_array(n, sizeof(*open));
    uint64_t at = 0;
    t->plan = mem_array(t->s.pass, sizeof(*t->plan));
    for (uint32_t i = 0; i < n; i++)
        open[i] = (struct turn){i, 0};
    for (uint64_t round = 0; n; round++) {
        uint64_t state = draw_key(t->s.common->seed, WHAT_ORDER, round, 0);
        for (uint32_t i = n; i > 1; i--) {
            const uint32_t j = draw_below(&state, i);
            const struct turn other = open[i - 1];
            open[i - 1] = open[j];
            open[j] = other;
        }
        uint32_t left = 0;
        for (uint32_t i = 0; i < n; i++) {
            t->plan[at++] = open[i];
            if (++open[i].number < t->talks[open[i].talk].turns)
                open[left++] = open[i];
            else if (next < t->n)
                open[left++] = (struct turn){next++, 0};
        }
        n = left;
    }
    free(open);
}

/* ---- requests ---------------------------------------------------------------------- */

static void make_turn(const struct workload_source *s, uint64_t i, uint32_t arm,
                      struct buf *body, struct workload_request *rq)
{
    const struct talks *t = (const struct talks *)s;
    const struct turn *turn = &t->plan[i % s->pass];
    struct walk w = {.wanted = turn->number, .out = body};
    struct slice list, tools;
    struct err e = {0};
    (void)arm;
    workload_chat_begin(body, s->common);
    if (open_talk(t->talks[turn->talk].item, &w, &list, &tools, &e) == 0)
        walk(&w, list, &e); /* it was read before: there is no error */
    rq->group = turn->talk;
    rq->turn = turn->number;
    rq->out_tokens =
        w.answer ? (uint32_t)(w.answer / BYTES_OF_A_TOKEN) + 1 : UNKNOWN_ANSWER;
    rq->out_tokens = workload_limit(s->common, rq->out_tokens);
    if (tools.len) {
        buf_append_str(body, "],\"tools\":");
        buf_append_slice(body, tools);
    } else {
        buf_append_char(body, ']');
    }
    workload_chat_end(body, s->common, rq->out_tokens);
}

/* ---- life -------------------------------------------------------------------------- */

static void free_talks(struct workload_source *s)
{
    struct talks *t = (struct talks *)s;
    free(t->talks);
    free(t->plan);
    input_free(t->in);
}

struct workload_source *workload_talks(const struct workload_options *o,
                                       const struct workload_common *c, struct input *in,
                                       struct err *e)
{
    struct talks *t = mem_zalloc(sizeof(*t));
    t->s = (struct workload_source){.common = c, .make = make_turn, .free = free_talks};
    t->in = in;
    t->at_once = o->at_once ? o->at_once : AT_ONCE;
    if (read_talks(t, e)) {
        free_talks(&t->s);
        free(t);
        return NULL;
    }
    make_plan(t);
    t->s.name = mem_printf("conversations,requests=%" PRIu64 ",at-once=%u,sum=%08x",
                           t->s.pass, t->at_once, input_sum(in));
    if (t->skipped)
        t->s.note = mem_printf("%" PRIu64 " of %" PRIu64
                               " conversations hold no question and were left out",
                               t->skipped, t->n + t->skipped);
    return &t->s;
}
