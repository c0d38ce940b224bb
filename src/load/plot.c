/* SPDX-License-Identifier: MIT */
#include "load/plot.h"

#include <math.h>
#include <string.h>

#include "base/html.h"

#define ACROSS 1000.0 /* units of lines: they are stretched to the width */
#define LEAST_BAR 0.2 /* percent: some pixel */
#define MANY_TICKS 4  /* with more, every other label goes on small screens */

static const char *const shape_names[] = {[PLOT_DOT] = "dot",
                                          [PLOT_TRIANGLE] = "tri",
                                          [PLOT_SQUARE] = "sq",
                                          [PLOT_CROSS] = "cr",
                                          [PLOT_DIAMOND] = "di"};

void plot_shapes(struct buf *out)
{
    buf_append_str(out,
                   "<svg width=\"0\" height=\"0\" aria-hidden=\"true\"><defs>"
                   "<circle id=\"dot\" r=\"3.3\"></circle>"
                   "<path id=\"tri\" d=\"M0-4.4 4.2 3.2-4.2 3.2z\"></path>"
                   "<rect id=\"sq\" x=\"-3\" y=\"-3\" width=\"6\" height=\"6\"></rect>"
                   "<path id=\"cr\" d=\"M-3.2-3.2 3.2 3.2M3.2-3.2-3.2 3.2\"></path>"
                   "<path id=\"di\" d=\"M0-4.4 4.4 0 0 4.4-4.4 0z\"></path>"
                   "</defs></svg>\n");
}

/* ---- places ------------------------------------------------------------------------ */

static double percent_x(const struct plot *p, double x)
{
    return 100 * scale_at(&p->x.scale, x);
}

static double pixel_y(const struct plot *p, double y)
{
    return p->height * (1 - scale_at(&p->y.scale, y));
}

/* ---- frame ------------------------------------------------------------------------- */

static void put_text(struct buf *out, const char *text)
{
    html_text(slice_of(text), out);
}

static void put_ticks_x(struct plot *p)
{
    double at[SCALE_TICKS];
    const size_t n = scale_ticks(&p->x.scale, 6, at);
    for (size_t i = 0; i < n; i++) {
        char label[SCALE_LABEL];
        scale_label(p->x.unit, at[i], label);
        const double x = percent_x(p, at[i]);
        buf_printf(
            p->out,
            "<line class=\"g\" x1=\"%.2f%%\" x2=\"%.2f%%\" y1=\"0\" y2=\"%u\"></line>"
            "<text class=\"tx%s\" x=\"%.2f%%\" y=\"%u\">",
            x, x, p->height, n > MANY_TICKS && i % 2 ? " alt" : "", x, p->height + 16);
        put_text(p->out, label);
        buf_append_str(p->out, "</text>");
    }
}

static void put_ticks_y(struct plot *p)
{
    double at[SCALE_TICKS];
    const size_t n = scale_ticks(&p->y.scale, p->height < 150 ? 3 : 5, at);
    for (size_t i = 0; i < n; i++) {
        char label[SCALE_LABEL];
        scale_label(p->y.unit, at[i], label);
        const double y = pixel_y(p, at[i]);
        buf_printf(
            p->out,
            "<line class=\"g\" x1=\"0\" x2=\"100%%\" y1=\"%.1f\" y2=\"%.1f\"></line>"
            "<text class=\"ty\" x=\"-7\" y=\"%.1f\">",
            y, y, y + 4);
        put_text(p->out, label);
        buf_append_str(p->out, "</text>");
    }
}

void plot_begin(struct plot *p, const struct plot_words *words)
{
    struct buf *out = p->out;
    if (!p->height)
        p->height = PLOT_HEIGHT;
    if (p->y.words) {
        buf_append_str(out, "<div class=\"yw\">");
        put_text(out, p->y.words);
        buf_append_str(out, p->y.scale.log ? " (log)</div>\n" : "</div>\n");
    }
    buf_printf(out,
               "<div class=\"frame%s\"><svg class=\"plot\" role=\"img\" width=\"100%%\" "
               "height=\"%u\"><title>",
               p->y.words ? "" : " noy", p->height);
    put_text(out, words->title);
    buf_append_str(out, "</title><desc>");
    put_text(out, words->desc);
    buf_append_str(out, "</desc>\n");
    if (p->x.words)
        put_ticks_x(p);
    if (p->y.words)
        put_ticks_y(p);
    buf_printf(out,
               "<line class=\"ax\" x1=\"0\" x2=\"100%%\" y1=\"%u\" y2=\"%u\"></line>\n",
               p->height, p->height);
}

void plot_end(struct plot *p)
{
    buf_append_str(p->out, "</svg></div>\n");
    if (p->x.words) {
        buf_append_str(p->out, "<div class=\"xw\">");
        put_text(p->out, p->x.words);
        buf_append_str(p->out, p->x.scale.log ? " (log)</div>\n" : "</div>\n");
    }
}

/* ---- data -------------------------------------------------------------------------- */

