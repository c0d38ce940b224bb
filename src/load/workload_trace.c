/* SPDX-License-Identifier: MIT */

/*
 * Traces: when requests came, how long they were and which blocks they began with, turned
 * into texts that share as much. Formats (read from the public files themselves):
 *
 *   JSON  timestamp (ms), input_length, output_length (tokens), hash_ids: one id for each
 *         block of the prompt, the last block may be shorter. An id names a block and
 *         all before it. (Mooncake, FAST '25; without hash_ids nothing is shared)
 *   table TIMESTAMP,ContextTokens,GeneratedTokens (Azure LLM inference traces): a date
 *         and time of day, or seconds; nothing is shared
 *
 * The size of a block is not in the file: it is what agrees with all lengths, 512 or else
 * a power of two where it can be.
 *
 * A block's text is a function of its id. It begins with the id as a number of `digits`
 * words, lowest digit first; so no two blocks have equal texts, and two requests have no
 * more in common than their common ids and less than `digits` words.
 */

#include "workload_parts.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/buf.h"
#include "base/draw.h"
#include "base/mem.h"

#define USUAL_BLOCK 512u
#define MAX_ANSWER 1000000u
#define MAX_DUE_US ((double)(UINT64_C(1) << 62))

struct item {
    uint64_t due_us;
    size_t first; /* of its ids */
    uint32_t n_ids, in, out;
    uint32_t shared; /* tokens that an earlier one had */
};

struct trace {
    struct workload_source s;
    struct item *items;
    int64_t *ids;
    size_t n_ids;
    int64_t highest; /* of them */
    uint64_t alone;  /* the first request's number where it has no ids: above all ids */
    unsigned digits;
    uint32_t block;
    double scale;
    uint64_t span_us; /* from a pass to the next */
};

/* ---- lengths ----------------------------------------------------------------------- */

static uint32_t scaled(const struct trace *t, uint32_t n)
{
    const double v = round(n * t->scale);
    return v < 1 ? 1 : (uint32_t)v;
}

/* What block sizes agree with the lengths so far: n − 1 full blocks and a last one. */
struct fit {
    uint32_t least, most;
};

static bool fits(struct fit *f, uint32_t in, uint32_t n)
{
    const uint32_t least = in / n + (in % n != 0);
    const uint32_t most = n > 1 ? (in - 1) / (n - 1) : UINT32_MAX;
    f->least = least > f->least ? least : f->least;
    f->most = most < f->most ? most : f->most;
    return f->least <= f->most;
}

static uint32_t pick_block(const struct fit *f)
{
    if (f->least <= USUAL_BLOCK && USUAL_BLOCK <= f->most)
        return USUAL_BLOCK;
    uint32_t power = 1;
    while (power < f->least && power < UINT32_C(1) << 31)
        power *= 2;
    return power >= f->least && power <= f->most ? power : f->least;
}

/* Words of a request: of its full blocks, and what is left for the last. */
static uint32_t words_of(const struct trace *t, const struct item *it)
{
    if (it->n_ids == 0)
        return scaled(t, it->in);
    const uint32_t full = it->n_ids - 1;
    return full * scaled(t, t->block) + scaled(t, it->in - full * t->block);
}

/* ---- reading ----------------------------------------------------------------------- */

static bool number_of(const struct input_value *v, double *out)
{
    struct jlex j;
    struct jlex_token t;
    jlex_init(&j, v->text);
    return v->type == JLEX_NUMBER && jlex_next(&j, &t) == JLEX_NUMBER &&
           jlex_double(&j, &t, out);
}

static int take_length(const char *name, double value, uint32_t *out, struct err *e)
{
    if (!(value >= 0 && value <= WORKLOAD_MAX_TOKENS) || value != floor(value))
        return err_set(e, ERR_FORMAT, "%s is a number from 0 to %u", name,
                       WORKLOAD_MAX_TOKENS);
    *out = value < 1 ? 1 : (uint32_t)value;
    return 0;
}

static int take_due(double us, const struct trace *t, struct item *it, struct err *e)
{
    if (!(us >= 0 && us < MAX_DUE_US))
        return err_set(e, ERR_FORMAT, "the time is none, or too far off");
    it->due_us = (uint64_t)llround(us);
    if (t->s.pass && it->due_us < t->items[t->s.pass - 1].due_us)
        return err_set(e, ERR_FORMAT,
                       "it comes earlier than the one before: sort the file by time");
    return 0;
}

