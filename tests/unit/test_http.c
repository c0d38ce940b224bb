/* SPDX-License-Identifier: MIT */

/*
 * A message is told as a transcript ("GET /a 1.1 length=3 close expect [Host: h]", then
 * {body} and "end"), so that two readings are equal where their transcripts are. Every row
 * is read whole, byte by byte and cut in two at each byte, alone and with a hidden request
 * behind it.
 */

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cmocka_all.h"
#include "proto/http.h"

#define HIDDEN "GET /smuggled HTTP/1.1\r\nHost: h\r\n\r\n"
#define HIDDEN_READ "GET /smuggled 1.1 none keep [Host: h]\nend\n"

/* ---- readings ---- */

struct reader {
    struct http_parser *parser;
    struct buf log;
    struct buf body; /* pieces of it joined, since where they are cut is free */
    bool to_head;
};

static void log_head(struct reader *r)
{
    static const char *const bodies[] = {"none", "length", "chunked", "until-close"};
    const struct http_head *h = http_parser_head(r->parser);
    if (h->status)
        buf_printf(&r->log, "%d 1.%d %s", h->status, h->minor, bodies[h->body]);
    else
        buf_printf(&r->log, "%.*s %.*s 1.%d %s", (int)h->method.len, h->method.ptr,
                   (int)h->target.len, h->target.ptr, h->minor, bodies[h->body]);
    if (h->body == HTTP_BODY_LENGTH)
        buf_printf(&r->log, "=%llu", (unsigned long long)h->length);
    buf_append_str(&r->log, h->keep_alive ? " keep" : " close");
    buf_append_str(&r->log, h->expect_continue ? " expect" : "");
    for (size_t i = 0; i < h->n_headers; i++) {
        buf_append_str(&r->log, i ? "; " : " [");
        buf_append_slice(&r->log, h->headers[i].name);
        buf_append_str(&r->log, ": ");
        buf_append_slice(&r->log, h->headers[i].value);
    }
    buf_append_str(&r->log, h->n_headers ? "]\n" : "\n");
}

static void log_end(struct reader *r)
{
    if (buf_len(&r->body)) {
        buf_append_char(&r->log, '{');
        buf_append_slice(&r->log, buf_slice(&r->body));
        buf_append_str(&r->log, "}\n");
        buf_clear(&r->body);
    }
    buf_append_str(&r->log, "end\n");
}

/* Reads a piece to its end; where the parser wants no more of it, stops. */
static void reader_feed(struct reader *r, struct slice in)
{
    for (;;) {
        size_t used;
        struct slice data;
        const enum http_event event = http_parser_next(r->parser, in, &used, &data);
        assert_true(used <= in.len);
        if (event == HTTP_DATA)
            assert_true(data.len > 0 && data.ptr >= in.ptr &&
                        data.ptr + data.len == in.ptr + used);
        in = slice_make(in.ptr + used, in.len - used);
        switch (event) {
        case HTTP_HEAD:
            log_head(r);
            break;
        case HTTP_DATA:
            buf_append_slice(&r->body, data);
            break;
        case HTTP_END:
            log_end(r);
            http_parser_reset(r->parser);
            if (r->to_head)
                http_parser_expect_head(r->parser);
            break;
        case HTTP_MORE:
            assert_int_equal(in.len, 0);
            return;
        case HTTP_ERROR:
            return;
        }
    }
}

/* The whole transcript of `in`, fed as pieces of `first` bytes, then `piece` each. */
static char *read_cut(enum http_kind kind, bool to_head, struct http_limits limits,
                      struct slice in, size_t first, size_t piece)
{
    struct reader r = {.parser = http_parser_new(kind, limits), .to_head = to_head};
    if (to_head)
        http_parser_expect_head(r.parser);
    for (size_t at = 0, n = first; at < in.len; at += n, n = piece) {
        n = n < in.len - at ? n : in.len - at;
        char *copy = malloc(n); /* exact, so that reading past it is seen */
        memcpy(copy, in.ptr + at, n);
        reader_feed(&r, slice_make(copy, n));
        free(copy);
    }
    const bool busy = http_parser_busy(r.parser);
    const enum http_event event = http_parser_eof(r.parser);
    if (event == HTTP_END) {
        log_end(&r);
    } else if (event == HTTP_ERROR) {
        const char *text;
        buf_printf(&r.log, "error %d", http_parser_error(r.parser, &text));
        buf_append_str(&r.log, busy ? " cut short\n" : "\n");
        assert_true(strlen(text) > 0);
    }
    http_parser_free(r.parser);
    buf_free(&r.body);
    return buf_take_str(&r.log);
}

static char *read_whole(enum http_kind kind, struct slice in)
{
    return read_cut(kind, false, HTTP_LIMITS_DEFAULT, in, in.len, in.len);
}

/* All cuts of `in` read as `expected`. */
static void check_cuts(const char *id, enum http_kind kind, bool to_head, struct slice in,
                       const char *expected)
{
    for (size_t first = 1; first <= in.len; first++) {
        char *seen = read_cut(kind, to_head, HTTP_LIMITS_DEFAULT, in, first, in.len);
        if (strcmp(seen, expected) != 0)
            print_error("%s, cut at %zu of %zu\n", id, first, in.len);
        assert_string_equal(seen, expected);
        free(seen);
    }
    char *seen = read_cut(kind, to_head, HTTP_LIMITS_DEFAULT, in, 1, 1);
    if (strcmp(seen, expected) != 0)
        print_error("%s, byte by byte\n", id);
    assert_string_equal(seen, expected);
    free(seen);
}

/* Alone and with a hidden request behind: seen after a good message, never after a bad. */
static void check_request(const char *id, struct slice in, const char *expected)
{
    struct buf b = {0};
    struct buf e = {0};
    check_cuts(id, HTTP_REQUEST, false, in, expected);
    buf_append_slice(&b, in);
    buf_append_str(&b, HIDDEN);
    buf_append_str(&e, expected);
    if (!strstr(expected, "error"))
        buf_append_str(&e, HIDDEN_READ);
    char *with_hidden = buf_take_str(&e);
    check_cuts(id, HTTP_REQUEST, false, buf_slice(&b), with_hidden);
    free(with_hidden);
    buf_free(&b);
}

/* ---- requests: refused ---- */

#define BYTES(s) s, sizeof(s) - 1
#define GET "GET / HTTP/1.1\r\nHost: h\r\n"
#define POST "POST / HTTP/1.1\r\nHost: h\r\n"
#define CHUNKED POST "Transfer-Encoding: chunked\r\n\r\n"
#define ABC "3\r\nabc\r\n"

struct bad {
    const char *id, *bytes;
    size_t len;
    int status;
};

