/* SPDX-License-Identifier: MIT */
#ifndef INCIPIT_BASE_ERR_H
#define INCIPIT_BASE_ERR_H

/*
 * Errors of the world (peer, disk, configuration) are returned: 0 is success, otherwise
 * a negative ERR_ code, with the details in an optional `struct err`. The first error
 * wins; callers add context in front of it with err_wrap(). Errors of the programmer
 * are asserted, and running out of memory aborts (mem.h).
 */

#define ERR_CODES(X)                                                                     \
    X(ERR_INVALID, "invalid")         /* the caller's input is wrong */                  \
    X(ERR_FORMAT, "format")           /* bytes that do not follow their format */        \
    X(ERR_IO, "io")                   /* the operating system said no; errno in text */  \
    X(ERR_LIMIT, "limit")             /* a configured limit is reached */                \
    X(ERR_TIMEOUT, "timeout")         /* a deadline passed */                            \
    X(ERR_CLOSED, "closed")           /* the other side has gone */                      \
    X(ERR_REFUSED, "refused")         /* the other side said no */                       \
    X(ERR_NOT_FOUND, "not-found")     /* no such thing */                                \
    X(ERR_CHECKSUM, "checksum")       /* stored bytes are not what was stored */         \
    X(ERR_MISMATCH, "mismatch")       /* well formed, but belongs to something else */   \
    X(ERR_UNSUPPORTED, "unsupported") /* known, and not done here */

enum err_code {
    ERR_NONE = 0,
    ERR_BASE = -100,
#define X(code, name) code,
    ERR_CODES(X)
#undef X
};

struct err {
    int code;       /* 0 while nothing went wrong */
    char text[320]; /* what, where and what to do, for a person; never prompt text */
};

/* Short name of a code for metrics and logs ("checksum"); "unknown" for others. */
const char *err_name(int code);

/* Records the error unless one is there already. Returns `code`. `e` may be NULL. */
int err_set(struct err *e, int code, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));

/* As err_set with ERR_IO, appending ": " and strerror(errno). */
int err_errno(struct err *e, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

/* Puts context in front of a recorded text ("reading /x: …"). Returns the code. */
int err_wrap(struct err *e, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

#endif
