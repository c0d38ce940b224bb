/* SPDX-License-Identifier: MIT */
#include "page_internal.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/html.h"
#include "base/mem.h"

#define MOST_COUNTS 10 /* of a cell */

void page_text(struct buf *out, const char *text)
{
    html_text_cut(slice_of(text ? text : "not known"), PAGE_TEXT, out);
}

static void put_formatted(struct buf *out, const char *fmt, va_list ap)
    __attribute__((format(printf, 2, 0)));

static void put_formatted(struct buf *out, const char *fmt, va_list ap)
{
    struct buf text = {0};
    buf_vprintf(&text, fmt, ap);
    html_text(buf_slice(&text), out);
    buf_free(&text);
}

void page_section(struct buf *out, const char *heading)
{
    buf_append_str(out, "<section>\n<h2>");
    html_text(slice_of(heading), out);
    buf_append_str(out, "</h2>\n");
}

void page_section_end(struct buf *out)
{
    buf_append_str(out, "</section>\n");
}

void page_arm_heading(struct buf *out, const struct page_arm *a)
{
    buf_append_str(out, "<h3>");
    page_text(out, a->name);
    buf_append_str(out, "</h3>\n");
}

void page_note(struct buf *out, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    buf_append_str(out, "<p class=\"note\">");
    put_formatted(out, fmt, ap);
    buf_append_str(out, "</p>\n");
    va_end(ap);
}

/* ---- tables ------------------------------------------------------------------------ */

static void begin_table(struct buf *out, const char *table, const char *caption,
                        const char *columns)
{
    buf_printf(out, "<div class=\"scroll\" tabindex=\"0\">%s\n<caption>", table);
    html_text(slice_of(caption), out);
    buf_append_str(out, "</caption>\n<thead><tr>");
    for (const char *c = columns;; c++) {
        const size_t n = strcspn(c, "|");
        buf_append_str(out, "<th scope=\"col\">");
        html_text(slice_make(c, n), out);
        buf_append_str(out, "</th>");
        c += n;
        if (!*c)
            break;
    }
    buf_append_str(out, "</tr></thead>\n<tbody>\n");
}

void page_table(struct buf *out, const char *caption, const char *columns)
{
    begin_table(out, "<table>", caption, columns);
}

void page_facts(struct buf *out, const char *caption, const char *columns)
{
    begin_table(out, "<table class=\"facts\">", caption, columns);
}

void page_row(struct buf *out, const char *name)
{
    buf_append_str(out, "<tr><th scope=\"row\">");
    page_text(out, name);
    buf_append_str(out, "</th>");
}

void page_cell(struct buf *out, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    buf_append_str(out, "<td>");
    put_formatted(out, fmt, ap);
    buf_append_str(out, "</td>");
    va_end(ap);
}

void page_cell_number(struct buf *out, double value, int digits)
{
    char text[PAGE_NUMBER];
    page_format(value, digits, text);
    page_cell(out, "%s", text);
}

void page_row_end(struct buf *out)
{
    buf_append_str(out, "</tr>\n");
}

void page_table_end(struct buf *out)
{
    buf_append_str(out, "</tbody></table></div>\n");
}

void page_counts(struct buf *out, json_t *counts)
{
    const char *key;
    char times[PAGE_NUMBER];
    json_t *n;
    size_t shown = 0;
    buf_append_str(out, "<td>");
    json_object_foreach(counts, key, n)
    {
        if (!(page_value(n) > 0))
            continue;
        if (shown++ == MOST_COUNTS) {
            buf_append_str(out, ", \xE2\x80\xA6");
            break;
        }
        buf_append_str(out, shown > 1 ? ", " : "");
        page_text(out, key);
        page_format(page_value(n), 0, times);
        buf_printf(out, ": %s", times);
    }
    buf_append_str(out, shown ? "</td>" : "\xE2\x80\x93</td>");
}

/* ---- legends, numbers -------------------------------------------------------------- */

void page_keys(struct buf *out)
{
    buf_append_str(out, "<p class=\"keys\">");
}

void page_keys_end(struct buf *out)
{
    buf_append_str(out, "</p>\n");
}

void page_format(double value, int digits, char out[PAGE_NUMBER])
{
    char plain[PAGE_NUMBER / 2];
    if (isnan(value)) {
        snprintf(out, PAGE_NUMBER, "\xE2\x80\x93");
        return;
    }
    const int len = snprintf(plain, sizeof(plain), "%.*f", digits, fabs(value));
    const int whole = digits ? len - digits - 1 : len;
    size_t n = 0;
    if (value < 0 && strtod(plain, NULL) != 0) {
        memcpy(out, "\xE2\x88\x92", 3); /* a minus sign */
        n = 3;
    }
    for (int i = 0; i < len; i++) {
        if (i > 0 && i < whole && (whole - i) % 3 == 0)
            out[n++] = ',';
        out[n++] = plain[i];
    }
    out[n] = '\0';
}