/* Each is refused before anything of it is told. */
static const struct bad bad_heads[] = {
    {"H01 two lengths", BYTES(POST "Content-Length: 3\r\nContent-Length: 5\r\n\r\nabc"),
     400},
    {"H01 two equal lengths",
     BYTES(POST "Content-Length: 3\r\ncontent-length: 3\r\n\r\nabc"), 400},
    {"H02 list of lengths", BYTES(POST "Content-Length: 3, 3\r\n\r\nabc"), 400},
    {"H02 list without blank", BYTES(POST "Content-Length: 3,3\r\n\r\nabc"), 400},
    {"H03 plus", BYTES(POST "Content-Length: +3\r\n\r\nabc"), 400},
    {"H03 hexadecimal", BYTES(POST "Content-Length: 0x3\r\n\r\nabc"), 400},
    {"H03 underscore", BYTES(POST "Content-Length: 1_0\r\n\r\nabc"), 400},
    {"H03 blank inside", BYTES(POST "Content-Length: 3 3\r\n\r\nabc"), 400},
    {"H03 fraction", BYTES(POST "Content-Length: 3.0\r\n\r\nabc"), 400},
    {"H03 vertical tab", BYTES(POST "Content-Length: \v3\r\n\r\nabc"), 400},
    {"H04 minus", BYTES(POST "Content-Length: -1\r\n\r\nabc"), 400},
    {"H04 wraps to 3", BYTES(POST "Content-Length: 18446744073709551619\r\n\r\nabc"),
     400},
    {"H04 2^63", BYTES(POST "Content-Length: 9223372036854775808\r\n\r\n"), 400},
    {"empty length", BYTES(POST "Content-Length:\r\n\r\nabc"), 400},
    {"blank length", BYTES(POST "Content-Length: \t \r\n\r\nabc"), 400},
    {"empty and good length",
     BYTES(POST "Content-Length:\r\nContent-Length: 3\r\n\r\nabc"), 400},
    {"tab behind a length, which llhttp reads otherwise",
     BYTES(POST "Content-Length: 3\t\r\n\r\nabc"), 400},
    {"tab behind a coding, which llhttp reads otherwise",
     BYTES(POST "Transfer-Encoding: chunked\t\r\n\r\n0\r\n\r\n"), 400},
    {"H05 length, chunked",
     BYTES(POST "Content-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"), 400},
    {"H05 chunked, length",
     BYTES(POST "Transfer-Encoding: chunked\r\nContent-Length: 3\r\n\r\n0\r\n\r\n"), 400},
    {"H06 length and unknown coding",
     BYTES(POST "Transfer-Encoding: xchunked\r\nContent-Length: 3\r\n\r\nabc"), 400},
    {"H07 gzip, chunked", BYTES(POST "Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n"),
     501},
    {"H07 chunked, gzip", BYTES(POST "Transfer-Encoding: chunked, gzip\r\n\r\n0\r\n\r\n"),
     501},
    {"H07 chunked twice",
     BYTES(POST "Transfer-Encoding: chunked, chunked\r\n\r\n0\r\n\r\n"), 501},
    {"H07 identity", BYTES(POST "Transfer-Encoding: identity\r\n\r\n0\r\n\r\n"), 501},
    {"H07 with parameter", BYTES(POST "Transfer-Encoding: chunked;q=1\r\n\r\n0\r\n\r\n"),
     501},
    {"H07 leading comma", BYTES(POST "Transfer-Encoding: ,chunked\r\n\r\n0\r\n\r\n"),
     501},
    {"H07 quoted", BYTES(POST "Transfer-Encoding: \"chunked\"\r\n\r\n0\r\n\r\n"), 501},
    {"H07 empty", BYTES(POST "Transfer-Encoding:\r\n\r\n0\r\n\r\n"), 501},
    {"H08 two lines",
     BYTES(POST "Transfer-Encoding: chunked\r\nTransfer-Encoding: identity\r\n\r\n"
                "0\r\n\r\n"),
     501},
    {"H08 two lines, equal",
     BYTES(POST "Transfer-Encoding: chunked\r\nTransfer-encoding: chunked\r\n\r\n"
                "0\r\n\r\n"),
     501},
    {"H08 chunked in 1.0",
     BYTES("POST / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"), 400},
    {"H09 space before colon",
     BYTES(POST "Transfer-Encoding : chunked\r\nContent-Length: 3\r\n\r\nabc"), 400},
    {"H09 tab before colon", BYTES(POST "Content-Length\t: 3\r\n\r\nabc"), 400},
    {"H09 space in name", BYTES(POST "Content Length: 3\r\n\r\nabc"), 400},
    {"H09 NUL before colon", BYTES(POST "Content-Length\0: 3\r\n\r\nabc"), 400},
    {"H10 folded", BYTES(GET "A: b\r\n c\r\n\r\n"), 400},
    {"H10 folded by tab", BYTES(GET "A: b\r\n\tc\r\n\r\n"), 400},
    {"H10 folded coding", BYTES(POST "Transfer-Encoding:\r\n chunked\r\n\r\n0\r\n\r\n"),
     400},
    {"H10 folded first line", BYTES("GET / HTTP/1.1\r\n Host: h\r\n\r\n"), 400},
    {"H10 blank line of spaces", BYTES(GET " \r\n\r\n"), 400},
    {"H19 NUL in value", BYTES(GET "A: b\0c\r\n\r\n"), 400},
    {"H19 NUL in name", BYTES(GET "A\0: b\r\n\r\n"), 400},
    {"H19 NUL in target", BYTES("GET /a\0b HTTP/1.1\r\nHost: h\r\n\r\n"), 400},
    {"H20 control in value", BYTES(GET "A: b\001c\r\n\r\n"), 400},
    {"H20 DEL in value", BYTES(GET "A: b\177c\r\n\r\n"), 400},
    {"H20 no colon", BYTES(GET "Foo\r\n\r\n"), 400},
    {"H20 empty name", BYTES(GET ": x\r\n\r\n"), 400},
    {"H20 empty name hides the rest", BYTES(GET ":\r\nContent-Length: 3\r\n\r\nabc"),
     400},
    {"H20 name of bytes over 127", BYTES(GET "Caf\xc3\xa9: x\r\n\r\n"), 400},
    {"H20 quoted name", BYTES(GET "\"A\": x\r\n\r\n"), 400},
    {"H21 LF after the first line", BYTES("GET / HTTP/1.1\nHost: h\r\n\r\n"), 400},
    {"H21 LF after a header", BYTES(GET "A: b\nC: d\r\n\r\n"), 400},
    {"H21 LF ends the head", BYTES(GET "A: b\r\n\n"), 400},
    {"H21 LF only", BYTES("GET / HTTP/1.1\nHost: h\n\n"), 400},
    {"H22 CR in value", BYTES(GET "A: b\rC: d\r\n\r\n"), 400},
    {"H22 CR CR LF", BYTES(GET "A: b\r\r\n\r\n"), 400},
    {"H22 CR and a byte end the head", BYTES(GET "A: b\r\n\rX"), 400},
    {"H22 CR in first line", BYTES("GET / HTTP/1.1\rHost: h\r\n\r\n"), 400},
    {"H22 CR before colon", BYTES(GET "A\r: b\r\n\r\n"), 400},
    {"H23 no Host", BYTES("GET / HTTP/1.1\r\n\r\n"), 400},
    {"H23 two Hosts", BYTES(GET "Host: h\r\n\r\n"), 400},
    {"H23 two Hosts in 1.0", BYTES("GET / HTTP/1.0\r\nHost: a\r\nHost: b\r\n\r\n"), 400},
    {"H23 empty Host", BYTES("GET / HTTP/1.1\r\nHost:\r\n\r\n"), 400},
    {"H23 Host with /", BYTES("GET / HTTP/1.1\r\nHost: a/b\r\n\r\n"), 400},
    {"H23 Host with ?", BYTES("GET / HTTP/1.1\r\nHost: a?b\r\n\r\n"), 400},
    {"H23 Host with #", BYTES("GET / HTTP/1.1\r\nHost: a#b\r\n\r\n"), 400},
    {"H23 Host with @", BYTES("GET / HTTP/1.1\r\nHost: a@b\r\n\r\n"), 400},
    {"H23 Host with \\", BYTES("GET / HTTP/1.1\r\nHost: a\\b\r\n\r\n"), 400},
    {"H23 Host with blank", BYTES("GET / HTTP/1.1\r\nHost: a b\r\n\r\n"), 400},
    {"H23 Host list", BYTES("GET / HTTP/1.1\r\nHost: a,b\r\n\r\n"), 400},
    {"H23 Host with bad port", BYTES("GET / HTTP/1.1\r\nHost: a:8x\r\n\r\n"), 400},
    {"H23 Host with two ports", BYTES("GET / HTTP/1.1\r\nHost: a:8:8\r\n\r\n"), 400},
    {"H23 Host is a port", BYTES("GET / HTTP/1.1\r\nHost: :80\r\n\r\n"), 400},
    {"H23 Host not closed", BYTES("GET / HTTP/1.1\r\nHost: [::1\r\n\r\n"), 400},
    {"H23 Host bad address", BYTES("GET / HTTP/1.1\r\nHost: [x]\r\n\r\n"), 400},
    {"H23 Host behind address", BYTES("GET / HTTP/1.1\r\nHost: [::1]a\r\n\r\n"), 400},
    {"H24 absolute target with bad host",
     BYTES("GET http://a@b/ HTTP/1.1\r\nHost: h\r\n\r\n"), 400},
    {"H24 absolute target without host",
     BYTES("GET http:/// HTTP/1.1\r\nHost: h\r\n\r\n"), 400},
    {"H24 other scheme", BYTES("GET ftp://h/ HTTP/1.1\r\nHost: h\r\n\r\n"), 400},
    {"H24 no path", BYTES("GET v1 HTTP/1.1\r\nHost: h\r\n\r\n"), 400},
    {"H24 fragment", BYTES("GET /a#b HTTP/1.1\r\nHost: h\r\n\r\n"), 400},
    {"H24 bytes over 127", BYTES("GET /\xc3\xa9 HTTP/1.1\r\nHost: h\r\n\r\n"), 400},
    {"H24 tab", BYTES("GET /a\tb HTTP/1.1\r\nHost: h\r\n\r\n"), 400},
    {"H33 HTTP/9.9", BYTES("GET / HTTP/9.9\r\nHost: h\r\n\r\n"), 505},
    {"H33 HTTP/2.0", BYTES("GET / HTTP/2.0\r\nHost: h\r\n\r\n"), 505},
    {"H33 HTTP/0.9", BYTES("GET / HTTP/0.9\r\nHost: h\r\n\r\n"), 505},
    {"H33 preface", BYTES("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"), 505},
    {"H33 no minor", BYTES("GET / HTTP/1.\r\nHost: h\r\n\r\n"), 400},
    {"H33 no version", BYTES("GET /\r\nHost: h\r\n\r\n"), 400},
    {"H33 long minor", BYTES("GET / HTTP/1.10\r\nHost: h\r\n\r\n"), 400},
    {"H33 long major", BYTES("GET / HTTP/01.1\r\nHost: h\r\n\r\n"), 400},
    {"H33 letter case", BYTES("GET / http/1.1\r\nHost: h\r\n\r\n"), 400},
    {"H33 comma", BYTES("GET / HTTP/1,1\r\nHost: h\r\n\r\n"), 400},
    {"H33 other protocol", BYTES("GET / RTSP/1.1\r\nHost: h\r\n\r\n"), 400},
    {"H33 blank behind", BYTES("GET / HTTP/1.1 \r\nHost: h\r\n\r\n"), 400},
    {"H34 two blanks", BYTES("GET  / HTTP/1.1\r\nHost: h\r\n\r\n"), 400},
    {"H34 two blanks before version", BYTES("GET /  HTTP/1.1\r\nHost: h\r\n\r\n"), 400},
    {"H34 blank in front", BYTES(" GET / HTTP/1.1\r\nHost: h\r\n\r\n"), 400},
    {"H34 tabs", BYTES("GET\t/\tHTTP/1.1\r\nHost: h\r\n\r\n"), 400},
    {"H34 one word", BYTES("GET\r\n\r\n"), 400},
    {"H34 two empty lines", BYTES("\r\n\r\n" GET "\r\n"), 400},
    {"H34 LF in front", BYTES("\n" GET "\r\n"), 400},
    {"H34 TLS", BYTES("\x16\x03\x01\x02\x00\x01\x00\x01\xfc"), 400},
    {"H35 CONNECT", BYTES("CONNECT h:443 HTTP/1.1\r\nHost: h:443\r\n\r\n"), 405},
    {"H35 method that is no token", BYTES("GE(T / HTTP/1.1\r\nHost: h\r\n\r\n"), 400},
    {"H35 no method", BYTES(" / HTTP/1.1\r\nHost: h\r\n\r\n"), 400},
    {"H36 star for GET", BYTES("GET * HTTP/1.1\r\nHost: h\r\n\r\n"), 400},
};