void plot_line(struct plot *p, const double *x, const double *y, size_t n, bool steps,
               const char *look)
{
    bool open = false;
    buf_printf(
        p->out,
        "<svg viewBox=\"0 0 %.0f %u\" preserveAspectRatio=\"none\" width=\"100%%\" "
        "height=\"%u\"><path class=\"l %s\" d=\"",
        ACROSS, p->height, p->height, look);
    for (size_t i = 0; i < n; i++) {
        const double across = ACROSS * scale_at(&p->x.scale, x[i]),
                     down = pixel_y(p, y[i]);
        if (isnan(across) || isnan(down)) {
            open = false;
            continue;
        }
        if (open && steps)
            buf_printf(p->out, "H%.1fV%.1f", across, down);
        else
            buf_printf(p->out, "%c%.1f %.1f", open ? 'L' : 'M', across, down);
        open = true;
    }
    buf_append_str(p->out, "\"></path></svg>\n");
}

/* ">", a tip, and the end of `element`. */
static void put_tip(struct buf *out, const char *element, const char *tip)
{
    buf_append_char(out, '>');
    if (tip) {
        buf_append_str(out, "<title>");
        put_text(out, tip);
        buf_append_str(out, "</title>");
    }
    buf_printf(out, "</%s>\n", element);
}

void plot_mark(struct plot *p, double x, double y, enum plot_shape shape,
               const char *look, const char *tip)
{
    if (isnan(x) || isnan(y))
        return;
    buf_printf(p->out, "<use class=\"m %s\" href=\"#%s\" x=\"%.2f%%\" y=\"%.1f\"", look,
               shape_names[shape], percent_x(p, x), pixel_y(p, y));
    put_tip(p->out, "use", tip);
}

void plot_bar(struct plot *p, double x0, double x1, double top, double thick,
              const char *look, const char *tip)
{
    const double left = percent_x(p, x0), wide = percent_x(p, x1) - left;
    if (isnan(wide))
        return;
    buf_printf(p->out,
               "<rect class=\"r %s\" x=\"%.2f%%\" y=\"%.1f\" width=\"%.2f%%\" "
               "height=\"%.1f\"",
               look, left, top, fmax(wide, LEAST_BAR), thick);
    put_tip(p->out, "rect", tip);
}

void plot_column(struct plot *p, double x0, double x1, double y, const char *look,
                 const char *tip)
{
    const double top = pixel_y(p, y);
    if (!isnan(top))
        plot_bar(p, x0, x1, top, p->height - top, look, tip);
}

void plot_rule(struct plot *p, double x0, double y0, double x1, double y1,
               const char *look)
{
    if (isnan(x0) || isnan(y0) || isnan(x1) || isnan(y1))
        return;
    buf_printf(p->out,
               "<line class=\"l %s\" x1=\"%.2f%%\" y1=\"%.1f\" x2=\"%.2f%%\" "
               "y2=\"%.1f\"></line>\n",
               look, percent_x(p, x0), pixel_y(p, y0), percent_x(p, x1), pixel_y(p, y1));
}

void plot_label(struct plot *p, double top, const char *words)
{
    buf_printf(p->out, "<text class=\"lb\" x=\"5\" y=\"%.1f\">", top);
    put_text(p->out, words);
    buf_append_str(p->out, "</text>\n");
}

void plot_key(struct buf *out, const char *look, int shape, bool line, const char *words)
{
    buf_append_str(out, "<span class=\"k\"><svg width=\"26\" height=\"12\" "
                        "aria-hidden=\"true\">");
    if (line)
        buf_printf(out,
                   "<line class=\"l %s\" x1=\"1\" x2=\"25\" y1=\"6\" y2=\"6\"></line>",
                   look);
    if (shape >= 0)
        buf_printf(out, "<use class=\"m %s\" href=\"#%s\" x=\"13\" y=\"6\"></use>", look,
                   shape_names[shape]);
    if (shape < 0 && !line)
        buf_printf(
            out,
            "<rect class=\"r %s\" x=\"5\" y=\"1\" width=\"16\" height=\"10\"></rect>",
            look);
    buf_append_str(out, "</svg>");
    put_text(out, words);
    buf_append_str(out, "</span>\n");
}

/* ---- many points ------------------------------------------------------------------- */

static unsigned cell_of(double at, unsigned cells)
{
    const unsigned c = (unsigned)(at * cells);
    return c < cells ? c : cells - 1;
}

size_t plot_thin(const struct plot *p, const double *x, const double *y, size_t n,
                 size_t most, bool *keep)
{
    bool taken[PLOT_CELLS_Y][PLOT_CELLS_X];
    size_t there = 0, kept = 0;
    memset(taken, 0, sizeof(taken));
    for (size_t i = 0; i < n; i++)
        there += keep[i] = !isnan(x[i]) && !isnan(y[i]);
    if (there <= most)
        return there;
    for (size_t i = 0; i < n; i++) {
        if (!keep[i])
            continue;
        bool *cell = &taken[cell_of(scale_at(&p->y.scale, y[i]), PLOT_CELLS_Y)]
                           [cell_of(scale_at(&p->x.scale, x[i]), PLOT_CELLS_X)];
        keep[i] = !*cell;
        *cell = true;
        kept += keep[i];
    }
    return kept;
}
