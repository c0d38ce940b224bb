/* SPDX-License-Identifier: MIT */
#ifndef INCIPIT_PROTO_ANSWER_H
#define INCIPIT_PROTO_ANSWER_H

/*
 * Watches the body of an answer go by and keeps what is worth knowing: when the first
 * generated content came, the engine's own token counts, and the decoded text (the next
 * turn of a chat quotes it). An observer: it never changes or delays a byte, and an
 * answer that it does not understand is simply not known.
 *
 * Counts are clamped to what is possible (0 ≤ cached ≤ prompt); a value that had to be
 * clamped, was negative or no number sets `implausible`. Later, fuller figures replace
 * earlier ones; they are never added up. Unknown is -1, never 0.
 */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/buf.h"
#include "base/slice.h"
#include "proto/prompt.h"

#define ANSWER_MAX_TEXT ((size_t)4 << 20) /* answer text kept; beyond it: not kept */
#define ANSWER_MAX_CALLS 64
#define ANSWER_MAX_UNITS (1u << 20)

struct answer_facts {
    uint64_t first_content_us; /* first event with text, reasoning or a tool call; 0: none
                                  seen, or not a stream */
    uint64_t content_events;   /* of a stream: events with such content */
    int64_t prompt_tokens;     /* whole prompt: usage, or cache_n + prompt_n */
    int64_t cached_tokens;     /* of those reused, by usage or timings.cache_n */
    int64_t cache_n, prompt_n; /* llama-server's timings */
    int64_t predicted_n;
    int64_t id_slot; /* native answers name it */
    double prompt_ms;
    uint64_t events, comments;
    bool terminal; /* finish reason, [DONE], message_stop … seen: the answer is whole */
    bool last;     /* of a stream: its last event seen, nothing but framing can follow */
    bool error;    /* the body or an event is an error object */
    bool implausible; /* counts that cannot be */
    bool text_whole;  /* the answer below is complete and of one choice */
};

struct answer;

/* A step of the engine, as far as it can be told: a token where the answer has
 * log-probabilities (`logprobs.content` of chats), else what one event of a stream
 * said. */
struct answer_unit {
    uint32_t end;  /* its text ends here, the next one's begins */
    float logprob; /* NAN: not told */
};

/* `stream`: the body is text/event-stream, else one JSON document. PROMPT_NONE: of an API
 * whose prompts are not read; what it counts is known then, and no text. */
struct answer *answer_new(enum prompt_api api, bool stream);
void answer_free(struct answer *a);

/* Body bytes as decoded from their framing. `now_us`: when they arrived. */
void answer_feed(struct answer *a, struct slice bytes, uint64_t now_us);

/* The body ended. Parses a JSON document; for streams only closes the books. */
void answer_finish(struct answer *a);

const struct answer_facts *answer_facts(const struct answer *a);

/* The decoded answer where text_whole, else NULL; dies with `a`. */
const struct prompt_answer *answer_text(struct answer *a);

/* From here on units are noted, as far as text is kept; before the first byte. */
void answer_note_units(struct answer *a);

/* Where text_whole, else NULL with *n = 0. `text`: of all units, one behind the other.
 * `tokens`: they are tokens, not events. All die with `a`. */
const struct answer_unit *answer_units(const struct answer *a, size_t *n,
                                       struct slice *text, bool *tokens);

#endif
