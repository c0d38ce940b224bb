/* SPDX-License-Identifier: MIT */
#include "load/reading.h"

#include <math.h>
#include <string.h>

void reading_init(struct reading *r, enum prompt_api api, struct spread *gaps)
{
    r->api = api;
    r->gaps = gaps;
    r->kind_gaps = r->then_gaps = NULL;
    r->answer = NULL;
    r->units = false;
    r->expect = NULL;
    r->sample.prompt_tokens = r->sample.cached_tokens = r->sample.output_tokens = -1;
}

void reading_fini(struct reading *r)
{
    answer_free(r->answer);
    r->answer = NULL;
}

void reading_sent(struct reading *r, uint64_t now_us)
{
    if (!r->sample.sent_us)
        r->sample.sent_us = now_us;
}

void reading_head(struct reading *r, int status, bool stream)
{
    r->sample.status = status;
    r->stream = stream;
    if (status < 200 || status >= 300)
        return;
    r->answer = answer_new(r->api, stream);
    if (r->units)
        answer_note_units(r->answer);
}

static void add_gap(struct reading *r, uint64_t gap_us)
{
    struct sample *s = &r->sample;
    spread_add(r->gaps, (double)gap_us / 1000);
    if (r->kind_gaps)
        spread_add(r->kind_gaps, (double)gap_us / 1000);
    if (r->then_gaps)
        r->kind_gaps = r->then_gaps;
    r->then_gaps = NULL;
    s->longest_us = gap_us > s->longest_us ? gap_us : s->longest_us;
}

/* An answer that came before the request was seen to be sent took no time from there. */
static void note_content(struct reading *r, uint64_t events, uint64_t now_us)
{
    struct sample *s = &r->sample;
    for (; s->content_events < events; s->content_events++) {
        if (s->content_events == 0) {
            reading_sent(r, now_us);
            s->first_us = s->last_us = now_us;
            continue;
        }
        add_gap(r, now_us - s->last_us);
        s->last_us = now_us;
    }
}

static void note_tokens(struct reading *r)
{
    const struct answer_facts *f = answer_facts(r->answer);
    r->sample.prompt_tokens = f->prompt_tokens;
    r->sample.cached_tokens = f->cached_tokens;
    r->sample.output_tokens = f->predicted_n;
}

void reading_body(struct reading *r, struct slice bytes, uint64_t now_us)
{
    if (!r->answer)
        return;
    answer_feed(r->answer, bytes, now_us);
    note_content(r, answer_facts(r->answer)->content_events, now_us);
}

/* Of paths that are not read (embeddings, …) the framing's end is all that is known. */
static bool is_whole(const struct reading *r)
{
    const struct answer_facts *f = answer_facts(r->answer);
    return !f->error && (f->terminal || r->api == PROMPT_NONE);
}

static enum sample_answer answer_state(const struct reading *r)
{
    const struct prompt_answer *a = answer_text(r->answer);
    if (r->expect)
        return a && a->content.len &&
                       memmem(a->content.ptr, a->content.len, r->expect,
                              strlen(r->expect))
                   ? SAMPLE_ANSWER_GIVEN
                   : SAMPLE_ANSWER_OTHER;
    if (r->sample.content_events)
        return SAMPLE_ANSWER_GIVEN;
    if (r->stream && r->api != PROMPT_NONE)
        return SAMPLE_ANSWER_EMPTY;
    if (!a)
        return SAMPLE_ANSWER_UNKNOWN;
    return a->content.len || a->reasoning.len || a->n_calls ? SAMPLE_ANSWER_GIVEN
                                                            : SAMPLE_ANSWER_EMPTY;
}

void reading_end(struct reading *r, uint64_t now_us)
{
    r->sample.end_us = now_us;
    if (!r->answer) {
        r->sample.outcome = SAMPLE_REFUSED;
        return;
    }
    answer_finish(r->answer);
    note_tokens(r);
    r->sample.outcome = is_whole(r) ? SAMPLE_COMPLETED : SAMPLE_INTERRUPTED;
    if (r->sample.outcome == SAMPLE_COMPLETED)
        r->sample.answer = answer_state(r);
}

void reading_fail(struct reading *r, int error, uint64_t now_us)
{
    struct sample *s = &r->sample;
    s->end_us = now_us;
    s->error = error;
    s->outcome = r->answer   ? SAMPLE_INTERRUPTED
                 : s->status ? SAMPLE_REFUSED
                             : SAMPLE_FAILED;
}

const char *reading_outcome(enum sample_outcome o)
{
    static const char *const names[] = {
        [SAMPLE_PENDING] = "pending", [SAMPLE_COMPLETED] = "completed",
        [SAMPLE_REFUSED] = "refused", [SAMPLE_INTERRUPTED] = "interrupted",
        [SAMPLE_FAILED] = "failed",
    };
    return names[o];
}

static double between(const struct sample *s, uint64_t from_us, uint64_t to_us)
{
    if (s->outcome != SAMPLE_COMPLETED || !from_us || !to_us)
        return (double)NAN;
    return to_us > from_us ? (double)(to_us - from_us) / 1000 : 0;
}

double reading_ttft_ms(const struct sample *s)
{
    return between(s, s->sent_us, s->first_us);
}

double reading_first_ms(const struct sample *s)
{
    return between(s, s->planned_us, s->first_us);
}

double reading_total_ms(const struct sample *s)
{
    return between(s, s->planned_us, s->end_us);
}

double reading_gap_ms(const struct sample *s)
{
    if (s->content_events < 2)
        return (double)NAN;
    return between(s, s->first_us, s->last_us) / (double)(s->content_events - 1);
}

double reading_longest_ms(const struct sample *s)
{
    if (s->outcome != SAMPLE_COMPLETED || s->content_events < 2)
        return (double)NAN;
    return (double)s->longest_us / 1000;
}

double reading_lag_ms(const struct sample *s)
{
    return (double)(s->started_us - s->planned_us) / 1000;
}
