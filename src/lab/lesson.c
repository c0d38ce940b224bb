/* SPDX-License-Identifier: MIT */
#include "lab/lesson.h"

/*
 * Everything is done twice: "without" begins each time with an empty cache, "with" goes
 * on with the one that is there. Both go through the same lab_forward(), which counts
 * what it really computes; nothing here is worked out by formula. The first run fills in
 * counts, tokens and differences, further ones of the short part only lower its times.
 */

#include <assert.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/mem.h"

#define SEED 1872 /* the year of the bet */
#define CAPACITY 2048
#define REPEAT 5

static const char fixed_start[] =
    "You answer questions about Phileas Fogg, a gentleman of London, and his journey. Be "
    "brief, and quote the book where you can.\n"
    "He left the Reform Club on Wednesday, October 2nd, 1872, at a quarter before nine "
    "in the evening, with a carpet bag and twenty thousand pounds: by rail and steamer "
    "to Suez, Bombay, Calcutta, Hong Kong, Yokohama, San Francisco, New York.\n";

#define CARRIED "Question: What did he carry?\n"
#define TRAIN "Question: How long was the train to New York?\n"

/* Front, fixed start, and end make a prompt. */
static const struct {
    const char *name, *front, *end;
} requests[LESSON_REQUESTS] = {
    {"the first", "It is 20:44.\n", CARRIED},
    {"another question", "It is 20:44.\n", TRAIN},
    {"a minute later", "It is 20:45.\n", TRAIN},
    {"the clock at the end", "", TRAIN "It is 20:45.\n"},
    {"a minute later", "", TRAIN "It is 20:46.\n"},
};

struct run {
    const struct lab_model *model;
    struct lab_cache *kept, *empty;
    bool first;
};

static uint32_t take_bytes(const char *text, uint32_t *tokens, uint32_t n)
{
    const size_t len = strlen(text);
    assert(n + len <= CAPACITY);
    for (size_t i = 0; i < len; i++)
        tokens[n++] = (unsigned char)text[i];
    return n;
}

/* Computes tokens [from, to) into `c`, which holds what is before them, and adds up. */
static void forward(const struct run *r, struct lab_cache *c, const uint32_t *tokens,
                    uint32_t from, uint32_t to, float *logits, struct lesson_cost *cost)
{
    struct lab_work work = {0};
    const struct lab_step step = {tokens + from, to - from, logits, false, &work};
    assert(lab_cache_len(c) == from);
    const uint64_t began = clock_mono_us();
    const bool fits = lab_forward(r->model, c, &step);
    const double ms = (double)(clock_mono_us() - began) / 1e3;
    assert(fits);
    cost->projections = work.projections;
    cost->attended = work.attended;
    if (r->first || ms < cost->ms)
        cost->ms = ms;
}

static double largest_difference(const float *a, const float *b)
{
    double most = 0;
    for (int i = 0; i < LAB_VOCAB; i++) {
        const double d = fabs((double)a[i] - (double)b[i]);
        if (d > most)
            most = d;
    }
    return most;
}

/* ---- part 1: one answer ------------------------------------------------------------ */

static void add_cost(struct lesson_cost *sum, const struct lesson_cost *c)
{
    sum->projections += c->projections;
    sum->attended += c->attended;
    sum->kept_bytes = c->kept_bytes;
    sum->ms += c->ms;
}

static void run_passes(struct lesson *l, const struct run *r)
{
    uint32_t tokens[LESSON_PROMPT_TOKENS + LESSON_PASSES];
    float without[LAB_VOCAB], with[LAB_VOCAB];
    uint32_t n = take_bytes(LESSON_PROMPT, tokens, 0);
    assert(n == LESSON_PROMPT_TOKENS);
    lab_cache_cut(r->kept, 0);
    l->without = l->with = (struct lesson_cost){0};
    l->difference = 0;
    for (int i = 0; i < LESSON_PASSES; i++) {
        struct lesson_pass *p = &l->passes[i];
        lab_cache_cut(r->empty, 0);
        forward(r, r->empty, tokens, 0, n, without, &p->without);
        forward(r, r->kept, tokens, lab_cache_len(r->kept), n, with, &p->with);
        p->positions = n;
        p->with.kept_bytes = (uint64_t)n * l->token_bytes;
        p->difference = largest_difference(without, with);
        p->token = lab_argmax(with);
        tokens[n++] = p->token;
        add_cost(&l->without, &p->without);
        add_cost(&l->with, &p->with);
        l->difference = fmax(l->difference, p->difference);
    }
}

