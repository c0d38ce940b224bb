/* SPDX-License-Identifier: MIT */

/*
 * The directory when the machine does not do what it is asked for: each system call of a
 * life of the store fails once, in turn, or is the last one before a kill -9; and kills
 * at random moments. What must hold afterwards: the store opens, each block is whole or
 * absent, what was confirmed is there, and nothing counts that is not there.
 *
 * The calls of the store come through here (the linker's --wrap, see the Makefile). The
 * n-th one fails, for n = 1, 2, … until a life needs fewer.
 */

#include "store/store.h"

#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/log.h"
#include "base/mem.h"
#include "cmocka_all.h"
#include "store/prompt_log.h"
#include "store_rig.h"

/* ---- system calls ------------------------------------------------------------------ */

enum how { NOTHING, FAILS, IS_SHORT, DIES_BEFORE, DIES_AFTER };

static enum how how;
static int failure;            /* errno of FAILS */
static atomic_long calls_left; /* until it happens */
static atomic_bool happened;

static void arm(enum how h, int error, long n)
{
    how = h;
    failure = error;
    calls_left = n;
    happened = false;
}

static void die(void)
{
    kill(getpid(), SIGKILL);
    for (;;)
        pause();
}

/* True where this call is the one. */
static bool strike(void)
{
    if (how == NOTHING || atomic_fetch_sub(&calls_left, 1) != 1)
        return false;
    happened = true;
    return true;
}

#define WRAP(type, name, parameters, arguments)                                          \
    type __real_##name parameters;                                                       \
    type __wrap_##name parameters;                                                       \
    type __wrap_##name parameters                                                        \
    {                                                                                    \
        const bool now = strike();                                                       \
        if (now && how == DIES_BEFORE)                                                   \
            die();                                                                       \
        if (now && how == FAILS) {                                                       \
            errno = failure;                                                             \
            return -1;                                                                   \
        }                                                                                \
        const type result = __real_##name arguments;                                     \
        if (now && how == DIES_AFTER)                                                    \
            die();                                                                       \
        return result;                                                                   \
    }

WRAP(int, renameat, (int from, const char *old, int to, const char *new),
     (from, old, to, new))
WRAP(int, rename, (const char *old, const char *new), (old, new))
WRAP(int, unlinkat, (int at, const char *name, int flags), (at, name, flags))
WRAP(int, mkdir, (const char *name, mode_t mode), (name, mode))
WRAP(int, mkdirat, (int at, const char *name, mode_t mode), (at, name, mode))
WRAP(int, fstatat, (int at, const char *name, struct stat *st, int flags),
     (at, name, st, flags))
WRAP(int, fstat, (int fd, struct stat *st), (fd, st))
WRAP(int, ftruncate, (int fd, off_t size), (fd, size))
WRAP(int, fchmod, (int fd, mode_t mode), (fd, mode))
WRAP(int, utimensat,
     (int at, const char *name, const struct timespec times[2], int flags),
     (at, name, times, flags))

/* A kill leaves the page cache as it is, so nothing has to reach a disk here. */
static int no_sync(int fd)
{
    (void)fd;
    return 0;
}
#define __real_fdatasync no_sync
#define __real_fsync no_sync
WRAP(int, fdatasync, (int fd), (fd))
WRAP(int, fsync, (int fd), (fd))

int __real_openat(int at, const char *name, int flags, ...);
int __wrap_openat(int at, const char *name, int flags, mode_t mode);
int __real_open(const char *name, int flags, ...);
int __wrap_open(const char *name, int flags, mode_t mode);
ssize_t __real_write(int fd, const void *bytes, size_t n);
ssize_t __wrap_write(int fd, const void *bytes, size_t n);
ssize_t __real_read(int fd, void *bytes, size_t n);
ssize_t __wrap_read(int fd, void *bytes, size_t n);

int __wrap_openat(int at, const char *name, int flags, mode_t mode)
{
    const bool now = strike();
    if (now && how == DIES_BEFORE)
        die();
    if (now && how == FAILS) {
        errno = failure;
        return -1;
    }
    const int fd = __real_openat(at, name, flags, mode);
    if (now && how == DIES_AFTER)
        die();
    return fd;
}

int __wrap_open(const char *name, int flags, mode_t mode)
{
    return __wrap_openat(AT_FDCWD, name, flags, mode);
}

/* The loop wakes itself up by writing, which is none of the store's business. */
static bool strike_file(int fd)
{
    struct stat st;
    return __real_fstat(fd, &st) == 0 && S_ISREG(st.st_mode) && strike();
}

