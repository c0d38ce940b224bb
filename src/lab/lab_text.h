/* SPDX-License-Identifier: MIT */
#ifndef LAB_TEXT_H
#define LAB_TEXT_H

/* Text to tokens and back: a token is a byte, or one of the specials that are written
 * "<|im_start|>", "<|im_end|>", "<|bos|>" and "<|eos|>". */

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/buf.h"
#include "base/slice.h"

struct lab_tokens {
    uint32_t *v;
    size_t n, size;
};

void lab_tokens_push(struct lab_tokens *t, uint32_t token);
void lab_tokens_free(struct lab_tokens *t);

/* Appends the tokens of a text. */
void lab_text_tokens(struct slice text, struct lab_tokens *out);

/* Appends the bytes of a token; those of specials only where `specials`. */
void lab_text_put(struct buf *raw, uint32_t token, bool specials);

/*
 * Moves what is whole UTF-8 from the front of `raw` to `out`; a byte that cannot belong
 * to any becomes U+FFFD. The start of a character stays in `raw` unless this is the end.
 */
void lab_text_clean(struct buf *raw, bool end, struct buf *out);

/* What an API says no with. */
struct lab_refusal {
    int status;
    const char *type;
    char text[200];
    int64_t n_prompt, n_ctx; /* said where n_ctx is not 0 */
};

/* Returns false, for the caller to return as well. */
bool lab_refuse(struct lab_refusal *no, int status, const char *text);

/* The ChatML prompt of a body with messages; tools are printed behind the system text.
 * Anthropic's bodies, with `system` beside the messages, do as well. */
bool lab_chat_prompt(const json_t *body, struct buf *out, struct lab_refusal *no);

/* The same as a template in Jinja, in outline, for /props. */
extern const char lab_chat_template[];

#endif
