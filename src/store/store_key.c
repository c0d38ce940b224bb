/* SPDX-License-Identifier: MIT */
#include "store_internal.h"

/*
 * A key in a file of its own, for gateways that share what they have. It is written under
 * another name and linked to its own: of two gateways that start at once both get the key
 * of the one that was first.
 */

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/random.h>
#include <unistd.h>

#include "base/mem.h"

int store_key_make(unsigned char key[CHAIN_KEY_BYTES], struct err *e)
{
    if (getrandom(key, CHAIN_KEY_BYTES, 0) == CHAIN_KEY_BYTES)
        return 0;
    return err_errno(e, "no random bytes for a key");
}

static int write_new(const char *path, struct err *e)
{
    unsigned char key[CHAIN_KEY_BYTES];
    if (store_key_make(key, e) != 0)
        return e->code;
    char *tmp = mem_printf("%s.new-%ld", path, (long)getpid());
    const int fd = open(tmp, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
    const bool written = fd >= 0 && write(fd, key, sizeof key) == sizeof key &&
                         fsync(fd) == 0 && (link(tmp, path) == 0 || errno == EEXIST);
    if (!written)
        err_errno(e, "cannot make the key file %s", path);
    if (fd >= 0) {
        close(fd);
        unlink(tmp);
    }
    free(tmp);
    return written ? 0 : ERR_IO;
}

static int check_mode(int fd, const char *path, struct err *e)
{
    struct stat st;
    if (fstat(fd, &st) != 0)
        return err_errno(e, "cannot read the key file %s", path);
    if (!S_ISREG(st.st_mode) || (st.st_mode & 077))
        return err_set(e, ERR_REFUSED,
                       "the key file %s can be read by others: chmod 600 it", path);
    if (st.st_size != CHAIN_KEY_BYTES)
        return err_set(e, ERR_FORMAT,
                       "the key file %s has %lld bytes instead of %d: copy it again",
                       path, (long long)st.st_size, CHAIN_KEY_BYTES);
    return 0;
}

int store_key_load(const char *path, unsigned char key[CHAIN_KEY_BYTES], struct err *e)
{
    struct err own = {0};
    e = e ? e : &own;
    if (access(path, F_OK) != 0 && errno == ENOENT && write_new(path, e) != 0)
        return e->code;
    return store_key_read(path, key, e);
}

int store_key_read(const char *path, unsigned char key[CHAIN_KEY_BYTES], struct err *e)
{
    const int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return err_errno(e, "cannot read the key file %s", path);
    int rc = check_mode(fd, path, e);
    if (rc == 0 && !store_file_read(fd, key, CHAIN_KEY_BYTES))
        rc = err_errno(e, "cannot read the key file %s", path);
    close(fd);
    return rc;
}
