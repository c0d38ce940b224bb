/* SPDX-License-Identifier: MIT */
#include "gateway/forwarded.h"

#include <arpa/inet.h>
#include <string.h>
#include <strings.h>

#define NAME "X-Forwarded-For"
#define MAPPED "::ffff:" /* an IPv4 address in IPv6 */
#define PORT_DIGITS 5

bool forwarded_is_header(struct slice name)
{
    return slice_eq_nocase(name, SLICE_LIT(NAME));
}

/* ---- reading ----------------------------------------------------------------------- */

static bool is_address(struct slice s, int family)
{
    char text[INET6_ADDRSTRLEN];
    unsigned char bytes[sizeof(struct in6_addr)];
    if (!s.len || s.len >= sizeof(text))
        return false;
    memcpy(text, s.ptr, s.len);
    text[s.len] = '\0';
    return inet_pton(family, text, bytes) == 1;
}

/* Nothing, or ":PORT". */
static bool is_port(struct slice s)
{
    if (!s.len)
        return true;
    if (s.ptr[0] != ':' || s.len < 2 || s.len > 1 + PORT_DIGITS)
        return false;
    for (size_t i = 1; i < s.len; i++)
        if (s.ptr[i] < '0' || s.ptr[i] > '9')
            return false;
    return true;
}

/* Up to the first `c`, or all of it; `behind`: from there on. */
static struct slice cut(struct slice s, char c, struct slice *behind)
{
    const char *at = s.len ? memchr(s.ptr, c, s.len) : NULL;
    const size_t n = at ? (size_t)(at - s.ptr) : s.len;
    *behind = slice_make(s.ptr + n, s.len - n);
    return slice_make(s.ptr, n);
}

static bool is_node(struct slice s)
{
    struct slice behind;
    if (s.len && s.ptr[0] == '[') {
        const struct slice inside = cut(slice_make(s.ptr + 1, s.len - 1), ']', &behind);
        return is_address(inside, AF_INET6) && behind.len &&
               is_port(slice_make(behind.ptr + 1, behind.len - 1));
    }
    const struct slice host = cut(s, ':', &behind);
    return (is_address(host, AF_INET) && is_port(behind)) || is_address(s, AF_INET6) ||
           slice_eq_nocase(s, SLICE_LIT("unknown"));
}

static bool is_list(struct slice s)
{
    struct slice behind;
    while (is_node(slice_trim(cut(s, ',', &behind)))) {
        if (!behind.len)
            return true;
        s = slice_make(behind.ptr + 1, behind.len - 1);
    }
    return false;
}

bool forwarded_is_sound(const struct http_head *h)
{
    for (size_t i = 0; i < h->n_headers; i++)
        if (forwarded_is_header(h->headers[i].name) && !is_list(h->headers[i].value))
            return false;
    return true;
}

/* ---- writing ----------------------------------------------------------------------- */

/* Of "1.2.3.4:80" or "[::1]:80" what stands before the port; empty for others. */
static struct slice address_of(const char *peer)
{
    struct slice s = slice_of(peer), behind;
    if (!s.len || s.ptr[0] != '[') {
        s = cut(s, ':', &behind);
        return is_address(s, AF_INET) ? s : slice_make(peer, 0);
    }
    s = cut(slice_make(s.ptr + 1, s.len - 1), ']', &behind);
    s = cut(s, '%', &behind); /* the interface means nothing elsewhere */
    const struct slice mapped = SLICE_LIT(MAPPED);
    if (slice_starts(s, mapped) &&
        is_address(slice_make(s.ptr + mapped.len, s.len - mapped.len), AF_INET))
        s = slice_make(s.ptr + mapped.len, s.len - mapped.len);
    return s;
}

static void put(struct buf *out, const char **sep, struct slice s)
{
    if (!s.len)
        return;
    buf_append_str(out, *sep);
    buf_append_slice(out, s);
    *sep = ", ";
}

void forwarded_put(struct buf *out, const struct http_head *h, const char *peer)
{
    const char *sep = NAME ": ";
    for (size_t i = 0; h && i < h->n_headers; i++)
        if (forwarded_is_header(h->headers[i].name))
            put(out, &sep, h->headers[i].value);
    put(out, &sep, address_of(peer));
    if (sep[0] == ',')
        buf_append_str(out, "\r\n");
}
