/* SPDX-License-Identifier: MIT */

/*
 * Bytes come in as they are relayed. A stream goes through the event reader, each event
 * through answer_read(); a document is gathered (up to a limit) and read at its end.
 * answer_read() collects counts under the names that engines give them, settle() makes
 * the facts of them, so that the order in which they arrive does not matter.
 */

#include "answer_read.h"

#include <assert.h>
#include <math.h>
#include <stdlib.h>

#include "base/mem.h"

#define MAX_DOCUMENT (4 * ANSWER_MAX_TEXT)

struct answer *answer_new(enum prompt_api api, bool stream)
{
    struct answer *a = mem_zalloc(sizeof *a);
    a->api = api;
    a->stream = stream;
    a->counts = (struct answer_counts){-1, -1, -1, -1, -1, -1, -1, -1, -1};
    a->facts = (struct answer_facts){.prompt_tokens = -1,
                                     .cached_tokens = -1,
                                     .cache_n = -1,
                                     .prompt_n = -1,
                                     .predicted_n = -1,
                                     .id_slot = -1,
                                     .prompt_ms = -1};
    sse_init(&a->sse, 0);
    return a;
}

static void drop_text(struct answer *a)
{
    buf_free(&a->content);
    buf_free(&a->reasoning);
    for (size_t i = 0; i < a->n_calls; i++) {
        buf_free(&a->calls[i].id);
        buf_free(&a->calls[i].name);
        buf_free(&a->calls[i].arguments);
    }
    a->n_calls = 0;
    buf_free(&a->steps.text);
    free(a->steps.units);
    a->steps = (struct answer_steps){.wanted = a->steps.wanted};
}

void answer_free(struct answer *a)
{
    if (!a)
        return;
    drop_text(a);
    sse_free(&a->sse);
    buf_free(&a->body);
    free(a);
}

static int64_t known_sum(int64_t a, int64_t b)
{
    return (a < 0 ? 0 : a) + (b < 0 ? 0 : b);
}

/* The whole prompt, by whoever says it: usage, timings, the native figure. */
static int64_t prompt_tokens(const struct answer *a)
{
    const struct answer_counts *c = &a->counts;
    if (c->prompt >= 0)
        return c->prompt;
    if (c->input >= 0)
        return c->input + known_sum(c->cache_read, c->cache_made);
    if (a->facts.cache_n >= 0 && a->facts.prompt_n >= 0)
        return a->facts.cache_n + a->facts.prompt_n;
    return c->evaluated;
}

static int64_t first_known(int64_t a, int64_t b)
{
    return a >= 0 ? a : b;
}

static int64_t cached_tokens(const struct answer *a)
{
    return first_known(a->counts.cached,
                       first_known(a->counts.cache_read, a->facts.cache_n));
}

static void settle(struct answer *a)
{
    const struct answer_counts *c = &a->counts;
    struct answer_facts *f = &a->facts;
    f->prompt_tokens = prompt_tokens(a);
    f->cached_tokens = cached_tokens(a);
    if (f->prompt_tokens >= 0 && f->cached_tokens > f->prompt_tokens) {
        f->cached_tokens = f->prompt_tokens;
        f->implausible = true;
    }
    f->predicted_n = first_known(c->predicted, first_known(c->completion, c->output));
    if (a->sse.dropped)
        a->broken = true;
    if (a->broken)
        drop_text(a);
    f->text_whole = f->terminal && a->understood && !a->broken && a->api != PROMPT_NONE;
}

/* ---- units ------------------------------------------------------------------------- */

void answer_note_units(struct answer *a)
{
    a->steps.wanted = true;
}

void answer_end_unit(struct answer *a, double logprob)
{
    struct answer_steps *s = &a->steps;
    if (buf_len(&s->text) > ANSWER_MAX_TEXT || s->n == ANSWER_MAX_UNITS) {
        a->broken = true;
        return;
    }
    if (s->n == s->room) {
        s->room = s->room ? 2 * s->room : 64;
        s->units = mem_rearray(s->units, s->room, sizeof *s->units);
    }
    s->units[s->n++] = (struct answer_unit){(uint32_t)buf_len(&s->text), (float)logprob};
}

static void append_new(struct buf *to, const struct buf *from, size_t *noted)
{
    const struct slice all = buf_slice(from);
    buf_append(to, all.ptr + *noted, all.len - *noted);
    *noted = all.len;
}

/* What the event has added to the text is a unit. */
static void note_event(struct answer *a)
{
    struct answer_steps *s = &a->steps;
    if (!s->wanted || s->tokens || a->broken || !a->event_has_content)
        return;
    append_new(&s->text, &a->reasoning, &s->reasoning);
    append_new(&s->text, &a->content, &s->content);
    for (; s->call < a->n_calls; s->call++, s->arguments = 0) {
        append_new(&s->text, &a->calls[s->call].arguments, &s->arguments);
        if (s->call + 1 == a->n_calls)
            break;
    }
    answer_end_unit(a, (double)NAN);
}

const struct answer_unit *answer_units(const struct answer *a, size_t *n,
                                       struct slice *text, bool *tokens)
{
    *n = a->facts.text_whole ? a->steps.n : 0;
    *text = buf_slice(&a->steps.text);
    *tokens = a->steps.tokens;
    return *n ? a->steps.units : NULL;
}

/* ---- bytes ------------------------------------------------------------------------- */

static void on_event(void *arg, struct slice name, struct slice data)
{
    struct answer *a = arg;
    (void)name; /* Messages events say their type in the data, too */
    a->facts.events++;
    a->event_has_content = false;
    if (slice_eq(slice_trim(data), SLICE_LIT("[DONE]")))
        a->facts.terminal = a->facts.last = true;
    else if (!answer_read(a, data))
        a->broken = true;
    note_event(a);
    a->facts.content_events += a->event_has_content;
    settle(a);
}

void answer_feed(struct answer *a, struct slice bytes, uint64_t now_us)
{
    a->now_us = now_us;
    if (a->stream) {
        sse_feed(&a->sse, bytes, on_event, a);
        a->facts.comments = a->sse.comments;
    } else if (!a->broken) {
        if (bytes.len > MAX_DOCUMENT - buf_len(&a->body)) {
            buf_free(&a->body);
            a->broken = true;
            return;
        }
        buf_append_slice(&a->body, bytes);
    }
}

void answer_finish(struct answer *a)
{
    if (!a->stream && !a->broken && buf_len(&a->body)) {
        if (answer_read(a, buf_slice(&a->body)))
            a->facts.terminal = true;
        else
            a->broken = true;
        buf_free(&a->body);
    }
    settle(a);
}

const struct answer_facts *answer_facts(const struct answer *a)
{
    return &a->facts;
}

const struct prompt_answer *answer_text(struct answer *a)
{
    const struct slice none = {NULL, 0};
    if (!a->facts.text_whole)
        return NULL;
    for (size_t i = 0; i < a->n_calls; i++)
        a->call_views[i] = (struct prompt_tool_call){buf_slice(&a->calls[i].id),
                                                     buf_slice(&a->calls[i].name),
                                                     buf_slice(&a->calls[i].arguments)};
    a->view = (struct prompt_answer){
        .content = a->has_content ? buf_slice(&a->content) : none,
        .reasoning = buf_len(&a->reasoning) ? buf_slice(&a->reasoning) : none,
        .calls = a->call_views,
        .n_calls = a->n_calls,
    };
    return &a->view;
}
