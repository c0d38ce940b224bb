/* SPDX-License-Identifier: MIT */
#ifndef INCIPIT_PROTO_HTTP_H
#define INCIPIT_PROTO_HTTP_H

/*
 * HTTP/1 messages from bytes and back (RFC 9112), strict: what two parsers could read in
 * two ways is an error. Built on llhttp with our own checks in front where it is lenient.
 * Pure: no sockets, no time.
 *
 * A parser reads messages of one direction, one after the other, pull style: call
 * http_parser_next() with what you have, act on the one event it returns, consume what
 * it used, call again. It never reads past the end of a message, so bytes of the next
 * (pipelined) message stay with the caller.
 *
 * Refused, with the status a server answers: two lengths or length with chunked, any
 * transfer coding but exactly `chunked` (501), signs, blanks or prefixes in numbers, bare
 * CR or LF, NUL, space before a colon, folded lines, HTTP/1.1 without exactly one valid
 * Host, head beyond the limit (431), versions other than 1.x (505), CONNECT (405), a
 * target with a fragment or bytes outside ASCII. An answer with both length and chunked
 * is read as chunked, and `keep_alive` is false.
 */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/buf.h"
#include "base/slice.h"

struct http_header {
    struct slice name, value; /* as sent; value without blanks around it */
};

enum http_body {
    HTTP_BODY_NONE,    /* no body by rule (GET without length, HEAD's answer, 204, 304) */
    HTTP_BODY_LENGTH,  /* exactly `length` bytes */
    HTTP_BODY_CHUNKED, /* chunks; extensions and trailers are dropped */
    HTTP_BODY_CLOSE    /* answers only: until the connection closes */
};

/* A parsed head. Its slices live in the parser until http_parser_reset(). */
struct http_head {
    struct slice method; /* requests; any token, case kept */
    struct slice target; /* requests: byte for byte as sent, query included */
    int status;          /* answers */
    struct slice reason; /* answers; may be empty */
    int minor;           /* of HTTP/1.minor; 2 to 9 are to be treated as 1 */
    struct http_header *headers;
    size_t n_headers;
    enum http_body body;
    uint64_t length; /* for HTTP_BODY_LENGTH */
    bool keep_alive; /* what this message says of its connection */
    bool expect_continue;
};

enum http_kind { HTTP_REQUEST, HTTP_RESPONSE };

enum http_event {
    HTTP_MORE,  /* needs more input */
    HTTP_HEAD,  /* head is complete: http_parser_head(). 1xx answers are heads as well,
                   directly followed by HTTP_END */
    HTTP_DATA,  /* *data holds decoded body bytes, a part of the input */
    HTTP_END,   /* message complete; reset before the next one */
    HTTP_ERROR, /* http_parser_error(); the connection is of no more use */
};

struct http_limits {
    size_t head_bytes; /* request or status line plus headers, default 32 KiB */
    size_t headers;    /* number of header lines, default 128 */
};
#define HTTP_LIMITS_DEFAULT ((struct http_limits){32768, 128})

struct http_parser;

struct http_parser *http_parser_new(enum http_kind kind, struct http_limits limits);
void http_parser_free(struct http_parser *p);

/* Ready for the next message on the same connection; slices of the old head die. After
 * HTTP_ERROR it changes nothing: bytes behind an error are never read as a message. */
void http_parser_reset(struct http_parser *p);

/* Answers: the request was HEAD, so no body follows whatever the head says. Holds for the
 * next final answer and the 1xx before it. */
void http_parser_expect_head(struct http_parser *p);

/*
 * Reads on in `in`; sets *used to the bytes consumed (they will not be wanted again)
 * and for HTTP_DATA *data. After HTTP_ERROR every call returns HTTP_ERROR.
 */
enum http_event http_parser_next(struct http_parser *p, struct slice in, size_t *used,
                                 struct slice *data);

/* The peer has closed: HTTP_END completes a HTTP_BODY_CLOSE answer, HTTP_MORE means that
 * no message was under way, HTTP_ERROR that one was cut short. */
enum http_event http_parser_eof(struct http_parser *p);

const struct http_head *http_parser_head(const struct http_parser *p);

/* True once the first byte of a message was seen and its end was not. */
bool http_parser_busy(const struct http_parser *p);

/* Status to answer (400, 405, 431, 501, 505) and a phrase, free of the peer's bytes, that
 * says what is wrong. For a broken answer the status is of no use: that is a 502. */
int http_parser_error(const struct http_parser *p, const char **text);

/* First header of that name (any letter case), or a slice with ptr NULL. */
struct slice http_head_get(const struct http_head *h, struct slice name);

/*
 * True for headers that belong to one hop: Connection and all it names, Keep-Alive,
 * Proxy-Connection, Proxy-Authenticate, Proxy-Authorization, TE, Trailer,
 * Transfer-Encoding, Upgrade, and Content-Length (framing is made afresh for each hop).
 */
bool http_head_hop_by_hop(const struct http_head *h, struct slice name);

/* Standard reason phrase ("Not Found"), "Status" for unknown codes. */
const char *http_reason(int status);

/* Appends "NAME: value\r\n". */
void http_write_header(struct buf *b, struct slice name, struct slice value);

/* Appends one chunk (nothing where it is empty, since that would end the body). */
void http_write_chunk(struct buf *b, struct slice data);

/* Appends the chunk that ends a body. */
void http_write_last_chunk(struct buf *b);

/*
 * The path of a target on a normalised copy, to decide on routes only: query cut off,
 * absolute form stripped to its path, "//" folded, %XX of unreserved letters decoded,
 * "." segments removed, trailing "/" dropped, ";…" cut off each segment. "*" stays.
 * Returns false for "..", "\", a malformed %XX and what is no path. Replaces what `out`
 * held.
 */
bool http_normal_path(struct slice target, struct buf *out);

/*
 * A CR, LF or NUL is percent-encoded in the value of a header: "%0D", or "%u000D". Such a
 * value is harmless, unless a reader decodes values behind its own checks, as cpp-httplib
 * did before 0.44, the HTTP library of llama-server (CVE-2026-45372).
 */
bool http_value_hides_line_end(struct slice value);

#endif
