/* SPDX-License-Identifier: MIT */
#include "base/procs.h"

#include <ctype.h>
#include <dirent.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/mem.h"

#define MAX_SOCKETS 16       /* that listen on one port, on several addresses */
#define LISTENS 0x0A         /* TCP_LISTEN in the tables */
#define UNIX_LISTENS 0x10000 /* __SO_ACCEPTCON in that of UNIX sockets */

/* ---- ports ------------------------------------------------------------------------- */

/* Adds the inodes of sockets that listen on this port. */
static size_t listening_inodes(const char *table, uint16_t port, uint64_t *inodes,
                               size_t n)
{
    char line[512];
    FILE *f = fopen(table, "re");
    if (!f)
        return n;
    while (n < MAX_SOCKETS && fgets(line, sizeof(line), f)) {
        unsigned local, state;
        uint64_t inode;
        /* "sl: ADDR:PORT ADDR:PORT STATE tx:rx tr:when retr uid timeout inode …" */
        if (sscanf(line, " %*d: %*[0-9A-Fa-f]:%x %*s %x %*s %*s %*s %*s %*s %" SCNu64,
                   &local, &state, &inode) == 3 &&
            local == port && state == LISTENS)
            inodes[n++] = inode;
    }
    fclose(f);
    return n;
}

static bool is_one_of(const char *link, const uint64_t *inodes, size_t n)
{
    uint64_t inode;
    if (sscanf(link, "socket:[%" SCNu64 "]", &inode) != 1)
        return false;
    for (size_t i = 0; i < n; i++)
        if (inodes[i] == inode)
            return true;
    return false;
}

static bool owns_one(pid_t pid, const uint64_t *inodes, size_t n)
{
    char path[64], entry[400], link[64];
    bool owns = false;
    struct dirent *d;
    snprintf(path, sizeof(path), "/proc/%d/fd", (int)pid);
    DIR *dir = opendir(path);
    while (dir && !owns && (d = readdir(dir))) {
        snprintf(entry, sizeof(entry), "%s/%s", path, d->d_name);
        const ssize_t len = readlink(entry, link, sizeof(link) - 1);
        link[len > 0 ? len : 0] = '\0';
        owns = is_one_of(link, inodes, n);
    }
    if (dir)
        closedir(dir);
    return owns;
}

/* The next number in /proc, 0 behind the last. */
static pid_t next_process(DIR *proc)
{
    struct dirent *d;
    while ((d = readdir(proc)))
        if (isdigit((unsigned char)d->d_name[0]))
            return (pid_t)strtol(d->d_name, NULL, 10);
    return 0;
}

static size_t unix_inodes(const char *path, uint64_t *inodes)
{
    char line[512], bound[256];
    size_t n = 0;
    FILE *f = fopen("/proc/net/unix", "re");
    if (!f)
        return 0;
    while (n < MAX_SOCKETS && fgets(line, sizeof(line), f)) {
        unsigned flags;
        uint64_t inode;
        /* "num: refs protocol flags type state inode path" */
        if (sscanf(line, "%*s %*x %*x %x %*x %*x %" SCNu64 " %255[^\n]", &flags, &inode,
                   bound) == 3 &&
            (flags & UNIX_LISTENS) && strcmp(bound, path) == 0)
            inodes[n++] = inode;
    }
    fclose(f);
    return n;
}

static size_t owners(const uint64_t *inodes, size_t n_inodes, pid_t *out, size_t max)
{
    size_t n = 0;
    DIR *proc = n_inodes ? opendir("/proc") : NULL;
    for (pid_t pid; proc && n < max && (pid = next_process(proc));)
        if (owns_one(pid, inodes, n_inodes))
            out[n++] = pid;
    if (proc)
        closedir(proc);
    return n;
}

size_t procs_listening(uint16_t port, pid_t *out, size_t max)
{
    uint64_t inodes[MAX_SOCKETS];
    size_t n = listening_inodes("/proc/net/tcp", port, inodes, 0);
    n = listening_inodes("/proc/net/tcp6", port, inodes, n);
    return owners(inodes, n, out, max);
}