static void test_http_refuses_heads_that_two_parsers_could_read_in_two_ways(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof bad_heads / sizeof *bad_heads; i++) {
        const struct bad *b = &bad_heads[i];
        char expected[32];
        snprintf(expected, sizeof expected, "error %d\n", b->status);
        check_request(b->id, slice_make(b->bytes, b->len), expected);
    }
}

/* Refused behind a head that was fine. */
static const struct bad bad_bodies[] = {
    {"H11 0x", BYTES("0x3\r\nabc\r\n0\r\n\r\n"), 400},
    {"H11 plus", BYTES("+3\r\nabc\r\n0\r\n\r\n"), 400},
    {"H11 minus", BYTES("-3\r\nabc\r\n0\r\n\r\n"), 400},
    {"H11 blank in front", BYTES(" 3\r\nabc\r\n0\r\n\r\n"), 400},
    {"H11 blank behind", BYTES("3 \r\nabc\r\n0\r\n\r\n"), 400},
    {"H11 underscore", BYTES("3_0\r\nabc\r\n0\r\n\r\n"), 400},
    {"H11 letter g", BYTES("g\r\nabc\r\n0\r\n\r\n"), 400},
    {"H11 quote", BYTES("\"3\"\r\nabc\r\n0\r\n\r\n"), 400},
    {"H11 NUL", BYTES("\0003\r\nabc\r\n0\r\n\r\n"), 400},
    {"H11 empty", BYTES("\r\nabc\r\n0\r\n\r\n"), 400},
    {"H11 extension without size", BYTES(";a=b\r\nabc\r\n0\r\n\r\n"), 400},
    {"H12 wraps to 3", BYTES("10000000000000003\r\nabc\r\n0\r\n\r\n"), 400},
    {"H12 2^63", BYTES("8000000000000000\r\nabc\r\n0\r\n\r\n"), 400},
    {"H13 no CRLF behind data", BYTES("3\r\nabcXX0\r\n\r\n"), 400},
    {"H13 data too long", BYTES("3\r\nabcd\r\n0\r\n\r\n"), 400},
    {"H13 data too short", BYTES("4\r\nabc\r\n0\r\n\r\n"), 400},
    {"H14 LF behind size", BYTES("3\nabc\r\n0\r\n\r\n"), 400},
    {"H14 LF behind data", BYTES("3\r\nabc\n0\r\n\r\n"), 400},
    {"H14 CR behind data", BYTES("3\r\nabc\r0\r\n\r\n"), 400},
    {"H14 CR behind size", BYTES("3\rabc\r\n0\r\n\r\n"), 400},
    {"H14 LF in extension", BYTES("3;a\nb\r\nabc\r\n0\r\n\r\n"), 400},
    {"H14 LF ends an extension", BYTES("3;a\nabc\r\n0\r\n\r\n"), 400},
    {"H14 CR in extension", BYTES("3;a\rb\r\nabc\r\n0\r\n\r\n"), 400},
    {"H16 control in extension", BYTES("3;a=\001\r\nabc\r\n0\r\n\r\n"), 400},
    {"H17 LF ends the body", BYTES("0\r\n\n"), 400},
    {"H17 LF behind last chunk", BYTES("0\n\r\n"), 400},
    {"H17 bytes behind last chunk", BYTES("0\r\nXX\r\n"), 400},
    {"H17 CR and a byte end the body", BYTES("0\r\n\rX"), 400},
    {"H18 trailer without colon", BYTES("0\r\nA b\r\n\r\n"), 400},
    {"H18 trailer folded", BYTES("0\r\nA: b\r\n c\r\n\r\n"), 400},
    {"H18 trailer with LF", BYTES("0\r\nA: b\nC: d\r\n\r\n"), 400},
    {"H18 trailer with NUL", BYTES("0\r\nA: \0\r\n\r\n"), 400},
};

/* What is told of the body before depends on the cuts; so does not that it never ends. */
static void test_http_refuses_bodies_that_two_parsers_could_read_in_two_ways(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof bad_bodies / sizeof *bad_bodies; i++) {
        const struct bad *b = &bad_bodies[i];
        struct buf in = {0};
        buf_append_str(&in, CHUNKED);
        buf_append(&in, b->bytes, b->len);
        check_request(b->id, buf_slice(&in),
                      "POST / 1.1 chunked keep [Host: h; Transfer-Encoding: chunked]\n"
                      "error 400\n");
        buf_free(&in);
    }
}

