/* SPDX-License-Identifier: MIT */
#include "cache_internal.h"

/*
 * What time it is for blocks that are to go after some time.
 *
 * Files carry the wall clock, and that may be set wrong, also while nobody looks. So the
 * store has a clock of its own that only goes forward: with monotonic time while the
 * gateway runs, and over a stop by what the wall clock says, but by no more than half of
 * the shortest lifetime. A stop of a year and a clock that was set a year ahead look the
 * same; in both cases what was used before it stays for at least half of its time, and
 * not for ever.
 *
 *     wall    |----A----|      B----|           A: set ahead while it ran; B: a stop
 *     own     |----A----|------|----|
 *     points  ×    ×    ×      ×    ×           kept in the note "clock"
 *
 * The age of a file is found between the points around its time. Points are close to each
 * other near the present and far apart long ago, so a few of them reach back for ever.
 */

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#define NOTE "clock"
#define START_S (UINT32_C(1) << 30) /* there is room before it for what is older */
#define POINTS_A_TTL 16 /* so many a lifetime, and not more than one each … */
#define LEAST_APART_S 5

/* Takes the point out that says least: the one with the narrowest gap for its age. */
static void thin_out(struct cache_clock *k)
{
    size_t least = 1;
    double least_says = 0;
    for (size_t i = 1; i + 1 < k->n_points; i++) {
        const double gap = k->points[i + 1].at_s - k->points[i - 1].at_s;
        const double says = gap / (1.0 + (k->now_s - k->points[i].at_s));
        if (i == 1 || says < least_says) {
            least = i;
            least_says = says;
        }
    }
    memmove(&k->points[least], &k->points[least + 1],
            (k->n_points - least - 1) * sizeof(k->points[0]));
    k->n_points--;
}

static void add_point(struct cache_clock *k, int64_t wall_s)
{
    if (k->n_points == CACHE_CLOCK_POINTS)
        thin_out(k);
    k->points[k->n_points++] = (struct cache_clock_point){wall_s, k->now_s};
}

static void write_note(const struct cache_clock *k, struct store *s)
{
    char text[CACHE_CLOCK_POINTS * 40];
    size_t n = 0;
    for (size_t i = 0; i < k->n_points; i++)
        n += (size_t)snprintf(text + n, sizeof(text) - n, "%" PRId64 " %" PRIu32 "\n",
                              k->points[i].wall_s, k->points[i].at_s);
    store_note_set(s, NOTE, text);
}

/* What is no list of points in order of time is as good as none. */
static void read_note(struct cache_clock *k, const struct store *s)
{
    char text[CACHE_CLOCK_POINTS * 40 + 1];
    int used = 0;
    if (!store_note_get(s, NOTE, text, sizeof(text)))
        return;
    for (const char *p = text; *p && k->n_points < CACHE_CLOCK_POINTS; p += used) {
        struct cache_clock_point *to = &k->points[k->n_points];
        if (sscanf(p, "%" SCNd64 " %" SCNu32 " %n", &to->wall_s, &to->at_s, &used) != 2 ||
            to->at_s > UINT32_MAX / 2 || (k->n_points && to->at_s < to[-1].at_s)) {
            k->n_points = 0;
            return;
        }
        k->n_points++;
    }
}

void cache_clock_start(struct cache_clock *k, const struct store *s, uint32_t shortest_s,
                       uint64_t mono_s, int64_t wall_s)
{
    *k = (struct cache_clock){.runs = true, .now_s = START_S, .mono_s = mono_s};
    read_note(k, s);
    if (k->n_points) {
        const struct cache_clock_point *last = &k->points[k->n_points - 1];
        const int64_t most = shortest_s / 2;
        int64_t stopped = wall_s > last->wall_s ? wall_s - last->wall_s : 0;
        stopped = stopped < most ? stopped : most;
        k->now_s = last->at_s + (uint32_t)stopped;
    }
    add_point(k, wall_s);
}

void cache_clock_tick(struct cache_clock *k, struct store *s, uint32_t shortest_s,
                      uint64_t mono_s, int64_t wall_s)
{
    if (mono_s > k->mono_s)
        k->now_s += (uint32_t)(mono_s - k->mono_s);
    k->mono_s = mono_s;
    uint32_t apart = shortest_s / POINTS_A_TTL;
    apart = apart > LEAST_APART_S ? apart : LEAST_APART_S;
    if (k->now_s - k->points[k->n_points - 1].at_s < apart)
        return;
    add_point(k, wall_s);
    write_note(k, s);
}

/* The point whose wall clock is the nearest one before it: clocks that were set back have
 * shown some times twice. */
uint32_t cache_clock_at(const struct cache_clock *k, int64_t wall_s)
{
    const struct cache_clock_point *best = NULL, *end = k->points + k->n_points;
    for (const struct cache_clock_point *p = k->points; p < end; p++)
        if (p->wall_s <= wall_s && (!best || p->wall_s >= best->wall_s))
            best = p;
    if (!best)
        return k->n_points ? k->points[0].at_s : k->now_s;
    const uint32_t most = best + 1 < end ? best[1].at_s : k->now_s;
    const int64_t since = wall_s - best->wall_s;
    return since < most - best->at_s ? best->at_s + (uint32_t)since : most;
}
