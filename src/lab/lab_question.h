/* SPDX-License-Identifier: MIT */
#ifndef LAB_QUESTION_H
#define LAB_QUESTION_H

/* What a request for a generation asks for, whichever API it came by. */

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

#include "lab_text.h"

enum lab_api { LAB_CHAT, LAB_COMPLETIONS, LAB_NATIVE, LAB_MESSAGES };

struct lab_question {
    enum lab_api api;
    struct lab_tokens *prompts; /* one for each answer */
    size_t n;
    bool batch; /* prompts were a list: so are the answers */
    bool stream, include_usage, return_tokens;
    int64_t id_slot;
    bool cache_prompt, ignore_eos;
    int64_t limit;
};

/* Reads a body. False with `no` filled in; lab_question_fini() in any case. */
bool lab_question_read(struct lab_question *q, enum lab_api api, const json_t *body,
                       uint32_t slots, uint32_t context, struct lab_refusal *no);
void lab_question_fini(struct lab_question *q);

#endif
