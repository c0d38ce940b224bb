/* SPDX-License-Identifier: MIT */
#ifndef INCIPIT_GATEWAY_INSPECT_H
#define INCIPIT_GATEWAY_INSPECT_H

/*
 * A body looked at: what its prompt is, what its text hashes to, and what a job needs of
 * that. The same for requests of clients and for those that the gateway makes itself, so
 * that both find what the other has left.
 */

#include "engine/engine.h"
#include "gateway/tenants.h"

/* Who sends it, by the head of the request. */
struct inspect_client {
    const struct tenants *tenants;
    const struct http_head *head;
};

struct inspected {
    struct prompt prompt;
    struct pieces pieces;
    struct pieces public; /* of its start, as of those who show nothing; may be empty */
    struct buf kv_root;
    struct buf unpacked; /* a copy of a body that came packed; `prompt` points into it */
};

/*
 * Fills `in` (zero) and the part of `job` that comes from the body, for a replica. Of a
 * body that cannot be read the prompt says why. `body` must outlive `in`.
 */
void inspect_body(struct inspected *in, struct job *job, const struct replica *r,
                  const struct inspect_client *who, enum prompt_api api,
                  struct slice body);

/* The same for one that came packed, by the value of Content-Encoding: a copy of at most
 * `max_bytes` is unpacked. */
void inspect_packed(struct inspected *in, struct job *job, const struct replica *r,
                    const struct inspect_client *who, enum prompt_api api,
                    struct slice body, size_t max_bytes);

/* The same for one that nobody here can read; `why` is static text. */
void inspect_unreadable(struct inspected *in, struct job *job,
                        const struct inspect_client *who, const char *why);

/* Lets go of what was read: from now on it is such a body. */
void inspect_forget(struct inspected *in, struct job *job,
                    const struct inspect_client *who, const char *why);

/* Where prompt_emit() hands text to pieces. */
struct prompt_sink inspect_sink(struct pieces *pieces);

/* The pieces of a readable prompt: of its text, or of its ids, which are as good as text
 * (four bytes a token). */
void inspect_pieces(const struct prompt *p, enum prompt_order order,
                    struct pieces *pieces);

/* The answer's pieces behind the prompt's: the next turn of a chat quotes it. */
void inspect_answer(struct inspected *in, const struct prompt_answer *text);

/* Memory that it takes. */
uint64_t inspect_held(const struct inspected *in);

void inspect_free(struct inspected *in);

#endif