static void test_http_says_nothing_after_an_error(void **state)
{
    (void)state;
    struct reader r = {.parser = http_parser_new(HTTP_REQUEST, HTTP_LIMITS_DEFAULT)};
    reader_feed(&r, SLICE_LIT("GET / HTTP/1.1\r\n\r\n"));
    http_parser_reset(r.parser);
    reader_feed(&r, SLICE_LIT(HIDDEN));
    assert_int_equal(buf_len(&r.log), 0);
    assert_int_equal(http_parser_eof(r.parser), HTTP_ERROR);
    assert_false(http_parser_busy(r.parser));
    http_parser_free(r.parser);
}

static void test_http_refuses_a_first_line_before_the_head_is_whole(void **state)
{
    (void)state;
    const char *const lines[] = {"GET / HTTP/9.9\r\n", "CONNECT a:1 HTTP/1.1\r\n",
                                 "EHLO example\r\n", "GET / HTTP/1.1\r\nA b", "G\n"};
    for (size_t i = 0; i < sizeof lines / sizeof *lines; i++) {
        char *seen = read_whole(HTTP_REQUEST, slice_of(lines[i]));
        assert_non_null(strstr(seen, "error"));
        assert_null(strstr(seen, "cut short"));
        free(seen);
    }
}

/* ---- requests: read ---- */

struct good {
    const char *id, *bytes;
    size_t len;
    const char *expected;
};

static const struct good good_requests[] = {
    {"plain", BYTES(GET "\r\n"), "GET / 1.1 none keep [Host: h]\nend\n"},
    {"length", BYTES(POST "Content-Length: 3\r\n\r\nabc"),
     "POST / 1.1 length=3 keep [Host: h; Content-Length: 3]\n{abc}\nend\n"},
    {"length 0", BYTES(POST "Content-Length: 0\r\n\r\n"),
     "POST / 1.1 length=0 keep [Host: h; Content-Length: 0]\nend\n"},
    {"length with zeros in front", BYTES(POST "Content-Length: 010\r\n\r\n0123456789"),
     "POST / 1.1 length=10 keep [Host: h; Content-Length: 010]\n{0123456789}\nend\n"},
    {"GET with a body", BYTES(GET "Content-Length: 3\r\n\r\nabc"),
     "GET / 1.1 length=3 keep [Host: h; Content-Length: 3]\n{abc}\nend\n"},
    {"a body that looks like a request",
     BYTES(POST
           "Content-Length: 39\r\n\r\nGET /hidden HTTP/1.1\r\nHost: hidden\r\n\r\n."),
     "POST / 1.1 length=39 keep [Host: h; Content-Length: 39]\n"
     "{GET /hidden HTTP/1.1\r\nHost: hidden\r\n\r\n.}\nend\n"},
    {"chunked", BYTES(CHUNKED ABC "2\r\nde\r\n0\r\n\r\n"),
     "POST / 1.1 chunked keep [Host: h; Transfer-Encoding: chunked]\n{abcde}\nend\n"},
    {"chunked, empty", BYTES(CHUNKED "0\r\n\r\n"),
     "POST / 1.1 chunked keep [Host: h; Transfer-Encoding: chunked]\nend\n"},
    {"chunk sizes of both cases and with zeros in front",
     BYTES(CHUNKED "00A\r\n0123456789\r\nb\r\n0123456789a\r\n000\r\n\r\n"),
     "POST / 1.1 chunked keep [Host: h; Transfer-Encoding: chunked]\n"
     "{01234567890123456789a}\nend\n"},
    {"chunk sizes of all digits",
     BYTES(CHUNKED "9\r\n123456789\r\nf\r\n123456789abcdef\r\nA\r\n123456789A\r\n"
                   "0\r\n\r\n"),
     "POST / 1.1 chunked keep [Host: h; Transfer-Encoding: chunked]\n"
     "{123456789123456789abcdef123456789A}\nend\n"},
    {"coding in other letters",
     BYTES(POST "TRANSFER-encoding:  Chunked\r\n\r\n0\r\n\r\n"),
     "POST / 1.1 chunked keep [Host: h; TRANSFER-encoding: Chunked]\nend\n"},
    {"H15 extensions",
     BYTES(CHUNKED "3;a=b\r\nabc\r\n1;x=\"y;z\";q\r\nd\r\n0;last\r\n\r\n"),
     "POST / 1.1 chunked keep [Host: h; Transfer-Encoding: chunked]\n{abcd}\nend\n"},
    {"H17 trailers", BYTES(CHUNKED ABC "0\r\nA: b\r\nContent-Length: 4\r\nHost:\r\n\r\n"),
     "POST / 1.1 chunked keep [Host: h; Transfer-Encoding: chunked]\n{abc}\nend\n"},
    {"H23 1.0 without Host", BYTES("GET / HTTP/1.0\r\n\r\n"),
     "GET / 1.0 none close\nend\n"},
    {"H24 absolute target", BYTES("GET HTTP://a:80/b?c HTTP/1.1\r\nHost: h\r\n\r\n"),
     "GET HTTP://a:80/b?c 1.1 none keep [Host: h]\nend\n"},
    {"H24 absolute target, query only",
     BYTES("GET http://a?/ HTTP/1.1\r\nHost: h\r\n\r\n"),
     "GET http://a?/ 1.1 none keep [Host: h]\nend\n"},
    {"H24 target as sent",
     BYTES("GET //a/../%2e;x?q=\"{|}\\ HTTP/1.1\r\nHost: h\r\n\r\n"),
     "GET //a/../%2e;x?q=\"{|}\\ 1.1 none keep [Host: h]\nend\n"},
    {"hosts", BYTES("GET / HTTP/1.1\r\nHost: A-b_c.example:65535\r\n\r\n"),
     "GET / 1.1 none keep [Host: A-b_c.example:65535]\nend\n"},
    {"host, address", BYTES("GET / HTTP/1.1\r\nHost: [::1]:8080\r\n\r\n"),
     "GET / 1.1 none keep [Host: [::1]:8080]\nend\n"},
    {"host, letters at the edge", BYTES("GET / HTTP/1.1\r\nHost: azAZ09:0\r\n\r\n"),
     "GET / 1.1 none keep [Host: azAZ09:0]\nend\n"},
    {"host, address at the edge",
     BYTES("GET / HTTP/1.1\r\nHost: [afAF09::1.2.3.4]\r\n\r\n"),
     "GET / 1.1 none keep [Host: [afAF09::1.2.3.4]]\nend\n"},
    {"H25 1.0 and keep-alive", BYTES("GET / HTTP/1.0\r\nConnection: Keep-Alive\r\n\r\n"),
     "GET / 1.0 none keep [Connection: Keep-Alive]\nend\n"},
    {"H25 1.0, length", BYTES("POST / HTTP/1.0\r\nContent-Length: 3\r\n\r\nabc"),
     "POST / 1.0 length=3 close [Content-Length: 3]\n{abc}\nend\n"},
    {"H27 HEAD", BYTES("HEAD / HTTP/1.1\r\nHost: h\r\n\r\n"),
     "HEAD / 1.1 none keep [Host: h]\nend\n"},
    {"H29 two pipelined", BYTES(GET "\r\nGET /2 HTTP/1.1\r\nHost: h\r\n\r\n"),
     "GET / 1.1 none keep [Host: h]\nend\nGET /2 1.1 none keep [Host: h]\nend\n"},
    {"H29 pipelined behind bodies",
     BYTES(POST "Content-Length: 3\r\n\r\nabc" CHUNKED ABC "0\r\n\r\n" GET "\r\n"),
     "POST / 1.1 length=3 keep [Host: h; Content-Length: 3]\n{abc}\nend\n"
     "POST / 1.1 chunked keep [Host: h; Transfer-Encoding: chunked]\n{abc}\nend\n"
     "GET / 1.1 none keep [Host: h]\nend\n"},
    {"H29 empty line between", BYTES(POST "Content-Length: 3\r\n\r\nabc\r\n" GET "\r\n"),
     "POST / 1.1 length=3 keep [Host: h; Content-Length: 3]\n{abc}\nend\n"
     "GET / 1.1 none keep [Host: h]\nend\n"},
    {"H31 close wins", BYTES(GET "Connection: keep-alive, close\r\n\r\n"),
     "GET / 1.1 none close [Host: h; Connection: keep-alive, close]\nend\n"},
    {"H31 close wins, two lines",
     BYTES(GET "connection: CLOSE\r\nConnection: keep-alive\r\n\r\n"),
     "GET / 1.1 none close [Host: h; connection: CLOSE; Connection: keep-alive]\nend\n"},
    {"H31 words that contain it", BYTES(GET "Connection: closed, x-close,,\r\n\r\n"),
     "GET / 1.1 none keep [Host: h; Connection: closed, x-close,,]\nend\n"},
    {"H32 upgrade is of no meaning",
     BYTES(GET "Connection: Upgrade\r\nUpgrade: h2c\r\n\r\n"),
     "GET / 1.1 none keep [Host: h; Connection: Upgrade; Upgrade: h2c]\nend\n"},
    {"H33 HTTP/1.2", BYTES("GET / HTTP/1.2\r\nHost: h\r\n\r\n"),
     "GET / 1.2 none keep [Host: h]\nend\n"},
    {"H35 PURGE", BYTES("PURGE /a HTTP/1.1\r\nHost: h\r\n\r\n"),
     "PURGE /a 1.1 none keep [Host: h]\nend\n"},
    {"H35 a method nobody knows",
     BYTES("X-my_!#$%&'*+.^`|~9 /a HTTP/1.1\r\nHost: h\r\n\r\n"),
     "X-my_!#$%&'*+.^`|~9 /a 1.1 none keep [Host: h]\nend\n"},
    {"H35 lower case", BYTES("get /a HTTP/1.1\r\nHost: h\r\n\r\n"),
     "get /a 1.1 none keep [Host: h]\nend\n"},
    {"H35 OPTIONS *", BYTES("OPTIONS * HTTP/1.1\r\nHost: h\r\n\r\n"),
     "OPTIONS * 1.1 none keep [Host: h]\nend\n"},
    {"expects", BYTES(POST "Expect: 100-Continue\r\nContent-Length: 1\r\n\r\na"),
     "POST / 1.1 length=1 keep expect [Host: h; Expect: 100-Continue; "
     "Content-Length: 1]\n{a}\nend\n"},
    {"expects in 1.0", BYTES("GET / HTTP/1.0\r\nExpect: 100-continue\r\n\r\n"),
     "GET / 1.0 none close [Expect: 100-continue]\nend\n"},
    {"H43 names, order and repeats as sent",
     BYTES(GET "x-B: 2\r\nX-a:1\r\nX-B: \t 3 \t\r\nEmpty:\r\nBlank:  \r\n\r\n"),
     "GET / 1.1 none keep [Host: h; x-B: 2; X-a: 1; X-B: 3; Empty: ; Blank: ]\nend\n"},
    {"H43 bytes over 127 in a value", BYTES(GET "A: \xc3\xa9\xff\tb:c\r\n\r\n"),
     "GET / 1.1 none keep [Host: h; A: \xc3\xa9\xff\tb:c]\nend\n"},
};

