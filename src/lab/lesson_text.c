/* SPDX-License-Identifier: MIT */
#include "lab/lesson.h"

/*
 * The lesson in words and tables. Plain text is the sections one after the other, with a
 * table of the passes; on the terminal each pass has a screen of its own, with a cell for
 * each position: # computed in this pass, = kept from before.
 */

#include <assert.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#define BOLD "\033[1m"
#define COMPUTED "\033[33m"
#define KEPT "\033[32m"
#define PLAIN "\033[0m"

struct page {
    struct buf *out;
    bool color;
};

static void title(struct page p, const char *text)
{
    buf_printf(p.out, "%s%s%s\n\n", p.color ? BOLD : "", text, p.color ? PLAIN : "");
}

/* "exactly 0", or the number: the point of the lesson is that it is the former. */
static const char *difference(double d, char out[32])
{
    if (d == 0)
        snprintf(out, 32, "exactly 0");
    else
        snprintf(out, 32, "%.3g", d);
    return out;
}

static const char *ms(double t, char out[16])
{
    snprintf(out, 16, t < 10 ? "%.2f ms" : "%.0f ms", t);
    return out;
}

/* ---- sections ---------------------------------------------------------------------- */

static void intro(struct page p, const struct lesson *l)
{
    title(p, "What a KV cache does");
    buf_printf(
        p.out,
        "A transformer writes one token at a time. For each position of the text it\n"
        "computes a query, a key and a value in every layer: it projects the position.\n"
        "Key and value depend only on the text up to there, so they never change again.\n"
        "A KV cache keeps them; without one they are computed anew for each token.\n\n"
        "Here is a small transformer of GPT-2's shape: %u layers, %u heads, width %u. "
        "Its\n"
        "weights are random, so its answers are noise, but its cache is the real thing:\n"
        "%u bytes of K and V a token. A token is a byte.\n\n"
        "The prompt \"%s\" has %d tokens. The model adds %d, and each is fed in\n"
        "again: %d passes, once without and once with a cache. All numbers are counted\n"
        "and measured while it runs.\n",
        l->shape.layers, l->shape.heads, l->shape.width, l->token_bytes, LESSON_PROMPT,
        LESSON_PROMPT_TOKENS, LESSON_GENERATED, LESSON_PASSES);
}

static void table(struct page p, const struct lesson *l)
{
    buf_printf(p.out,
               "                   without a cache              with a cache\n"
               "pass  positions  computed   pairs      ms   computed  pairs      ms"
               "   kept B  token\n");
    for (int i = 0; i < LESSON_PASSES; i++) {
        const struct lesson_pass *s = &l->passes[i];
        char token[8];
        buf_printf(p.out,
                   "%4d  %9u  %8" PRIu64 "  %6" PRIu64 "  %6.2f   %8" PRIu64 "  %5" PRIu64
                   "  %6.2f  %7" PRIu64 "  %s\n",
                   i + 1, s->positions, s->without.projections, s->without.attended,
                   s->without.ms, s->with.projections, s->with.attended, s->with.ms,
                   s->with.kept_bytes, lesson_token(s->token, token));
    }
    buf_printf(p.out,
               " sum             %8" PRIu64 "  %6" PRIu64 "  %6.2f   %8" PRIu64
               "  %5" PRIu64 "  %6.2f\n",
               l->without.projections, l->without.attended, l->without.ms,
               l->with.projections, l->with.attended, l->with.ms);
}

static void sum(struct page p, const struct lesson *l)
{
    char d[32], without[16], with[16];
    title(p, "The sum");
    buf_printf(
        p.out,
        "Without a cache  13 + 14 + ... + 21 = %3" PRIu64 " positions computed, %s\n"
        "With one         13 + 8             = %3" PRIu64 " positions computed, %s\n\n"
        "Largest difference of a logit in all %d passes: %s.\n\n"
        "The cache does not approximate: it leaves out what was computed before.\n"
        "It costs memory, %" PRIu64 " bytes behind the last pass, and each new token\n"
        "still looks at all positions before it (the pairs).\n",
        l->without.projections, ms(l->without.ms, without), l->with.projections,
        ms(l->with.ms, with), LESSON_PASSES, difference(l->difference, d),
        l->with.kept_bytes);
}

