/* SPDX-License-Identifier: MIT */
#include "page_internal.h"

/* Whether two services answered the same (--check-output). */

static const struct {
    const char *name, *words;
} kinds[] = {{"same_cached", "as many tokens cached on both sides"},
             {"other_cached", "not as many cached"},
             {"cached_unknown", "not told what was cached"}};

static void put_kind(struct page *p, const json_t *k, const char *words)
{
    const json_t *first = json_object_get(k, "first_unit"),
                 *apart = json_object_get(k, "logprob_difference");
    if (!(page_number(k, "n") > 0))
        return;
    page_row(p->out, words);
    page_cell_number(p->out, page_number(k, "n"), 0);
    page_cell_number(p->out, page_number(k, "equal"), 0);
    page_cell_number(p->out, 100 * page_number(k, "share"), 1);
    page_cell_number(p->out, 100 * page_number(k, "low"), 1);
    page_cell_number(p->out, 100 * page_number(k, "high"), 1);
    page_cell_number(p->out, page_number(first, "p50"), 0);
    page_cell_number(p->out, page_number(apart, "mean"), 4);
    page_cell_number(p->out, page_number(apart, "most"), 4);
    page_row_end(p->out);
}

void page_output(struct page *p)
{
    const json_t *output = json_object_get(p->doc, "output");
    const char *unit = page_string(output, "unit");
    char unread[PAGE_NUMBER], columns[200];
    if (!json_is_object(output))
        return;
    page_format(page_number(output, "unread"), 0, unread);
    snprintf(columns, sizeof(columns),
             "pairs|n|equal|%%|95 %% from|to|%.20ss equal before, median|log-probability "
             "apart, mean|most",
             unit ? unit : "unit");
    page_section(p->out, "Are the answers equal?");
    page_note(
        p->out,
        "Pairs of the same request, byte for byte; %s pairs could not be read. "
        "Pairs are told apart by what the engines say they had cached. Intervals of a "
        "share: Wilson.",
        unread);
    page_table(p->out, "Equal answers", columns);
    for (size_t i = 0; i < sizeof(kinds) / sizeof(kinds[0]); i++)
        put_kind(p, json_object_get(output, kinds[i].name), kinds[i].words);
    page_table_end(p->out);
    page_section_end(p->out);
}