static void test_http_reads_requests_alike_however_they_are_cut(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof good_requests / sizeof *good_requests; i++) {
        const struct good *g = &good_requests[i];
        check_request(g->id, slice_make(g->bytes, g->len), g->expected);
    }
}

static void test_http_never_uses_bytes_of_the_next_message(void **state)
{
    (void)state;
    struct http_parser *p = http_parser_new(HTTP_REQUEST, HTTP_LIMITS_DEFAULT);
    const struct slice in = SLICE_LIT(POST "Content-Length: 3\r\n\r\nabc" HIDDEN);
    size_t used, all = 0;
    struct slice data;
    while (http_parser_next(p, slice_make(in.ptr + all, in.len - all), &used, &data) !=
           HTTP_END)
        all += used;
    assert_int_equal(used, 0);
    assert_int_equal(all, in.len - (sizeof HIDDEN - 1));
    assert_int_equal(http_parser_next(p, in, &used, &data), HTTP_END); /* until reset */
    assert_int_equal(used, 0);
    http_parser_free(p);
}

static void test_http_is_busy_from_the_first_byte_to_the_end(void **state)
{
    (void)state;
    const struct slice in = SLICE_LIT("\r\n" POST "Content-Length: 3\r\n\r\nabc");
    struct http_parser *p = http_parser_new(HTTP_REQUEST, HTTP_LIMITS_DEFAULT);
    size_t used;
    struct slice data;
    assert_false(http_parser_busy(p));
    assert_int_equal(http_parser_eof(p), HTTP_MORE);
    for (size_t i = 0; i < in.len; i += used) {
        http_parser_next(p, slice_make(in.ptr + i, 1), &used, &data);
        assert_int_equal(http_parser_busy(p),
                         i != 1); /* the empty line belongs to none */
    }
    assert_int_equal(http_parser_next(p, (struct slice){0}, &used, &data), HTTP_END);
    assert_false(http_parser_busy(p));
    http_parser_free(p);
}

static void test_http_calls_a_message_cut_short_an_error(void **state)
{
    (void)state;
    const char *const whole[] = {GET "\r\n", POST "Content-Length: 3\r\n\r\nabc",
                                 CHUNKED ABC "0\r\nA: b\r\n\r\n"};
    for (size_t i = 0; i < sizeof whole / sizeof *whole; i++)
        for (size_t len = 1; len < strlen(whole[i]); len++) {
            char *seen = read_whole(HTTP_REQUEST, slice_make(whole[i], len));
            assert_non_null(strstr(seen, "error 400 cut short\n"));
            assert_null(strstr(seen, "end\n"));
            free(seen);
        }
}

/* ---- limits ---- */

static char *read_limited(struct slice in, size_t head_bytes, size_t headers,
                          size_t piece)
{
    return read_cut(HTTP_REQUEST, false, (struct http_limits){head_bytes, headers}, in,
                    piece, piece);
}

static void test_http_limits_the_bytes_of_a_head_exactly(void **state)
{
    (void)state;
    const struct slice in = SLICE_LIT(GET "A: 0123456789\r\n\r\n");
    for (size_t piece = 1; piece <= in.len; piece++) {
        char *fits = read_limited(in, in.len, 9, piece);
        char *over = read_limited(in, in.len - 1, 9, piece);
        assert_string_equal(fits, "GET / 1.1 none keep [Host: h; A: 0123456789]\nend\n");
        assert_string_equal(over, "error 431\n");
        free(fits);
        free(over);
    }
}

static void test_http_limits_the_number_of_headers_exactly(void **state)
{
    (void)state;
    const struct slice in = SLICE_LIT(GET "A: 1\r\nB: 2\r\n\r\n");
    for (size_t piece = 1; piece <= in.len; piece++) {
        char *fits = read_limited(in, 1000, 3, piece);
        char *over = read_limited(in, 1000, 2, piece);
        assert_string_equal(fits, "GET / 1.1 none keep [Host: h; A: 1; B: 2]\nend\n");
        assert_string_equal(over, "error 431\n");
        free(fits);
        free(over);
    }
}

static void test_http_limits_an_endless_head_by_default(void **state)
{
    (void)state;
    struct buf in = {0};
    buf_append_str(&in, GET "A: ");
    while (buf_len(&in) < 32768 - 4)
        buf_append_char(&in, 'x');
    buf_append_str(&in, "\r\n\r\n");
    char *fits = read_whole(HTTP_REQUEST, buf_slice(&in));
    assert_null(strstr(fits, "error"));
    free(fits);
    in.end -= 4;
    buf_append_str(&in, "xxxxx");
    char *over = read_whole(HTTP_REQUEST, buf_slice(&in));
    assert_string_equal(over, "error 431\n");
    free(over);
    buf_free(&in);
}

