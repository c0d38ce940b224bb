/* SPDX-License-Identifier: MIT */
#include "load/scale.h"

#include <math.h>
#include <stdio.h>

static double within_limits(double v)
{
    return fabs(v) < SCALE_LEAST ? 0 : fmax(-SCALE_MOST, fmin(SCALE_MOST, v));
}

static void see(struct scale_extent *e, double v)
{
    e->low = e->n == 0 || v < e->low ? v : e->low;
    e->high = e->n == 0 || v > e->high ? v : e->high;
    e->n++;
    if (v > 0) {
        e->least = e->n_positive == 0 || v < e->least ? v : e->least;
        e->n_positive++;
    }
}

void scale_see(struct scale_extent *e, const double *v, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (isfinite(v[i]))
            see(e, within_limits(v[i]));
}

/* ---- ranges ------------------------------------------------------------------------ */

static const double round_digits[] = {1, 2, 5, 10};

/* The largest of 1, 2, 5 × 10^k that is not above `v` (> 0), or the smallest not below.
 * A little of a step is forgiven: 0.1 × 3 is 0.3. */
static double round_down(double v)
{
    const double decade = pow(10, floor(log10(v) + 1e-12));
    for (int i = 2; i > 0; i--)
        if (round_digits[i] * decade <= v * (1 + 1e-12))
            return round_digits[i] * decade;
    return decade;
}

static double round_up(double v)
{
    const double decade = pow(10, floor(log10(v) + 1e-12));
    for (int i = 0; i < 3; i++)
        if (round_digits[i] * decade >= v * (1 - 1e-12))
            return round_digits[i] * decade;
    return 10 * decade;
}

struct scale scale_exact(double low, double high)
{
    return (struct scale){.low = low, .high = high > low ? high : low + 1};
}

struct scale scale_fit(const struct scale_extent *e, bool may_be_log)
{
    if (e->n == 0 || (e->low == 0 && e->high == 0))
        return scale_exact(0, 1);
    if (may_be_log && e->low >= 0 && e->n_positive &&
        e->high / e->least >= SCALE_LOG_SPAN)
        return (struct scale){
            .low = round_down(e->least), .high = round_up(e->high), .log = true};
    const double low = fmin(e->low, 0), high = fmax(e->high, 0);
    const double step = round_up((high - low) / 5);
    return scale_exact(floor(low / step + 1e-9) * step, ceil(high / step - 1e-9) * step);
}

double scale_at(const struct scale *s, double value)
{
    if (isnan(value))
        return value;
    if (value <= s->low)
        return 0;
    if (value >= s->high)
        return 1;
    return s->log ? log(value / s->low) / log(s->high / s->low)
                  : (value - s->low) / (s->high - s->low);
}

/* ---- ticks ------------------------------------------------------------------------- */

static size_t linear_ticks(const struct scale *s, unsigned wanted, double *out)
{
    const double step = round_up((s->high - s->low) / wanted * 0.8);
    const double first = ceil(s->low / step - 1e-9);
    size_t n = 0;
    while (n < SCALE_TICKS) {
        const double v = (first + (double)n) * step;
        if (v > s->high + step * 1e-9)
            break;
        out[n++] = v;
    }
    return n;
}

/* 1, 2 and 5 of each decade, or 1 of every so many. */
static size_t decades(const struct scale *s, int every, bool all_digits, double *out)
{
    const int first = (int)floor(log10(s->low) + 1e-9);
    const double most = s->high * (1 + 1e-9);
    size_t n = 0;
    for (int k = first; pow(10, k) <= most && n < SCALE_TICKS; k += every)
        for (int i = 0; i < (all_digits ? 3 : 1); i++) {
            const double v = round_digits[i] * pow(10, k);
            if (v >= s->low * (1 - 1e-9) && v <= most && n < SCALE_TICKS)
                out[n++] = v;
        }
    return n;
}

static size_t log_ticks(const struct scale *s, unsigned wanted, double *out)
{
    const double span = log10(s->high / s->low);
    if (3 * span <= wanted + 1 || span < 2)
        return decades(s, 1, true, out);
    return decades(s, (int)ceil(span / wanted), false, out);
}

size_t scale_ticks(const struct scale *s, unsigned wanted, double out[SCALE_TICKS])
{
    size_t n = 0;
    for (; n < 2 && wanted < SCALE_TICKS; wanted++)
        n = s->log ? log_ticks(s, wanted, out) : linear_ticks(s, wanted, out);
    return n;
}

/* ---- labels ------------------------------------------------------------------------ */

struct step {
    double from, per;
    const char *name;
};

static void put_scaled(double v, const struct step *steps, char *out)
{
    while (steps->from > 0 && fabs(v) < steps->from * (1 - 1e-9))
        steps++;
    const double scaled = v / steps->per + 0.0;
    snprintf(out, SCALE_LABEL, fabs(scaled) < 999.5 ? "%.3g%s" : "%.0f%s", scaled,
             steps->name);
}

static void put_share(double v, const char *sign, char *out)
{
    const double percent = 100 * v + 0.0;
    snprintf(out, SCALE_LABEL, fabs(percent) < 999.5 ? "%s%.3g %%" : "%s%.0f %%", sign,
             percent);
}

void scale_label(enum scale_unit unit, double value, char out[SCALE_LABEL])
{
    static const struct step counts[] = {
        {1e9, 1e9, "G"}, {1e6, 1e6, "M"}, {1e3, 1e3, "k"}, {0, 1, ""}};
    static const struct step times[] = {
        {1e3, 1e3, " s"}, {1, 1, " ms"}, {0, 1e-3, " \xC2\xB5s"}};
    static const struct step bytes[] = {{0x1p30, 0x1p30, " GiB"},
                                        {0x1p20, 0x1p20, " MiB"},
                                        {0x1p10, 0x1p10, " KiB"},
                                        {0, 1, " B"}};
    if (!isfinite(value))
        snprintf(out, SCALE_LABEL, "\xE2\x80\x93");
    else if (unit == SCALE_SHARE || unit == SCALE_CHANGE)
        put_share(value, unit == SCALE_CHANGE && value > 0 ? "+" : "", out);
    else if (value == 0)
        snprintf(out, SCALE_LABEL, "0");
    else
        put_scaled(value,
                   unit == SCALE_MS      ? times
                   : unit == SCALE_BYTES ? bytes
                                         : counts,
                   out);
}
