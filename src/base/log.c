/* SPDX-License-Identifier: MIT */
#include "base/log.h"

#include <assert.h>
#include <errno.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/clock.h"

static atomic_int threshold = LOG_INFO;
static const char *const names[] = {"debug", "info", "warn", "error"};

void log_set_level(enum log_level level)
{
    threshold = (int)level;
}

int log_level_parse(const char *name)
{
    for (int i = 0; i <= LOG_ERROR; i++)
        if (strcmp(name, names[i]) == 0)
            return i;
    return -1;
}

static void put_value(struct buf *b, const char *s)
{
    bool plain = *s != '\0';
    for (const char *p = s; *p; p++)
        plain &= (unsigned char)*p > ' ' && *p != '"' && *p != '=' && *p != '\\' &&
                 (unsigned char)*p != 0x7f;
    if (plain) {
        buf_append_str(b, s);
        return;
    }
    buf_append_char(b, '"');
    for (; *s; s++) {
        if (*s == '"' || *s == '\\')
            buf_printf(b, "\\%c", *s);
        else if ((unsigned char)*s < ' ' || (unsigned char)*s == 0x7f)
            buf_printf(b, "\\x%02x", (unsigned char)*s);
        else
            buf_append_char(b, *s);
    }
    buf_append_char(b, '"');
}

/* Formats the one value that `fmt` asks for; the last letters name its type. */
static void put_arg(struct buf *b, const char *fmt, va_list *ap)
{
    char text[512];
    const size_t n = strlen(fmt);
    assert(n >= 2 && fmt[0] == '%');
    const char last = fmt[n - 1];
    const char *size = n >= 3 ? fmt + n - 3 : fmt;
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wformat-nonliteral"
    if (last == 's')
        snprintf(text, sizeof(text), fmt, va_arg(*ap, const char *));
    else if (last == 'f')
        snprintf(text, sizeof(text), fmt, va_arg(*ap, double));
    else if (strchr(size, 'l') || strchr(size, 'z'))
        snprintf(text, sizeof(text), fmt, va_arg(*ap, long long));
    else
        snprintf(text, sizeof(text), fmt, va_arg(*ap, int));
#pragma GCC diagnostic pop
    put_value(b, text);
}

static void put_head(struct buf *b, enum log_level level)
{
    const uint64_t ms = clock_wall_ms();
    const time_t sec = (time_t)(ms / 1000);
    struct tm tm;
    char stamp[32];
    gmtime_r(&sec, &tm);
    strftime(stamp, sizeof(stamp), "%Y-%m-%dT%H:%M:%S", &tm);
    buf_printf(b, "ts=%s.%03uZ level=%s ", stamp, (unsigned)(ms % 1000), names[level]);
}

static void put_line(struct buf *b)
{
    buf_append_char(b, '\n');
    struct slice s = buf_slice(b);
    while (s.len) { /* one write in the normal case: lines of threads do not mix */
        ssize_t n = write(STDERR_FILENO, s.ptr, s.len);
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            break;
        s.ptr += n;
        s.len -= (size_t)n;
    }
    buf_free(b);
}

void log_event(enum log_level level, const char *event, ...)
{
    if ((int)level < threshold)
        return;
    struct buf b = {0};
    put_head(&b, level);
    buf_printf(&b, "event=%s", event);
    va_list ap;
    va_start(ap, event);
    for (const char *key; (key = va_arg(ap, const char *));) {
        buf_printf(&b, " %s=", key);
        const char *fmt = va_arg(ap, const char *);
        put_arg(&b, fmt, &ap);
    }
    va_end(ap);
    put_line(&b);
}

void log_line(enum log_level level, const char *line)
{
    if ((int)level < threshold)
        return;
    struct buf b = {0};
    put_head(&b, level);
    buf_append_str(&b, line);
    put_line(&b);
}
