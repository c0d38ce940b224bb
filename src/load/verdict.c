/* SPDX-License-Identifier: MIT */
#include "load/verdict.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "base/units.h"

const char *const verdict_names[VERDICT_N] = {
    [VERDICT_OUTCOME] = "outcome", [VERDICT_ANSWER] = "answer", [VERDICT_TTFT] = "ttft",
    [VERDICT_GAP] = "gap",         [VERDICT_TOTAL] = "total",
};

static int take_limit(char *word, struct verdict_limits *out, struct err *e)
{
    char *value = strchr(word, '=');
    uint64_t ms = 0;
    if (value)
        *value++ = '\0';
    for (int by = VERDICT_TTFT; by < VERDICT_N; by++) {
        if (strcmp(word, verdict_names[by]) != 0)
            continue;
        if (!value || !units_parse_ms(value, &ms) || ms == 0)
            return err_set(e, ERR_INVALID, "%s wants a time: %s=500ms", word, word);
        if (out->ms[by] > 0)
            return err_set(e, ERR_INVALID, "%s is there twice", word);
        out->ms[by] = (double)ms;
        return 0;
    }
    return err_set(e, ERR_INVALID, "\"%s\" is no limit: there are ttft, gap, total",
                   word);
}

int verdict_parse(const char *text, struct verdict_limits *out, struct err *e)
{
    char *copy = mem_strdup(text), *rest = copy;
    int rc = 0;
    *out = (struct verdict_limits){{0}};
    while (rc == 0 && rest)
        rc = take_limit(strsep(&rest, ","), out, e);
    free(copy);
    return rc;
}

/* A time that is not known is no time within the limit. */
static bool is_late(double ms, double limit)
{
    return limit > 0 && !(ms <= limit);
}

/* What says nothing has no first token that could be late, and no gap. */
static unsigned late_tokens(const struct verdict_limits *l, const struct sample *s)
{
    unsigned failed = 0;
    if (s->answer == SAMPLE_ANSWER_EMPTY)
        return 0;
    if (is_late(reading_first_ms(s), l->ms[VERDICT_TTFT]))
        failed |= 1u << VERDICT_TTFT;
    if (is_late(s->content_events == 1 ? 0 : reading_longest_ms(s), l->ms[VERDICT_GAP]))
        failed |= 1u << VERDICT_GAP;
    return failed;
}

unsigned verdict_of(const struct verdict_limits *l, const struct sample *s)
{
    if (s->outcome != SAMPLE_COMPLETED)
        return 1u << VERDICT_OUTCOME;
    unsigned failed = late_tokens(l, s);
    if (s->answer == SAMPLE_ANSWER_EMPTY || s->answer == SAMPLE_ANSWER_OTHER)
        failed |= 1u << VERDICT_ANSWER;
    if (is_late(reading_total_ms(s), l->ms[VERDICT_TOTAL]))
        failed |= 1u << VERDICT_TOTAL;
    return failed;
}

void verdict_add(struct verdict_count *c, const struct verdict_limits *l,
                 const struct tally *t)
{
    for (size_t i = 0; i < t->n; i++) {
        if (t->samples[i].outcome == SAMPLE_PENDING)
            continue;
        const unsigned failed = verdict_of(l, &t->samples[i]);
        c->n++;
        c->good += failed == 0;
        for (int by = 0; by < VERDICT_N; by++)
            c->failed[by] += failed >> by & 1;
    }
}

double verdict_share(const struct verdict_count *c)
{
    return c->n ? (double)c->good / (double)c->n : (double)NAN;
}

void verdict_interval(const struct verdict_count *c, double *low, double *high)
{
    const double z = 1.959964, n = (double)c->n, p = verdict_share(c),
                 middle = (p + z * z / (2 * n)) / (1 + z * z / n),
                 half = z / (1 + z * z / n) * sqrt(p * (1 - p) / n + z * z / (4 * n * n));
    *low = fmax(middle - half, 0);
    *high = fmin(middle + half, 1);
}
