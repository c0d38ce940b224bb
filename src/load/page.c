/* SPDX-License-Identifier: MIT */
#include "load/page.h"

#include "page_internal.h"

static const char page_begin[] =
    "<!doctype html>\n"
    "<html lang=\"en\">\n"
    "<head>\n"
    "<meta charset=\"utf-8\">\n"
    "<meta http-equiv=\"Content-Security-Policy\" "
    "content=\"default-src 'none'; style-src 'unsafe-inline'\">\n"
    "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n"
    "<meta name=\"color-scheme\" content=\"light dark\">\n";

static void put_title(struct page *p)
{
    buf_append_str(p->out, "<title>Benchmark of ");
    page_text(p->out, page_string(p->doc, "model"));
    buf_append_str(p->out, "</title>\n<style>\n");
    buf_append_str(p->out, page_style);
    buf_append_str(p->out, "</style>\n</head>\n<body>\n");
}

static void put_page(struct page *p)
{
    page_load(p);
    buf_append_str(p->out, page_begin);
    put_title(p);
    plot_shapes(p->out);
    buf_append_str(p->out, "<main>\n");
    page_head(p);
    page_conclusions(p);
    page_contrasts(p);
    page_output(p);
    page_curve(p);
    page_prompts(p);
    page_spreads(p);
    page_timeline(p);
    page_reuse(p);
    page_resources(p);
    page_tables(p);
    buf_append_str(p->out, "</main>\n</body>\n</html>\n");
    page_unload(p);
}

void page_report(const json_t *doc, struct buf *out)
{
    struct page p = {.out = out, .doc = doc};
    put_page(&p);
}

void page_comparison(const json_t *a, const json_t *b, const json_t *comparison,
                     struct buf *out)
{
    json_t *both = page_merge(a, b, comparison);
    struct page p = {.out = out, .doc = both, .second = b};
    put_page(&p);
    json_decref(both);
}
