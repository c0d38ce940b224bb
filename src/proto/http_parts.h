/* SPDX-License-Identifier: MIT */
#ifndef INCIPIT_PROTO_HTTP_PARTS_H
#define INCIPIT_PROTO_HTTP_PARTS_H

/*
 * What the parts of the HTTP parser share; nobody else includes this.
 *
 *     http.c        the parser: which part reads the next byte
 *     http_scan.c   bytes of a head or of trailers: where lines start and end
 *     http_head.c   a complete head: its lines, its framing
 *     http_llhttp.c a second reading of that head, which has to agree
 *     http_chunks.c a chunked body
 */

#include "proto/http.h"

/* Everything that can be wrong with a message: name, status to answer, sentence. */
#define HTTP_FAULTS(X)                                                                   \
    X(NONE, 0, "no error")                                                               \
    X(BARE_LF, 400, "a line ends with LF alone")                                         \
    X(BARE_CR, 400, "a CR without its LF")                                               \
    X(CONTROL, 400, "a control character")                                               \
    X(FOLD, 400, "a folded header line")                                                 \
    X(NAME, 400, "a header name that is no token directly before a colon")               \
    X(HEAD_SIZE, 431, "the head is too large")                                           \
    X(HEAD_LINES, 431, "too many header lines")                                          \
    X(START_LINE, 400, "the first line does not follow its form")                        \
    X(VERSION, 505, "a version other than HTTP/1")                                       \
    X(CONNECT, 405, "CONNECT is not served here")                                        \
    X(TARGET, 400, "the request target is malformed")                                    \
    X(HOST, 400, "exactly one valid Host is needed")                                     \
    X(LENGTH, 400, "Content-Length is no plain number")                                  \
    X(LENGTHS, 400, "Content-Length more than once")                                     \
    X(LENGTH_CHUNKED, 400, "both Content-Length and Transfer-Encoding")                  \
    X(CODING, 501, "a transfer coding other than chunked")                               \
    X(CODING_1_0, 400, "Transfer-Encoding in HTTP/1.0")                                  \
    X(AMBIGUOUS, 400, "the head can be read in two ways")                                \
    X(CHUNK_SIZE, 400, "a chunk size is no plain hexadecimal number")                    \
    X(CHUNK_LINE, 400, "a chunk size line is too long")                                  \
    X(CHUNK_END, 400, "chunk data is not followed by CRLF")                              \
    X(CUT_SHORT, 400, "the connection closed in the middle of a message")

enum http_fault {
#define X(name, status, text) HTTP_FAULT_##name,
    HTTP_FAULTS(X)
#undef X
};

/* No length is larger, so that sums of two of them do not overflow. */
#define HTTP_LENGTH_MAX ((uint64_t)INT64_MAX)

/* ---- lines (http_scan.c) ----------------------------------------------------------- */

enum http_scan_state {                  /* the order of the rows of the table */
                       HTTP_SCAN_START, /* in the start line */
                       HTTP_SCAN_START_LF,
                       HTTP_SCAN_LINE, /* before the first byte of a header line */
                       HTTP_SCAN_NAME,
                       HTTP_SCAN_VALUE,
                       HTTP_SCAN_VALUE_LF,
                       HTTP_SCAN_END_LF,
                       HTTP_SCAN_DONE
};

struct http_scan {
    enum http_scan_state state;
    struct http_limits left; /* what may still come */
    size_t lines;            /* header lines seen */
    enum http_fault fault;
};

enum http_scan_stop {
    HTTP_SCAN_MORE,   /* used all input */
    HTTP_SCAN_LINE_1, /* the CRLF of the start line was read */
    HTTP_SCAN_WHOLE,  /* the CRLF of the empty line was read */
    HTTP_SCAN_FAULT
};

/* `state`: HTTP_SCAN_START for a head, HTTP_SCAN_LINE for trailers. */
void http_scan_init(struct http_scan *s, enum http_scan_state state,
                    struct http_limits limits);
enum http_scan_stop http_scan_feed(struct http_scan *s, struct slice in, size_t *used);

/* The byte may be part of a token (a method, a header name); may be part of a value. */
bool http_scan_is_token(char c);
bool http_scan_is_value(char c);

/* Value of a hexadecimal digit, -1 for others. (The converters of the C library take
 * signs, blanks and "0x", and wrap around.) */
int http_scan_hex(char c);

/* ---- heads (http_head.c, http_llhttp.c) -------------------------------------------- */

/* Takes the start line (without CRLF) apart. */
enum http_fault http_head_start(enum http_kind kind, struct slice line,
                                struct http_head *h);

/*
 * Takes apart a head that http_scan has found whole, with `h->headers` having room for
 * all its lines. `to_head`: it answers a HEAD request.
 */
enum http_fault http_head_finish(enum http_kind kind, struct slice raw, bool to_head,
                                 struct http_head *h);

/* llhttp reads the header lines (to the end of the empty line) as `h` says. */
bool http_llhttp_agrees(enum http_kind kind, struct slice lines,
                        const struct http_head *h);

/* ---- chunked bodies (http_chunks.c) ------------------------------------------------ */

enum http_chunks_state {
    HTTP_CHUNKS_START, /* before the first digit of a size */
    HTTP_CHUNKS_SIZE,
    HTTP_CHUNKS_EXTENSION,
    HTTP_CHUNKS_SIZE_LF,
    HTTP_CHUNKS_DATA,
    HTTP_CHUNKS_DATA_CR,
    HTTP_CHUNKS_DATA_LF,
    HTTP_CHUNKS_TRAILERS
};

struct http_chunks {
    enum http_chunks_state state;
    uint64_t left; /* of the chunk under way */
    size_t line;   /* bytes of its size line */
    struct http_scan trailers;
    enum http_fault fault;
};

void http_chunks_init(struct http_chunks *c, struct http_limits limits);

/* As http_parser_next(), for the body alone. */
enum http_event http_chunks_next(struct http_chunks *c, struct slice in, size_t *used,
                                 struct slice *data);

#endif
