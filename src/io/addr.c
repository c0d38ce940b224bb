/* SPDX-License-Identifier: MIT */
#include "io/addr.h"

/*
 * The text is cut into host and port here, so that a wrong port is told as one and never
 * reaches getaddrinfo(), which would take "http", " 80" or "0x50".
 */

#include <arpa/inet.h>
#include <assert.h>
#include <netdb.h>
#include <netinet/in.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <sys/un.h>

#define HOST_MAX 256

static const char unix_prefix[] = "unix:";

/* ---- from bytes to text ------------------------------------------------------------ */

static void write_unix(struct addr *a)
{
    const struct sockaddr_un *un = (const struct sockaddr_un *)(const void *)&a->sa;
    const size_t head = offsetof(struct sockaddr_un, sun_path);
    const size_t max = a->len > head ? a->len - head : 0; /* 0: the peer has no name */
    snprintf(a->text, sizeof(a->text), "%s%.*s", unix_prefix,
             (int)strnlen(un->sun_path, max), un->sun_path);
}

static void write_inet(struct addr *a)
{
    char host[INET6_ADDRSTRLEN + 32], port[8];
    const int rc =
        getnameinfo((const struct sockaddr *)&a->sa, a->len, host, sizeof(host), port,
                    sizeof(port), NI_NUMERICHOST | NI_NUMERICSERV);
    if (rc != 0)
        snprintf(a->text, sizeof(a->text), "?");
    else
        snprintf(a->text, sizeof(a->text),
                 a->sa.ss_family == AF_INET6 ? "[%s]:%s" : "%s:%s", host, port);
}

void addr_from_sockaddr(struct addr *a, const struct sockaddr *sa, socklen_t len)
{
    assert(len <= sizeof(a->sa));
    *a = (struct addr){.len = len};
    memcpy(&a->sa, sa, len);
    if (a->sa.ss_family == AF_UNIX)
        write_unix(a);
    else
        write_inet(a);
}

/* ---- from text to bytes ------------------------------------------------------------ */

static int resolve_unix(struct addr *a, const char *path, struct err *e)
{
    struct sockaddr_un un = {.sun_family = AF_UNIX};
    const size_t len = strlen(path);
    if (len == 0)
        return err_set(e, ERR_INVALID, "address \"unix:\": the path is missing");
    if (len >= sizeof(un.sun_path))
        return err_set(e, ERR_INVALID,
                       "address \"unix:%.32s…\": the path has %zu bytes, at most %zu fit",
                       path, len, sizeof(un.sun_path) - 1);
    memcpy(un.sun_path, path, len + 1);
    const size_t size = offsetof(struct sockaddr_un, sun_path) + len + 1;
    addr_from_sockaddr(a, (const struct sockaddr *)&un, (socklen_t)size);
    return 0;
}

static bool is_port(const char *s)
{
    const size_t n = strspn(s, "0123456789");
    unsigned value = 0;
    if (n == 0 || n > 5 || s[n] != '\0' || (s[0] == '0' && n > 1))
        return false;
    for (size_t i = 0; i < n; i++)
        value = value * 10 + (unsigned)(s[i] - '0');
    return value <= UINT16_MAX;
}

/* Cuts "HOST:PORT" at its last colon; NULL where it is not of that form. */
static const char *cut(const char *text, char host[HOST_MAX], bool *bracketed)
{
    const char *colon = strrchr(text, ':');
    if (!colon)
        return NULL;
    const char *start = text, *end = colon;
    *bracketed = *start == '[';
    if (*bracketed && (end - start < 3 || end[-1] != ']'))
        return NULL;
    if (*bracketed)
        start++, end--;
    const size_t len = (size_t)(end - start);
    if (len >= HOST_MAX || (!*bracketed && memchr(start, ':', len)))
        return NULL;
    memcpy(host, start, len);
    host[len] = '\0';
    return colon + 1;
}

/* Those of one family, of IPv4 or of all others. */
static size_t take(struct addr *v, size_t n, size_t max, const struct addrinfo *list,
                   bool inet4)
{
    for (const struct addrinfo *ai = list; ai && n < max; ai = ai->ai_next)
        if ((ai->ai_family == AF_INET) == inet4)
            addr_from_sockaddr(&v[n++], ai->ai_addr, ai->ai_addrlen);
    return n;
}

