/* SPDX-License-Identifier: MIT */
#include "llamacpp_internal.h"

/*
 * Which weights are these? Hashing gigabytes at each start is too slow; the size, the
 * first and the last megabyte (a GGUF header with all metadata, and the end of the
 * tensors) and samples spread over the file tell models apart.
 */

#include <fcntl.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/mem.h"

#define EDGE_BYTES (1 << 20)
#define SAMPLE_BYTES 4096
#define SAMPLES 256

static bool add(struct buf *b, int fd, off_t at, size_t n)
{
    const ssize_t got = pread(fd, buf_reserve(b, n), n, at);
    if (got < 0)
        return false;
    buf_commit(b, (size_t)got);
    return true;
}

bool modelfile_hash(const char *path, struct hash128 *out)
{
    struct stat st;
    struct buf b = {0};
    const int fd = open(path, O_RDONLY | O_CLOEXEC);
    bool fine = fd >= 0 && fstat(fd, &st) == 0 && S_ISREG(st.st_mode);
    if (fine) {
        const off_t size = st.st_size, tail = size > EDGE_BYTES ? size - EDGE_BYTES : 0;
        buf_append(&b, &size, sizeof(size));
        fine = add(&b, fd, 0, EDGE_BYTES) && add(&b, fd, tail, EDGE_BYTES);
        for (int i = 1; fine && i <= SAMPLES; i++)
            fine = add(&b, fd, size / (SAMPLES + 1) * i, SAMPLE_BYTES);
        *out = chain_checksum(buf_slice(&b));
    }
    buf_free(&b);
    if (fd >= 0)
        close(fd);
    return fine;
}
