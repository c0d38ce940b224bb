/* SPDX-License-Identifier: MIT */
#ifndef INCIPIT_BASE_LOG_H
#define INCIPIT_BASE_LOG_H

/*
 * One line per event on standard error, logfmt: `ts=… level=… event=… key=value …`.
 * Values with spaces, quotes or control characters are quoted and escaped, so a line
 * stays a line. Never pass prompt text, answers or credentials. Any thread may log.
 */

enum log_level { LOG_DEBUG, LOG_INFO, LOG_WARN, LOG_ERROR };

/* Lines below `level` are dropped. Default LOG_INFO. */
void log_set_level(enum log_level level);

/* "debug" … "error"; -1 for others. */
int log_level_parse(const char *name);

/*
 * log_event(LOG_INFO, "save", "slot", "%d", 3, "bytes", "%zu", n, NULL): pairs of key,
 * printf format and the values of exactly that one conversion, ended by NULL. A format
 * takes exactly one argument: %d %u %ld %lu %lld %llu %zu %s %.1f %.2f %.3f.
 */
void log_event(enum log_level level, const char *event, ...) __attribute__((sentinel));

/* A line that is complete but for time stamp and level: "event=access id=… …". */
void log_line(enum log_level level, const char *line);

#endif
