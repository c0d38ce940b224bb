/* SPDX-License-Identifier: MIT */
#include "llamacpp_internal.h"

/*
 * `incipit serve --upstream URL` should do its main job without a second option. The API
 * does not tell where the engine keeps its slot files, but on the same host /proc does:
 * port → socket inode → process → command line → --slot-save-path.
 */

#include <ctype.h>
#include <dirent.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/mem.h"

#define MAX_ARGS 16384 /* of a command line that is looked at */

/* Inode of the socket that listens on this port, 0 where there is none. */
static uint64_t listening_inode(const char *table, uint16_t port)
{
    char line[512];
    uint64_t found = 0;
    FILE *f = fopen(table, "re");
    if (!f)
        return 0;
    while (!found && fgets(line, sizeof(line), f)) {
        unsigned local, state;
        uint64_t inode;
        /* "sl: ADDR:PORT ADDR:PORT STATE tx:rx tr:when retr uid timeout inode …" */
        if (sscanf(line, " %*d: %*[0-9A-Fa-f]:%x %*s %x %*s %*s %*s %*s %*s %" SCNu64,
                   &local, &state, &inode) == 3 &&
            local == port && state == 0x0A)
            found = inode;
    }
    fclose(f);
    return found;
}

static bool owns_socket(const char *pid, uint64_t inode)
{
    char path[300], want[64], link[64];
    bool owns = false;
    struct dirent *d;
    snprintf(path, sizeof(path), "/proc/%s/fd", pid);
    snprintf(want, sizeof(want), "socket:[%" PRIu64 "]", inode);
    DIR *dir = opendir(path);
    while (dir && !owns && (d = readdir(dir))) {
        char entry[600];
        snprintf(entry, sizeof(entry), "%s/%s", path, d->d_name);
        const ssize_t n = readlink(entry, link, sizeof(link) - 1);
        owns = n > 0 && (size_t)n == strlen(want) && memcmp(link, want, (size_t)n) == 0;
    }
    if (dir)
        closedir(dir);
    return owns;
}

/* Value of the option in a NUL-separated command line, "--x V" or "--x=V". */
static const char *option_value(const char *args, size_t len, const char *name)
{
    const size_t n = strlen(name);
    for (const char *p = args; p < args + len; p += strlen(p) + 1) {
        if (strncmp(p, name, n) != 0)
            continue;
        if (p[n] == '=')
            return p + n + 1;
        if (p[n] == '\0' && p + n + 1 < args + len)
            return p + n + 1;
    }
    return NULL;
}

/* The command line of a process: its arguments, a NUL behind each. */
static size_t read_args(const char *pid, char *args, size_t size)
{
    char path[300];
    snprintf(path, sizeof(path), "/proc/%s/cmdline", pid);
    FILE *f = fopen(path, "re");
    const size_t len = f ? fread(args, 1, size - 1, f) : 0;
    if (f)
        fclose(f);
    args[len] = '\0';
    return len;
}

/* The process that listens on the port; false where it cannot be seen. */
static bool find_process(uint16_t port, char pid[16])
{
    uint64_t inode = listening_inode("/proc/net/tcp", port);
    if (!inode)
        inode = listening_inode("/proc/net/tcp6", port);
    DIR *proc = inode ? opendir("/proc") : NULL;
    bool found = false;
    struct dirent *d;
    while (proc && !found && (d = readdir(proc))) {
        found = isdigit((unsigned char)d->d_name[0]) && strlen(d->d_name) < 16 &&
                owns_socket(d->d_name, inode);
        if (found)
            memcpy(pid, d->d_name, strlen(d->d_name) + 1);
    }
    if (proc)
        closedir(proc);
    return found;
}

static bool slot_dir_of(const char *pid, char *out, size_t size)
{
    char path[300], args[MAX_ARGS], cwd[PATH_MAX];
    const size_t len = read_args(pid, args, sizeof(args));
    const char *dir = option_value(args, len, "--slot-save-path");
    if (!dir || !*dir)
        return false;
    snprintf(path, sizeof(path), "/proc/%s/cwd", pid);
    const ssize_t n = readlink(path, cwd, sizeof(cwd) - 1);
    cwd[n > 0 ? n : 0] = '\0';
    const int wrote = *dir == '/' ? snprintf(out, size, "%s", dir)
                                  : snprintf(out, size, "%s/%s", cwd, dir);
    return wrote > 0 && (size_t)wrote < size;
}

bool procfind_slot_dir(uint16_t port, char *out, size_t size)
{
    char pid[16];
    struct stat st;
    return find_process(port, pid) && slot_dir_of(pid, out, size) &&
           stat(out, &st) == 0 && S_ISDIR(st.st_mode);
}

static bool begins_with_one(const char *arg, const char *const *names)
{
    for (; *names; names++)
        if (strncmp(arg, *names, strlen(*names)) == 0)
            return true;
    return false;
}

void procfind_options(uint16_t port, const char *const *names, struct buf *out)
{
    char pid[16], args[MAX_ARGS];
    if (!find_process(port, pid))
        return;
    const size_t len = read_args(pid, args, sizeof(args));
    for (const char *p = args; p < args + len; p += strlen(p) + 1) {
        const char *value = p + strlen(p) + 1;
        if (!begins_with_one(p, names))
            continue;
        buf_append(out, p, strlen(p) + 1);
        if (!strchr(p, '=') && value < args + len)
            buf_append(out, value, strlen(value) + 1);
    }
}