static void add_id(struct trace *t, int64_t id)
{
    const size_t n = t->n_ids;
    if ((n & (n - 1)) == 0)
        t->ids = mem_rearray(t->ids, n ? 2 * n : 1, sizeof(*t->ids));
    t->ids[t->n_ids++] = id;
    t->highest = id > t->highest ? id : t->highest;
}

static int take_ids(struct trace *t, const struct input_value *v, struct item *it,
                    struct err *e)
{
    struct jlex j;
    struct jlex_token token;
    int64_t id;
    it->first = t->n_ids;
    if (v->type == JLEX_END)
        return 0;
    if (v->type != JLEX_ARRAY)
        return err_set(e, ERR_FORMAT, "hash_ids is no list");
    jlex_init(&j, v->text);
    jlex_next(&j, &token);
    while (jlex_next(&j, &token) == JLEX_NUMBER) {
        if (!jlex_int(&j, &token, &id) || id < 0)
            return err_set(e, ERR_FORMAT, "an id in hash_ids is no number from 0 on");
        add_id(t, id);
    }
    if (token.type != JLEX_ARRAY_END)
        return err_set(e, ERR_FORMAT, "an id in hash_ids is no number from 0 on");
    it->n_ids = (uint32_t)(t->n_ids - it->first);
    return 0;
}

static int take_object(struct trace *t, struct slice text, struct item *it, struct err *e)
{
    static const char *const names[] = {"timestamp", "input_length", "output_length",
                                        "hash_ids"};
    struct input_value v[4];
    double n[3];
    if (input_members(text, names, 4, v, e))
        return e->code;
    for (size_t i = 0; i < 3; i++)
        if (!number_of(&v[i], &n[i]))
            return err_set(e, ERR_FORMAT, "%s is missing or no number", names[i]);
    if (take_due(n[0] * 1000, t, it, e) || take_length(names[1], n[1], &it->in, e) ||
        take_length(names[2], n[2], &it->out, e))
        return e->code;
    return take_ids(t, &v[3], it, e);
}

/* "2023-11-16 18:17:03.9799600", perhaps with a zone, or seconds. */
static bool parse_time(const char *text, double *us)
{
    struct tm tm = {0};
    char *end = NULL;
    int used = 0;
    double seconds = 0;
    if (sscanf(text, "%4d-%2d-%2d%*1[ T]%2d:%2d:%n", &tm.tm_year, &tm.tm_mon, &tm.tm_mday,
               &tm.tm_hour, &tm.tm_min, &used) == 5 &&
        used) {
        tm.tm_year -= 1900;
        tm.tm_mon -= 1;
        seconds = (double)timegm(&tm);
        text += used;
    }
    *us = (seconds + strtod(text, &end)) * 1e6;
    return end != text && (*end == '\0' || (used && strchr("+-Z", *end)));
}

static int take_row(struct trace *t, struct slice text, struct item *it, struct err *e)
{
    char row[128], *end = NULL;
    double us = NAN, n[2] = {NAN, NAN};
    char *field = row, *rest = row;
    if (text.len < sizeof(row)) {
        memcpy(row, text.ptr, text.len);
        row[text.len] = '\0';
        field = strsep(&rest, ",");
        for (size_t i = 0; i < 2 && rest; i++) {
            const char *number = strsep(&rest, ",");
            n[i] = strtod(number, &end);
            n[i] = *number && *end == '\0' ? n[i] : (double)NAN;
        }
    }
    if (text.len >= sizeof(row) || !parse_time(field, &us) || isnan(n[0]) || isnan(n[1]))
        return err_set(e, ERR_FORMAT,
                       "no line TIMESTAMP,ContextTokens,GeneratedTokens like "
                       "2023-11-16 18:17:03.98,4808,10");
    if (take_due(us, t, it, e) || take_length("ContextTokens", n[0], &it->in, e) ||
        take_length("GeneratedTokens", n[1], &it->out, e))
        return e->code;
    return 0;
}

static int take_heading(struct input *in, struct err *e)
{
    struct slice first;
    if (input_next(in, &first, e) <= 0)
        return e->code;
    if (slice_eq_nocase(first, SLICE_LIT("TIMESTAMP,ContextTokens,GeneratedTokens")))
        return 0;
    err_set(e, ERR_FORMAT,
            "the columns of a table are TIMESTAMP,ContextTokens,GeneratedTokens");
    return input_blame(in, e);
}

