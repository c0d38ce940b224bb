/* SPDX-License-Identifier: MIT */
#include "base/err.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

const char *err_name(int code)
{
    switch (code) {
#define X(c, name)                                                                       \
    case c:                                                                              \
        return name;
        ERR_CODES(X)
#undef X
    }
    return code == ERR_NONE ? "none" : "unknown";
}

int err_set(struct err *e, int code, const char *fmt, ...)
{
    if (e && e->code == ERR_NONE) {
        va_list ap;
        va_start(ap, fmt);
        vsnprintf(e->text, sizeof(e->text), fmt, ap);
        va_end(ap);
        e->code = code;
    }
    return code;
}

int err_errno(struct err *e, const char *fmt, ...)
{
    const int saved = errno;
    char what[256];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(what, sizeof(what), fmt, ap);
    va_end(ap);
    return err_set(e, ERR_IO, "%s: %s", what, strerror(saved));
}

int err_wrap(struct err *e, const char *fmt, ...)
{
    if (!e || e->code == ERR_NONE)
        return e ? e->code : ERR_NONE;
    char old[sizeof(e->text)];
    memcpy(old, e->text, sizeof(old));
    va_list ap;
    va_start(ap, fmt);
    int n = vsnprintf(e->text, sizeof(e->text), fmt, ap);
    va_end(ap);
    if (n >= 0 && (size_t)n < sizeof(e->text))
        snprintf(e->text + n, sizeof(e->text) - (size_t)n, ": %s", old);
    return e->code;
}
