/* SPDX-License-Identifier: MIT */

/*
 * A disk that fails when it is told to: preloaded into a gateway (LD_PRELOAD), between it
 * and the C library. Only files below two folders are touched:
 *
 *     FAULTFS_STORE     its store:          class BLOCK (blocks, tmp, damaged), LOG
 *     FAULTFS_SLOTS     the slot directory: class SLOT
 *     FAULTFS_CONTROL   a file that is shared with the test: one rule for each class and
 *                       operation, with what to do and how often it was done
 *
 * Descriptors are classed when they are opened: by the folder that they were opened in, or
 * by their path. What the C library does by itself (streams, listing a folder) is not
 * seen.
 */

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/types.h>
#include <unistd.h>

#define MAX_FDS 4096
#define FOR_EVER UINT32_MAX

enum class { BLOCK, LOG, SLOT, CLASSES, ROOT, NONE };
enum op { OPEN, CREATE, READ, WRITE, SYNC, RENAME, UNLINK, MKDIR, OPS };

/* An errno, or one of these. */
enum {
    SHORT = 0x10000, /* half of the bytes */
    KILL = 0x20000,  /* SIGKILL instead of the operation */
    AFTER = 0x40000, /* SIGKILL behind it; of a write, behind its first half */
};

struct rule {
    atomic_uint what;   /* 0: nothing */
    atomic_uint after;  /* calls that are let through first */
    atomic_uint times;  /* calls that are hit then */
    atomic_uint chance; /* of each of them, in 65536 */
    atomic_ullong calls, hits;
};

static struct rule (*rules)[OPS];
static const char *store, *slots;
static unsigned char classes[MAX_FDS]; /* class + 1; one descriptor, one thread */
static atomic_ullong dice = 0x9e3779b97f4a7c15;

#define REAL(name) ((__typeof__(&(name)))dlsym(RTLD_NEXT, #name))

__attribute__((constructor)) static void set_up(void)
{
    const char *path = getenv("FAULTFS_CONTROL");
    store = getenv("FAULTFS_STORE");
    slots = getenv("FAULTFS_SLOTS");
    const int fd = path && store && slots ? REAL(open)(path, O_RDWR | O_CLOEXEC) : -1;
    if (fd < 0)
        return;
    const size_t size = CLASSES * sizeof *rules;
    void *p = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    rules = p == MAP_FAILED ? NULL : p;
    REAL(close)(fd);
}

/* ---- what is it about? ------------------------------------------------------------- */

static enum class class_of_fd(int fd) {
    return fd >= 0 && fd < MAX_FDS && classes[fd] ? classes[fd] - 1 : NONE;
}

static void set_class(int fd, enum class c)
{
    if (fd >= 0 && fd < MAX_FDS)
        classes[fd] = (unsigned char)(c == NONE ? 0 : c + 1);
}

static enum class class_in_store(const char *name) {
    static const char *const of_blocks[] = {"blocks", "tmp", "damaged"};
    for (size_t i = 0; i < 3;
         i++) if (strncmp(name, of_blocks[i], strlen(of_blocks[i])) == 0) return BLOCK;
    return strncmp(name, "prompts.log", 11) == 0 ? LOG : NONE;
}

static const char *below(const char *folder, const char *path)
{
    const size_t n = strlen(folder);
    if (strncmp(path, folder, n) != 0 || (path[n] && path[n] != '/'))
        return NULL;
    return path + n + (path[n] == '/');
}

static enum class class_of(int at, const char *path) {
    const char *rest;
    if (path[0] == '/' && (rest = below(store, path))) return *rest ? class_in_store(rest)
                                                                    : ROOT;
    if (path[0] == '/') return below(slots, path) ? SLOT : NONE;
    const enum class c = class_of_fd(at);
    return c == ROOT ? class_in_store(path) : c;
}

/* ---- what is to be done? ----------------------------------------------------------- */

static bool thrown(struct rule *r)
{
    unsigned long long x = atomic_fetch_add(&dice, 0x9e3779b97f4a7c15);
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9;
    x = (x ^ (x >> 27)) * 0x94d049bb133111eb;
    return ((x >> 40) & 0xffff) < atomic_load(&r->chance);
}

