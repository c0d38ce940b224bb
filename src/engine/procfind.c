/* SPDX-License-Identifier: MIT */
#include "llamacpp_internal.h"

/*
 * `incipit serve --upstream URL` should do its main job without a second option. The API
 * does not tell where the engine keeps its slot files, but on the same host /proc does:
 * port or path → socket inode → process → command line → --slot-save-path.
 */

#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/procs.h"

#define MAX_ARGS 16384 /* of a command line that is looked at */

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

/* The process that listens there; false where it cannot be seen. */
static bool find_process(const struct addr *at, pid_t *pid)
{
    if (at->sa.ss_family == AF_UNIX)
        return procs_listening_at(at->text + strlen("unix:"), pid, 1) == 1;
    return addr_is_loopback(at) && procs_listening(addr_port(at), pid, 1) == 1;
}

static bool slot_dir_of(pid_t pid, char *out, size_t size)
{
    char path[64], args[MAX_ARGS], cwd[PATH_MAX];
    const size_t len = procs_args(pid, args, sizeof(args));
    const char *dir = option_value(args, len, "--slot-save-path");
    if (!dir || !*dir)
        return false;
    snprintf(path, sizeof(path), "/proc/%d/cwd", (int)pid);
    const ssize_t n = readlink(path, cwd, sizeof(cwd) - 1);
    cwd[n > 0 ? n : 0] = '\0';
    const int wrote = *dir == '/' ? snprintf(out, size, "%s", dir)
                                  : snprintf(out, size, "%s/%s", cwd, dir);
    return wrote > 0 && (size_t)wrote < size;
}

bool procfind_slot_dir(const struct addr *at, char *out, size_t size)
{
    pid_t pid;
    struct stat st;
    return find_process(at, &pid) && slot_dir_of(pid, out, size) && stat(out, &st) == 0 &&
           S_ISDIR(st.st_mode);
}

static bool begins_with_one(const char *arg, const char *const *names)
{
    for (; *names; names++)
        if (strncmp(arg, *names, strlen(*names)) == 0)
            return true;
    return false;
}

void procfind_options(const struct addr *at, const char *const *names, struct buf *out)
{
    pid_t pid;
    char args[MAX_ARGS];
    if (!find_process(at, &pid))
        return;
    const size_t len = procs_args(pid, args, sizeof(args));
    for (const char *p = args; p < args + len; p += strlen(p) + 1) {
        const char *value = p + strlen(p) + 1;
        if (!begins_with_one(p, names))
            continue;
        buf_append(out, p, strlen(p) + 1);
        if (!strchr(p, '=') && value < args + len)
            buf_append(out, value, strlen(value) + 1);
    }
}