static void phases(struct page p, const struct lesson *l)
{
    const double prefill = l->prefill.ms / l->prefill.tokens;
    const double decode = l->decode.ms / l->decode.tokens;
    title(p, "Prefill and decode");
    buf_printf(
        p.out,
        "The first pass is the prefill: the whole prompt at once. The others decode:\n"
        "one token each. With a longer prompt, of %u tokens:\n\n"
        "prefill  %4u tokens in one pass     %8.2f ms   %6.3f ms a token\n"
        "decode   %4u tokens, a pass each    %8.2f ms   %6.3f ms a token\n\n"
        "One token costs %.1f times as much in decode: each pass reads all weights,\n"
        "for one token or for a thousand. But nobody sees a first token before the\n"
        "prefill is done, and that grows with the prompt: %.0f ms here. This wait is\n"
        "what the cache of another request's prompt can take away.\n",
        l->prefill.tokens, l->prefill.tokens, l->prefill.ms, prefill, l->decode.tokens,
        l->decode.ms, decode, decode / prefill, l->prefill.ms);
}

/* Text of a request on one line: line feeds are spaces, the last one is nothing. */
static void quote(struct page p, const char *text)
{
    for (; *text; text++) {
        if (*text != '\n')
            buf_append_char(p.out, *text);
        else if (text[1])
            buf_append_char(p.out, ' ');
    }
}

static void prompts(struct page p, const struct lesson *l)
{
    char d[32];
    double most = 0;
    title(p, "Prompt caching: requests that start alike");
    buf_printf(p.out,
               "All have the same long start in them. The cache holds the request "
               "before.\n\n"
               "  request               tokens  kept  computed      ms   cold ms\n");
    for (int i = 0; i < LESSON_REQUESTS; i++) {
        const struct lesson_request *q = &l->requests[i];
        buf_printf(p.out, "%d %-21s %6u  %4u  %8" PRIu64 "  %6.2f    %6.2f\n", i + 1,
                   q->name, q->tokens, q->common, q->with.projections, q->with.ms,
                   q->without.ms);
        most = q->difference > most ? q->difference : most;
    }
    buf_printf(p.out, "\n");
    for (int i = 0; i < LESSON_REQUESTS; i++) {
        buf_printf(p.out, "%d ", i + 1);
        quote(p, l->requests[i].front);
        buf_printf(p.out, "%s[start] ", *l->requests[i].front ? " " : "");
        quote(p, l->requests[i].end);
        buf_printf(p.out, "\n");
    }
    buf_printf(p.out, "\nLargest difference of a logit to the cold run: %s.\n",
               difference(most, d));
}

static void changed(struct page p, const struct lesson *l)
{
    const struct lesson_request *front = &l->requests[2], *end = &l->requests[4];
    title(p, "What one changed byte costs");
    buf_printf(
        p.out,
        "Request 3 differs from request 2 in one byte, the minute of the clock in\n"
        "front. Key and value of a position depend on all text before it, so of %u\n"
        "tokens only the first %u are worth anything: %" PRIu64 " are computed again.\n"
        "\n"
        "Request 5 differs from request 4 in one byte as well, but at the end: %u are\n"
        "kept, %" PRIu64 " computed, %.2f ms instead of %.2f.\n\n"
        "So put what stays the same first and what changes last: a clock, a name, a\n"
        "request id belong behind the documents and the tools.\n\n"
        "incipit serve keeps such starts between requests, slots and restarts of the\n"
        "engine. incipit kvsize says what they take for a model of yours.\n",
        front->tokens, front->common, front->with.projections, end->common,
        end->with.projections, end->with.ms, front->with.ms);
}