/* Half of it is written, in each way. */
ssize_t __wrap_write(int fd, const void *bytes, size_t n)
{
    if (!strike_file(fd))
        return __real_write(fd, bytes, n);
    const ssize_t half = __real_write(fd, bytes, n / 2);
    if (how == DIES_BEFORE)
        die();
    if (how == IS_SHORT)
        return half;
    if (how == FAILS) {
        errno = failure;
        return -1;
    }
    __real_write(fd, (const char *)bytes + half, n - (size_t)half);
    die();
    return -1;
}

ssize_t __wrap_read(int fd, void *bytes, size_t n)
{
    if (!strike_file(fd))
        return __real_read(fd, bytes, n);
    if (how == IS_SHORT)
        return __real_read(fd, bytes, n > 1 ? n / 2 : n);
    if (how != FAILS)
        die();
    errno = failure;
    return -1;
}

/* ---- a life of the store ----------------------------------------------------------- */

#define ROWS 3000
#define TOKENS 4
#define BLOCKS 12

static const struct hash128 model = {0x1111, 0x2222};

/* A directory, and what is known about the blocks in it. */
struct world {
    char *root, *dir;
    struct store_rig rig; /* while it lives */
    struct store *store;
    struct prompt_log *prompts;
    int acks; /* where a life that may be killed tells what it has done */
};

enum known { ABSENT, PRESENT, UNKNOWN };
static enum known known[BLOCKS];

static struct hash128 hash_of(uint32_t i)
{
    return (struct hash128){0x9e3779b97f4a7c15u * (i + 1), 0xd1b54a32d192ed03u * (i + 1)};
}

/* Blocks 0 … 3 are a chain, the others stand alone. */
static struct store_block *make_block(uint32_t i)
{
    const bool chained = i > 0 && i < 4;
    const struct store_head head = {
        .fingerprint = model,
        .hash = hash_of(i),
        .parent = chained ? hash_of(i - 1) : (struct hash128){7, 7},
        .index = chained ? i : 0,
        .n_tokens = TOKENS,
        .rows_bytes = ROWS,
    };
    uint32_t *tokens;
    unsigned char *rows;
    struct store_block *b = store_block_new(&head, &tokens, &rows);
    for (uint32_t t = 0; t < TOKENS; t++)
        tokens[t] = i * TOKENS + t;
    for (size_t r = 0; r < ROWS; r++)
        rows[r] = (unsigned char)(i + r * 31);
    store_block_seal(b);
    return b;
}

static void assert_right(const struct store_block *b, uint32_t i)
{
    assert_true(store_block_verify(b));
    for (size_t r = 0; r < ROWS; r++)
        assert_int_equal(b->rows[r], (unsigned char)(i + r * 31));
}

static int start(struct world *w)
{
    struct err e = {0};
    w->rig.loop = loop_new();
    w->rig.workers = workers_new(w->rig.loop, 2);
    log_set_level(LOG_ERROR + 1);
    const struct store_options o = {.dir = w->dir, .ram_bytes = 0};
    w->store = store_open(&o, w->rig.workers, &e);
    assert_int_equal(e.code == 0, w->store != NULL);
    if (w->store)
        w->prompts = prompt_log_open(w->dir, 1 << 20, w->rig.workers);
    return e.code;
}

static void end(struct world *w)
{
    store_rig_settle(&w->rig);
    prompt_log_close(w->prompts);
    store_close(w->store);
    w->prompts = NULL;
    w->store = NULL;
    workers_free(w->rig.workers);
    loop_free(w->rig.loop);
}

/* Of a block: from now on it is this. To the process that looks afterwards, if any. */
static void tell(struct world *w, uint32_t i, enum known k)
{
    const unsigned char message[2] = {(unsigned char)i, (unsigned char)k};
    known[i] = k;
    if (w->acks >= 0)
        assert_int_equal(__real_write(w->acks, message, 2), 2);
}

static void on_put(void *arg, size_t n_stored)
{
    *(size_t *)arg = n_stored;
}

static void put(struct world *w, uint32_t i)
{
    size_t n_stored = 0;
    struct store_block *b = make_block(i);
    if (known[i] == ABSENT)
        tell(w, i, UNKNOWN);
    store_put(w->store, &b, 1, on_put, &n_stored);
    store_block_put(b);
    store_rig_settle(&w->rig);
    if (n_stored)
        tell(w, i, PRESENT);
}

