/* SPDX-License-Identifier: MIT */

/*
 * The n-th call fails: preloaded into a gateway (LD_PRELOAD), between it and the C library.
 * FAULTCALLS names a file of struct control that is shared with the test: calls of each
 * kind are counted, and the one whose turn it is fails with an errno that the kernel could
 * have given. Calls of libevent, OpenSSL and hiredis are seen as well; what the C library
 * calls by itself is not. Descriptors that cannot fail (eventfd, timerfd, epoll) are left
 * alone.
 */

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/timerfd.h>
#include <sys/uio.h>
#include <unistd.h>

#define LARGE (64 << 10)

enum kind {
    RECV,    /* read, recv, recvmsg of a socket */
    SEND,    /* write, writev, send, sendmsg to a socket */
    READ,    /* read, pread of a file */
    WRITE,   /* write, pwrite to a file */
    CONNECT, /* at once; see ASYNC */
    ASYNC,   /* what getsockopt(SO_ERROR) tells behind a connect() */
    ACCEPT,
    EPOLL_ADD, /* EPOLL_CTL_ADD and _MOD: taking something away does not fail */
    SOCKET,
    TIMERFD,
    EVENTFD,
    OPEN,
    SYNC,
    STAT,
    MMAP,
    THREAD,
    MALLOC, /* above LARGE */
    KINDS
};

struct control {
    struct {
        atomic_uint error; /* 0: no call fails */
        atomic_uint at;    /* the call that fails, from 1 */
        atomic_uint calls, hits;
    } kinds[KINDS];
};

static struct control *control;

#define REAL(name) ((__typeof__(&(name)))dlsym(RTLD_NEXT, #name))

void *__libc_malloc(size_t size);
void *__libc_calloc(size_t n, size_t size);
void *__libc_realloc(void *p, size_t size);