/* Fixed-width lengths inside a parser once hid a second header. */
static void test_http_reads_names_and_values_of_any_length(void **state)
{
    (void)state;
    const size_t lengths[] = {127, 128, 255, 256, 257, 32767, 32768, 65535, 65536, 65537};
    for (size_t i = 0; i < 2 * (sizeof lengths / sizeof *lengths); i++) {
        const size_t len = lengths[i / 2];
        const bool in_name = i % 2;
        char *fill = malloc(len + 1);
        memset(fill, 'x', len);
        fill[len] = '\0';
        struct buf in = {0};
        struct buf expected = {0};
        buf_printf(&in, GET "%s: %s\r\nContent-Length: 1\r\n\r\na", in_name ? fill : "n",
                   in_name ? "v" : fill);
        buf_printf(&expected,
                   "GET / 1.1 length=1 keep [Host: h; %s: %s; Content-Length: 1]\n"
                   "{a}\nend\n",
                   in_name ? fill : "n", in_name ? "v" : fill);
        char *want = buf_take_str(&expected);
        char *seen = read_limited(buf_slice(&in), 1 << 20, 9, 4096);
        assert_string_equal(seen, want);
        free(seen);
        free(want);
        free(fill);
        buf_free(&in);
    }
}

static void test_http_limits_trailers_and_chunk_lines(void **state)
{
    (void)state;
    struct buf in = {0};
    buf_append_str(&in, CHUNKED "0\r\nA: 1\r\nB: 2\r\nC: 3\r\n\r\n");
    char *seen = read_limited(buf_slice(&in), 1000, 3, 7);
    assert_non_null(strstr(seen, "end\n"));
    free(seen);
    seen = read_limited(buf_slice(&in), 1000, 2, 7);
    assert_non_null(strstr(seen, "error 431\n"));
    free(seen);
    for (int line = 256; line <= 257; line++) { /* bytes up to the LF */
        buf_clear(&in);
        buf_append_str(&in, CHUNKED);
        buf_printf(&in, "1;%0*d\r\na\r\n0\r\n\r\n", line - 3, 0);
        seen = read_whole(HTTP_REQUEST, buf_slice(&in));
        assert_non_null(strstr(seen, line == 256 ? "{a}\nend\n" : "error 400\n"));
        free(seen);
    }
    buf_free(&in);
}

/* One more is refused above: H04, H12. */
static void test_http_takes_lengths_up_to_the_largest(void **state)
{
    (void)state;
    char *seen = read_whole(
        HTTP_REQUEST, SLICE_LIT(POST "Content-Length: 9223372036854775807\r\n\r\na"));
    assert_non_null(strstr(seen, "length=9223372036854775807 "));
    assert_non_null(strstr(seen, "cut short"));
    free(seen);
    seen = read_whole(HTTP_REQUEST, SLICE_LIT(CHUNKED "7fffffffffffffff\r\na"));
    assert_non_null(strstr(seen, "cut short"));
    free(seen);
}

/* ---- answers ---- */

#define OK "HTTP/1.1 200 OK\r\n"

static const struct good answers[] = {
    {"length", BYTES(OK "Content-Length: 3\r\n\r\nabc"),
     "200 1.1 length=3 keep [Content-Length: 3]\n{abc}\nend\n"},
    {"chunked", BYTES(OK "Transfer-Encoding: chunked\r\n\r\n" ABC "0\r\n\r\n"),
     "200 1.1 chunked keep [Transfer-Encoding: chunked]\n{abc}\nend\n"},
    {"until close", BYTES(OK "\r\nabc"), "200 1.1 until-close close\n{abc}\nend\n"},
    {"until close, empty", BYTES(OK "\r\n"), "200 1.1 until-close close\nend\n"},
    {"close", BYTES(OK "Connection: close\r\nContent-Length: 0\r\n\r\n"),
     "200 1.1 length=0 close [Connection: close; Content-Length: 0]\nend\n"},
    {"1.0", BYTES("HTTP/1.0 200 OK\r\nContent-Length: 1\r\n\r\na"),
     "200 1.0 length=1 close [Content-Length: 1]\n{a}\nend\n"},
    {"1.0 and keep-alive",
     BYTES("HTTP/1.0 200 OK\r\nConnection: keep-alive\r\nContent-Length: 1\r\n\r\na"),
     "200 1.0 length=1 keep [Connection: keep-alive; Content-Length: 1]\n{a}\nend\n"},
    {"no reason", BYTES("HTTP/1.1 404\r\nContent-Length: 0\r\n\r\n"),
     "404 1.1 length=0 keep [Content-Length: 0]\nend\n"},
    {"empty reason", BYTES("HTTP/1.1 404 \r\nContent-Length: 0\r\n\r\n"),
     "404 1.1 length=0 keep [Content-Length: 0]\nend\n"},
    {"reason with bytes over 127",
     BYTES("HTTP/1.1 404 \xc3\xa9 x\r\nContent-Length: 0\r\n\r\n"),
     "404 1.1 length=0 keep [Content-Length: 0]\nend\n"},
    {"H26 204 and 304",
     BYTES("HTTP/1.1 204 No Content\r\n\r\n"
           "HTTP/1.1 304 Not Modified\r\nContent-Length: 5\r\n\r\n"
           "HTTP/1.1 304 Not Modified\r\nTransfer-Encoding: chunked\r\n\r\n" OK
           "Content-Length: 0\r\n\r\n"),
     "204 1.1 none keep\nend\n304 1.1 none keep [Content-Length: 5]\nend\n"
     "304 1.1 none keep [Transfer-Encoding: chunked]\nend\n"
     "200 1.1 length=0 keep [Content-Length: 0]\nend\n"},
    {"204 that announces a body",
     BYTES("HTTP/1.1 204 No Content\r\nContent-Length: 5\r\n\r\n"),
     "204 1.1 none close [Content-Length: 5]\nend\n"},
    {"interim answers are heads",
     BYTES("HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n" OK
           "Content-Length: 1\r\n\r\na"),
     "100 1.1 none keep\nend\n103 1.1 none keep [Link: x]\nend\n"
     "200 1.1 length=1 keep [Content-Length: 1]\n{a}\nend\n"},
    {"H41 length and chunked",
     BYTES(OK "Content-Length: 99\r\nTransfer-Encoding: chunked\r\n\r\n" ABC "0\r\n\r\n"),
     "200 1.1 chunked close [Content-Length: 99; Transfer-Encoding: chunked]\n"
     "{abc}\nend\n"},
    {"H41 chunked and length",
     BYTES(OK "Transfer-Encoding: chunked\r\nContent-Length: 1\r\n\r\n" ABC "0\r\n\r\n"),
     "200 1.1 chunked close [Transfer-Encoding: chunked; Content-Length: 1]\n"
     "{abc}\nend\n"},
    {"H41 chunked in 1.0",
     BYTES("HTTP/1.0 200 OK\r\nConnection: keep-alive\r\nTransfer-Encoding: "
           "chunked\r\n\r\n" ABC "0\r\n\r\n"),
     "200 1.0 chunked close [Connection: keep-alive; Transfer-Encoding: chunked]\n"
     "{abc}\nend\n"},
    {"H43 repeats",
     BYTES(
         OK
         "Set-Cookie: a\r\nset-cookie: b\r\nSet-Cookie: a\r\nContent-Length: 0\r\n\r\n"),
     "200 1.1 length=0 keep [Set-Cookie: a; set-cookie: b; Set-Cookie: a; "
     "Content-Length: 0]\nend\n"},
    {"two lengths", BYTES(OK "Content-Length: 3\r\nContent-Length: 4\r\n\r\nabcd"),
     "error 400\n"},
    {"two lengths, chunked",
     BYTES(
         OK
         "Content-Length: 3\r\nContent-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n"),
     "error 400\n"},
    {"empty length", BYTES(OK "Content-Length:\r\n\r\nabcd"), "error 400\n"},
    {"bad length to 204", BYTES("HTTP/1.1 204 x\r\nContent-Length: +0\r\n\r\n"),
     "error 400\n"},
    {"other coding", BYTES(OK "Transfer-Encoding: gzip\r\n\r\nabcd"), "error 501\n"},
    {"LF", BYTES("HTTP/1.1 200 OK\nContent-Length: 3\n\nabc"), "error 400\n"},
    {"folded", BYTES(OK "A: b\r\n c\r\n\r\n"), "error 400\n"},
    {"HTTP/2", BYTES("HTTP/2.0 200 OK\r\n\r\n"), "error 505\n"},
    {"other protocol", BYTES("ICY 200 OK\r\n\r\n"), "error 400\n"},
    {"no status", BYTES("HTTP/1.1\r\n\r\n"), "error 400\n"},
    {"short status", BYTES("HTTP/1.1 20\r\n\r\n"), "error 400\n"},
    {"long status", BYTES("HTTP/1.1 2000 OK\r\n\r\n"), "error 400\n"},
    {"status 099", BYTES("HTTP/1.1 099 OK\r\n\r\n"), "error 400\n"},
    {"status 600", BYTES("HTTP/1.1 600 OK\r\n\r\n"), "error 400\n"},
    {"status with sign", BYTES("HTTP/1.1 +20 OK\r\n\r\n"), "error 400\n"},
    {"two blanks", BYTES("HTTP/1.1  200 OK\r\n\r\n"), "error 400\n"},
    {"empty line in front", BYTES("\r\n" OK "Content-Length: 0\r\n\r\n"), "error 400\n"},
    {"control in reason", BYTES("HTTP/1.1 200 \001\r\n\r\n"), "error 400\n"},
};