static int take_item(struct trace *t, struct input *in, struct slice text,
                     struct fit *fit, struct err *e)
{
    struct item it = {0};
    const uint64_t n = t->s.pass;
    if (n == INPUT_MAX_ITEMS)
        return err_set(e, ERR_LIMIT, "more than %u requests", INPUT_MAX_ITEMS);
    if (input_format(in) == INPUT_TABLE ? take_row(t, text, &it, e)
                                        : take_object(t, text, &it, e))
        return e->code;
    if (it.n_ids && !fits(fit, it.in, it.n_ids))
        return err_set(e, ERR_FORMAT,
                       "%u ids for %u tokens: no size of a block agrees with this line "
                       "and those before",
                       it.n_ids, it.in);
    if ((n & (n - 1)) == 0)
        t->items = mem_rearray(t->items, n ? 2 * n : 1, sizeof(*t->items));
    t->items[t->s.pass++] = it;
    return 0;
}

static int read_trace(struct trace *t, struct input *in, struct fit *fit, struct err *e)
{
    struct slice text;
    int rc = input_format(in) == INPUT_TABLE ? take_heading(in, e) : 0;
    while (rc == 0 && (rc = input_next(in, &text, e)) > 0) {
        rc = take_item(t, in, text, fit, e);
        if (rc)
            input_blame(in, e);
    }
    if (rc == 0 && t->s.pass == 0)
        rc = err_set(e, ERR_INVALID, "the trace holds no request");
    return rc;
}

/* ---- what is shared ---------------------------------------------------------------- */

struct sight {
    int64_t id;
    uint64_t item;
};

static int by_id(const void *a, const void *b)
{
    const struct sight *x = a, *y = b;
    if (x->id != y->id)
        return x->id < y->id ? -1 : 1;
    return x->item < y->item ? -1 : x->item > y->item;
}

/* Was this id in a request before number `item`? */
static bool seen_before(const struct sight *s, size_t n, int64_t id, uint64_t item)
{
    size_t low = 0, high = n;
    while (low < high) { /* the first sight of the id */
        const size_t middle = low + (high - low) / 2;
        if (s[middle].id < id)
            low = middle + 1;
        else
            high = middle;
    }
    return low < n && s[low].item < item;
}

static uint32_t shared_words(const struct trace *t, const struct item *it,
                             const struct sight *s, uint64_t i)
{
    uint32_t n = 0;
    while (n < it->n_ids && seen_before(s, t->n_ids, t->ids[it->first + n], i))
        n++;
    const uint64_t words = (uint64_t)n * scaled(t, t->block);
    const uint32_t all = words_of(t, it);
    return words < all ? (uint32_t)words : all;
}

static void find_shared(struct trace *t)
{
    struct sight *s = mem_array(t->n_ids ? t->n_ids : 1, sizeof(*s));
    size_t n = 0;
    for (uint64_t i = 0; i < t->s.pass; i++)
        for (uint32_t k = 0; k < t->items[i].n_ids; k++, n++)
            s[n] = (struct sight){t->ids[n], i};
    qsort(s, n, sizeof(*s), by_id);
    for (uint64_t i = 0; i < t->s.pass; i++)
        t->items[i].shared = shared_words(t, &t->items[i], s, i);
    free(s);
}

/* ---- requests ---------------------------------------------------------------------- */

/* `words` words that begin with a number, different for each pass and arm. */
static void put_block(const struct trace *t, struct buf *out, uint64_t pass, uint32_t arm,
                      uint64_t id, uint32_t words)
{
    uint64_t left = id;
    uint64_t turn = draw_key(t->s.common->seed, WHAT_NUMBER + 16 * arm, pass, 0);
    uint32_t at = 0;
    for (; at < t->digits && at < words; at++, left /= WORKLOAD_WORDS) {
        const uint32_t digit = (uint32_t)(left % WORKLOAD_WORDS);
        buf_append_str(out, at ? " " : "");
        buf_append_str(out, workload_word((digit + draw_below(&turn, WORKLOAD_WORDS)) %
                                          WORKLOAD_WORDS));
    }
    if (at == words)
        return;
    buf_append_char(out, ' ');
    workload_words(out, draw_key(t->s.common->seed, WHAT_BLOCK + 16 * arm, id, pass),
                   words - at);
}

