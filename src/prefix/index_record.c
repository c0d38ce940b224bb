/* SPDX-License-Identifier: MIT */

/* Boundaries out to a file, one record each, and back after a restart. */

#include "index_internal.h"

bool index_export(struct index *ix, const struct piece *v, size_t i,
                  struct index_record *out)
{
    const uint32_t id = index_lookup(ix, &v[i]);
    if (id == INDEX_START)
        return false;
    const struct index_entry *e = &ix->entries[id];
    *out = (struct index_record){.hash = e->hash,
                                 .parent = ix->entries[e->parent].hash,
                                 .check = e->check,
                                 .low = e->bounds.low,
                                 .high = e->bounds.high,
                                 .reach = index_reach(e),
                                 .owner = e->owner};
    return true;
}

static bool covers_more(const struct tree_mark *a, const struct tree_mark *b)
{
    return tree_mark_tokens(a) > tree_mark_tokens(b);
}

bool index_written(struct index *ix, const struct piece *v, size_t i, uint32_t file)
{
    struct index_entry *e = &ix->entries[index_lookup(ix, &v[i])];
    const bool before = e->file == file;
    e->file = file;
    return before;
}

bool index_import(struct index *ix, const struct index_record *r,
                  const struct tree_mark *at)
{
    const bool first = hash128_none(r->parent);
    const uint32_t parent = first ? INDEX_START : index_lookup_hash(ix, r->parent);
    const uint32_t known = index_lookup_hash(ix, r->hash);
    if (known && ix->tree && at && covers_more(at, &ix->entries[known].mark))
        index_place(ix, &ix->entries[known], at);
    if (known || (parent == INDEX_START && !first))
        return false;
    const struct piece p = {.hash = r->hash, .check = r->check};
    const uint32_t id = index_put_under(ix, &p, parent, r->owner);
    if (id == INDEX_START)
        return false;
    struct index_entry *e = &ix->entries[id];
    e->bounds = (struct index_bounds){r->low, r->high < r->low ? r->low : r->high};
    e->next_high = r->reach;
    if (ix->tree && at)
        index_place(ix, e, at);
    return true;
}