static void test_http_reads_answers_alike_however_they_are_cut(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof answers / sizeof *answers; i++) {
        const struct good *g = &answers[i];
        check_cuts(g->id, HTTP_RESPONSE, false, slice_make(g->bytes, g->len),
                   g->expected);
    }
}

static void test_http_reads_no_body_in_an_answer_to_head(void **state)
{
    (void)state;
    check_cuts("H27", HTTP_RESPONSE, true,
               SLICE_LIT("HTTP/1.1 100 Continue\r\n\r\n" OK "Content-Length: 5\r\n\r\n" OK
                         "Transfer-Encoding: chunked\r\n\r\n" OK "\r\n"),
               "100 1.1 none keep\nend\n200 1.1 none keep [Content-Length: 5]\nend\n"
               "200 1.1 none keep [Transfer-Encoding: chunked]\nend\n"
               "200 1.1 none keep\nend\n");
}

static void test_http_forgets_head_after_the_final_answer_only(void **state)
{
    (void)state;
    struct reader r = {.parser = http_parser_new(HTTP_RESPONSE, HTTP_LIMITS_DEFAULT)};
    http_parser_expect_head(r.parser);
    reader_feed(&r,
                SLICE_LIT("HTTP/1.1 100 Continue\r\n\r\n" OK
                          "Content-Length: 1\r\n\r\n" OK "Content-Length: 1\r\n\r\na"));
    char *log = buf_take_str(&r.log);
    assert_string_equal(log, "100 1.1 none keep\nend\n"
                             "200 1.1 none keep [Content-Length: 1]\nend\n"
                             "200 1.1 length=1 keep [Content-Length: 1]\n{a}\nend\n");
    free(log);
    buf_free(&r.body);
    http_parser_free(r.parser);
}

/* ---- properties ---- */

/* Numerical Recipes' generator: the same bytes on every machine. */
static uint32_t next_random(uint32_t *seed)
{
    *seed = *seed * 1664525u + 1013904223u;
    return *seed >> 8;
}

/* Messages put together from pieces, good and bad, read alike in any random cut. */
static void test_http_reads_random_messages_alike_however_they_are_cut(void **state)
{
    (void)state;
    static const struct slice pieces[] = {
        SLICE_LIT("GET / HTTP/1.1\r\n"),
        SLICE_LIT("POST /a?b HTTP/1.1\r\n"),
        SLICE_LIT("HTTP/1.1 200 OK\r\n"),
        SLICE_LIT("Host: h\r\n"),
        SLICE_LIT("Host: h\r\n\r\n"),
        SLICE_LIT("Content-Length: 3\r\n"),
        SLICE_LIT("Transfer-Encoding: chunked\r\n"),
        SLICE_LIT("Connection: close\r\n"),
        SLICE_LIT("\r\n"),
        SLICE_LIT("\r\n"),
        SLICE_LIT("abc"),
        SLICE_LIT("3\r\nabc\r\n"),
        SLICE_LIT("0\r\n\r\n"),
        SLICE_LIT("3;x\r\nabc\r\n"),
        SLICE_LIT("A:"),
        SLICE_LIT(" "),
        SLICE_LIT("\n"),
        SLICE_LIT("\r"),
        SLICE_LIT("\0"),
    };
    for (uint32_t seed = 1; seed <= 3000; seed++) {
        uint32_t r = seed;
        const enum http_kind kind = seed % 4 ? HTTP_REQUEST : HTTP_RESPONSE;
        struct buf in = {0};
        buf_append_slice(&in, pieces[kind == HTTP_REQUEST ? seed % 2 : 2]);
        for (uint32_t n = next_random(&r) % 12; n; n--)
            buf_append_slice(&in,
                             pieces[next_random(&r) % (sizeof pieces / sizeof *pieces)]);
        char *whole = read_whole(kind, buf_slice(&in));
        char *cut = read_cut(kind, false, HTTP_LIMITS_DEFAULT, buf_slice(&in),
                             1 + next_random(&r) % 20, 1 + next_random(&r) % 9);
        if (strcmp(whole, cut) != 0)
            print_error("seed %u\n", seed);
        assert_string_equal(cut, whole);
        free(whole);
        free(cut);
        buf_free(&in);
    }
}

static void test_http_hands_out_bodies_without_copying(void **state)
{
    (void)state;
    struct http_parser *p = http_parser_new(HTTP_REQUEST, HTTP_LIMITS_DEFAULT);
    const struct slice head = SLICE_LIT(POST "Content-Length: 220000\r\n\r\n");
    static const char body[220001];
    size_t used;
    struct slice data;
    assert_int_equal(http_parser_next(p, head, &used, &data), HTTP_HEAD);
    assert_int_equal(http_parser_next(p, slice_make(body, 65536), &used, &data),
                     HTTP_DATA);
    assert_ptr_equal(data.ptr, body);
    assert_int_equal(data.len, 65536);
    const struct slice rest = {body + 65536, sizeof body - 65536}; /* one byte too many */
    assert_int_equal(http_parser_next(p, rest, &used, &data), HTTP_DATA);
    assert_ptr_equal(data.ptr, rest.ptr);
    assert_int_equal(used, rest.len - 1);
    assert_int_equal(http_parser_next(p, rest, &used, &data), HTTP_END);
    http_parser_free(p);
}

/* ---- helpers of the contract ---- */

static void test_http_head_tells_headers_of_one_hop(void **state)
{
    (void)state;
    struct http_parser *p = http_parser_new(HTTP_REQUEST, HTTP_LIMITS_DEFAULT);
    const struct slice in =
        SLICE_LIT(GET "Connection: X-Secret ,close\r\nconnection:\tx-Other\r\nX-A: 1\r\n"
                      "x-a: 2\r\n\r\n");
    size_t used;
    struct slice data;
    assert_int_equal(http_parser_next(p, in, &used, &data), HTTP_HEAD);
    const struct http_head *h = http_parser_head(p);
    const char *const hop[] = {"connection",
                               "Keep-Alive",
                               "Proxy-Connection",
                               "Proxy-Authenticate",
                               "proxy-authorization",
                               "TE",
                               "Trailer",
                               "Transfer-Encoding",
                               "UPGRADE",
                               "Content-Length",
                               "x-secret",
                               "X-OTHER"};
    for (size_t i = 0; i < sizeof hop / sizeof *hop; i++)
        assert_true(http_head_hop_by_hop(h, slice_of(hop[i])));
    const char *const end[] = {"Host",    "X-A",        "Authorization",
                               "X-Secre", "Set-Cookie", ""};
    for (size_t i = 0; i < sizeof end / sizeof *end; i++)
        assert_false(http_head_hop_by_hop(h, slice_of(end[i])));
    assert_true(slice_eq(http_head_get(h, SLICE_LIT("x-A")), SLICE_LIT("1")));
    assert_null(http_head_get(h, SLICE_LIT("X-B")).ptr);
    http_parser_free(p);
}

