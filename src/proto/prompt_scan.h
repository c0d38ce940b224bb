/* SPDX-License-Identifier: MIT */
#ifndef INCIPIT_PROTO_PROMPT_SCAN_H
#define INCIPIT_PROTO_PROMPT_SCAN_H

/*
 * The scan's inner workings, shared by prompt.c, prompt_chat.c and prompt_object.c. Each
 * object that matters has a table of fields; a row names the member and the function
 * that takes its value off the lexer.
 */

#include "prompt_spans.h"
#include "proto/jlex.h"

#define PROMPT_FIRST_SPANS 64 /* room for them at first */
#define PROMPT_MAX_KEY 256    /* decoded bytes of a key with escapes */
#define PROMPT_KEY_ROOM (PROMPT_MAX_KEY + JLEX_DECODE_ROOM)

struct scan {
    struct prompt *p;
    struct jlex j;
    uint32_t frame;        /* owner of what is noted now */
    struct jlex_token key; /* of the member being taken */
    bool text_type;        /* the part being read says that it is text */
    bool media;            /* it holds something that is not */
    bool has_prompt;       /* seen: messages or prompt */
    bool no_cache, echo, mixed;
};

struct field {
    struct slice name; /* ptr NULL: the row for all other members, the last one */
    bool (*take)(struct scan *s, const struct field *f, struct jlex_token *value);
    uint32_t what;
    unsigned apis; /* bit per API that knows the field; 0: all */
};

/* Gives the body up; the first reason is kept. Returns false. */
bool prompt_fail(struct scan *s, const char *why, size_t at);

/* Decoded text of a key or string; ptr NULL where it has escapes and is longer than
 * PROMPT_MAX_KEY. */
struct slice prompt_key_text(const struct scan *s, const struct jlex_token *t,
                             char tmp[PROMPT_KEY_ROOM]);

/* Notes a value as a span of the frame; the index is SPAN_NONE beyond the limit. */
bool prompt_note(struct scan *s, uint32_t what, const struct jlex_token *t);
uint32_t prompt_note_index(struct scan *s, uint32_t what, const struct jlex_token *t);

/* Takes the members of an object whose brace was read; as a frame of its own. */
bool prompt_members(struct scan *s, const struct field *fields);
bool prompt_frame(struct scan *s, uint32_t what, const struct field *fields,
                  const struct jlex_token *t, uint32_t *index);

/* Rows' functions: nothing noted; any value but null, which counts as not given; the
 * same with its key; a string; a string or null. */
bool prompt_take_skip(struct scan *s, const struct field *f, struct jlex_token *value);
bool prompt_take_any(struct scan *s, const struct field *f, struct jlex_token *value);
bool prompt_take_other(struct scan *s, const struct field *f, struct jlex_token *value);
bool prompt_take_text(struct scan *s, const struct field *f, struct jlex_token *value);
bool prompt_take_text_or_null(struct scan *s, const struct field *f,
                              struct jlex_token *value);

/* True, false or null. */
bool prompt_bool(struct scan *s, const struct jlex_token *value, bool *out);

/* "messages", and "system" of the Messages API. */
bool prompt_chat_messages(struct scan *s, const struct field *f,
                          struct jlex_token *value);
bool prompt_chat_system(struct scan *s, const struct field *f, struct jlex_token *value);

#endif