static void make_item(const struct workload_source *s, uint64_t i, uint32_t arm,
                      struct buf *body, struct workload_request *rq)
{
    const struct trace *t = (const struct trace *)s;
    const uint64_t pass = i / s->pass, at = i % s->pass;
    const struct item *it = &t->items[at];
    const uint32_t block = scaled(t, t->block);
    uint32_t left = words_of(t, it);
    rq->in_tokens = left;
    rq->shared_tokens = it->shared;
    rq->out_tokens = workload_limit(s->common, scaled(t, it->out));
    workload_chat_begin(body, s->common);
    buf_append_str(body, "{\"role\":\"user\",\"content\":\"");
    if (it->n_ids == 0)
        put_block(t, body, pass, arm, t->alone + at, left);
    for (uint32_t k = 0; k < it->n_ids; k++) {
        const uint32_t words = k + 1 < it->n_ids ? block : left;
        buf_append_str(body, k ? " " : "");
        put_block(t, body, pass, arm, (uint64_t)t->ids[it->first + k], words);
        left -= words;
    }
    buf_append_str(body, "\"}]");
    workload_chat_end(body, s->common, rq->out_tokens);
}

static uint64_t due_of_item(const struct workload_source *s, uint64_t i)
{
    const struct trace *t = (const struct trace *)s;
    return i / s->pass * t->span_us + t->items[i % s->pass].due_us;
}

/* ---- life -------------------------------------------------------------------------- */

static void free_trace(struct workload_source *s)
{
    struct trace *t = (struct trace *)s;
    free(t->items);
    free(t->ids);
}

/* Times from the first request on; a pass follows the last at the mean distance. */
static void set_times(struct trace *t)
{
    const uint64_t n = t->s.pass, start = t->items[0].due_us;
    for (uint64_t i = 0; i < n; i++)
        t->items[i].due_us -= start;
    const uint64_t last = t->items[n - 1].due_us;
    t->span_us = last + (n > 1 ? last / (n - 1) : 1000000);
}

static int set_sizes(struct trace *t, const struct fit *fit, struct err *e)
{
    t->block = t->n_ids ? pick_block(fit) : USUAL_BLOCK;
    t->alone = t->n_ids ? (uint64_t)t->highest + 1 : 0;
    for (uint64_t n = t->alone + t->s.pass; n; n /= WORKLOAD_WORDS)
        t->digits++;
    if (t->n_ids && scaled(t, t->block) < t->digits)
        return err_set(e, ERR_LIMIT,
                       "--scale: blocks of %u tokens are too short to tell their ids "
                       "apart, which takes %u",
                       scaled(t, t->block), t->digits);
    for (uint64_t i = 0; i < t->s.pass; i++)
        if ((double)t->items[i].in * t->scale > WORKLOAD_MAX_TOKENS)
            return err_set(e, ERR_LIMIT, "--scale: a text of more than %u tokens",
                           WORKLOAD_MAX_TOKENS);
    return 0;
}

static char *name_of(const struct trace *t, const struct input *in)
{
    struct buf out = {0};
    buf_printf(&out, "trace,requests=%" PRIu64, t->s.pass);
    if (t->n_ids)
        buf_printf(&out, ",block=%u", t->block);
    buf_printf(&out, ",scale=%.6g,sum=%08x", t->scale, input_sum(in));
    return buf_take_str(&out);
}

struct workload_source *workload_trace(const struct workload_options *o,
                                       const struct workload_common *c, struct input *in,
                                       struct err *e)
{
    struct trace *t = mem_zalloc(sizeof(*t));
    struct fit fit = {1, UINT32_MAX};
    t->s = (struct workload_source){.common = c,
                                    .timed = true,
                                    .make = make_item,
                                    .due_us = due_of_item,
                                    .free = free_trace};
    t->scale = o->scale > 0 ? o->scale : 1;
    if (read_trace(t, in, &fit, e) || set_sizes(t, &fit, e)) {
        input_free(in);
        free_trace(&t->s);
        free(t);
        return NULL;
    }
    set_times(t);
    find_shared(t);
    t->s.name = name_of(t, in);
    input_free(in);
    return &t->s;
}
