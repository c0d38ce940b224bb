/* SPDX-License-Identifier: MIT */
#include "http_parts.h"

/*
 * What the most eager reader would understand.
 *
 * Of a target, to decide on routes only; what is forwarded stays as it came. Upstreams
 * differ in what they decode and fold, so the copy is what the most eager of them would
 * make of it, and what they could understand in different ways is refused.
 *
 * Of a header's value, whether it would hold the end of a line.
 */

static bool is_unreserved(char c)
{
    const char lower = (char)(c | 0x20);
    return (c >= '0' && c <= '9') || (lower >= 'a' && lower <= 'z') || c == '-' ||
           c == '.' || c == '_' || c == '~';
}

/* "http://host/a" to "/a"; a path stays. Whatever is neither comes out empty. */
static struct slice path_of(struct slice target)
{
    size_t end = 0;
    while (end < target.len && target.ptr[end] != '?' && target.ptr[end] != '#')
        end++;
    struct slice path = {target.ptr, end};
    if (!path.len || path.ptr[0] == '/')
        return path;
    const char *host = memmem(path.ptr, path.len, "://", 3);
    if (!host)
        return (struct slice){0};
    const size_t skip = (size_t)(host - path.ptr) + 3;
    const char *slash = memchr(path.ptr + skip, '/', path.len - skip);
    if (!slash)
        return SLICE_LIT("/");
    return slice_make(slash, path.len - (size_t)(slash - path.ptr));
}

/* Appends one segment without its parameters. False for %XX that is none, and '\'. */
static bool append_segment(struct buf *out, struct slice s)
{
    for (size_t i = 0; i < s.len && s.ptr[i] != ';'; i++) {
        if (s.ptr[i] == '\\')
            return false;
        if (s.ptr[i] != '%') {
            buf_append_char(out, s.ptr[i]);
            continue;
        }
        const int high = i + 2 < s.len ? http_scan_hex(s.ptr[i + 1]) : -1;
        const int low = i + 2 < s.len ? http_scan_hex(s.ptr[i + 2]) : -1;
        if (high < 0 || low < 0)
            return false;
        const char c = (char)(high << 4 | low);
        if (is_unreserved(c))
            buf_append_char(out, c);
        else
            buf_append(out, s.ptr + i, 3);
        i += 2;
    }
    return true;
}

/* Drops what was appended after `len`, where it is an empty segment or ".". */
static bool keep_segment(struct buf *out, size_t len)
{
    const struct slice all = buf_slice(out);
    const struct slice segment = {all.ptr + len, all.len - len};
    if (slice_eq(segment, SLICE_LIT("/..")))
        return false;
    if (segment.len == 1 || slice_eq(segment, SLICE_LIT("/.")))
        out->end -= segment.len;
    return true;
}

bool http_normal_path(struct slice target, struct buf *out)
{
    buf_clear(out);
    if (slice_eq(target, SLICE_LIT("*"))) {
        buf_append_char(out, '*');
        return true;
    }
    const struct slice path = path_of(target);
    if (!path.len)
        return false;
    for (size_t at = 0; at < path.len;) {
        const size_t start = at + 1; /* behind the '/' */
        for (at = start; at < path.len && path.ptr[at] != '/';)
            at++;
        const size_t len = buf_len(out);
        buf_append_char(out, '/');
        if (!append_segment(out, slice_make(path.ptr + start, at - start)) ||
            !keep_segment(out, len))
            return false;
    }
    if (!buf_len(out))
        buf_append_char(out, '/');
    return true;
}

/* What the first `n` hexadecimal digits say; -1 where there are no such. */
static int hex_number(struct slice s, size_t n)
{
    int number = 0;
    for (size_t i = 0; i < n; i++) {
        const int digit = i < s.len ? http_scan_hex(s.ptr[i]) : -1;
        if (digit < 0)
            return -1;
        number = number << 4 | digit;
    }
    return number;
}

bool http_value_hides_line_end(struct slice value)
{
    while (value.len) {
        const bool escape = value.ptr[0] == '%';
        value = slice_make(value.ptr + 1, value.len - 1);
        if (!escape || !value.len)
            continue;
        const struct slice behind = {value.ptr + 1, value.len - 1};
        const int c = value.ptr[0] == 'u' ? hex_number(behind, 4) : hex_number(value, 2);
        if (c == '\r' || c == '\n' || c == '\0')
            return true;
    }
    return false;
}
