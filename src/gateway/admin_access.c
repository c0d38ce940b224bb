/* SPDX-License-Identifier: MIT */
#include "gateway/admin.h"

/*
 * Who may look at the admin side and change things there. With a key, whoever shows it.
 * Without one it is on loopback, where every program of the machine may, and so must be
 * kept from doing it for somebody else: a browser that runs a page from elsewhere. Such a
 * page can make requests here, but not without an Origin, or under a name that is not
 * ours (its own name, made to point at us).
 */

#include <arpa/inet.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>

/* "[::1]:8091" → "::1" */
static void host_of(struct slice text, char *out, size_t size)
{
    snprintf(out, size, "%.*s", (int)(text.len < size ? text.len : size - 1), text.ptr);
    char *colon = strrchr(out, ':'), *bracket = strchr(out, ']');
    if (colon && (!bracket || colon > bracket))
        *colon = '\0';
    if (*out == '[' && bracket) {
        *bracket = '\0';
        memmove(out, out + 1, strlen(out + 1) + 1);
    }
}

static bool is_address(const char *host)
{
    unsigned char a[16];
    return inet_pton(AF_INET, host, a) == 1 || inet_pton(AF_INET6, host, a) == 1;
}

/* The name that the client used for us: a loopback one or that of the configuration;
 * where we listen at all addresses, any address. */
static bool is_our_host(const struct admin_world *w, struct slice value)
{
    char host[256], own[256];
    if (strncmp(w->listen, "unix:", 5) == 0)
        return true;
    host_of(value, host, sizeof(host));
    host_of(slice_of(w->listen), own, sizeof(own));
    const bool everywhere =
        !*own || strcmp(own, "0.0.0.0") == 0 || strcmp(own, "::") == 0;
    return strcasecmp(host, "localhost") == 0 || strcmp(host, "::1") == 0 ||
           (strncmp(host, "127.", 4) == 0 && is_address(host)) ||
           strcasecmp(host, own) == 0 || (everywhere && is_address(host));
}

/* X-Admin-Key leaves the other headers to say whose something is (POST /cache/forget). */
static bool shows_key(const struct admin_world *w, const struct http_head *h)
{
    struct slice shown = http_head_get(h, SLICE_LIT("X-Admin-Key"));
    if (!shown.len)
        shown = credential_of(h);
    const struct credential_digest d = credential_digest(shown);
    return shown.len && credential_same(&d, &w->key);
}

static void refuse(struct front_request *rq, int status, const char *type,
                   const char *message, const char *headers)
{
    front_error(rq, status, type, message, slice_of(headers));
}

static bool is_probe(struct slice path)
{
    return slice_eq(path, SLICE_LIT("/healthz")) || slice_eq(path, SLICE_LIT("/readyz"));
}

bool admin_may(const struct admin_world *w, struct slice path, struct front_request *rq)
{
    const struct http_head *h = front_head(rq);
    const bool from_page = http_head_get(h, SLICE_LIT("Origin")).ptr != NULL;
    const bool reads =
        slice_eq(h->method, SLICE_LIT("GET")) || slice_eq(h->method, SLICE_LIT("HEAD"));
    if (reads && is_probe(path)) /* they tell nothing, and those who ask have no key */
        return true;
    if (w->has_key && !shows_key(w, h)) {
        refuse(
            rq, 401, "authentication_error",
            "the admin side asks for its key: Authorization: Bearer KEY or X-Admin-Key",
            "WWW-Authenticate: Bearer\r\n");
    } else if (from_page && !(w->has_key && reads)) {
        refuse(rq, 403, "permission_error", "this is not for web pages", "");
    } else if (!w->has_key && !is_our_host(w, http_head_get(h, SLICE_LIT("Host")))) {
        refuse(rq, 403, "permission_error",
               "under this name of the host nothing is told: use its address, or "
               "admin.key_file",
               "");
    } else {
        return true;
    }
    return false;
}
