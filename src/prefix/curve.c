/* SPDX-License-Identifier: MIT */
#include "prefix/curve.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"

/*
 *     time 1 2 3 4 5 6 7 8        one place for each use; an item is at its last use
 *          . A . . C B . D   ◄── newest
 *
 * The distance of A is the number of places taken from A on: a sum over a Fenwick tree of
 * ones. When the places run out, the items are moved together, oldest first. A hash table
 * finds an item's place; places know their items, so that the oldest can be forgotten.
 */

struct place {
    struct hash128 item;
    bool taken;
};

struct curve {
    size_t max_items, n_items;
    size_t n_places, next, oldest; /* places are 1 … n_places; all before `oldest` free */
    struct place *places;
    uint32_t *sums;  /* Fenwick tree over places */
    uint32_t *table; /* open addressing: place of an item, 0 empty */
    size_t mask;
    double *hits; /* by distance: hits[d] is the weight reused at exactly this one */
    double total;
};

struct curve *curve_new(size_t max_items)
{
    struct curve *c = mem_zalloc(sizeof(*c));
    size_t slots = 32;
    c->max_items = max_items < 16 ? 16 : max_items;
    c->n_places = c->max_items * 2;
    while (slots < c->max_items * 2)
        slots *= 2;
    c->mask = slots - 1;
    c->places = mem_zalloc((c->n_places + 1) * sizeof(*c->places));
    c->sums = mem_zalloc((c->n_places + 1) * sizeof(*c->sums));
    c->table = mem_zalloc(slots * sizeof(*c->table));
    c->hits = mem_zalloc((c->max_items + 1) * sizeof(*c->hits));
    c->next = c->oldest = 1;
    return c;
}

void curve_free(struct curve *c)
{
    if (!c)
        return;
    free(c->places);
    free(c->sums);
    free(c->table);
    free(c->hits);
    free(c);
}

/* ---- sums -------------------------------------------------------------------------- */

static void add_at(struct curve *c, size_t place, uint32_t more)
{
    for (; place <= c->n_places; place += place & -place)
        c->sums[place] += more; /* −1 is added modulo 2³² */
}

static size_t taken_up_to(const struct curve *c, size_t place)
{
    size_t n = 0;
    for (; place; place -= place & -place)
        n += c->sums[place];
    return n;
}

/* ---- the table --------------------------------------------------------------------- */

/* Where the item is, or where it would go. */
static size_t slot_of(const struct curve *c, struct hash128 item)
{
    size_t i = (size_t)item.lo & c->mask;
    while (c->table[i] && !hash128_eq(c->places[c->table[i]].item, item))
        i = (i + 1) & c->mask;
    return i;
}

/* Takes a slot out and closes the gap behind it. */
static void remove_slot(struct curve *c, size_t i)
{
    for (size_t j = (i + 1) & c->mask; c->table[j]; j = (j + 1) & c->mask) {
        const size_t home = (size_t)c->places[c->table[j]].item.lo & c->mask;
        if (((j - home) & c->mask) >= ((j - i) & c->mask)) {
            c->table[i] = c->table[j];
            i = j;
        }
    }
    c->table[i] = 0;
}

/* ---- places ------------------------------------------------------------------------ */

static void leave(struct curve *c, size_t place)
{
    c->places[place].taken = false;
    add_at(c, place, (uint32_t)-1);
    c->n_items--;
}

static void forget_oldest(struct curve *c)
{
    while (!c->places[c->oldest].taken)
        c->oldest++;
    remove_slot(c, slot_of(c, c->places[c->oldest].item));
    leave(c, c->oldest);
}

/* Moves all items together at the low end. */
static void compact(struct curve *c)
{
    size_t to = 0;
    for (size_t from = c->oldest; from < c->next; from++) {
        if (!c->places[from].taken)
            continue;
        const size_t slot = slot_of(c, c->places[from].item);
        c->places[++to] = c->places[from];
        c->table[slot] = (uint32_t)to;
    }
    memset(c->places + to + 1, 0, (c->n_places - to) * sizeof(*c->places));
    memset(c->sums, 0, (c->n_places + 1) * sizeof(*c->sums));
    for (size_t i = 1; i <= to; i++)
        c->sums[i] = 1;
    for (size_t i = 1; i <= c->n_places; i++)
        if (i + (i & -i) <= c->n_places)
            c->sums[i + (i & -i)] += c->sums[i];
    c->oldest = 1;
    c->next = to + 1;
}

static void use(struct curve *c, struct hash128 item)
{
    size_t slot = slot_of(c, item);
    if (c->table[slot]) {
        leave(c, c->table[slot]);
        remove_slot(c, slot);
    } else if (c->n_items == c->max_items) {
        forget_oldest(c);
    }
    if (c->next > c->n_places)
        compact(c);
    slot = slot_of(c, item);
    c->table[slot] = (uint32_t)c->next;
    c->places[c->next] = (struct place){item, true};
    add_at(c, c->next++, 1);
    c->n_items++;
}

/* ---- requests ---------------------------------------------------------------------- */

double curve_add(struct curve *c, const struct hash128 *items, size_t n,
                 const double *weights)
{
    return curve_add_telling(c, items, n, weights, NULL);
}

double curve_add_telling(struct curve *c, const struct hash128 *items, size_t n,
                         const double *weights, size_t *needs)
{
    double known = 0;
    bool leading = true;
    for (size_t i = 0; i < n; i++) {
        const double weight = weights ? weights[i] : 1;
        const uint32_t place = c->table[slot_of(c, items[i])];
        leading &= place != 0;
        c->total += weight;
        const size_t need = leading ? c->n_items - taken_up_to(c, place - 1) : SIZE_MAX;
        if (needs)
            needs[i] = need;
        if (!leading)
            continue;
        c->hits[need] += weight;
        known += weight;
    }
    for (size_t i = n; i-- > 0;)
        use(c, items[i]);
    return known;
}

double curve_hits(const struct curve *c, size_t items)
{
    double hits = 0;
    for (size_t i = 1; i <= items && i <= c->max_items; i++)
        hits += c->hits[i];
    return hits;
}

double curve_total(const struct curve *c)
{
    return c->total;
}

size_t curve_items(const struct curve *c)
{
    return c->n_items;
}