/* ---- part 2: prefill and decode ---------------------------------------------------- */

static uint32_t make_request(int i, uint32_t *tokens)
{
    uint32_t n = take_bytes(requests[i].front, tokens, 0);
    n = take_bytes(fixed_start, tokens, n);
    return take_bytes(requests[i].end, tokens, n);
}

static void run_phases(struct lesson *l, const struct run *r)
{
    uint32_t tokens[CAPACITY];
    float logits[LAB_VOCAB];
    struct lesson_cost prefill = {0};
    uint32_t n = make_request(0, tokens);
    lab_cache_cut(r->kept, 0);
    forward(r, r->kept, tokens, 0, n, logits, &prefill);
    l->prefill = (struct lesson_phase){n, prefill.ms};

    double ms = 0;
    for (int i = 0; i < LESSON_DECODES; i++, n++) {
        struct lesson_cost one = {0};
        tokens[n] = lab_argmax(logits);
        forward(r, r->kept, tokens, n, n + 1, logits, &one);
        ms += one.ms;
    }
    l->decode = (struct lesson_phase){LESSON_DECODES, ms};
}

/* ---- part 3: requests that start alike --------------------------------------------- */

static uint32_t common_start(const uint32_t *a, uint32_t n_a, const uint32_t *b,
                             uint32_t n_b)
{
    uint32_t n = 0;
    while (n < n_a && n < n_b && a[n] == b[n])
        n++;
    return n;
}

static void run_requests(struct lesson *l, const struct run *r)
{
    uint32_t tokens[CAPACITY], held[CAPACITY];
    uint32_t n_held = 0;
    float without[LAB_VOCAB], with[LAB_VOCAB];
    lab_cache_cut(r->kept, 0);
    for (int i = 0; i < LESSON_REQUESTS; i++) {
        struct lesson_request *q = &l->requests[i];
        q->name = requests[i].name;
        q->front = requests[i].front;
        q->end = requests[i].end;
        q->tokens = make_request(i, tokens);
        q->common = common_start(held, n_held, tokens, q->tokens);
        lab_cache_cut(r->empty, 0);
        lab_cache_cut(r->kept, q->common);
        forward(r, r->empty, tokens, 0, q->tokens, without, &q->without);
        forward(r, r->kept, tokens, q->common, q->tokens, with, &q->with);
        q->with.kept_bytes = (uint64_t)q->tokens * l->token_bytes;
        q->difference = largest_difference(without, with);
        memcpy(held, tokens, sizeof(held));
        n_held = q->tokens;
    }
}

void lesson_run(struct lesson *l)
{
    *l = (struct lesson){.shape = LAB_SHAPE_DEFAULT, .seed = SEED};
    struct lab_model *model = lab_model_new(l->shape, l->seed);
    struct run r = {model, lab_cache_new(model, CAPACITY), lab_cache_new(model, CAPACITY),
                    true};
    l->token_bytes = 2 * l->shape.layers * l->shape.width * (uint32_t)sizeof(float);
    run_phases(l, &r);
    run_requests(l, &r);
    for (int i = 0; i < REPEAT; i++, r.first = false)
        run_passes(l, &r);
    lab_cache_free(r.kept);
    lab_cache_free(r.empty);
    lab_model_free(model);
}

const char *lesson_token(uint32_t token, char out[8])
{
    static const char *const special[] = {"<bos>", "<eos>", "<begin>", "<end>"};
    if (token >= LAB_BOS)
        snprintf(out, 8, "%s", special[(token - LAB_BOS) % 4]);
    else if (token >= 0x20 && token < 0x7f)
        snprintf(out, 8, "%c", (char)token);
    else
        snprintf(out, 8, "\\x%02x", (unsigned)token);
    return out;
}