/* At most *n of them. `flags`: of getaddrinfo(). */
static int find(struct addr *v, size_t *n, const char *text, int flags, struct err *e)
{
    char host[HOST_MAX];
    bool bracketed;
    const size_t skip = sizeof(unix_prefix) - 1;
    const size_t max = *n;
    *n = 1;
    if (strncmp(text, unix_prefix, skip) == 0)
        return resolve_unix(v, text + skip, e);
    const char *port = cut(text, host, &bracketed);
    if (!port)
        return err_set(
            e, ERR_INVALID,
            "address \"%.100s\": write HOST:PORT, [V6]:PORT, :PORT or unix:/path", text);
    if (!is_port(port))
        return err_set(e, ERR_INVALID,
                       "address \"%.100s\": the port is a number from 0 to 65535", text);
    const struct addrinfo hints = {.ai_family = bracketed ? AF_INET6 : AF_UNSPEC,
                                   .ai_socktype = SOCK_STREAM,
                                   .ai_flags = AI_NUMERICSERV | flags |
                                               (bracketed ? AI_NUMERICHOST : 0) |
                                               (host[0] ? 0 : AI_PASSIVE)};
    struct addrinfo *list;
    const int rc = getaddrinfo(host[0] ? host : NULL, port, &hints, &list);
    if (rc != 0)
        return err_set(e, ERR_NOT_FOUND, "address \"%s\": %s", text, gai_strerror(rc));
    *n = take(v, take(v, 0, max, list, true), max, list, false);
    freeaddrinfo(list);
    return 0;
}

int addr_resolve_all(struct addr *v, size_t *n, const char *text, struct err *e)
{
    return find(v, n, text, 0, e);
}

int addr_resolve(struct addr *a, const char *text, struct err *e)
{
    size_t n = 1;
    return find(a, &n, text, 0, e);
}

int addr_parse(struct addr *a, const char *text, struct err *e)
{
    size_t n = 1;
    return find(a, &n, text, AI_NUMERICHOST, e);
}

/* ---- questions --------------------------------------------------------------------- */

static const struct sockaddr_in *inet4(const struct addr *a)
{
    return (const struct sockaddr_in *)(const void *)&a->sa;
}

static const struct sockaddr_in6 *inet6(const struct addr *a)
{
    return (const struct sockaddr_in6 *)(const void *)&a->sa;
}

bool addr_eq(const struct addr *a, const struct addr *b)
{
    return strcmp(a->text, b->text) == 0;
}

bool addr_group(const struct addr *a, unsigned char out[ADDR_GROUP])
{
    static const unsigned char mapped[12] = {[10] = 0xff, [11] = 0xff};
    if (a->sa.ss_family == AF_INET) {
        memcpy(out, mapped, sizeof(mapped));
        memcpy(out + sizeof(mapped), &inet4(a)->sin_addr, 4);
        return true;
    }
    if (a->sa.ss_family != AF_INET6)
        return false;
    const struct in6_addr *v6 = &inet6(a)->sin6_addr;
    memcpy(out, v6, ADDR_GROUP);
    if (!IN6_IS_ADDR_V4MAPPED(v6))
        memset(out + 8, 0, 8);
    return true;
}

bool addr_is_loopback(const struct addr *a)
{
    switch (a->sa.ss_family) {
    case AF_UNIX:
        return true;
    case AF_INET:
        return ntohl(inet4(a)->sin_addr.s_addr) >> 24 == IN_LOOPBACKNET;
    case AF_INET6: {
        const struct in6_addr *v6 = &inet6(a)->sin6_addr;
        return IN6_IS_ADDR_LOOPBACK(v6) ||
               (IN6_IS_ADDR_V4MAPPED(v6) && v6->s6_addr[12] == IN_LOOPBACKNET);
    }
    }
    return false;
}

uint16_t addr_port(const struct addr *a)
{
    switch (a->sa.ss_family) {
    case AF_INET:
        return ntohs(inet4(a)->sin_port);
    case AF_INET6:
        return ntohs(inet6(a)->sin6_port);
    }
    return 0;
}
