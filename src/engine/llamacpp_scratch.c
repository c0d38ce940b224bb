/* SPDX-License-Identifier: MIT */
#include "llamacpp_internal.h"

/*
 * Slot files on their way between engine and gateway, in the engine's slot directory.
 * They live for seconds; what a gateway that crashed has left behind would fill it.
 */

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "base/log.h"
#include "base/mem.h"

#define OLD_S 600 /* no save or restore takes as long */

char *llama_scratch(struct llama *l, char name[64])
{
    static unsigned number; /* engines may share a directory */
    snprintf(name, 64, "incipit-%08x-%d.kv", number++, (int)getpid());
    return mem_printf("%s/%s", l->r->slot_dir, name);
}

/* The process that made a file of this name; -1 where it is none of ours. */
static int maker_of(const char *name)
{
    unsigned number;
    int pid, end = 0;
    if (sscanf(name, "incipit-%8x-%d.kv%n", &number, &pid, &end) != 2 || !end ||
        name[end])
        return -1;
    return pid;
}

static bool is_left_behind(int dir, const char *name)
{
    struct stat st;
    const int pid = maker_of(name);
    if (pid <= 0 || fstatat(dir, name, &st, AT_SYMLINK_NOFOLLOW) != 0)
        return false;
    if (pid != (int)getpid() && kill(pid, 0) != 0 && errno == ESRCH)
        return true;
    return time(NULL) - st.st_mtime > OLD_S;
}

void llama_scratch_clean(const char *path)
{
    DIR *dir = opendir(path);
    struct dirent *d;
    int n = 0;
    while (dir && (d = readdir(dir)))
        if (is_left_behind(dirfd(dir), d->d_name))
            n += unlinkat(dirfd(dir), d->d_name, 0) == 0;
    if (dir)
        closedir(dir);
    if (n)
        log_event(LOG_INFO, "scratch-cleaned", "files", "%d", n, NULL);
}