static bool taken(atomic_uint *left)
{
    unsigned n = atomic_load(left);
    while (n && n != FOR_EVER)
        if (atomic_compare_exchange_weak(left, &n, n - 1))
            return true;
    return n == FOR_EVER;
}

/* 0: nothing. Otherwise it is counted, and where it is an errno, set. */
static unsigned fault(enum class c, enum op op)
{
    if (!rules || c >= CLASSES)
        return 0;
    struct rule *r = &rules[c][op];
    atomic_fetch_add(&r->calls, 1);
    const unsigned what = atomic_load(&r->what);
    if (!what || taken(&r->after) || !thrown(r) || !taken(&r->times))
        return 0;
    atomic_fetch_add(&r->hits, 1);
    if (what == KILL)
        raise(SIGKILL);
    if (what < SHORT)
        errno = (int)what;
    return what;
}

static bool fails(unsigned what)
{
    return what && what < SHORT;
}

static long after(unsigned what, long result)
{
    if (what == AFTER)
        raise(SIGKILL);
    return result;
}

/* ---- the operations ---------------------------------------------------------------- */

static int open_any(int at, const char *path, int flags, mode_t mode)
{
    const enum class c = rules ? class_of(at, path) : NONE;
    const bool file = !(flags & O_DIRECTORY);
    const unsigned what = file ? fault(c, flags & O_CREAT ? CREATE : OPEN) : 0;
    if (fails(what))
        return -1;
    const int fd = REAL(openat)(at, path, flags, mode);
    if (strcmp(path, ".") != 0) /* closed by the stream that lists it */
        set_class(fd, c);
    return (int)after(what, fd);
}

static mode_t mode_of(int flags, va_list ap)
{
    return flags & O_CREAT ? (mode_t)va_arg(ap, int) : 0;
}

int open(const char *path, int flags, ...)
{
    va_list ap;
    va_start(ap, flags);
    const mode_t mode = mode_of(flags, ap);
    va_end(ap);
    return open_any(AT_FDCWD, path, flags, mode);
}

int openat(int at, const char *path, int flags, ...)
{
    va_list ap;
    va_start(ap, flags);
    const mode_t mode = mode_of(flags, ap);
    va_end(ap);
    return open_any(at, path, flags, mode);
}

int dup(int fd)
{
    const int copy = REAL(dup)(fd);
    set_class(copy, class_of_fd(fd));
    return copy;
}

int close(int fd)
{
    set_class(fd, NONE);
    return REAL(close)(fd);
}

ssize_t read(int fd, void *out, size_t n)
{
    const unsigned what = fault(class_of_fd(fd), READ);
    if (fails(what))
        return -1;
    return after(what, REAL(read)(fd, out, what == SHORT && n > 1 ? n / 2 : n));
}

ssize_t write(int fd, const void *bytes, size_t n)
{
    const unsigned what = fault(class_of_fd(fd), WRITE);
    if (fails(what))
        return -1;
    const bool half = (what == SHORT || what == AFTER) && n > 1;
    return after(what, REAL(write)(fd, bytes, half ? n / 2 : n));
}

int fdatasync(int fd)
{
    const unsigned what = fault(class_of_fd(fd), SYNC);
    return fails(what) ? -1 : (int)after(what, REAL(fdatasync)(fd));
}

int renameat(int from, const char *a, int to, const char *b)
{
    const unsigned what = fault(rules ? class_of(from, a) : NONE, RENAME);
    return fails(what) ? -1 : (int)after(what, REAL(renameat)(from, a, to, b));
}

int rename(const char *a, const char *b)
{
    return renameat(AT_FDCWD, a, AT_FDCWD, b);
}

int unlinkat(int at, const char *path, int flags)
{
    const unsigned what = fault(rules ? class_of(at, path) : NONE, UNLINK);
    return fails(what) ? -1 : (int)after(what, REAL(unlinkat)(at, path, flags));
}

int unlink(const char *path)
{
    return unlinkat(AT_FDCWD, path, 0);
}

int mkdirat(int at, const char *path, mode_t mode)
{
    const unsigned what = fault(rules ? class_of(at, path) : NONE, MKDIR);
    return fails(what) ? -1 : (int)after(what, REAL(mkdirat)(at, path, mode));
}
