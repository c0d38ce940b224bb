/* SPDX-License-Identifier: MIT */
#include "llamacpp_internal.h"

/*
 * Which weights are these? Hashing gigabytes at each start is too slow; the size, the
 * head (all metadata of a GGUF file, with the largest vocabularies), the last megabyte
 * and samples spread over the file tell models apart. Path and times are no part of it.
 *
 * A model in several files (NAME-00001-of-00003.gguf) is all of them.
 */

#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/mem.h"

#define HEAD_BYTES ((size_t)32 << 20)
#define TAIL_BYTES ((size_t)1 << 20)
#define SAMPLE_BYTES 4096
#define SAMPLES 256
#define MAX_PARTS 999
#define FORM_BYTES (sizeof("-00001-of-00000.gguf") - 1)

static bool add(struct buf *b, int fd, off_t at, size_t n)
{
    const ssize_t got = pread(fd, buf_reserve(b, n), n, at);
    if (got < 0)
        return false;
    buf_commit(b, (size_t)got);
    return true;
}

static bool hash_file(const char *path, struct hash128 *out)
{
    struct stat st;
    struct buf b = {0};
    const int fd = open(path, O_RDONLY | O_CLOEXEC);
    bool fine = fd >= 0 && fstat(fd, &st) == 0 && S_ISREG(st.st_mode);
    if (fine) {
        const off_t size = st.st_size;
        const off_t tail = size > (off_t)TAIL_BYTES ? size - (off_t)TAIL_BYTES : 0;
        const size_t head = size > (off_t)HEAD_BYTES ? HEAD_BYTES : (size_t)size;
        buf_append(&b, &size, sizeof(size));
        fine = add(&b, fd, 0, head) && add(&b, fd, tail, TAIL_BYTES);
        for (int i = 1; fine && i <= SAMPLES; i++)
            fine = add(&b, fd, size / (SAMPLES + 1) * i, SAMPLE_BYTES);
        *out = chain_checksum(buf_slice(&b));
    }
    buf_free(&b);
    if (fd >= 0)
        close(fd);
    return fine;
}

/* How many files it is; `stem` gets the length of the name up to the number. */
static int count_parts(const char *path, size_t *stem)
{
    const size_t n = strlen(path);
    int parts = 0;
    *stem = n;
    if (n <= FORM_BYTES || sscanf(path + n - FORM_BYTES, "-00001-of-%5d", &parts) != 1 ||
        strcmp(path + n - 5, ".gguf") != 0 || parts < 1 || parts > MAX_PARTS)
        return 1;
    *stem = n - FORM_BYTES;
    return parts;
}

static char *part_path(const char *path, size_t stem, int part, int parts)
{
    if (parts == 1)
        return mem_strdup(path);
    return mem_printf("%.*s-%05d-of-%05d.gguf", (int)stem, path, part, parts);
}

/* Size, times and place of all parts: what an unchanged file has. */
static bool stamp(const char *path, struct hash128 *out)
{
    size_t stem;
    struct buf b = {0};
    const int parts = count_parts(path, &stem);
    bool fine = true;
    buf_append_str(&b, path);
    for (int i = 1; fine && i <= parts; i++) {
        struct stat st;
        char *part = part_path(path, stem, i, parts);
        fine = stat(part, &st) == 0;
        if (fine)
            buf_printf(&b, " %lld %lld.%09ld %llu %llu", (long long)st.st_size,
                       (long long)st.st_mtim.tv_sec, st.st_mtim.tv_nsec,
                       (unsigned long long)st.st_dev, (unsigned long long)st.st_ino);
        free(part);
    }
    *out = chain_checksum(buf_slice(&b));
    buf_free(&b);
    return fine;
}

static bool hash_parts(const char *path, struct hash128 *out)
{
    size_t stem;
    struct buf b = {0};
    const int parts = count_parts(path, &stem);
    bool fine = true;
    for (int i = 1; fine && i <= parts; i++) {
        struct hash128 h;
        char *part = part_path(path, stem, i, parts);
        fine = hash_file(part, &h);
        if (fine)
            buf_append(&b, &h, sizeof(h));
        free(part);
    }
    *out = chain_checksum(buf_slice(&b));
    buf_free(&b);
    return fine;
}

/* "STAMP HASH", in hexadecimal. */
static bool read_memo(const char *memo, struct hash128 seen, struct hash128 *out)
{
    char hex[HASH128_HEX];
    if (strncmp(memo, hash128_hex(seen, hex), HASH128_HEX - 1) != 0)
        return false;
    return sscanf(memo + HASH128_HEX - 1, " %16" SCNx64 "%16" SCNx64, &out->hi,
                  &out->lo) == 2;
}

bool modelfile_hash(const char *path, char memo[MODELFILE_MEMO], struct hash128 *out)
{
    char a[HASH128_HEX], b[HASH128_HEX];
    struct hash128 seen;
    if (!stamp(path, &seen))
        return false;
    if (memo && read_memo(memo, seen, out))
        return true;
    if (!hash_parts(path, out))
        return false;
    if (memo)
        snprintf(memo, MODELFILE_MEMO, "%s %s", hash128_hex(seen, a),
                 hash128_hex(*out, b));
    return true;
}
