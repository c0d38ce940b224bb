/* SPDX-License-Identifier: MIT */
#include "page_internal.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "load/report.h"

/* All figures as tables, and how it was set up. */

/* ---- times ------------------------------------------------------------------------- */

static void put_quantiles(struct page *p, const json_t *arm, const char *name,
                          const char *words)
{
    const json_t *q = json_object_get(json_object_get(arm, "quantiles"), name);
    if (!json_is_object(q))
        return;
    page_row(p->out, words);
    page_cell_number(p->out, page_number(q, "n"), 0);
    page_cell_number(p->out, page_number(q, "p50"), 2);
    page_cell_number(p->out, page_number(q, "p90"), 2);
    page_cell_number(p->out, page_number(q, "p99"), 2);
    page_row_end(p->out);
}

static void put_times(struct page *p, const json_t *arm, const char *caption)
{
    page_table(p->out, caption, "ms|n|p50|p90|p99");
    for (const struct report_time *t = report_times; t->name; t++)
        put_quantiles(p, arm, t->name, t->words);
    put_quantiles(p, arm, "gaps_ms", "between tokens");
    put_quantiles(p, arm, "lag_ms", "own lag (in times from plan)");
    page_table_end(p->out);
}

static void put_all_times(struct page *p)
{
    const json_t *warmup = json_object_get(p->doc, "warmup"), *arm;
    char caption[160];
    size_t i;
    page_section(p->out, "Times");
    page_note(p->out, "Quantiles are nearest ranks. \xE2\x80\x93 is not known.");
    buf_append_str(p->out, "<div class=\"two\">\n");
    for (i = 0; i < p->n_arms; i++) {
        snprintf(caption, sizeof(caption), "%s%s%s", p->of, *p->of ? ", " : "Run ",
                 p->arm[i].name);
        put_times(p, p->arm[i].json, caption);
    }
    json_array_foreach(warmup, i, arm)
    {
        const char *name = page_string(arm, "arm");
        if (i == PAGE_ARMS || p->second)
            break;
        snprintf(caption, sizeof(caption), "Warm-up %.32s", name ? name : "");
        put_times(p, arm, caption);
    }
    buf_append_str(p->out, "</div>\n");
    page_section_end(p->out);
}

/* ---- tokens ------------------------------------------------------------------------ */

static const struct {
    const char *object, *name, *words;
    int digits;
    double times;
} figures[] = {{"throughput", "requests_per_s", "requests/s completed", 2, 1},
               {"throughput", "output_tokens_per_s", "output tokens/s", 1, 1},
               {"connections", "opened", "connections opened", 0, 1},
               {"connections", "retried", "requests sent again on another", 0, 1},
               {"tokens", "prompt", "prompt tokens, by the engine", 0, 1},
               {"tokens", "prompt_told", "requests that told them", 0, 1},
               {"tokens", "aimed", "prompt tokens aimed at", 0, 1},
               {"tokens", "cached", "of those cached", 0, 1},
               {"tokens", "cached_told", "requests that told them", 0, 1},
               {"tokens", "hit_rate", "cached, % of prompt tokens", 1, 100},
               {"tokens", "shared_rate", "an earlier request shared, %", 1, 100},
               {"tokens", "output", "output tokens", 0, 1},
               {"tokens", "output_told", "requests that told them", 0, 1}};

static void put_figures(struct page *p)
{
    char columns[160];
    snprintf(columns, sizeof(columns), "|%s%s%s", p->arm[0].name,
             p->n_arms > 1 ? "|" : "", p->n_arms > 1 ? p->arm[1].name : "");
    page_section(p->out, "Throughput and tokens");
    page_note(p->out,
              "Of completed requests%s%s, over the time from the first send to the "
              "last end. One figure for each run: nothing says how much of a "
              "difference is chance.",
              *p->of ? " of " : "", p->of);
    page_table(p->out, "Throughput and tokens", columns);
    for (size_t i = 0; i < sizeof(figures) / sizeof(figures[0]); i++) {
        page_row(p->out, figures[i].words);
        for (size_t k = 0; k < p->n_arms; k++) {
            const json_t *o = json_object_get(p->arm[k].json, figures[i].object);
            page_cell_number(p->out, figures[i].times * page_number(o, figures[i].name),
                             figures[i].digits);
        }
        page_row_end(p->out);
    }
    page_table_end(p->out);
    page_section_end(p->out);
}

/* ---- settings ---------------------------------------------------------------------- */

static void put_value(struct page *p, const json_t *v)
{
    char *text = json_is_string(v) ? mem_strdup(json_string_value(v))
                 : v && !json_is_null(v)
                     ? json_dumps(v, JSON_ENCODE_ANY | JSON_REAL_PRECISION(6))
                     : NULL;
    buf_append_str(p->out, "<td>");
    page_text(p->out, text ? text : "\xE2\x80\x93");
    buf_append_str(p->out, "</td>");
    free(text);
}

static void put_members(struct page *p, const char *of)
{
    json_t *a = json_object_get(p->doc, of), *b = json_object_get(p->second, of), *v;
    const char *key;
    size_t n = 0;
    json_object_foreach(a, key, v)
    {
        if (n++ == 40)
            break;
        page_row(p->out, key);
        put_value(p, v);
        if (p->second)
            put_value(p, json_object_get(b, key));
        page_row_end(p->out);
    }
}

static void put_settings(struct page *p)
{
    static const char *const names[] = {"engine", "model", "version", "stopped"};
    page_section(p->out, "How it was set up");
    page_facts(p->out, "Settings; the machine is the one that sent",
               p->second ? "|first|second" : "|value");
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        page_row(p->out, names[i]);
        put_value(p, json_object_get(p->doc, names[i]));
        if (p->second)
            put_value(p, json_object_get(p->second, names[i]));
        page_row_end(p->out);
    }
    put_members(p, "settings");
    put_members(p, "machine");
    page_table_end(p->out);
    page_section_end(p->out);
}

void page_tables(struct page *p)
{
    if (p->n_arms) {
        put_all_times(p);
        put_figures(p);
    }
    put_settings(p);
}
