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

static bool is_of(const json_t *step, const char *arm)
{
    const char *is = page_string(step, "arm");
    return is && strcmp(is, arm) == 0;
}

/* The last step of an arm, or that with a load where it is one; NULL: there is none. */
static json_t *step_of(const json_t *steps, const char *arm, double load)
{
    json_t *s, *found = NULL;
    size_t i;
    json_array_foreach(steps, i, s)
    {
        if (is_of(s, arm) && (isnan(load) || page_load_of(s) == load))
            found = s;
    }
    return found;
}

static size_t arm_names(const json_t *steps, const char *names[PAGE_ARMS])
{
    const json_t *s;
    size_t i, n = 0;
    json_array_foreach(steps, i, s)
    {
        const char *arm = page_string(s, "arm");
        if (arm && n < PAGE_ARMS && (n == 0 || strcmp(arm, names[0]) != 0))
            names[n++] = arm;
    }
    return n;
}

/* At which load requests are drawn: the highest that was good enough for the first arm,
 * else the last; one that both arms had. NAN: there is none. */
static double load_to_draw(const struct page *p, const char *names[], size_t n)
{
    const json_t *knee = json_array_get(json_object_get(p->doc, "knee"), 0), *s;
    double load = page_load_of(knee);
    size_t i;
    if (!isnan(load) && step_of(p->steps, names[n - 1], load))
        return load;
    load = (double)NAN;
    json_array_foreach(p->steps, i, s)
    {
        const double of = page_load_of(s);
        if (is_of(s, names[0]) && !isnan(of) && step_of(p->steps, names[n - 1], of))
            load = of;
    }
    return load;
}

/* Of --ab: by the number of the step; of two runs: by load. */
static const json_t *compared(const struct page *p, double step, double load)
{
    const json_t *all = json_object_get(p->doc, "step_contrasts"), *c;
    size_t i;
    json_array_foreach(all, i, c)
    {
        if (p->second ? page_load_of(c) == load : (double)i == step - 1)
            return c;
    }
    return NULL;
}

static void load_steps(struct page *p)
{
    const char *names[PAGE_ARMS];
    const size_t n = arm_names(p->steps, names);
    if (n == 0)
        return;
    const double load = load_to_draw(p, names, n);
    for (size_t i = 0; i < n; i++)
        load_arm(p, step_of(p->steps, names[i], load), names[i]);
    char text[PAGE_LOAD];
    page_load_text(p, p->arm[0].json, text);
    snprintf(p->of, sizeof(p->of), isnan(load) ? "the last steps" : "the step at %s",
             text);
    p->contrasts = compared(p, page_number(p->arm[0].json, "step"), load);
    if (p->second) {
        p->good = json_object_get(p->contrasts, "good");
        p->contrasts = json_object_get(p->contrasts, "contrasts");
    }
}

/* ---- all --------------------------------------------------------------------------- */

void page_load(struct page *p)
{
    const json_t *arms = json_object_get(p->doc, "arms"),
                 *steps = json_object_get(p->doc, "steps"), *arm;
    size_t i;
    p->contrasts = json_object_get(p->doc, "contrasts");
    p->good = json_object_get(p->doc, "good_contrast");
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
