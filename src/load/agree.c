/* SPDX-License-Identifier: MIT */
#include "load/agree.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/list.h"
#include "base/mem.h"
#include "load/report.h"
#include "prefix/chain.h"

/* What one arm answered, until the other has. */
struct said {
    struct list link;
    uint64_t index;
    unsigned arm;
    bool read;
    int64_t cached;
    struct buf text;       /* reasoning, content and calls, with a 0 between */
    struct buf units_text; /* of the units */
    struct answer_unit *units;
    size_t n_units;
    bool tokens;
};

struct pair {
    uint64_t index;
    bool read;
    bool equal, tokens;
    int64_t cached[2];               /* -1: not told */
    size_t n_units[2];               /* 0: not told */
    int64_t first_unit, first_byte;  /* where they differ first; -1: nowhere */
    struct hash128 hash[2];          /* none where not read */
    double logprob_sum, logprob_max; /* of differences, over units that are equal */
    size_t n_logprobs;
};

struct agree {
    struct list waiting;
    struct pair *pairs; /* in the order in which they were complete */
    size_t n, room;
};

/* ---- one answer -------------------------------------------------------------------- */

static void put_text(struct buf *out, const struct prompt_answer *a)
{
    if (a->reasoning.len) {
        buf_append_slice(out, a->reasoning);
        buf_append_char(out, '\0');
    }
    buf_append_slice(out, a->content);
    for (size_t i = 0; i < a->n_calls; i++) {
        buf_append_char(out, '\0');
        buf_append_slice(out, a->calls[i].name);
        buf_append_char(out, '\0');
        buf_append_slice(out, a->calls[i].arguments);
    }
}

static struct said *said_of(unsigned arm, const struct sample *s, struct answer *a)
{
    struct said *out = mem_zalloc(sizeof(*out));
    const struct prompt_answer *text =
        a && s->outcome == SAMPLE_COMPLETED ? answer_text(a) : NULL;
    struct slice units_text;
    out->index = s->index;
    out->arm = arm;
    out->cached = s->cached_tokens;
    out->read = text != NULL;
    if (!text)
        return out;
    put_text(&out->text, text);
    const struct answer_unit *u =
        answer_units(a, &out->n_units, &units_text, &out->tokens);
    out->units = mem_array(out->n_units + 1, sizeof(*out->units));
    if (out->n_units)
        memcpy(out->units, u, out->n_units * sizeof(*u));
    buf_append_slice(&out->units_text, units_text);
    return out;
}

static void said_free(struct said *s)
{
    buf_free(&s->text);
    buf_free(&s->units_text);
    free(s->units);
    free(s);
}

/* ---- a pair ------------------------------------------------------------------------ */

static struct slice unit_text(const struct said *s, size_t i)
{
    const size_t from = i ? s->units[i - 1].end : 0;
    return slice_make(buf_slice(&s->units_text).ptr + from, s->units[i].end - from);
}

static void compare_units(struct pair *p, const struct said *a, const struct said *b)
{
    const size_t least = a->n_units < b->n_units ? a->n_units : b->n_units;
    size_t i = 0;
    for (; i < least && slice_eq(unit_text(a, i), unit_text(b, i)); i++) {
        const double d = fabs((double)a->units[i].logprob - (double)b->units[i].logprob);
        if (isnan(d))
            continue;
        p->n_logprobs++;
        p->logprob_sum += d;
        p->logprob_max = fmax(p->logprob_max, d);
    }
    p->first_unit = p->equal || least == 0 ? -1 : (int64_t)i;
}

static int64_t first_difference(struct slice a, struct slice b)
{
    size_t i = 0;
    while (i < a.len && i < b.len && a.ptr[i] == b.ptr[i])
        i++;
    return (int64_t)i;
}

static void compare(struct pair *p, const struct said *a, const struct said *b)
{
    const struct slice x = buf_slice(&a->text), y = buf_slice(&b->text);
    p->equal = slice_eq(x, y);
    p->tokens = a->tokens && b->tokens;
    p->n_units[0] = a->n_units;
    p->n_units[1] = b->n_units;
    p->hash[0] = chain_checksum(x);
    p->hash[1] = chain_checksum(y);
    p->first_byte = p->equal ? -1 : first_difference(x, y);
    compare_units(p, a, b);
}

