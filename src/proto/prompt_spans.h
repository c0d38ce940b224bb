/* SPDX-License-Identifier: MIT */
#ifndef INCIPIT_PROTO_PROMPT_SPANS_H
#define INCIPIT_PROTO_PROMPT_SPANS_H

/*
 * What prompt.c (which notes spans) and prompt_emit.c (which walks them) must agree on;
 * nobody else includes this.
 *
 * Spans stand in the order of the body. Some are frames: an object whose members follow
 * it and name it as their owner. Example: a message with one text part,
 *
 *     {"role":"user","content":[{"type":"text","text":"hi"}]}
 *
 *     #  what      owner                 the frame's extent tells where its members end
 *     0  MESSAGE   none
 *     1  ROLE      0
 *     2  CONTENT   0
 *     3  PART      0
 *     4  TYPE      3
 *     5  TEXT      3
 */

#include "proto/prompt.h"

#define SPAN_NONE UINT32_MAX             /* owner of what stands at the top */
#define SPAN_ESCAPED (UINT32_C(1) << 31) /* flag in `what`: a string with escapes */
#define SPAN_WHAT(span) ((span)->what & ~SPAN_ESCAPED)

enum span_what {
    /* frames */
    SPAN_MESSAGE,
    SPAN_SYSTEM, /* the system text of the Messages API: a string or parts */
    SPAN_PART,   /* an element of content */
    SPAN_MEDIA,  /* the same, to be kept whole */
    SPAN_CALL,
    SPAN_FUNCTION,
    /* at the top */
    SPAN_TOOLS,
    SPAN_PROMPT,
    /* of messages */
    SPAN_ROLE,
    SPAN_NAME, /* also of functions and of tool_use parts */
    SPAN_CONTENT,
    SPAN_REASONING,
    SPAN_TOOL_CALLS,
    SPAN_TOOL_CALL_ID,
    /* of parts and calls */
    SPAN_TYPE,
    SPAN_TEXT,
    SPAN_THINKING,
    SPAN_ID,
    SPAN_INPUT,
    SPAN_TOOL_USE_ID,
    SPAN_IS_ERROR,
    SPAN_ARGUMENTS,
    /* a member without a row of its own: two spans, its key and its value */
    SPAN_OTHER_KEY,
    SPAN_OTHER,
    /* SPAN_ROOT + i: the i-th row of prompt_root_fields */
    SPAN_ROOT
};

/* The options that belong to the root, in the order in which they are emitted. */
enum root_flags {
    ROOT_TEXT = 1,    /* must be a string */
    ROOT_KV = 2,      /* part of prompt_kv_root() too */
    ROOT_ADAPTER = 4, /* changes the weights */
    ROOT_MODEL = 8,
    ROOT_SALT = 16
};
struct prompt_root_field {
    struct slice name;
    unsigned flags;
};
extern const struct prompt_root_field prompt_root_fields[];
extern const size_t prompt_root_n_fields;

/* Emits the fields marked ROOT_KV alone, without an API tag. */
void prompt_emit_kv(const struct prompt *p, const struct prompt_sink *sink);

#endif
