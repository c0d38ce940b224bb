/* SPDX-License-Identifier: MIT */
#include "page_internal.h"

/*
 * Two documents as one: its arms are the first arm of each, called "first" and "second",
 * or its steps those of both; differences are those of the comparison. All else is the
 * first one's.
 */

static json_t *renamed(json_t *arm, const char *name)
{
    json_t *out = json_is_object(arm) ? json_copy(arm) : json_object();
    json_object_set_new(out, "arm", json_string(name));
    return out;
}

static json_t *arms_of(const json_t *a, const json_t *b)
{
    return json_pack("[o, o]",
                     renamed(json_array_get(json_object_get(a, "arms"), 0), "first"),
                     renamed(json_array_get(json_object_get(b, "arms"), 0), "second"));
}

/* Those of its first arm. */
static void add_steps(json_t *out, const json_t *doc, const char *name)
{
    const json_t *steps = json_object_get(doc, "steps"),
                 *arm = json_object_get(json_array_get(steps, 0), "arm");
    json_t *step;
    size_t i;
    json_array_foreach(steps, i, step)
    {
        if (json_equal(json_object_get(step, "arm"), arm))
            json_array_append_new(out, renamed(step, name));
    }
}

static json_t *steps_of(const json_t *a, const json_t *b)
{
    json_t *out = json_array();
    add_steps(out, a, "first");
    add_steps(out, b, "second");
    return out;
}

static json_t *knees_of(const json_t *a, const json_t *b)
{
    return json_pack("[O?, O?]", json_array_get(json_object_get(a, "knee"), 0),
                     json_array_get(json_object_get(b, "knee"), 0));
}

json_t *page_merge(const json_t *a, const json_t *b, const json_t *comparison)
{
    static const char *const kept[] = {"version",  "engine",  "model",
                                       "settings", "machine", "stopped"};
    json_t *out = json_object();
    for (size_t i = 0; i < sizeof(kept) / sizeof(kept[0]); i++)
        json_object_set(out, kept[i], json_object_get(a, kept[i]));
    if (json_array_size(json_object_get(a, "steps"))) {
        json_object_set_new(out, "steps", steps_of(a, b));
        json_object_set_new(out, "knee", knees_of(a, b));
        json_object_set(out, "step_contrasts", json_object_get(comparison, "steps"));
    } else {
        json_object_set_new(out, "arms", arms_of(a, b));
        json_object_set(out, "contrasts", json_object_get(comparison, "contrasts"));
        json_object_set(out, "good_contrast", json_object_get(comparison, "good"));
    }
    return out;
}