static struct said *take_other(struct agree *g, uint64_t index)
{
    LIST_EACH (it, &g->waiting) {
        struct said *s = LIST_ENTRY(it, struct said, link);
        if (s->index == index) {
            list_del(&s->link);
            return s;
        }
    }
    return NULL;
}

static struct pair *add_pair(struct agree *g)
{
    if (g->n == g->room) {
        g->room = g->room ? 2 * g->room : 64;
        g->pairs = mem_rearray(g->pairs, g->room, sizeof(*g->pairs));
    }
    g->pairs[g->n] = (struct pair){.first_unit = -1, .first_byte = -1};
    return &g->pairs[g->n++];
}

void agree_add(struct agree *g, unsigned arm, const struct sample *s, struct answer *a)
{
    struct said *here = said_of(arm, s, a), *there = take_other(g, s->index);
    if (!there) {
        list_push_back(&g->waiting, &here->link);
        return;
    }
    const struct said *by_arm[2] = {arm ? there : here, arm ? here : there};
    struct pair *p = add_pair(g);
    p->index = s->index;
    p->cached[0] = by_arm[0]->cached;
    p->cached[1] = by_arm[1]->cached;
    p->read = here->read && there->read;
    if (p->read)
        compare(p, by_arm[0], by_arm[1]);
    said_free(here);
    said_free(there);
}

struct agree *agree_new(void)
{
    struct agree *g = mem_zalloc(sizeof(*g));
    list_init(&g->waiting);
    return g;
}

void agree_free(struct agree *g)
{
    if (!g)
        return;
    LIST_EACH_SAFE (it, next, &g->waiting)
        said_free(LIST_ENTRY(it, struct said, link));
    free(g->pairs);
    free(g);
}

/* ---- what came of it --------------------------------------------------------------- */

enum group { SAME_CACHED, OTHER_CACHED, CACHED_UNKNOWN, GROUPS };

static const char *const group_names[GROUPS] = {"same_cached", "other_cached",
                                                "cached_unknown"};

static enum group group_of(const struct pair *p)
{
    if (p->cached[0] < 0 || p->cached[1] < 0)
        return CACHED_UNKNOWN;
    return p->cached[0] == p->cached[1] ? SAME_CACHED : OTHER_CACHED;
}