__attribute__((constructor)) static void set_up(void)
{
    const char *path = getenv("FAULTCALLS");
    const int fd = path ? REAL(open)(path, O_RDWR | O_CLOEXEC) : -1;
    if (fd < 0)
        return;
    void *p =
        REAL(mmap)(NULL, sizeof(*control), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    REAL(close)(fd);
    control = p == MAP_FAILED ? NULL : p;
}

/* Whether this is the call that fails; errno is set then. */
static bool fails(enum kind k)
{
    if (!control)
        return false;
    const unsigned n = atomic_fetch_add(&control->kinds[k].calls, 1) + 1;
    const unsigned error = atomic_load(&control->kinds[k].error);
    if (!error || n != atomic_load(&control->kinds[k].at))
        return false;
    atomic_fetch_add(&control->kinds[k].hits, 1);
    errno = (int)error;
    return true;
}

static bool is_of(int fd, mode_t type)
{
    struct stat st;
    const int kept = errno;
    const bool is = control && REAL(fstat)(fd, &st) == 0 && (st.st_mode & S_IFMT) == type;
    errno = kept;
    return is;
}

static bool transfer_fails(int fd, enum kind of_socket, enum kind of_file)
{
    return is_of(fd, S_IFSOCK)  ? fails(of_socket)
           : is_of(fd, S_IFREG) ? fails(of_file)
                                : false;
}

/* ---- bytes ------------------------------------------------------------------------- */

ssize_t read(int fd, void *out, size_t n)
{
    return transfer_fails(fd, RECV, READ) ? -1 : REAL(read)(fd, out, n);
}

ssize_t pread(int fd, void *out, size_t n, off_t at)
{
    return transfer_fails(fd, RECV, READ) ? -1 : REAL(pread)(fd, out, n, at);
}

ssize_t recv(int fd, void *out, size_t n, int flags)
{
    return fails(RECV) ? -1 : REAL(recv)(fd, out, n, flags);
}

ssize_t recvmsg(int fd, struct msghdr *m, int flags)
{
    return fails(RECV) ? -1 : REAL(recvmsg)(fd, m, flags);
}

ssize_t write(int fd, const void *bytes, size_t n)
{
    return transfer_fails(fd, SEND, WRITE) ? -1 : REAL(write)(fd, bytes, n);
}

ssize_t pwrite(int fd, const void *bytes, size_t n, off_t at)
{
    return transfer_fails(fd, SEND, WRITE) ? -1 : REAL(pwrite)(fd, bytes, n, at);
}

ssize_t writev(int fd, const struct iovec *v, int n)
{
    return transfer_fails(fd, SEND, WRITE) ? -1 : REAL(writev)(fd, v, n);
}

ssize_t send(int fd, const void *bytes, size_t n, int flags)
{
    return fails(SEND) ? -1 : REAL(send)(fd, bytes, n, flags);
}

ssize_t sendmsg(int fd, const struct msghdr *m, int flags)
{
    return fails(SEND) ? -1 : REAL(sendmsg)(fd, m, flags);
}

/* ---- connections and events -------------------------------------------------------- */

int connect(int fd, const struct sockaddr *to, socklen_t len)
{
    return fails(CONNECT) ? -1 : REAL(connect)(fd, to, len);
}

int getsockopt(int fd, int level, int name, void *value, socklen_t *len)
{
    const int rc = REAL(getsockopt)(fd, level, name, value, len);
    if (rc == 0 && level == SOL_SOCKET && name == SO_ERROR && fails(ASYNC))
        *(int *)value = errno;
    return rc;
}

int accept4(int fd, struct sockaddr *from, socklen_t *len, int flags)
{
    return fails(ACCEPT) ? -1 : REAL(accept4)(fd, from, len, flags);
}

int epoll_ctl(int epoll, int op, int fd, struct epoll_event *event)
{
    return op != EPOLL_CTL_DEL && fails(EPOLL_ADD)
               ? -1
               : REAL(epoll_ctl)(epoll, op, fd, event);
}

int socket(int domain, int type, int protocol)
{
    return fails(SOCKET) ? -1 : REAL(socket)(domain, type, protocol);
}

int timerfd_create(int clock, int flags)
{
    return fails(TIMERFD) ? -1 : REAL(timerfd_create)(clock, flags);
}

int eventfd(unsigned count, int flags)
{
    return fails(EVENTFD) ? -1 : REAL(eventfd)(count, flags);
}

/* ---- files ------------------------------------------------------------------------- */

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
    return fails(OPEN) ? -1 : REAL(open)(path, flags, mode);
}

int openat(int at, const char *path, int flags, ...)
{
    va_list ap;
    va_start(ap, flags);
    const mode_t mode = mode_of(flags, ap);
    va_end(ap);
    return fails(OPEN) ? -1 : REAL(openat)(at, path, flags, mode);
}

int fsync(int fd)
{
    return fails(SYNC) ? -1 : REAL(fsync)(fd);
}

int fdatasync(int fd)
{
    return fails(SYNC) ? -1 : REAL(fdatasync)(fd);
}

int fstat(int fd, struct stat *st)
{
    return fails(STAT) ? -1 : REAL(fstat)(fd, st);
}

int fstatat(int at, const char *path, struct stat *st, int flags)
{
    return fails(STAT) ? -1 : REAL(fstatat)(at, path, st, flags);
}

void *mmap(void *at, size_t n, int protection, int flags, int fd, off_t offset)
{
    return fails(MMAP) ? MAP_FAILED : REAL(mmap)(at, n, protection, flags, fd, offset);
}

/* ---- threads and memory ------------------------------------------------------------ */

int pthread_create(pthread_t *t, const pthread_attr_t *a, void *(*run)(void *), void *arg)
{
    return fails(THREAD) ? errno : REAL(pthread_create)(t, a, run, arg);
}

void *malloc(size_t n)
{
    return n > LARGE && fails(MALLOC) ? NULL : __libc_malloc(n);
}

void *calloc(size_t n, size_t size)
{
    return size && n > LARGE / size && fails(MALLOC) ? NULL : __libc_calloc(n, size);
}

void *realloc(void *p, size_t n)
{
    return n > LARGE && fails(MALLOC) ? NULL : __libc_realloc(p, n);
}
