/* SPDX-License-Identifier: MIT */
#ifndef INCIPIT_STORE_LINK_H
#define INCIPIT_STORE_LINK_H

/*
 * A connection to a Redis server: connects, says who it is, then sends commands and hands
 * out their answers in order.
 *
 *     CLOSED ──open──► resolving ─► connecting ─► greeting ─► READY ──send──► answers
 *        └──────────────── any failure, a late answer, close ◄─────┘
 *
 * hiredis reads the protocol; the bytes move over io/conn. Its own event code is not
 * used: an answer that nobody asked for ends the process there.
 *
 * Each command has a deadline: the timeout, and as much again for each
 * STORE_LINK_SPAN_BYTES that have moved on the connection since it was sent. Whoever is
 * late, or does not keep to the protocol, is cut off. Opening again is the owner's.
 *
 * For the loop's thread. Callbacks come from the loop or from store_link_close().
 */

#include <hiredis/hiredis.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/buf.h"
#include "base/slice.h"
#include "io/workers.h"
#include "store/store.h"

#define STORE_LINK_SPAN_BYTES ((uint64_t)4 << 20)

struct store_link_options { /* texts are borrowed */
    struct loop *loop;
    struct workers *workers; /* names are looked up there */
    const char *where;       /* "HOST:PORT" or "unix:/path" */
    const char *user;        /* "" or NULL: the default one */
    const char *password;    /* "" or NULL: none is asked for */
    unsigned db;
    uint64_t timeout_ms;
    void (*on_ready)(void *arg);
    void (*on_failed)(void *arg, enum store_redis_error kind, const char *why);
    void *arg;
};

struct store_link;

struct store_link *store_link_new(const struct store_link_options *o);
void store_link_free(struct store_link *l); /* closes it first. NULL is allowed */

void store_link_open(struct store_link *l); /* a closed one */

/* What waits for an answer gets NULL, inside the call. A closed one may be closed. */
void store_link_close(struct store_link *l);

bool store_link_ready(const struct store_link *l);

/* The owner sees that an answer is not one to its command: as any other failure. The
 * link may be gone from below the callback that calls it. */
void store_link_reject(struct store_link *l, const char *why);

/* A command under construction, word by word. {0} is empty. */
struct store_command {
    struct buf bytes;
    struct slice body; /* the last word, where it is large: not copied */
};
void store_command_start(struct store_command *c, const char *name, unsigned n_words);
void store_command_word(struct store_command *c, struct slice word);
void store_command_number(struct store_command *c, uint64_t number);
void store_command_body(struct store_command *c, struct slice body); /* the last */

/*
 * Sends a command; its bytes are taken over, its body stays alive until the answer. The
 * callback owns the answer (NULL: there is none, the link has ended) and may close the
 * link. An answer of more than `max_bytes` ends the link. Only for a link that is ready.
 */
typedef void (*store_link_cb)(void *arg, struct redisReply *answer);
void store_link_send(struct store_link *l, struct store_command *c, uint64_t max_bytes,
                     store_link_cb cb, void *arg);

#endif