/* A deletion that fails is not told: the block may be back after a restart. */
static void drop(struct world *w, uint32_t i)
{
    tell(w, i, UNKNOWN);
    store_drop(w->store, model, hash_of(i));
    store_rig_settle(&w->rig);
    if (how != FAILS)
        tell(w, i, ABSENT);
}

static int got; /* error code of the last get, 0: it was right */

static void on_get(void *arg, struct store_block **blocks, size_t good,
                   const struct err *err)
{
    got = err ? err->code : 0;
    assert_int_equal(good == 1, got == 0);
    if (good)
        assert_right(blocks[0], *(const uint32_t *)arg);
    for (size_t i = 0; i < good; i++)
        store_block_put(blocks[i]);
}

static int get(struct world *w, uint32_t i)
{
    const struct hash128 hash = hash_of(i);
    store_get(w->store, model, &hash, 1, on_get, &i);
    store_rig_settle(&w->rig);
    return got;
}

static size_t n_told;

static void on_told(void *arg, const struct store_block *b)
{
    (void)arg;
    n_told += b != NULL;
}

static void scan(struct world *w)
{
    n_told = 0;
    store_scan(w->store, model, on_told, w);
    store_rig_settle(&w->rig);
}

static void add_prompts(struct world *w, uint64_t first)
{
    for (uint64_t i = first; i < first + 3; i++)
        prompt_log_add(w->prompts,
                       &(struct prompt_record){.boundary = {.hash = {i, 1}, .check = i}});
    prompt_log_flush(w->prompts);
    store_rig_settle(&w->rig);
}

/* What a gateway does in a day, over blocks 0 … 3 that an earlier life has put there. */
static void live(struct world *w)
{
    char note[16];
    if (start(w) == 0) {
        scan(w);
        for (uint32_t i = 0; i < 3; i++)
            get(w, i);
        put(w, 4);
        put(w, 5);
        drop(w, 3);
        put(w, 6);
        drop(w, 5);
        get(w, 4);
        store_note_set(w->store, "note", "new");
        store_note_get(w->store, "note", note, sizeof(note));
        add_prompts(w, 3);
        add_prompts(w, 6);
    }
    end(w);
}

/* ---- looking at what is left ------------------------------------------------------- */

static size_t n_files;

static int count_one(const char *path, const struct stat *st, int kind, struct FTW *ftw)
{
    (void)path;
    (void)st;
    (void)ftw;
    n_files += kind == FTW_F;
    return 0;
}

static size_t count_files(const char *dir, const char *folder)
{
    char *path = mem_printf("%s/%s", dir, folder);
    n_files = 0;
    nftw(path, count_one, 16, FTW_PHYS);
    free(path);
    return n_files;
}

static void check_prompts(struct world *w)
{
    struct prompt_record *v;
    const size_t n = prompt_log_load(w->dir, &v);
    for (size_t i = 0; i < n; i++)
        assert_true(v[i].boundary.hash.lo == v[i].boundary.check);
    assert_true(n >= 3); /* those of the first life */
    free(v);
}

/* The next life, in which all works. */
static void check(struct world *w)
{
    struct store_stats st;
    char note[16];
    size_t n = 0;
    arm(NOTHING, 0, 0);
    assert_int_equal(start(w), 0);
    scan(w);
    for (uint32_t i = 0; i < BLOCKS; i++) {
        const int rc = get(w, i);
        if (rc && rc != ERR_NOT_FOUND)
            fail_msg("block %u: %s", i, err_name(rc));
        if (known[i] != UNKNOWN)
            assert_int_equal(rc == 0, known[i] == PRESENT);
        known[i] = rc ? ABSENT : PRESENT;
        n += rc == 0;
    }
    store_stats(w->store, &st);
    assert_int_equal(st.damaged, 0);
    assert_int_equal(st.disk_blocks, n);
    assert_int_equal(st.disk_bytes, n * (96 + 4 * TOKENS + ROWS + 16));
    assert_int_equal(n_told, n);
    assert_int_equal(count_files(w->dir, "blocks"), n);
    assert_int_equal(count_files(w->dir, "tmp"), 0);
    assert_int_equal(count_files(w->dir, "damaged"), 0);
    assert_true(store_note_get(w->store, "note", note, sizeof(note)));
    assert_true(strcmp(note, "old") == 0 || strcmp(note, "new") == 0);
    check_prompts(w);
    end(w);
}

