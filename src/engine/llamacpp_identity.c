/* SPDX-License-Identifier: MIT */
#include "llamacpp_internal.h"

/*
 * Which engine states belong together? Two of them do where all of this is equal:
 *
 *     build, model meta      as the engine tells them
 *     model and adapters     size and samples of their files (modelfile.c), scales
 *     position settings      --rope…, --yarn… where the process can be seen
 *     layout of the rows     from a saved slot; whole snapshots have a mark of their own
 *     answers                the log-probabilities of a fixed prompt, within a tolerance
 *
 * The last is what shows other weights or position settings behind equal names. It is no
 * part of the hash: equal engines with other batch sizes, cores or devices differ in the
 * last bits. A note beside the store keeps what was seen first; who is too far from it
 * gets a variant number, and with it a fingerprint and a note of its own. All are
 * compared with the first of their variant, so nothing drifts.
 *
 * Where the model file cannot be read from here, or the engine tells no probabilities,
 * the rows of that prompt enter the hash to the last bit: that separates too much, and
 * never too little.
 */

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"

#define VARIANTS 32

bool llama_logits_read(json_t *answer, struct llama_logits *out)
{
    json_t *list = json_object_get(answer, "completion_probabilities");
    json_t *first = json_array_get(list, 0);
    json_t *top = json_object_get(first, "top_logprobs"), *v;
    size_t i;
    *out = (struct llama_logits){0};
    json_array_foreach(top, i, v)
    {
        json_t *id = json_object_get(v, "id"), *p = json_object_get(v, "logprob");
        if (out->n == LLAMA_LOGITS || !json_is_integer(id) || !json_is_number(p))
            break;
        out->v[out->n].token = json_integer_value(id);
        out->v[out->n++].logprob = json_number_value(p);
    }
    return out->n >= LLAMA_LOGITS_COMPARED;
}

/* Of the likeliest tokens of either side, how far apart at most; INFINITY where the other
 * does not have one among its likelier ones at all. */
static double one_way(const struct llama_logits *a, const struct llama_logits *b)
{
    double most = 0;
    for (size_t i = 0; i < LLAMA_LOGITS_COMPARED && i < a->n; i++) {
        size_t j = 0;
        while (j < b->n && b->v[j].token != a->v[i].token)
            j++;
        if (j == b->n)
            return (double)INFINITY;
        most = fmax(most, fabs(a->v[i].logprob - b->v[j].logprob));
    }
    return most;
}

bool llama_logits_agree(const struct llama_logits *a, const struct llama_logits *b,
                        double tolerance)
{
    return a->n && b->n && one_way(a, b) <= tolerance && one_way(b, a) <= tolerance;
}

/* "token logprob" a line. */
static char *logits_text(const struct llama_logits *g)
{
    struct buf b = {0};
    for (size_t i = 0; i < g->n; i++)
        buf_printf(&b, "%lld %.5f\n", g->v[i].token, g->v[i].logprob);
    return buf_take_str(&b);
}

static void parse_logits(const char *text, struct llama_logits *out)
{
    long long token;
    double logprob;
    int used = 0;
    *out = (struct llama_logits){0};
    while (out->n < LLAMA_LOGITS &&
           sscanf(text, "%lld %lf\n%n", &token, &logprob, &used) == 2) {
        out->v[out->n].token = token;
        out->v[out->n++].logprob = logprob;
        text += used;
    }
}

/* The first variant whose note agrees, or that has none yet; VARIANTS: too many. */
static unsigned find_variant(struct store *s, struct hash128 base,
                             const struct llama_logits *seen)
{
    char hex[HASH128_HEX], name[64], text[4096];
    hash128_hex(base, hex);
    for (unsigned i = 0; i < VARIANTS; i++) {
        struct llama_logits known;
        snprintf(name, sizeof(name), "answers-%s-%u", hex, i);
        if (!store_note_get(s, name, text, sizeof(text))) {
            char *mine = logits_text(seen);
            store_note_set(s, name, mine);
            free(mine);
            return i;
        }
        parse_logits(text, &known);
        if (llama_logits_agree(&known, seen, LLAMA_LOGITS_TOLERANCE))
            return i;
    }
    return VARIANTS;
}

struct hash128 llama_fingerprint(struct store *s, struct slice identity,
                                 const struct llama_logits *seen)
{
    const struct hash128 base = chain_checksum(identity);
    const unsigned variant = seen->n ? find_variant(s, base, seen) : 0;
    if (!variant)
        return base;
    struct buf b = {0};
    buf_append_slice(&b, identity);
    buf_append(&b, &variant, sizeof(variant));
    if (variant == VARIANTS) /* nobody keeps so many apart: shared with nobody */
        buf_append(&b, seen, sizeof(*seen));
    const struct hash128 h = chain_checksum(buf_slice(&b));
    buf_free(&b);
    return h;
}

/* Where neither side knows answers the rows are in the fingerprint, to the last bit. */
static bool same_answers(const char *ours, const char *theirs)
{
    struct llama_logits a, b;
    parse_logits(ours, &a);
    parse_logits(theirs, &b);
    return a.n || b.n ? llama_logits_agree(&a, &b, LLAMA_LOGITS_TOLERANCE)
                      : !*ours && !*theirs;
}

void llama_vouch(struct store *s, struct hash128 fingerprint,
                 const struct llama_logits *seen)
{
    char *note = logits_text(seen);
    store_vouch(s, fingerprint, note, same_answers);
    free(note);
}