static int by_value(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Where the pairs of a group that differ do so first. */
static json_t *first_units(const struct agree *g, enum group group)
{
    double *v = mem_array(g->n + 1, sizeof(*v));
    size_t n = 0;
    for (size_t i = 0; i < g->n; i++)
        if (g->pairs[i].read && group_of(&g->pairs[i]) == group &&
            g->pairs[i].first_unit >= 0)
            v[n++] = (double)g->pairs[i].first_unit;
    qsort(v, n, sizeof(*v), by_value);
    json_t *out = json_pack("{s:I, s:o, s:o, s:o}", "n", (json_int_t)n, "p10",
                            report_number(tally_quantile(v, n, 0.1)), "p50",
                            report_number(tally_quantile(v, n, 0.5)), "p90",
                            report_number(tally_quantile(v, n, 0.9)));
    free(v);
    return out;
}

static json_t *group_json(const struct agree *g, enum group group)
{
    struct verdict_count c = {0};
    double low, high, sum = 0, most = 0;
    size_t n = 0;
    for (size_t i = 0; i < g->n; i++) {
        const struct pair *p = &g->pairs[i];
        if (!p->read || group_of(p) != group)
            continue;
        c.n++;
        c.good += p->equal;
        n += p->n_logprobs;
        sum += p->logprob_sum;
        most = fmax(most, p->logprob_max);
    }
    verdict_interval(&c, &low, &high);
    return json_pack("{s:I, s:I, s:o, s:o, s:o, s:o, s:{s:I, s:o, s:o}}", "n",
                     (json_int_t)c.n, "equal", (json_int_t)c.good, "share",
                     report_number(verdict_share(&c)), "low", report_number(low), "high",
                     report_number(high), "first_unit", first_units(g, group),
                     "logprob_difference", "n", (json_int_t)n, "mean",
                     report_number(n ? sum / (double)n : (double)NAN), "most",
                     report_number(n ? most : (double)NAN));
}

static json_t *known(int64_t value)
{
    return value >= 0 ? json_integer((json_int_t)value) : json_null();
}

static json_t *hash_json(struct hash128 h)
{
    char hex[HASH128_HEX];
    return hash128_none(h) ? json_null() : json_string(hash128_hex(h, hex));
}

static json_t *pair_json(const struct pair *p)
{
    return json_pack("{s:I, s:o, s:[o, o], s:o, s:o, s:[o, o], s:[o, o]}", "index",
                     (json_int_t)p->index, "equal",
                     p->read ? json_boolean(p->equal) : json_null(), "cached_tokens",
                     known(p->cached[0]), known(p->cached[1]), "first_unit",
                     known(p->first_unit), "first_byte", known(p->first_byte), "units",
                     known(p->n_units[0] ? (int64_t)p->n_units[0] : -1),
                     known(p->n_units[1] ? (int64_t)p->n_units[1] : -1), "hash",
                     hash_json(p->hash[0]), hash_json(p->hash[1]));
}

/* What a unit is: the same in all pairs, or nobody can say. */
static json_t *unit_json(const struct agree *g)
{
    size_t tokens = 0, n = 0;
    for (size_t i = 0; i < g->n; i++)
        if (g->pairs[i].n_units[0] && g->pairs[i].n_units[1]) {
            n++;
            tokens += g->pairs[i].tokens;
        }
    if (n == 0 || (tokens && tokens < n))
        return json_null();
    return json_string(tokens ? "token" : "event");
}

static int by_index(const void *a, const void *b)
{
    const struct pair *x = a, *y = b;
    return (x->index > y->index) - (x->index < y->index);
}

json_t *agree_json(const struct agree *g)
{
    json_t *out = json_object(), *pairs = json_array();
    json_int_t unread = 0;
    if (g->n)
        qsort(g->pairs, g->n, sizeof(*g->pairs), by_index);
    for (size_t i = 0; i < g->n; i++) {
        unread += !g->pairs[i].read;
        json_array_append_new(pairs, pair_json(&g->pairs[i]));
    }
    LIST_EACH (it, &g->waiting)
        unread++;
    json_object_set_new(out, "unread", json_integer(unread));
    json_object_set_new(out, "unit", unit_json(g));
    for (enum group k = 0; k < GROUPS; k++)
        json_object_set_new(out, group_names[k], group_json(g, k));
    json_object_set_new(out, "pairs", pairs);
    return out;
}

/* ---- for people -------------------------------------------------------------------- */

static double real_at(const json_t *o, const char *key)
{
    return json_number_value(json_object_get(o, key));
}

static void print_difference(const json_t *group, const char *unit, FILE *out)
{
    const json_t *first = json_object_get(group, "first_unit"),
                 *logprobs = json_object_get(group, "logprob_difference");
    if (real_at(first, "n") > 0)
        fprintf(out,
                "    those that differ do so first behind %s %g (p10), %g (p50), %g "
                "(p90)\n",
                unit, real_at(first, "p10"), real_at(first, "p50"),
                real_at(first, "p90"));
    if (real_at(logprobs, "n") > 0)
        fprintf(out,
                "    log-probabilities of %g tokens up to there differ by %.4f in the "
                "mean, %.4f at most\n",
                real_at(logprobs, "n"), real_at(logprobs, "mean"),
                real_at(logprobs, "most"));
}

void agree_print(const json_t *output, FILE *out)
{
    static const char *const words[GROUPS] = {
        "as many tokens cached on both sides",
        "other tokens cached, so not comparable",
        "cached tokens not told",
    };
    const char *unit = json_string_value(json_object_get(output, "unit"));
    fprintf(out, "\nanswers of A and B to the same requests:\n");
    for (int k = 0; k < GROUPS; k++) {
        const json_t *group = json_object_get(output, group_names[k]);
        const double n = real_at(group, "n");
        if (n == 0)
            continue;
        fprintf(out, "  %s: %g of %g equal (%.1f %%, 95 %%: %.1f to %.1f)\n", words[k],
                real_at(group, "equal"), n, 100 * real_at(group, "share"),
                100 * real_at(group, "low"), 100 * real_at(group, "high"));
        print_difference(group, unit ? unit : "unit", out);
    }
    if (real_at(output, "unread") > 0)
        fprintf(out, "  %g pairs not read: an answer is missing, or not whole\n",
                real_at(output, "unread"));
}
