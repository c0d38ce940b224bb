/* SPDX-License-Identifier: MIT */

/*
 * Answers from an engine gone mad. The first byte chooses the API and the kind of body,
 * the second where it is cut. Whatever comes, the facts are possible, do not depend on
 * the cuts, and a text that is called whole can be emitted.
 */

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "proto/answer.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void nothing_begin(void *ctx, enum prompt_part part)
{
    (void)ctx;
    (void)part;
}

static void add_len(void *ctx, const char *ptr, size_t len)
{
    (void)ptr;
    *(size_t *)ctx += len;
}

static void nothing_end(void *ctx)
{
    (void)ctx;
}

static size_t emitted(enum prompt_api api, struct answer *a)
{
    size_t len = 0;
    const struct prompt_sink sink = {&len, nothing_begin, add_len, nothing_end};
    const struct prompt_answer *text = answer_text(a);
    assert((text != NULL) == answer_facts(a)->text_whole);
    if (text)
        prompt_emit_answer(api, text, &sink);
    return len;
}

static struct answer *read_in_steps(enum prompt_api api, bool stream, struct slice body,
                                    size_t step)
{
    struct answer *a = answer_new(api, stream);
    answer_note_units(a);
    for (size_t at = 0; at < body.len; at += step) {
        const size_t n = body.len - at < step ? body.len - at : step;
        answer_feed(a, slice_make(body.ptr + at, n), 7);
    }
    answer_finish(a);
    return a;
}

static void check_counts(const struct answer_facts *f)
{
    assert(f->prompt_tokens >= -1 && f->cached_tokens >= -1 && f->predicted_n >= -1);
    assert(f->prompt_tokens < 0 || f->cached_tokens <= f->prompt_tokens);
    assert(f->first_content_us == 0 || f->first_content_us == 7);
    assert(f->prompt_ms >= 0 || f->prompt_ms == -1);
}

/* Ends that go up to that of the text. */
static size_t check_units(const struct answer *a)
{
    struct slice text;
    size_t n;
    bool tokens;
    const struct answer_unit *u = answer_units(a, &n, &text, &tokens);
    for (size_t i = 0; i < n; i++)
        assert(u[i].end <= text.len && (i == 0 || u[i].end >= u[i - 1].end));
    assert(n == 0 || u[n - 1].end == text.len);
    return n;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size < 2)
        return 0;
    const enum prompt_api api = (enum prompt_api)(data[0] % 5);
    const bool stream = data[0] / 5 % 2;
    const struct slice body = slice_make((const char *)data + 2, size - 2);
    struct answer *whole = read_in_steps(api, stream, body, body.len + 1);
    struct answer *cut = read_in_steps(api, stream, body, (size_t)data[1] % 19 + 1);
    const struct answer_facts *f = answer_facts(whole), *g = answer_facts(cut);
    check_counts(f);
    assert(f->prompt_tokens == g->prompt_tokens && f->cached_tokens == g->cached_tokens);
    assert(f->events == g->events && f->terminal == g->terminal && f->error == g->error);
    assert(f->text_whole == g->text_whole && f->implausible == g->implausible);
    assert(emitted(api, whole) == emitted(api, cut));
    assert(check_units(whole) == check_units(cut));
    answer_free(whole);
    answer_free(cut);
    return 0;
}
