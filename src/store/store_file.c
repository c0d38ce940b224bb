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

bool store_file_is_no_folder(int why)
{
    return why == ENOENT || why == ENOTDIR || why == ELOOP;
}

static ssize_t read_some(int fd, void *out, size_t n)
{
    ssize_t got;
    do
        got = read(fd, out, n);
    while (got < 0 && errno == EINTR);
    return got;
}

size_t store_file_read_some(int fd, void *out, size_t n, size_t most)
{
    size_t have = 0;
    while (have < n) {
        const ssize_t got = read_some(fd, (char *)out + have, most - have);
        if (got <= 0) {
            errno = got < 0 ? errno : ENODATA;
            return 0;
        }
        have += (size_t)got;
    }
    return have;
}

bool store_file_read(int fd, void *out, size_t n)
{
    return n == 0 || store_file_read_some(fd, out, n, n) > 0;
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

static void tmp_name(const struct store_file_target *t, char out[48])
{
    snprintf(out, 48, "%s%llu", t->life, (unsigned long long)t->number);
}

/* On failure nothing is left of it. */
static bool undo(const struct store_file_target *t, const char *name)
{
    const int why = errno;
    unlinkat(t->tmp, name, 0);
    errno = why;
    return false;
}

bool store_file_make(const struct store_file_target *t, struct slice bytes)
{
    char name[48];
    tmp_name(t, name);
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
    errno = why;
    return ok || undo(t, name);
}

bool store_file_move(const struct store_file_target *t)
{
    char name[48];
    tmp_name(t, name);
    return renameat(t->tmp, name, t->to, t->name) == 0 || undo(t, name);
}

bool store_file_write(const struct store_file_target *t, struct slice bytes)
{
    return store_file_make(t, bytes) && store_file_move(t);
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

struct clearing {
    const char *except;
};

static void remove_file(void *arg, int folder, const char *name)
{
    const struct clearing *c = arg;
    if (strncmp(name, c->except, strlen(c->except)) != 0)
        unlinkat(folder, name, 0);
}

void store_file_clear(int folder, const char *except)
{
    struct clearing c = {except};
    store_file_each(folder, remove_file, &c);
}

/* A file system may give finer times to what somebody has looked at: hence the first
 * look. */
bool store_file_now(int fd, int64_t *ns)
{
    struct stat st;
    if (fstat(fd, &st) != 0 || futimens(fd, NULL) != 0 || fstat(fd, &st) != 0)
        return false;
    *ns = st.st_ctim.tv_sec * 1000000000LL + st.st_ctim.tv_nsec;
    return true;
}
