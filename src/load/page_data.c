/* SPDX-License-Identifier: MIT */
#include "page_internal.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"

static const char *const column_names[PAGE_COLUMNS] = {
    [PAGE_TTFT] = "ttft_ms",          [PAGE_FIRST] = "first_ms",
    [PAGE_TOTAL] = "total_ms",        [PAGE_GAP] = "gap_ms",
    [PAGE_PLANNED_AT] = "planned_at", [PAGE_STARTED_AT] = "started_at",
    [PAGE_SENT_AT] = "sent_at",       [PAGE_FIRST_AT] = "first_at",
    [PAGE_END_AT] = "end_at",         [PAGE_TURN] = "turn",
    [PAGE_AIMED] = "aimed_tokens",    [PAGE_SHARED] = "shared_tokens",
    [PAGE_PROMPT] = "prompt_tokens",  [PAGE_CACHED] = "cached_tokens",
    [PAGE_OUTPUT] = "output_tokens"};

/* ---- members ----------------------------------------------------------------------- */

double page_value(const json_t *v)
{
    if (!json_is_number(v))
        return (double)NAN;
    return fmax(-PAGE_MOST, fmin(PAGE_MOST, json_number_value(v)));
}

double page_number(const json_t *o, const char *key)
{
    return page_value(json_object_get(o, key));
}

const char *page_string(const json_t *o, const char *key)
{
    return json_string_value(json_object_get(o, key));
}

/* ---- requests ---------------------------------------------------------------------- */

static double *load_column(const json_t *samples, const char *name, size_t n)
{
    const json_t *list = json_object_get(samples, name);
    const bool good = json_array_size(list) == n;
    double *v = mem_array(n + 1, sizeof(*v));
    for (size_t i = 0; i < n; i++)
        v[i] = good ? page_value(json_array_get(list, i)) : (double)NAN;
    return v;
}

static int outcome_of(const char *name)
{
    for (int o = SAMPLE_PENDING; name && o <= SAMPLE_FAILED; o++)
        if (strcmp(name, reading_outcome((enum sample_outcome)o)) == 0)
            return o;
    return -1;
}

static void load_arm(struct page *p, const json_t *json, const char *name)
{
    struct page_arm *a = &p->arm[p->n_arms];
    const json_t *samples = json_object_get(json, "samples"),
                 *outcomes = json_object_get(samples, "outcome");
    a->json = json;
    a->look = p->n_arms ? "b" : "a";
    snprintf(a->name, sizeof(a->name), "%s", name ? name : "");
    a->n = json_array_size(json_object_get(samples, "index"));
    for (size_t c = 0; c < PAGE_COLUMNS; c++)
        a->column[c] = load_column(samples, column_names[c], a->n);
    a->outcome = mem_array(a->n + 1, sizeof(*a->outcome));
    for (size_t i = 0; i < a->n; i++)
        a->outcome[i] = outcome_of(json_string_value(json_array_get(outcomes, i)));
    p->n_arms++;
}

/* ---- steps ------------------------------------------------------------------------- */

double page_load_of(const json_t *step)
{
    const json_t *load = json_object_get(step, "load");
    const double rate = page_number(load, "rate");
    return isnan(rate) ? page_number(load, "concurrency") : rate;
}

const char *page_load_words(const struct page *p)
{
    const json_t *load = json_object_get(json_array_get(p->steps, 0), "load");
    return json_object_get(load, "rate") ? "requests/s" : "requests under way";
}

void page_load_text(const struct page *p, const json_t *step, char out[PAGE_LOAD])
{
    char level[SCALE_LABEL];
    scale_label(SCALE_COUNT, page_load_of(step), level);
    snprintf(out, PAGE_LOAD, "%s %s", level, page_load_words(p));
}

/* The step whose requests are drawn: the highest that was good enough, else the last. */
static double step_to_draw(const struct page *p)
{
    const json_t *knee = json_array_get(json_object_get(p->doc, "knee"), 0),
                 *last = json_array_get(p->steps, json_array_size(p->steps) - 1);
    const double step = page_number(knee, "step");
    return isnan(step) ? page_number(last, "step") : step;
}

static const json_t *contrasts_of_step(const json_t *doc, double step)
{
    const json_t *all = json_object_get(doc, "step_contrasts");
    return step >= 1 && step <= PAGE_STEPS ? json_array_get(all, (size_t)step - 1) : NULL;
}

static void load_steps(struct page *p)
{
    const double wanted = step_to_draw(p);
    char load[PAGE_LOAD];
    const json_t *s;
    size_t i;
    p->contrasts = contrasts_of_step(p->doc, wanted);
    json_array_foreach(p->steps, i, s)
    {
        if (page_number(s, "step") != wanted || p->n_arms == PAGE_ARMS)
            continue;
        load_arm(p, s, page_string(s, "arm"));
        page_load_text(p, s, load);
        snprintf(p->of, sizeof(p->of), "step %.0f (%s)", wanted, load);
    }
}

/* ---- all --------------------------------------------------------------------------- */

static const json_t *first_arm(const json_t *doc)
{
    return json_array_get(json_object_get(doc, "arms"), 0);
}

void page_load(struct page *p)
{
    const json_t *arms = json_object_get(p->doc, "arms"),
                 *steps = json_object_get(p->doc, "steps"), *arm;
    size_t i;
    if (p->second) {
        load_arm(p, first_arm(p->doc), "first");
        load_arm(p, first_arm(p->second), "second");
        p->contrasts = json_object_get(p->comparison, "contrasts");
        return;
    }
    p->contrasts = json_object_get(p->doc, "contrasts");
    p->steps = json_array_size(steps) ? steps : NULL;
    json_array_foreach(arms, i, arm)
    {
        if (p->n_arms < PAGE_ARMS)
            load_arm(p, arm, page_string(arm, "arm"));
    }
    if (p->n_arms == 0 && p->steps)
        load_steps(p);
}

void page_unload(struct page *p)
{
    for (size_t i = 0; i < p->n_arms; i++) {
        for (size_t c = 0; c < PAGE_COLUMNS; c++)
            free(p->arm[i].column[c]);
        free(p->arm[i].outcome);
    }
    p->n_arms = 0;
}

size_t page_known(const struct page_arm *a, enum page_column c)
{
    size_t n = 0;
    for (size_t i = 0; i < a->n; i++)
        n += isnan(a->column[c][i]) ? 0 : 1;
    return n;
}

double page_reused(const struct page_arm *a, size_t i)
{
    const double prompt = a->column[PAGE_PROMPT][i], cached = a->column[PAGE_CACHED][i];
    return prompt > 0 ? cached / prompt : (double)NAN;
}
