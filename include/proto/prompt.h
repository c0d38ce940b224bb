/* SPDX-License-Identifier: MIT */
#ifndef INCIPIT_PROTO_PROMPT_H
#define INCIPIT_PROTO_PROMPT_H

/*
 * Looking at the prompt inside a request body without building a JSON tree.
 *
 * prompt_scan() is one strict pass over the body: it validates the JSON (RFC 8259,
 * UTF-8, no lone surrogates) and notes the spans that matter. prompt_emit() then walks
 * these spans in canonical order and hands decoded bytes to a sink, which hashes them
 * (prefix/pieces.h). The body itself is never changed or re-serialised.
 *
 * What reaches the sink decides what two prompts have in common, so it must not depend
 * on white space, on escapes or on the order of keys, and must depend on everything that
 * can change the tokens before the answer or the state computed from them. Fields inside
 * a part are tagged and separated by the byte 0xFF, which no UTF-8 text contains, so
 * "ab"+"c" never equals "a"+"bc". No Unicode normalisation.
 *
 * A body that cannot be read safely (not JSON, not an object, byte-order mark, not UTF-8,
 * a lone surrogate, NaN, nesting beyond PROMPT_MAX_DEPTH, a key twice in an object that
 * matters, a field of the wrong type) is "uninspected", with a reason. It is still
 * relayed. Accepting less than the engine does costs a hit; never a request.
 *
 * Threads: a scan is a plain value; several may run in parallel on their own bodies.
 */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/buf.h"
#include "base/slice.h"

#define PROMPT_MAX_DEPTH 512   /* of nesting; jansson's own limit is 2048 */
#define PROMPT_MAX_SPANS 65536 /* spans noted in one body */
#define PROMPT_MAX_IDS 4194304 /* token ids in one body */

enum prompt_api {
    PROMPT_NONE, /* not a generation: no prompt to look at */
    PROMPT_CHAT, /* /v1/chat/completions, /chat/completions, /v1/responses is not */
    PROMPT_COMPLETIONS, /* /v1/completions: prompt is a string, ids, or a list of those */
    PROMPT_NATIVE,      /* llama-server /completion, /completions */
    PROMPT_MESSAGES     /* Anthropic /v1/messages */
};

/* Where the engine's template puts the tools (learned per replica by the driver). */
enum prompt_order {
    PROMPT_ORDER_SYSTEM_FIRST, /* leading system messages, tools, other messages */
    PROMPT_ORDER_TOOLS_FIRST,  /* tools, then all messages */
    PROMPT_ORDER_TOOLS_LATE    /* tools right before the last user message */
};

enum prompt_part {
    PROMPT_PART_ROOT,    /* options that everything else depends on: model, salt, … */
    PROMPT_PART_TOOLS,   /* the whole tool list, order kept */
    PROMPT_PART_MESSAGE, /* one message up to its end (or a system text) */
    PROMPT_PART_MEDIA,   /* a picture or a sound: whole value, one indivisible piece;
                            interrupts the message it is in */
    PROMPT_PART_TEXT     /* the prompt string of the completion APIs */
};

/*
 * Receives a prompt in canonical order: begin, bytes…, end for each part. Parts do not
 * nest: before a MEDIA part the message is ended, behind it a new MESSAGE part continues.
 */
struct prompt_sink {
    void *ctx;
    void (*begin)(void *ctx, enum prompt_part part);
    void (*bytes)(void *ctx, const char *ptr, size_t len);
    void (*end)(void *ctx);
};

/* Why a prompt takes no part in caching; NONE where it does. */
enum prompt_bar {
    PROMPT_BAR_NONE,
    PROMPT_BAR_UNREADABLE, /* see prompt.why */
    PROMPT_BAR_NO_CACHE,   /* the client said cache_prompt:false */
    PROMPT_BAR_ECHO,       /* echo or prompt log-probabilities */
    PROMPT_BAR_BATCH,      /* several prompts in one request */
    PROMPT_BAR_MIXED       /* ids and text mixed in one prompt */
};

