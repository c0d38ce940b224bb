/* SPDX-License-Identifier: MIT */
#include "base/html.h"

#include <stdint.h>

#define REPLACEMENT "\xEF\xBF\xBD" /* U+FFFD */
#define ELLIPSIS "\xE2\x80\xA6"

static size_t sequence_length(unsigned char lead)
{
    return lead < 0x80                   ? 1
           : lead >= 0xC2 && lead < 0xE0 ? 2
           : lead >= 0xE0 && lead < 0xF0 ? 3
           : lead >= 0xF0 && lead < 0xF5 ? 4
                                         : 0;
}

/* Bytes of the character at the start of `s` (RFC 3629), 0 where there is none. */
static size_t character(struct slice s)
{
    static const uint32_t least[] = {0, 0, 0x80, 0x800, 0x10000};
    const unsigned char *p = (const unsigned char *)s.ptr;
    const size_t n = sequence_length(p[0]);
    if (n < 2 || n > s.len)
        return n == 1;
    uint32_t code = p[0] & (0xFFu >> (n + 1));
    for (size_t i = 1; i < n; i++) {
        if ((p[i] & 0xC0) != 0x80)
            return 0;
        code = code << 6 | (p[i] & 0x3F);
    }
    const bool surrogate = code >= 0xD800 && code < 0xE000;
    return code < least[n] || code > 0x10FFFF || surrogate ? 0 : n;
}

static const char *reference(unsigned char c)
{
    switch (c) {
    case '&':
        return "&amp;";
    case '<':
        return "&lt;";
    case '>':
        return "&gt;";
    case '"':
        return "&quot;";
    case '\'':
        return "&#39;";
    default:
        return (c < ' ' && c != '\t' && c != '\n') || c == 0x7F ? REPLACEMENT : NULL;
    }
}

void html_text(struct slice text, struct buf *out)
{
    while (text.len) {
        const size_t n = character(text);
        const char *instead =
            n == 0 ? REPLACEMENT : reference((unsigned char)text.ptr[0]);
        if (instead)
            buf_append_str(out, instead);
        else
            buf_append(out, text.ptr, n);
        text.ptr += n ? n : 1;
        text.len -= n ? n : 1;
    }
}

void html_text_cut(struct slice text, size_t most, struct buf *out)
{
    if (text.len <= most) {
        html_text(text, out);
        return;
    }
    while (most > 0 && ((unsigned char)text.ptr[most] & 0xC0) == 0x80)
        most--;
    html_text(slice_make(text.ptr, most), out);
    buf_append_str(out, ELLIPSIS);
}

/* "<" only occurs in the strings of JSON. */
void html_json(struct slice json, struct buf *out)
{
    for (size_t i = 0; i < json.len; i++) {
        if (json.ptr[i] == '<')
            buf_append_str(out, "\\u003c");
        else
            buf_append_char(out, json.ptr[i]);
    }
}
