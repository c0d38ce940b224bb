/* SPDX-License-Identifier: MIT */
#include "lab_text.h"

#include <stdlib.h>

#include "base/mem.h"
#include "lab/model.h"

static const struct {
    uint32_t token;
    const char *text;
} specials[] = {{LAB_BEGIN, "<|im_start|>"},
                {LAB_END, "<|im_end|>"},
                {LAB_BOS, "<|bos|>"},
                {LAB_EOS, "<|eos|>"}};

#define N_SPECIALS (sizeof(specials) / sizeof(specials[0]))

void lab_tokens_push(struct lab_tokens *t, uint32_t token)
{
    if (t->n == t->size) {
        t->size = t->size ? 2 * t->size : 64;
        t->v = mem_rearray(t->v, t->size, sizeof(*t->v));
    }
    t->v[t->n++] = token;
}

void lab_tokens_free(struct lab_tokens *t)
{
    free(t->v);
    *t = (struct lab_tokens){0};
}

/* Length of the special at the start of the text, 0 where there is none. */
static size_t special_at(struct slice text, uint32_t *token)
{
    if (text.ptr[0] != '<')
        return 0;
    for (size_t i = 0; i < N_SPECIALS; i++)
        if (slice_starts(text, slice_of(specials[i].text))) {
            *token = specials[i].token;
            return strlen(specials[i].text);
        }
    return 0;
}

void lab_text_tokens(struct slice text, struct lab_tokens *out)
{
    while (text.len) {
        uint32_t token = (unsigned char)text.ptr[0];
        const size_t special = special_at(text, &token), used = special ? special : 1;
        lab_tokens_push(out, token);
        text = slice_make(text.ptr + used, text.len - used);
    }
}

void lab_text_put(struct buf *raw, uint32_t token, bool with_specials)
{
    if (token < 256)
        buf_append_char(raw, (char)token);
    for (size_t i = 0; with_specials && i < N_SPECIALS; i++)
        if (specials[i].token == token)
            buf_append_str(raw, specials[i].text);
}

/* ---- UTF-8 ------------------------------------------------------------------------- */

/*
 * Length of the character at the start (RFC 3629), 0 where the text ends before it does,
 * -1 where no character starts so. The second byte alone tells overlong forms, surrogates
 * and what lies beyond U+10FFFF.
 */
static int character(const unsigned char *p, size_t len)
{
    const unsigned char c = p[0];
    if (c < 0x80)
        return 1;
    if (c < 0xC2 || c > 0xF4)
        return -1;
    const int n = c < 0xE0 ? 2 : c < 0xF0 ? 3 : 4;
    const unsigned char low = c == 0xE0 ? 0xA0 : c == 0xF0 ? 0x90 : 0x80;
    const unsigned char high = c == 0xED ? 0x9F : c == 0xF4 ? 0x8F : 0xBF;
    for (int i = 1; i < n; i++) {
        if ((size_t)i >= len)
            return 0;
        if (p[i] < (i == 1 ? low : 0x80) || p[i] > (i == 1 ? high : 0xBF))
            return -1;
    }
    return n;
}

void lab_text_clean(struct buf *raw, bool end, struct buf *out)
{
    while (buf_len(raw)) {
        const struct slice s = buf_slice(raw);
        const int n = character((const unsigned char *)s.ptr, s.len);
        if (n == 0 && !end)
            return;
        if (n > 0)
            buf_append(out, s.ptr, (size_t)n);
        else
            buf_append_str(out, "\xEF\xBF\xBD");
        buf_consume(raw, n > 0 ? (size_t)n : 1);
    }
}