size_t procs_listening_at(const char *path, pid_t *out, size_t max)
{
    uint64_t inodes[MAX_SOCKETS];
    return owners(inodes, unix_inodes(path, inodes), out, max);
}

/* ---- one process ------------------------------------------------------------------- */

struct stat_line {
    char name[PROCS_NAME];
    char state;
    pid_t parent;
    uint64_t started;
};

/* "pid (name) state ppid …": the name may hold anything, so its end is the last ')'. */
static bool read_stat(pid_t pid, struct stat_line *s)
{
    char path[64], text[1024];
    int parent;
    snprintf(path, sizeof(path), "/proc/%d/stat", (int)pid);
    FILE *f = fopen(path, "re");
    const size_t len = f ? fread(text, 1, sizeof(text) - 1, f) : 0;
    if (f)
        fclose(f);
    text[len] = '\0';
    char *name = strchr(text, '('), *end = strrchr(text, ')');
    if (!name || !end)
        return false;
    *end = '\0';
    snprintf(s->name, sizeof(s->name), "%s", name + 1);
    /* Fields 3, 4 and 22. */
    if (sscanf(end + 1,
               " %c %d %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s "
               "%*s %" SCNu64,
               &s->state, &parent, &s->started) != 3)
        return false;
    s->parent = parent;
    return true;
}

static uint64_t resident_bytes(pid_t pid)
{
    char path[64];
    uint64_t pages = 0;
    snprintf(path, sizeof(path), "/proc/%d/statm", (int)pid);
    FILE *f = fopen(path, "re");
    if (!f)
        return 0;
    if (fscanf(f, "%*s %" SCNu64, &pages) != 1)
        pages = 0;
    fclose(f);
    return pages * (uint64_t)sysconf(_SC_PAGESIZE);
}

bool procs_usage(pid_t pid, struct procs_usage *out)
{
    struct stat_line s;
    clockid_t clock;
    struct timespec cpu;
    if (pid <= 0 || !read_stat(pid, &s) || s.state == 'Z' || s.state == 'X' ||
        clock_getcpuclockid(pid, &clock) != 0 || clock_gettime(clock, &cpu) != 0)
        return false;
    *out = (struct procs_usage){.started = s.started,
                                .cpu_us = (uint64_t)cpu.tv_sec * 1000000 +
                                          (uint64_t)cpu.tv_nsec / 1000,
                                .rss_bytes = resident_bytes(pid)};
    memcpy(out->name, s.name, sizeof(out->name));
    return true;
}

size_t procs_args(pid_t pid, char *out, size_t size)
{
    char path[64];
    snprintf(path, sizeof(path), "/proc/%d/cmdline", (int)pid);
    FILE *f = fopen(path, "re");
    const size_t len = f ? fread(out, 1, size - 1, f) : 0;
    if (f)
        fclose(f);
    out[len] = '\0';
    return len;
}

/* ---- descendants ------------------------------------------------------------------- */

struct family {
    pid_t pid, parent;
};

static struct family *read_families(size_t *n)
{
    struct family *all = NULL;
    size_t room = 0;
    DIR *proc = opendir("/proc");
    *n = 0;
    for (pid_t pid; proc && (pid = next_process(proc));) {
        struct stat_line s;
        if (!read_stat(pid, &s))
            continue;
        if (*n == room) {
            room = room ? 2 * room : 256;
            all = mem_rearray(all, room, sizeof(*all));
        }
        all[(*n)++] = (struct family){pid, s.parent};
    }
    if (proc)
        closedir(proc);
    return all;
}

static bool holds(const pid_t *pids, size_t n, pid_t pid)
{
    for (size_t i = 0; i < n; i++)
        if (pids[i] == pid)
            return true;
    return false;
}

size_t procs_descendants(pid_t *pids, size_t n, size_t max)
{
    size_t n_all;
    struct family *all = read_families(&n_all);
    for (size_t i = 0; i < n; i++) /* what is added is looked at, too */
        for (size_t k = 0; k < n_all && n < max; k++)
            if (all[k].parent == pids[i] && !holds(pids, n, all[k].pid))
                pids[n++] = all[k].pid;
    free(all);
    return n;
}
