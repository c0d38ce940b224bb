/* SPDX-License-Identifier: MIT */
#include "http_parts.h"

/*
 * Where the lines of a head start and end, and whether each byte may stand where it
 * stands. This runs before anything interprets the head, for two reasons. llhttp 8.1.0
 * lets through what other parsers read in another way: folded lines, an empty header
 * name, CR and another byte as the end of the head. And a fault is found at its
 * byte, however the input was cut: a peer that speaks something else hears of it at once.
 *
 *          any            token         ':'
 *     START ──CR─ START_LF ──LF─ LINE ──────── NAME ──────── VALUE ──CR─ VALUE_LF
 *                                ↑ └─CR─ END_LF ──LF─ DONE                 │
 *                                └───────────────────LF────────────────────┘
 *
 * One row per state, one column per class of bytes; a cell is the next state or a fault.
 */

enum class { CR, LF, BLANK, COLON, TOKEN, OTHER, CONTROL, CLASSES };

#define FAULT(name) (64 + HTTP_FAULT_##name)
#define TEXT(state) state, state, state, state, FAULT(CONTROL)

static const unsigned char next_state[HTTP_SCAN_DONE][CLASSES] = {
    /* CR, LF, then BLANK, COLON, TOKEN, OTHER, CONTROL */
    [HTTP_SCAN_START] = {HTTP_SCAN_START_LF, FAULT(BARE_LF), TEXT(HTTP_SCAN_START)},
    [HTTP_SCAN_START_LF] = {FAULT(BARE_CR), HTTP_SCAN_LINE, TEXT(FAULT(BARE_CR))},
    [HTTP_SCAN_LINE] = {HTTP_SCAN_END_LF, FAULT(BARE_LF), FAULT(FOLD), FAULT(NAME),
                        HTTP_SCAN_NAME, FAULT(NAME), FAULT(CONTROL)},
    [HTTP_SCAN_NAME] = {FAULT(NAME), FAULT(BARE_LF), FAULT(NAME), HTTP_SCAN_VALUE,
                        HTTP_SCAN_NAME, FAULT(NAME), FAULT(CONTROL)},
    [HTTP_SCAN_VALUE] = {HTTP_SCAN_VALUE_LF, FAULT(BARE_LF), TEXT(HTTP_SCAN_VALUE)},
    [HTTP_SCAN_VALUE_LF] = {FAULT(BARE_CR), HTTP_SCAN_LINE, TEXT(FAULT(BARE_CR))},
    [HTTP_SCAN_END_LF] = {FAULT(BARE_CR), HTTP_SCAN_DONE, TEXT(FAULT(BARE_CR))},
};

/* clang-format off */
/* RFC 9110 5.6.2 names the tokens; bytes from 0x80 on are text of unknown meaning. */
static const unsigned char class_of[256] = {
    [0 ... 8] = CONTROL, [11 ... 12] = CONTROL, [14 ... 31] = CONTROL, [127] = CONTROL,
    ['\r'] = CR, ['\n'] = LF, [' '] = BLANK, ['\t'] = BLANK, [':'] = COLON,
    ['0' ... '9'] = TOKEN, ['A' ... 'Z'] = TOKEN, ['a' ... 'z'] = TOKEN,
    ['!'] = TOKEN, ['#'] = TOKEN, ['$'] = TOKEN, ['%'] = TOKEN, ['&'] = TOKEN,
    ['\''] = TOKEN, ['*'] = TOKEN, ['+'] = TOKEN, ['-'] = TOKEN, ['.'] = TOKEN,
    ['^'] = TOKEN, ['_'] = TOKEN, ['`'] = TOKEN, ['|'] = TOKEN, ['~'] = TOKEN,
    ['"'] = OTHER, ['('] = OTHER, [')'] = OTHER, [','] = OTHER, ['/'] = OTHER,
    [';' ... '@'] = OTHER, ['[' ... ']'] = OTHER, ['{'] = OTHER, ['}'] = OTHER,
    [128 ... 255] = OTHER,
};
/* clang-format on */

bool http_scan_is_token(char c)
{
    return class_of[(unsigned char)c] == TOKEN;
}

bool http_scan_is_value(char c)
{
    const unsigned char class = class_of[(unsigned char)c];
    return class != CONTROL && class != CR && class != LF;
}

int http_scan_hex(char c)
{
    if (c >= '0' && c <= '9')
        return c - '0';
    const char lower = (char)(c | 0x20);
    return lower >= 'a' && lower <= 'f' ? lower - 'a' + 10 : -1;
}

void http_scan_init(struct http_scan *s, enum http_scan_state state,
                    struct http_limits limits)
{
    *s = (struct http_scan){.state = state, .left = limits};
}

/* The state changed: counts the lines, and says where the caller has something to do. */
static enum http_scan_stop enter(struct http_scan *s, unsigned char next)
{
    const enum http_scan_state old = s->state;
    if (next >= FAULT(NONE)) {
        s->fault = (enum http_fault)(next - FAULT(NONE));
        return HTTP_SCAN_FAULT;
    }
    s->state = (enum http_scan_state)next;
    if (s->state == HTTP_SCAN_NAME) {
        if (s->lines == s->left.headers) {
            s->fault = HTTP_FAULT_HEAD_LINES;
            return HTTP_SCAN_FAULT;
        }
        s->lines++;
    }
    if (s->state == HTTP_SCAN_LINE && old == HTTP_SCAN_START_LF)
        return HTTP_SCAN_LINE_1;
    return s->state == HTTP_SCAN_DONE ? HTTP_SCAN_WHOLE : HTTP_SCAN_MORE;
}

enum http_scan_stop http_scan_feed(struct http_scan *s, struct slice in, size_t *used)
{
    const size_t end = in.len < s->left.head_bytes ? in.len : s->left.head_bytes;
    enum http_scan_stop stop = HTTP_SCAN_MORE;
    size_t i = 0;
    while (i < end && stop == HTTP_SCAN_MORE) {
        const unsigned char next =
            next_state[s->state][class_of[(unsigned char)in.ptr[i++]]];
        if (next != s->state)
            stop = enter(s, next);
    }
    s->left.head_bytes -= i;
    *used = i;
    if (stop == HTTP_SCAN_MORE && i < in.len) {
        s->fault = HTTP_FAULT_HEAD_SIZE;
        stop = HTTP_SCAN_FAULT;
    }
    return stop;
}