/* A noted piece of the body: a JSON value, quotes or brackets included. */
struct prompt_span {
    uint32_t what;  /* private, as all of it: src/proto/prompt_spans.h */
    uint32_t owner; /* index of the span of the object it belongs to */
    size_t start, end;
};

struct prompt {
    enum prompt_api api;
    enum prompt_bar bar;
    const char *why; /* for UNREADABLE: static text, e.g. "duplicate key" */
    size_t why_at;   /* offset in the body */

    bool stream;
    bool include_usage; /* stream_options.include_usage:true */
    bool has_id_slot;   /* the client pinned a slot itself */
    bool has_cache_prompt;
    bool has_lora; /* per-request adapters: part of the root, see prompt_emit */
    bool has_media;
    int64_t id_slot;
    int64_t n;          /* answers asked for: n or n_cmpl, 1 where absent */
    int64_t max_tokens; /* max_tokens, max_completion_tokens, n_predict; -1 unknown */
    struct slice model; /* raw text between the quotes of "model", may hold escapes */
    struct slice cache_salt; /* the same of "cache_salt" */
    size_t splice_at;        /* behind the opening brace: where fields can be put in */
    bool splice_comma;       /* the object is not empty: such a field needs a comma */

    uint32_t *ids; /* a prompt of token ids, or a batch of them one after the other,
                         else NULL; owned */
    size_t n_ids;
    size_t *id_ends;  /* where in `ids` each prompt of a batch (or of a list of one) ends,
                         n_prompts of them; NULL: `ids` is one prompt; owned */
    size_t n_prompts; /* of a batch; 1 otherwise */

    /* private */
    struct slice body;
    struct prompt_span *spans;
    size_t n_spans, cap_spans, cap_ids, cap_ends;
    size_t n_messages;
};

/*
 * Scans `body`, which must stay alive and unchanged while the prompt is used. Always
 * leaves `p` valid; free it with prompt_free(). Returns true where it is readable
 * (p->bar may still bar it from caching). Of an unreadable body the facts are those that
 * stood before the fault. PROMPT_NONE: any object is readable, for model and stream.
 */
bool prompt_scan(struct prompt *p, enum prompt_api api, struct slice body);
void prompt_free(struct prompt *p);
size_t prompt_held(const struct prompt *p); /* memory that it takes, without the body */

/*
 * Hands the prompt to `sink`: the ROOT part first (API, model, cache_salt, lora, tool
 * choice, response format, template arguments, …: the table in docs/prompts.md), then the
 * rest in the order of the template. Prompts of ids emit only their ROOT part.
 * Precondition: readable.
 */
void prompt_emit(const struct prompt *p, enum prompt_order order,
                 const struct prompt_sink *sink);

/* The root bytes that concern the KV itself and not its text: cache_salt and lora
 * (canonical), into `out`; empty where the body has neither. */
void prompt_kv_root(const struct prompt *p, struct buf *out);

/* One call of a tool in an answer, ids and arguments as the engine wrote them. */
struct prompt_tool_call {
    struct slice id, name, arguments;
};

/* A decoded answer, as the next turn of the same chat will quote it. */
struct prompt_answer {
    struct slice content;   /* ptr NULL: content is null */
    struct slice reasoning; /* ptr NULL: none */
    const struct prompt_tool_call *calls;
    size_t n_calls;
};

/*
 * Emits the answer to a request of this API as the part that follows its prompt: for
 * CHAT and MESSAGES a MESSAGE part equal to what prompt_emit() makes of an assistant
 * message with these contents; for the completion APIs the bytes of `content` alone,
 * between begin(TEXT) and end, to be taken as the continuation of the prompt's text.
 */
void prompt_emit_answer(enum prompt_api api, const struct prompt_answer *answer,
                        const struct prompt_sink *sink);

/* Decodes the inside of a JSON string (escapes resolved) onto `out`. False where it is
 * not valid. Used for small values: model names, answers. */
bool prompt_unescape(struct slice raw, struct buf *out);

#endif