static void test_http_writes_what_it_reads(void **state)
{
    (void)state;
    struct buf b = {0};
    buf_append_str(&b, "POST /x HTTP/1.1\r\n");
    http_write_header(&b, SLICE_LIT("Host"), SLICE_LIT("h"));
    http_write_header(&b, SLICE_LIT("Transfer-Encoding"), SLICE_LIT("chunked"));
    buf_append_str(&b, "\r\n");
    http_write_chunk(&b, SLICE_LIT("0123456789abcdef0"));
    http_write_chunk(&b, SLICE_LIT(""));
    http_write_chunk(&b, SLICE_LIT("z"));
    http_write_last_chunk(&b);
    check_request("written", buf_slice(&b),
                  "POST /x 1.1 chunked keep [Host: h; Transfer-Encoding: chunked]\n"
                  "{0123456789abcdef0z}\nend\n");
    buf_append_char(&b, '\0');
    assert_string_equal(b.data,
                        "POST /x HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked"
                        "\r\n\r\n11\r\n0123456789abcdef0\r\n1\r\nz\r\n0\r\n\r\n");
    buf_free(&b);
}

static void test_http_knows_reasons(void **state)
{
    (void)state;
    assert_string_equal(http_reason(404), "Not Found");
    assert_string_equal(http_reason(431), "Request Header Fields Too Large");
    assert_string_equal(http_reason(299), "Status");
}

static void test_http_normal_path_is_what_the_most_eager_reader_understands(void **state)
{
    (void)state;
    static const struct {
        const char *target, *path; /* NULL: refused */
    } rows[] = {
        {"/", "/"},
        {"/v1/chat/completions", "/v1/chat/completions"},
        {"/v1/chat/completions?a=/..", "/v1/chat/completions"},
        {"/v1//chat///completions/", "/v1/chat/completions"},
        {"//v1/x", "/v1/x"},
        {"/./v1/./x/.", "/v1/x"},
        {"/%76%31/%43hat%2D%7e", "/v1/Chat-~"},
        {"/a%2Fb%2f%00", "/a%2Fb%2f%00"},
        {"/%30%39%41%5A%61%7a%2d%2e%5f", "/09AZaz-._"},
        {"/%3A%40%5b%60%7B%fF%C3%a9", "/%3A%40%5b%60%7B%fF%C3%a9"},
        {"/%252e%252e", "/%252e%252e"},
        {"/v1;x=1/chat;y?z", "/v1/chat"},
        {"/a/.;x/b", "/a/b"},
        {"/...", "/..."},
        {"///", "/"},
        {"/?/..", "/"},
        {"http://h/v1/x?q", "/v1/x"},
        {"HTTP://h:80//v1/", "/v1"},
        {"http://h", "/"},
        {"http://h?q=/x", "/"},
        {"*", "*"},
        {"/..", NULL},
        {"/a/../b", NULL},
        {"/a/..", NULL},
        {"/a/%2e%2E/b", NULL},
        {"/a/..;x/b", NULL},
        {"/a\\b", NULL},
        {"/a%", NULL},
        {"/a%4", NULL},
        {"/a%4g", NULL},
        {"/%/41", NULL},
        {"", NULL},
        {"v1", NULL},
        {"?/a", NULL},
    };
    struct buf out = {0};
    buf_append_str(&out, "what it held before");
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        const bool ok = http_normal_path(slice_of(rows[i].target), &out);
        if (ok != (rows[i].path != NULL) ||
            (ok && !slice_eq(buf_slice(&out), slice_of(rows[i].path))))
            fail_msg("%s became %.*s", rows[i].target, (int)buf_len(&out),
                     buf_slice(&out).ptr);
    }
    buf_free(&out);
}

static void test_http_finds_hidden_line_ends_in_every_spelling(void **state)
{
    (void)state;
    static const char *const hidden[] = {
        "%0d",    "%0D",  "%0a",   "%0A",   "%00",  "%u000d", "%u000A",
        "%u0000", "%%0a", "%u%0a", "%4%0d", "%00%", "%20%0d", "a%0D%0Ab: c"};
    for (size_t i = 0; i < sizeof hidden / sizeof *hidden; i++)
        if (!http_value_hides_line_end(slice_of(hidden[i])))
            fail_msg("not found in %s", hidden[i]);
}

static void test_http_leaves_other_escapes_alone(void **state)
{
    (void)state;
    static const char *const harmless[] = {
        "",    "%",   "%0",  "%u",    "%u0",     "%u00",     "%u000",  "100%",
        "%0g", "%g0", "%20", "%3D",   "%2C%3B",  "%09",      "%1b",    "%0b",
        "0d",  "%d0", "%a0", "%250d", "%25%30d", "%u010d",   "%u0d00", "%U000d",
        "%-d", "% d", "%+a", "%x0d",  "a%",      "%E2%82%AC"};
    for (size_t i = 0; i < sizeof harmless / sizeof *harmless; i++)
        if (http_value_hides_line_end(slice_of(harmless[i])))
            fail_msg("found in %s", harmless[i]);
    /* What stands behind the value is not read. */
    assert_false(http_value_hides_line_end(slice_make("%0d", 2)));
    assert_false(http_value_hides_line_end(slice_make("%u000d", 5)));
    assert_false(http_value_hides_line_end(slice_make(NULL, 0)));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_http_refuses_heads_that_two_parsers_could_read_in_two_ways),
        cmocka_unit_test(
            test_http_refuses_bodies_that_two_parsers_could_read_in_two_ways),
        cmocka_unit_test(test_http_says_nothing_after_an_error),
        cmocka_unit_test(test_http_refuses_a_first_line_before_the_head_is_whole),
        cmocka_unit_test(test_http_reads_requests_alike_however_they_are_cut),
        cmocka_unit_test(test_http_never_uses_bytes_of_the_next_message),
        cmocka_unit_test(test_http_is_busy_from_the_first_byte_to_the_end),
        cmocka_unit_test(test_http_calls_a_message_cut_short_an_error),
        cmocka_unit_test(test_http_limits_the_bytes_of_a_head_exactly),
        cmocka_unit_test(test_http_limits_the_number_of_headers_exactly),
        cmocka_unit_test(test_http_limits_an_endless_head_by_default),
        cmocka_unit_test(test_http_reads_names_and_values_of_any_length),
        cmocka_unit_test(test_http_limits_trailers_and_chunk_lines),
        cmocka_unit_test(test_http_takes_lengths_up_to_the_largest),
        cmocka_unit_test(test_http_reads_answers_alike_however_they_are_cut),
        cmocka_unit_test(test_http_reads_no_body_in_an_answer_to_head),
        cmocka_unit_test(test_http_forgets_head_after_the_final_answer_only),
        cmocka_unit_test(test_http_reads_random_messages_alike_however_they_are_cut),
        cmocka_unit_test(test_http_hands_out_bodies_without_copying),
        cmocka_unit_test(test_http_head_tells_headers_of_one_hop),
        cmocka_unit_test(test_http_writes_what_it_reads),
        cmocka_unit_test(test_http_knows_reasons),
        cmocka_unit_test(test_http_normal_path_is_what_the_most_eager_reader_understands),
        cmocka_unit_test(test_http_finds_hidden_line_ends_in_every_spelling),
        cmocka_unit_test(test_http_leaves_other_escapes_alone),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
