/* SPDX-License-Identifier: MIT */

/*
 * What looking at a prompt costs: a chat body of 220 KB is scanned; scanned and emitted;
 * scanned, emitted and hashed to pieces. Three writings of it: plain text, a newline or
 * quote now and then as in chats, and every tenth character escaped. Median of many
 * runs, one core, gigabytes of body a second.
 */

#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "base/buf.h"
#include "prefix/pieces.h"
#include "gateway/inspect.h"
#include "proto/prompt.h"

#define BODY_BYTES ((size_t)220 << 10)
#define TURN_BYTES 2000
#define RUNS 2001

enum depth { SCAN, EMIT, HASH, DEPTHS };

static double now_s(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* Escapes come after random numbers of letters, `every` on average; 0: never. */
static void add_text(struct buf *b, size_t len, unsigned every, uint64_t *seed)
{
    static const char *const escapes[] = {"\\n", "\\\"", "\\t", "\\u00e4", "\\\\"};
    static const char letters[] = "etaoin shrdlu cmfwyp vbgkjqxz,. etaoin shrdlu ";
    for (size_t end = buf_len(b) + len; buf_len(b) < end;) {
        *seed = *seed * 6364136223846793005u + 1442695040888963407u;
        const unsigned x = (unsigned)(*seed >> 33);
        if (every && x % every == 0)
            buf_append_str(b, escapes[x / every % 5]);
        else
            buf_append_char(b, letters[x / 64 % (sizeof letters - 1)]);
    }
}

static void make_body(struct buf *b, unsigned every)
{
    uint64_t seed = 1;
    buf_append_str(b, "{\"model\":\"bench\",\"stream\":true,\"messages\":["
                      "{\"role\":\"system\",\"content\":\"");
    add_text(b, 10 * TURN_BYTES, every, &seed);
    for (unsigned turn = 0; buf_len(b) < BODY_BYTES; turn++) {
        buf_append_str(b, turn % 2 ? "\"},{\"role\":\"assistant\",\"content\":\""
                                   : "\"},{\"role\":\"user\",\"content\":\"");
        add_text(b, TURN_BYTES, every, &seed);
    }
    buf_append_str(b, "\"}],\"temperature\":0.7}");
}

static void nothing_begin(void *ctx, enum prompt_part part)
{
    (void)ctx;
    (void)part;
}

static void nothing_bytes(void *ctx, const char *ptr, size_t len)
{
    *(size_t *)ctx += len + (size_t)(unsigned char)ptr[0];
}

static void nothing_end(void *ctx)
{
    (void)ctx;
}

static void emit_nothing(const struct prompt *p)
{
    size_t sum = 0;
    const struct prompt_sink sink = {&sum, nothing_begin, nothing_bytes, nothing_end};
    prompt_emit(p, PROMPT_ORDER_SYSTEM_FIRST, &sink);
}

static void emit_pieces(const struct prompt *p, const struct chain_key *key)
{
    struct pieces pieces;
    const struct prompt_sink sink = inspect_sink(&pieces);
    pieces_init(&pieces, key, SLICE_LIT("bench"));
    prompt_emit(p, PROMPT_ORDER_SYSTEM_FIRST, &sink);
    pieces_free(&pieces);
}

static double one_run(struct slice body, const struct chain_key *key, enum depth depth)
{
    struct prompt p;
    const double start = now_s();
    if (!prompt_scan(&p, PROMPT_CHAT, body)) {
        fprintf(stderr, "unreadable: %s at %zu\n", p.why, p.why_at);
        exit(1);
    }
    if (depth == EMIT)
        emit_nothing(&p);
    if (depth == HASH)
        emit_pieces(&p, key);
    prompt_free(&p);
    return now_s() - start;
}

static int by_value(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double median_gbps(struct slice body, const struct chain_key *key,
                          enum depth depth)
{
    static double s[RUNS];
    for (int i = 0; i < RUNS; i++)
        s[i] = one_run(body, key, depth);
    qsort(s, RUNS, sizeof *s, by_value);
    return (double)body.len / s[RUNS / 2] / 1e9;
}

int main(void)
{
    static const struct {
        const char *name;
        unsigned every;
    } writings[] = {{"plain", 0}, {"one escape in 60", 60}, {"one escape in 10", 10}};
    const unsigned char bytes[CHAIN_KEY_BYTES] = "bench";
    struct chain_key key;
    chain_key_init(&key, bytes);
    printf("%-18s %8s %10s %16s   GB/s, median of %d\n", "text", "scan", "and emit",
           "and hash pieces", RUNS);
    for (size_t i = 0; i < sizeof writings / sizeof *writings; i++) {
        struct buf b = {0};
        make_body(&b, writings[i].every);
        printf("%-18s", writings[i].name);
        for (int depth = SCAN; depth < DEPTHS; depth++)
            printf(depth == HASH   ? " %16.2f"
                   : depth == EMIT ? " %10.2f"
                                   : " %8.2f",
                   median_gbps(buf_slice(&b), &key, (enum depth)depth));
        printf("\n");
        buf_free(&b);
    }
    return 0;
}
