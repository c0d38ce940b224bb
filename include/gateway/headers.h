/* SPDX-License-Identifier: MIT */
#ifndef INCIPIT_GATEWAY_HEADERS_H
#define INCIPIT_GATEWAY_HEADERS_H

/*
 * What becomes of headers on the way through. End-to-end headers pass as they came, in
 * order, repeats and letter case kept. The differences, all of them:
 *
 * to the engine:  an absolute target becomes path and query; headers of one hop go
 *                 (http_head_hop_by_hop), and Expect (we answered it), and
 *                 X-Conversation-Id (it would let llama-server go on generating for a
 *                 client that has left); Host is the engine's; framing is made anew;
 *                 a credential passes, goes, or another comes instead; what an engine
 *                 may read in another way goes (struct headers_rules).
 * to the client:  headers of one hop go; framing is made anew; X-Request-Id where the
 *                 engine sent none; those of gateway/cors.h where they are configured;
 *                 Cache-Status and Server-Timing; on event streams X-Accel-Buffering: no
 *                 where the engine did not say anything about it.
 */

#include "base/buf.h"
#include "engine/engine.h"
#include "proto/http.h"

/* What becomes of headers that are the client's to choose. */
struct headers_rules {
    int credentials;      /* enum options_credentials */
    int hidden_line_ends; /* enum options_hidden; to refuse is the caller's */
    int forwarded_for; /* enum options_forwarded; one that is no list goes in any case */
    const char *peer;  /* address of the client, as front_peer() has it */
    const char *id;    /* of the request, for the log (debug: names of what goes) */
};

void headers_to_engine(struct buf *out, const struct http_head *h,
                       const struct replica *r, const struct headers_rules *rules,
                       size_t length);
bool headers_hide_line_end(const struct http_head *h); /* any of them; proto/http.h */
void headers_to_client(struct buf *out, const struct http_head *h, bool stream);

/* "X-Request-Id: …" unless `out` has one already. */
void headers_id(struct buf *out, const char *id);

/* RFC 9211. `planned` is what the plan promises, not what the engine will confirm. */
void headers_cache_status(struct buf *out, const struct plan *plan, bool cacheable);

/* Milliseconds of the phases so far, from the stamps of gateway/request.h. */
void headers_server_timing(struct buf *out, const uint64_t *stamp_us);

bool headers_are_event_stream(const struct http_head *h);

/* Length to announce to the client: as the engine said, -1 where it did not. */
int64_t headers_length(const struct http_head *h, bool is_head);

#endif
