/* SPDX-License-Identifier: MIT */
#ifndef INCIPIT_LOAD_PLOT_H
#define INCIPIT_LOAD_PLOT_H

/*
 * Drawings of data as SVG inside a page. A plot is as wide as there is room and
 * PLOT_HEIGHT (or what was asked for) pixels high: places across are percent, so letters
 * and marks keep their size on any screen. Colours are classes, which the page's style
 * knows (page_style.c): a, b, c (series), n (neutral), x (gone wrong); d2 and d3 dash a
 * line, h makes a mark hollow, s draws its outline. All text is escaped here.
 */

#include "base/buf.h"
#include "load/scale.h"

#define PLOT_HEIGHT 240

struct plot_axis {
    struct scale scale;
    enum scale_unit unit;
    const char *words; /* what it shows */
};

struct plot_words {
    const char *title; /* what it is */
    const char *desc;  /* what is to be seen, for who does not see it */
};

struct plot {
    struct buf *out;
    struct plot_axis x, y;
    unsigned height;
};

enum plot_shape { PLOT_DOT, PLOT_TRIANGLE, PLOT_SQUARE, PLOT_CROSS, PLOT_DIAMOND };

/* The shapes; once in a page, before the first plot. */
void plot_shapes(struct buf *out);

/* Frame, grid, ticks and words of both axes. An axis without `words` has no ticks. */
void plot_begin(struct plot *p, const struct plot_words *words);
void plot_end(struct plot *p);

/* Lines through n points. A NAN breaks it. As steps: level, then up at the next x. */
void plot_line(struct plot *p, const double *x, const double *y, size_t n, bool steps,
               const char *look);

/* A mark; nothing where a coordinate is NAN. `tip` is told on hovering; NULL: nothing. */
void plot_mark(struct plot *p, double x, double y, enum plot_shape shape,
               const char *look, const char *tip);

/* A bar from x0 to x1 and from `top` to `top + thick` pixels; at least a pixel wide. */
void plot_bar(struct plot *p, double x0, double x1, double top, double thick,
              const char *look, const char *tip);

/* A column from x0 to x1, as high as `y`. */
void plot_column(struct plot *p, double x0, double x1, double y, const char *look,
                 const char *tip);

/* From (x0, y0) to (x1, y1): an interval, a line at a value. */
void plot_rule(struct plot *p, double x0, double y0, double x1, double y1,
               const char *look);

/* Words within the plot, at its left, `top` pixels down. */
void plot_label(struct plot *p, double top, const char *words);

/* An entry of the legend, outside of a plot: the mark (its line too), then the words. */
void plot_key(struct buf *out, const char *look, int shape, bool line, const char *words);

/*
 * Which of n points are worth drawing: all up to `most`; of more, in their order, those
 * whose cell of a grid of PLOT_CELLS_X × PLOT_CELLS_Y is not taken, so that what lies
 * apart stays. Returns how many; keep[i] says which. NAN are never kept.
 */
#define PLOT_CELLS_X 100
#define PLOT_CELLS_Y 40
size_t plot_thin(const struct plot *p, const double *x, const double *y, size_t n,
                 size_t most, bool *keep);

#endif
