/* SPDX-License-Identifier: MIT */
#include "load/report.h"

#include <math.h>

/* ---- times of the clock, from the beginning of the phase -------------------------- */

static double since(uint64_t us, const struct tally *t)
{
    return us ? ((double)us - (double)t->begun_us) / 1000 : (double)NAN;
}

static double planned(const struct sample *s, const struct tally *t)
{
    return since(s->planned_us, t);
}

static double started(const struct sample *s, const struct tally *t)
{
    return since(s->started_us, t);
}

static double sent(const struct sample *s, const struct tally *t)
{
    return since(s->sent_us, t);
}

static double first(const struct sample *s, const struct tally *t)
{
    return since(s->first_us, t);
}

static double end(const struct sample *s, const struct tally *t)
{
    return since(s->end_us, t);
}

static const struct {
    const char *name;
    double (*of)(const struct sample *, const struct tally *);
} moments[] = {{"planned_at", planned},
               {"started_at", started},
               {"sent_at", sent},
               {"first_at", first},
               {"end_at", end}};

/* ---- counts, -1 where they are not known ------------------------------------------- */

static int64_t aimed(const struct sample *s)
{
    return s->in_tokens ? (int64_t)s->in_tokens : -1;
}

static int64_t shared(const struct sample *s)
{
    return s->in_tokens ? (int64_t)s->shared_tokens : -1;
}

static int64_t prompt(const struct sample *s)
{
    return s->prompt_tokens;
}

static int64_t cached(const struct sample *s)
{
    return s->cached_tokens;
}

static int64_t output(const struct sample *s)
{
    return s->output_tokens;
}

static int64_t turn(const struct sample *s)
{
    return s->turn;
}

static const struct {
    const char *name;
    int64_t (*of)(const struct sample *);
} counts[] = {{"turn", turn},
              {"aimed_tokens", aimed},
              {"shared_tokens", shared},
              {"prompt_tokens", prompt},
              {"cached_tokens", cached},
              {"output_tokens", output}};

/* ---- lists ------------------------------------------------------------------------- */

#define N(array) (sizeof(array) / sizeof((array)[0]))

static json_t *list_of_times(const struct tally *t, double (*of)(const struct sample *))
{
    json_t *out = json_array();
    for (size_t i = 0; i < t->n; i++)
        json_array_append_new(out, report_number(of(&t->samples[i])));
    return out;
}

static json_t *list_of_moments(const struct tally *t, size_t which)
{
    json_t *out = json_array();
    for (size_t i = 0; i < t->n; i++)
        json_array_append_new(out, report_number(moments[which].of(&t->samples[i], t)));
    return out;
}

static json_t *list_of_counts(const struct tally *t, size_t which)
{
    json_t *out = json_array();
    for (size_t i = 0; i < t->n; i++) {
        const int64_t n = counts[which].of(&t->samples[i]);
        json_array_append_new(out, n < 0 ? json_null() : json_integer((json_int_t)n));
    }
    return out;
}

static json_t *list_of_gaps(const struct spread *gaps)
{
    json_t *out = json_array();
    for (uint32_t i = 0; i < SPREAD_BUCKETS; i++)
        if (gaps->count[i])
            json_array_append_new(out, json_pack("[o, I]", report_number(spread_value(i)),
                                                 (json_int_t)gaps->count[i]));
    return out;
}

static void put_kinds(json_t *out, const struct tally *t)
{
    json_t *list = json_array();
    for (size_t i = 0; i < t->n; i++) {
        const char *name = kind_name((enum kind)t->samples[i].kind);
        json_array_append_new(list, name ? json_string(name) : json_null());
    }
    if (t->n && t->samples[0].kind)
        json_object_set(out, "class", list);
    json_decref(list);
}

json_t *report_samples(const struct tally *t)
{
    json_t *out = json_object(), *index = json_array(), *outcome = json_array();
    for (size_t i = 0; i < t->n; i++) {
        json_array_append_new(index, json_integer((json_int_t)t->samples[i].index));
        json_array_append_new(outcome,
                              json_string(reading_outcome(t->samples[i].outcome)));
    }
    json_object_set_new(out, "index", index);
    json_object_set_new(out, "outcome", outcome);
    for (const struct report_time *r = report_times; r->name; r++)
        json_object_set_new(out, r->name, list_of_times(t, r->of));
    json_object_set_new(out, "longest_gap_ms", list_of_times(t, reading_longest_ms));
    for (size_t i = 0; i < N(moments); i++)
        json_object_set_new(out, moments[i].name, list_of_moments(t, i));
    for (size_t i = 0; i < N(counts); i++)
        json_object_set_new(out, counts[i].name, list_of_counts(t, i));
    put_kinds(out, t);
    json_object_set_new(out, "gaps", list_of_gaps(&t->gaps));
    return out;
}
