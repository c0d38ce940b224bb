/* SPDX-License-Identifier: MIT */
#include "store_internal.h"

/*
 * Everything below the directory is opened step by step, relative to the folder above
 * and without following symlinks: who can write there must not make us read or write
 * anywhere else. O_NONBLOCK keeps a FIFO of that name from holding up a worker.
 */

#include <assert.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

int store_file_folder(int at, const char *name, bool make)
{
    const int flags = O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC;
    int fd = openat(at, name, flags);
    if (fd >= 0 || errno != ENOENT || !make)
        return fd;
    const bool made = mkdirat(at, name, 0700) == 0;
    if (made || errno == EEXIST)
        fd = openat(at, name, flags);
    if (made && fd >= 0 && fchmod(fd, 0700) != 0) { /* whatever the umask */
        close(fd);
        fd = -1;
    }
    return fd;
}

static ssize_t read_some(int fd, void *out, size_t n)
{
    ssize_t got;
    do
        got = read(fd, out, n);
    while (got < 0 && errno == EINTR);
    return got;
}

bool store_file_read(int fd, void *out, size_t n)
{
    char *p = out;
    while (n > 0) {
        const ssize_t got = read_some(fd, p, n);
        if (got <= 0) {
            errno = got < 0 ? errno : ENODATA;
            return false;
        }
        p += got;
        n -= (size_t)got;
    }
    return true;
}

int store_file_read_failed(struct err *e)
{
    return errno == ENODATA ? err_set(e, ERR_CHECKSUM, "cut short")
                            : err_errno(e, "reading a block");
}

int64_t store_file_read_small(int at, const char *name, void *out, size_t max)
{
    struct stat st;
    size_t n = 0;
    ssize_t got = -1;
    const int fd = openat(at, name, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
    if (fd < 0)
        return -1;
    if (fstat(fd, &st) != 0 || !S_ISREG(st.st_mode))
        errno = EINVAL;
    else
        while ((got = read_some(fd, (char *)out + n, max - n)) > 0)
            n += (size_t)got;
    close(fd);
    return got < 0 ? -1 : (int64_t)n;
}

static bool write_all(int fd, struct slice bytes)
{
    while (bytes.len > 0) {
        const ssize_t put = write(fd, bytes.ptr, bytes.len);
        if (put < 0 && errno != EINTR)
            return false;
        if (put > 0) {
            bytes.ptr += put;
            bytes.len -= (size_t)put;
        }
    }
    return true;
}

bool store_file_write(const struct store_file_target *t, struct slice bytes)
{
    char name[32];
    snprintf(name, sizeof name, "w%llu", (unsigned long long)t->number);
    const int fd =
        openat(t->tmp, name, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
    if (fd < 0)
        return false;
    bool ok =
        fchmod(fd, 0600) == 0 && write_all(fd, bytes) && (!t->sync || fdatasync(fd) == 0);
    int why = errno;
    if (close(fd) != 0 && ok) {
        ok = false;
        why = errno;
    }
    if (ok && renameat(t->tmp, name, t->to, t->name) != 0) {
        ok = false;
        why = errno;
    }
    if (!ok)
        unlinkat(t->tmp, name, 0);
    errno = why;
    return ok;
}

bool store_file_each(int folder, store_file_fn fn, void *arg)
{
    struct dirent *entry;
    /* A stream closes its descriptor, and two streams on one would share the position. */
    const int own = openat(folder, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR *stream = own < 0 ? NULL : fdopendir(own);
    if (!stream) {
        if (own >= 0)
            close(own);
        return false;
    }
    while (errno = 0, (entry = readdir(stream)))
        if (entry->d_name[0] != '.')
            fn(arg, folder, entry->d_name);
    const bool all = errno == 0;
    closedir(stream);
    return all;
}

static void remove_file(void *arg, int folder, const char *name)
{
    (void)arg;
    unlinkat(folder, name, 0);
}

void store_file_clear(int folder)
{
    store_file_each(folder, remove_file, NULL);
}
