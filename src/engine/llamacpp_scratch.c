/* SPDX-License-Identifier: MIT */
#include "llamacpp_internal.h"

/*
 * Slot files on their way between engine and gateway, in the engine's slot directory.
 * They live for seconds; what a gateway that crashed has left behind would fill it.
 *
 *     incipit-NUMBER-PID-SPACE.kv     SPACE: the maker's space of process numbers, since
 *                                     containers that share a directory have their own
 *
 * A file of a process that is gone is removed at once where its number means something
 * here, else when it is too old to be in use.
 */

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <time.h>
#include <unistd.h>

#include "base/log.h"
#include "base/mem.h"
#include "base/units.h"

#define OLD_S 600 /* no save or restore takes as long */
#define DOCKER_SHM ((uint64_t)64 << 20)

/* 0 where it cannot be told. */
static unsigned long long process_space(void)
{
    struct stat st;
    return stat("/proc/self/ns/pid", &st) == 0 ? (unsigned long long)st.st_ino : 0;
}

char *llama_scratch(struct llama *l, char name[64])
{
    static unsigned number; /* engines may share a directory */
    snprintf(name, 64, "incipit-%08x-%d-%llx.kv", number++, (int)getpid(),
             process_space());
    return mem_printf("%s/%s", l->r->slot_dir, name);
}

/* The process that made a file of this name; -1 where it is none of ours. */
static int maker_of(const char *name, unsigned long long *space)
{
    unsigned number;
    int pid, end = 0;
    if (sscanf(name, "incipit-%8x-%d-%16llx.kv%n", &number, &pid, space, &end) != 3 ||
        !end || name[end])
        return -1;
    return pid;
}

static bool is_left_behind(int dir, const char *name)
{
    struct stat st;
    unsigned long long space;
    const int pid = maker_of(name, &space);
    if (pid <= 0 || fstatat(dir, name, &st, AT_SYMLINK_NOFOLLOW) != 0)
        return false;
    if (space && space == process_space() && pid != (int)getpid() && kill(pid, 0) != 0 &&
        errno == ESRCH)
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

int llama_scratch_write(const char *path, const unsigned char *bytes, size_t size)
{
    const int fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
    size_t done = 0;
    while (fd >= 0 && done < size) {
        const ssize_t n = write(fd, bytes + done, size - done);
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            break;
        done += (size_t)n;
    }
    const int error = fd < 0 || done < size ? (errno ? errno : EIO) : 0;
    if (fd >= 0)
        close(fd);
    return error;
}

/* ---- room -------------------------------------------------------------------------- */

/* Metadata of a local file system, as unlink() is: it does not make the loop wait. */
static bool look(struct replica *r)
{
    struct statvfs v;
    if (!r->slot_dir || statvfs(r->slot_dir, &v) != 0)
        return false;
    r->scratch.size = (uint64_t)v.f_blocks * v.f_frsize;
    r->scratch.free = (uint64_t)v.f_bavail * v.f_frsize;
    return true;
}

void llama_scratch_look(struct llama *l)
{
    struct replica *r = l->r;
    char wanted[24], size[24], left[24], one[24];
    const uint64_t full = llama_state_bytes(l, l->n_ctx);
    r->scratch.wanted = (l->n_slots + 1) * full;
    if (!look(r) || r->scratch.free >= r->scratch.wanted)
        return;
    log_event(
        LOG_WARN, "scratch-small", "replica", "%s", r->name, "slot_dir", "%s",
        r->slot_dir, "size", "%s", units_format_bytes(r->scratch.size, size), "free",
        "%s", units_format_bytes(r->scratch.free, left), "full_slot", "%s",
        units_format_bytes(full, one), "wanted", "%s",
        units_format_bytes(r->scratch.wanted, wanted), "advice", "%s",
        r->scratch.size == DOCKER_SHM
            ? "64 MiB is what containers get as /dev/shm unless --shm-size says more"
            : "slots that do not fit are neither saved nor restored: give it more "
              "room or the engine less context",
        NULL);
}

bool llama_scratch_room(struct llama *l, uint64_t bytes)
{
    return !look(l->r) || l->r->scratch.free >= bytes;
}

/* ---- files that may still come ----------------------------------------------------- */

static void drop_late(struct scratch_late *f)
{
    if (f->path)
        unlink(f->path);
    free(f->path);
    f->path = NULL;
}

void llama_scratch_late(struct llama *l, char *path)
{
    struct scratch_late *f = &l->late[0];
    if (unlink(path) == 0) {
        free(path);
        return;
    }
    for (size_t i = 0; i < LLAMA_LATE_FILES; i++)
        if (!l->late[i].path || (f->path && l->late[i].until_us < f->until_us))
            f = &l->late[i];
    drop_late(f);
    f->path = path;
    f->until_us = loop_now_us(l->r->loop) + OLD_S * 1000000ull;
}

void llama_scratch_late_look(struct llama *l)
{
    for (size_t i = 0; i < LLAMA_LATE_FILES; i++) {
        struct scratch_late *f = &l->late[i];
        if (f->path &&
            (access(f->path, F_OK) == 0 || loop_now_us(l->r->loop) > f->until_us))
            drop_late(f);
    }
}

void llama_scratch_late_free(struct llama *l)
{
    for (size_t i = 0; i < LLAMA_LATE_FILES; i++)
        drop_late(&l->late[i]);
}