/* ---- a pass on the screen ---------------------------------------------------------- */

static char cell(const struct lesson *l, uint32_t position)
{
    if (position < LESSON_PROMPT_TOKENS)
        return LESSON_PROMPT[position] == ' ' ? '_' : LESSON_PROMPT[position];
    const uint32_t token = l->passes[position - LESSON_PROMPT_TOKENS].token;
    return token > 0x20 && token < 0x7f ? (char)token : '?';
}

/* A row of cells: the first `kept` are old, the others new. */
static void cells(struct page p, const char *label, uint32_t kept, uint32_t n)
{
    buf_printf(p.out, "%-10s", label);
    for (uint32_t i = 0; i < n; i++) {
        const bool old = i < kept;
        buf_printf(p.out, "%s%c%s ",
                   !p.color ? ""
                   : old    ? KEPT
                            : COMPUTED,
                   old ? '=' : '#', p.color ? PLAIN : "");
    }
    buf_printf(p.out, "\n");
}

static void two(struct page p, const char *label, uint64_t without, uint64_t with)
{
    buf_printf(p.out, "%-22s %10" PRIu64 " %10" PRIu64 "\n", label, without, with);
}

static void pass(struct page p, const struct lesson *l, int at)
{
    const struct lesson_pass *s = &l->passes[at];
    uint64_t without = 0, with = 0;
    char text[64], token[8], d[32];
    for (int i = 0; i <= at; i++) {
        without += l->passes[i].without.projections;
        with += l->passes[i].with.projections;
    }
    snprintf(text, sizeof(text), "Pass %d of %d: %s", at + 1, LESSON_PASSES,
             at == 0 ? "prefill, the prompt" : "decode, one more token");
    title(p, text);
    buf_printf(p.out, "%-10s", "");
    for (uint32_t i = 0; i < s->positions; i++)
        buf_printf(p.out, "%c ", cell(l, i));
    buf_printf(p.out, "\n");
    cells(p, "without", 0, s->positions);
    cells(p, "with", s->positions - (uint32_t)s->with.projections, s->positions);
    buf_printf(p.out, "%-10s# computed in this pass   = kept from before\n\n", "");
    buf_printf(p.out, "%-22s %10s %10s\n", "", "without", "with");
    two(p, "positions computed", s->without.projections, s->with.projections);
    two(p, "since the start", without, with);
    two(p, "pairs looked at", s->without.attended, s->with.attended);
    two(p, "bytes of K and V kept", s->without.kept_bytes, s->with.kept_bytes);
    buf_printf(p.out, "%-22s %10.2f %10.2f\n\n", "ms", s->without.ms, s->with.ms);
    buf_printf(p.out, "Both choose \"%s\"; the largest difference of a logit is %s.\n",
               lesson_token(s->token, token), difference(s->difference, d));
}

/* ---- all of it --------------------------------------------------------------------- */

static void (*const sections[])(struct page p,
                                const struct lesson *l) = {sum, phases, prompts, changed};
enum { SECTIONS = sizeof(sections) / sizeof(sections[0]) };

void lesson_text(const struct lesson *l, struct buf *out)
{
    const struct page p = {out, false};
    intro(p, l);
    buf_printf(out, "\n");
    table(p, l);
    for (int i = 0; i < SECTIONS; i++) {
        buf_printf(out, "\n");
        sections[i](p, l);
    }
}

unsigned lesson_screens(void)
{
    return 1 + LESSON_PASSES + SECTIONS;
}

void lesson_screen(const struct lesson *l, unsigned screen, bool color, struct buf *out)
{
    const struct page p = {out, color};
    assert(screen < lesson_screens());
    if (screen == 0)
        intro(p, l);
    else if (screen <= LESSON_PASSES)
        pass(p, l, (int)screen - 1);
    else
        sections[screen - 1 - LESSON_PASSES](p, l);
}