/* A directory with blocks 0 … 3, a note and three prompts. */
static void begin(struct world *w)
{
    const char *tmp = getenv("TMPDIR");
    *w = (struct world){.acks = -1};
    w->root = mem_printf("%s/incipit-test-XXXXXX", tmp ? tmp : "/tmp");
    assert_non_null(mkdtemp(w->root));
    w->dir = mem_printf("%s/store", w->root);
    memset(known, 0, sizeof(known));
    arm(NOTHING, 0, 0);
    assert_int_equal(start(w), 0);
    for (uint32_t i = 0; i < 4; i++)
        put(w, i);
    store_note_set(w->store, "note", "old");
    add_prompts(w, 0);
    end(w);
}

static void finish(struct world *w)
{
    store_rig_remove(w->root);
    free(w->root);
    free(w->dir);
}

/* ---- tests ------------------------------------------------------------------------- */

static const int errors[] = {EIO, EMFILE};

static long lives_with(enum how h, int error)
{
    for (long n = 1;; n++) {
        struct world w;
        begin(&w);
        arm(h, error, n);
        live(&w);
        const bool more = happened;
        check(&w);
        finish(&w);
        if (!more)
            return n;
    }
}

static void test_each_call_fails_once(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof(errors) / sizeof(errors[0]); i++)
        assert_true(lives_with(FAILS, errors[i]) > 50);
}

static void test_each_read_and_write_is_short_once(void **state)
{
    (void)state;
    assert_true(lives_with(IS_SHORT, 0) > 50);
}

/* Also where there is nothing yet: the next start is a good one. */
static void test_first_start_may_fail_anywhere(void **state)
{
    (void)state;
    for (long n = 1;; n++) {
        struct world w;
        begin(&w);
        store_rig_remove(w.dir);
        arm(FAILS, EIO, n);
        if (start(&w) == 0)
            put(&w, 4);
        end(&w);
        const bool more = happened;
        arm(NOTHING, 0, 0);
        assert_int_equal(start(&w), 0);
        put(&w, 0);
        assert_int_equal(get(&w, 0), 0);
        end(&w);
        finish(&w);
        if (!more)
            return;
    }
}

/* Lives in a process of its own; false where it was not killed. */
static bool killed_while(struct world *w, void (*life)(struct world *w), unsigned after)
{
    int ends[2], status;
    unsigned char message[2];
    assert_int_equal(pipe(ends), 0);
    const pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        close(ends[0]);
        w->acks = ends[1];
        life(w);
        _exit(0);
    }
    close(ends[1]);
    while (__real_read(ends[0], message, 2) == 2) {
        known[message[0]] = message[1];
        if (after && --after == 0)
            kill(child, SIGKILL);
    }
    close(ends[0]);
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFEXITED(status) ? WEXITSTATUS(status) == 0
                                  : WTERMSIG(status) == SIGKILL);
    return WIFSIGNALED(status);
}

/* A fork takes long with sanitizers, and what a kill leaves does not depend on them. */
static void test_each_call_is_the_last_before_a_kill(void **state)
{
    const long stride = SANITIZED ? 4 : 1;
    (void)state;
    for (enum how h = DIES_BEFORE; h <= DIES_AFTER; h++) {
        bool more = true;
        for (long n = 1; more; n += stride) {
            struct world w;
            begin(&w);
            arm(h, 0, n);
            more = killed_while(&w, live, 0);
            check(&w);
            finish(&w);
        }
    }
}

static unsigned seed;

static void live_at_random(struct world *w)
{
    assert_int_equal(start(w), 0);
    for (;;) {
        const uint32_t i = 4 + (uint32_t)rand_r(&seed) % (BLOCKS - 4);
        if (rand_r(&seed) % 2)
            put(w, i);
        else
            drop(w, i);
        add_prompts(w, 9);
    }
}

/* KILLS=1000 in the environment asks for more. */
static long kills_wanted(void)
{
    const char *n = getenv("KILLS");
    return n ? strtol(n, NULL, 10) : SANITIZED ? 20 : 100;
}

static void test_kills_at_random_moments(void **state)
{
    struct world w;
    (void)state;
    seed = (unsigned)getpid();
    print_message("seed %u\n", seed);
    begin(&w);
    for (long kills = kills_wanted(); kills > 0; kills--) {
        const unsigned after = 1 + (unsigned)rand_r(&seed) % 30;
        assert_true(killed_while(&w, live_at_random, after));
        rand_r(&seed);
        check(&w);
    }
    finish(&w);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_each_call_fails_once),
        cmocka_unit_test(test_each_read_and_write_is_short_once),
        cmocka_unit_test(test_first_start_may_fail_anywhere),
        cmocka_unit_test(test_each_call_is_the_last_before_a_kill),
        cmocka_unit_test(test_kills_at_random_moments),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
