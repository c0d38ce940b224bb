/* SPDX-License-Identifier: MIT */
#ifndef INCIPIT_BASE_PROCS_H
#define INCIPIT_BASE_PROCS_H

/*
 * What /proc shows of other processes on this machine (proc(5)). Without the right to
 * look at a process, and in another namespace, it is as if it were not there. Blocking,
 * some milliseconds where all processes are searched.
 */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#define PROCS_NAME 16 /* with its NUL: names are cut by the kernel */

/* Processes that hold a TCP socket which listens on this port, whatever the address; at
 * most `max`, returns how many. Several may share one. */
size_t procs_listening(uint16_t port, pid_t *out, size_t max);

/* The same for a UNIX socket that was bound to this path. */
size_t procs_listening_at(const char *path, pid_t *out, size_t max);

/* Adds the children of the first `n` processes of `pids`, their children and so on, where
 * they are not in it yet; returns how many it holds then, at most `max`. */
size_t procs_descendants(pid_t *pids, size_t n, size_t max);

/* The command line: its arguments, a NUL behind each, cut to `size` − 1 bytes. */
size_t procs_args(pid_t pid, char *out, size_t size);

struct procs_usage {
    uint64_t started;   /* ticks since boot: with its number it names a process */
    uint64_t cpu_us;    /* of all its threads, in user and system; no children */
    uint64_t rss_bytes; /* resident, with what is shared and mapped */
    char name[PROCS_NAME];
};

/* False where there is none of that number, or it has ended and waits for its parent. */
bool procs_usage(pid_t pid, struct procs_usage *out);

#endif
