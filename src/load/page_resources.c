/* SPDX-License-Identifier: MIT */
#include "page_internal.h"

#include <math.h>

/* What the service took of the machine, where that was seen. */

#define PROCESSES 20

static void put_bytes(struct buf *out, double bytes)
{
    char text[SCALE_LABEL];
    scale_label(SCALE_BYTES, bytes, text);
    page_cell(out, "%s", text);
}

static void put_usage(struct buf *out, const char *name, const json_t *u)
{
    page_row(out, name);
    page_cell_number(out, page_number(u, "cpu_s"), 2);
    page_cell_number(out, page_number(u, "cores"), 2);
    put_bytes(out, page_number(u, "rss_begin_bytes"));
    put_bytes(out, page_number(u, "rss_peak_bytes"));
    put_bytes(out, page_number(u, "rss_end_bytes"));
    page_row_end(out);
}

static void put_processes(struct buf *out, const json_t *processes)
{
    const json_t *one;
    size_t i;
    json_array_foreach(processes, i, one)
    {
        char name[120];
        const char *is = page_string(one, "name"), *how = page_string(one, "how");
        if (i == PROCESSES)
            break;
        snprintf(name, sizeof(name), "\xE2\x80\x83%.40s (%.20s)", is ? is : "not known",
                 how ? how : "not known");
        put_usage(out, name, one);
    }
}

static void put_kv(struct buf *out, const json_t *kv)
{
    static const struct {
        const char *name, *words;
    } places[] = {{"ram_bytes", "KV in the store, memory"},
                  {"disk_bytes", "KV in the store, disk"}};
    for (size_t i = 0; i < 2 && json_is_object(kv); i++) {
        const json_t *o = json_object_get(kv, places[i].name);
        page_row(out, places[i].words);
        page_cell(out, "\xE2\x80\x93");
        page_cell(out, "\xE2\x80\x93");
        put_bytes(out, page_number(o, "begin"));
        put_bytes(out, page_number(o, "peak"));
        put_bytes(out, page_number(o, "end"));
        page_row_end(out);
    }
}

static void put_arm(struct page *p, const struct page_arm *a)
{
    const json_t *r = json_object_get(a->json, "resources");
    char name[64];
    if (!json_is_object(r))
        return;
    snprintf(name, sizeof(name), "service %s", a->name);
    put_usage(p->out, name, r);
    put_processes(p->out, json_object_get(r, "processes"));
    put_kv(p->out, json_object_get(r, "kv"));
    if (json_is_object(json_object_get(r, "generator")))
        put_usage(p->out, "this program, for all", json_object_get(r, "generator"));
}

/* Where steps differ, the curve of processor time and memory. */
static void put_step(struct page *p, const json_t *step)
{
    const json_t *r = json_object_get(step, "resources");
    const char *arm = page_string(step, "arm");
    char name[PAGE_LOAD + 40], load[PAGE_LOAD];
    if (!json_is_object(r))
        return;
    page_load_text(p, step, load);
    snprintf(name, sizeof(name), "service %.32s, %s", arm ? arm : "", load);
    put_usage(p->out, name, r);
}

static bool any(const json_t *list)
{
    const json_t *o;
    size_t i;
    json_array_foreach(list, i, o)
    {
        if (json_is_object(json_object_get(o, "resources")))
            return true;
    }
    return false;
}

void page_resources(struct page *p)
{
    const json_t *step;
    size_t i;
    if (!any(json_object_get(p->doc, "arms")) && !any(p->steps))
        return;
    page_section(p->out, "Resources");
    page_note(
        p->out,
        "Of the service's processes that were seen on this machine: processor time "
        "(user and system), that time a second in cores, resident memory. Memory of "
        "a GPU and of other machines is not known.");
    page_table(p->out, "Resources", "|processor, s|cores|memory, begin|most|end");
    for (i = 0; i < p->n_arms && !p->steps; i++)
        put_arm(p, &p->arm[i]);
    json_array_foreach(p->steps, i, step)
    {
        if (i < PAGE_STEPS)
            put_step(p, step);
    }
    page_table_end(p->out);
    page_section_end(p->out);
}
