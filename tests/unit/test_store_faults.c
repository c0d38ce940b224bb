/* SPDX-License-Identifier: MIT */

/*
 * The directory when the machine does not do what it is asked for, or a kill -9 comes.
 * What must hold afterwards: the store opens, each block is whole or absent, what was
 * confirmed is there, and nothing counts that is not there.
 *
 * The calls of the store come through here (the linker's --wrap, see the Makefile). A
 * place where something can happen is a system call, a kind of file, and what the store is
 * at (opening, counting what is there, recovery, reading, writing, deleting, a note, the
 * prompt log): 256 shards are opened by the same line. A first life without faults
 * notes all places. Then in one life each, at the first and at the last time that a place is
 * passed, the call
 *
 *     fails with EIO, and with EMFILE     is short, where it is a read or a write
 *     is the last one before a kill       is the last one that begins before a kill
 *
 * Besides: a first start that fails at any call, and kills at random moments, also while
 * the directory is still being counted.
 */

#include "store/store.h"

#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <pthread.h>
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

/* What the store is at. */
enum phase {
    OPENING,
    COUNTING,
    RECOVERY,
    READING,
    WRITING,
    DELETING,
    NOTES,
    PROMPTS,
    CLOSING
};

enum file_kind {
    NO_NAME,
    MODEL,
    SHARD,
    BLOCK,
    NEW_FILE,
    OTHER_NAMES /* and more, by name */
};

struct place {
    const char *call;
    int file;
    enum phase phase;
    long passed; /* in this life */
};

#define MAX_PLACES 400
static struct place places[MAX_PLACES];
static size_t n_places;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static atomic_int phase;
static enum how how;
static int failure;     /* errno of FAILS */
static size_t where;    /* number of the place, or MAX_PLACES: any */
static long calls_left; /* there, until it happens */
static bool happened;
static _Thread_local long calls_here; /* of this thread */

static void arm_at(enum how h, int error, size_t place, long n)
{
    how = h;
    failure = error;
    where = place;
    calls_left = n;
    happened = false;
    for (size_t i = 0; i < n_places; i++)
        places[i].passed = 0;
}

static void arm(enum how h, int error, long n)
{
    arm_at(h, error, MAX_PLACES, n);
}

static void die(void)
{
    kill(getpid(), SIGKILL);
    for (;;)
        pause();
}

static int kind_of(const char *name)
{
    static const char *const names[] = {"blocks", "tmp", "damaged", "notes",      "note",
                                        "lock",   "key", ".",       "prompts.log"};
    if (!name)
        return NO_NAME;
    const char *slash = strrchr(name, '/');
    const char *last = slash ? slash + 1 : name;
    const size_t hex = strspn(last, "0123456789abcdef"), len = strlen(last);
    if (strcmp(last + hex, ".kv") == 0)
        return BLOCK;
    if (hex == len && (len == 32 || len == 2))
        return len == 2 ? SHARD : MODEL;
    if (hex == 16 && last[hex] == '-')
        return NEW_FILE;
    for (int i = 0; i < (int)(sizeof(names) / sizeof(names[0])); i++)
        if (strcmp(last, names[i]) == 0)
            return OTHER_NAMES + 1 + i;
    return OTHER_NAMES;
}

static size_t find_place(const char *call, const char *name)
{
    const struct place p = {call, kind_of(name), phase, 0};
    size_t i = 0;
    while (i < n_places && (strcmp(places[i].call, call) != 0 ||
                            places[i].file != p.file || places[i].phase != p.phase))
        i++;
    assert_true(i < MAX_PLACES);
    if (i == n_places)
        places[n_places++] = p;
    return i;
}

/* True where this call is the one. */
static bool strike(const char *call, const char *name)
{
    calls_here++;
    pthread_mutex_lock(&lock);
    const size_t i = find_place(call, name);
    places[i].passed++;
    const bool now = how != NOTHING && (where == MAX_PLACES || where == i) && !happened &&
                     --calls_left == 0;
    happened |= now;
    pthread_mutex_unlock(&lock);
    return now;
}

#define WRAP(type, name, parameters, arguments, path)                                    \
    type __real_##name parameters;                                                       \
    type __wrap_##name parameters;                                                       \
    type __wrap_##name parameters                                                        \
    {                                                                                    \
        const bool now = strike(#name, path);                                            \
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
     (from, old, to, new), new)
WRAP(int, rename, (const char *old, const char *new), (old, new), new)
WRAP(int, unlinkat, (int at, const char *name, int flags), (at, name, flags), name)
WRAP(int, mkdir, (const char *name, mode_t mode), (name, mode), name)
WRAP(int, mkdirat, (int at, const char *name, mode_t mode), (at, name, mode), name)
WRAP(int, fstatat, (int at, const char *name, struct stat *st, int flags),
     (at, name, st, flags), name)
WRAP(int, fstat, (int fd, struct stat *st), (fd, st), NULL)
WRAP(int, ftruncate, (int fd, off_t size), (fd, size), NULL)
WRAP(int, fchmod, (int fd, mode_t mode), (fd, mode), NULL)
WRAP(int, utimensat,
     (int at, const char *name, const struct timespec times[2], int flags),
     (at, name, times, flags), name)
WRAP(int, futimens, (int fd, const struct timespec times[2]), (fd, times), NULL)

/* A kill leaves the page cache as it is, so nothing has to reach a disk here. */
static int no_sync(int fd)
{
    (void)fd;
    return 0;
}
#define __real_fdatasync no_sync
#define __real_fsync no_sync
WRAP(int, fdatasync, (int fd), (fd), NULL)
WRAP(int, fsync, (int fd), (fd), NULL)

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
    const bool now = strike("openat", name);
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
static bool strike_file(const char *call, int fd)
{
    struct stat st;
    return __real_fstat(fd, &st) == 0 && S_ISREG(st.st_mode) && strike(call, NULL);
}

/* Half of it is written, in each way. */
ssize_t __wrap_write(int fd, const void *bytes, size_t n)
{
    if (!strike_file("write", fd))
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
    if (!strike_file("read", fd))
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
    phase = OPENING;
    w->store = store_open(&o, w->rig.workers, &e);
    assert_int_equal(e.code == 0, w->store != NULL);
    if (w->store)
        w->prompts = prompt_log_open(w->dir, 1 << 20, w->rig.workers);
    return e.code;
}

static void count(struct world *w)
{
    phase = COUNTING;
    store_rig_settle(&w->rig);
}

static void end(struct world *w)
{
    store_rig_settle(&w->rig);
    phase = CLOSING;
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
    phase = WRITING;
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
    phase = DELETING;
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
    phase = READING;
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
    phase = RECOVERY;
    store_scan(w->store, model, on_told, w);
    store_rig_settle(&w->rig);
}

static void add_prompts(struct world *w, uint64_t first)
{
    phase = PROMPTS;
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
        count(w);
        scan(w);
        for (uint32_t i = 0; i < 3; i++)
            get(w, i);
        put(w, 4);
        put(w, 5);
        drop(w, 3);
        put(w, 6);
        drop(w, 5);
        get(w, 4);
        phase = NOTES;
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

/* As a kill leaves it. */
static void leave_unfinished_file(const struct world *w)
{
    char *path = mem_printf("%s/tmp/0123456789abcdef-1", w->dir);
    const int fd = __real_openat(AT_FDCWD, path, O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
    assert_true(fd >= 0);
    close(fd);
    free(path);
}

/* A directory with blocks 0 … 3, a note and three prompts. */
static void begin(struct world *w)
{
    const char *tmp = getenv("TMPDIR");
    *w = (struct world){.acks = -1};
    if (!tmp) /* in memory where that is possible: nothing here needs a disk */
        tmp = access("/dev/shm", W_OK | X_OK) == 0 ? "/dev/shm" : "/tmp";
    w->root = mem_printf("%s/incipit-test-XXXXXX", tmp);
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
    leave_unfinished_file(w);
}

static void finish(struct world *w)
{
    store_rig_remove(w->root);
    free(w->root);
    free(w->dir);
}

/* ---- tests ------------------------------------------------------------------------- */

/* Of how many times that a place is passed each is tried: the first and the last. */
#define TIMES 2

static struct place noted[MAX_PLACES];
static size_t n_noted;

static void note_places(void)
{
    struct world w;
    begin(&w);
    n_places = 0;
    arm(NOTHING, 0, 0);
    live(&w);
    memcpy(noted, places, sizeof(places));
    n_noted = n_places;
    check(&w);
    finish(&w);
    assert_true(n_noted > 40);
}

static bool can_be_short(const struct place *p)
{
    return strcmp(p->call, "read") == 0 || strcmp(p->call, "write") == 0;
}

/* A life for each place that is passed so often, but of the n-th ones only. Returns in how
 * many it happened: workers do not do everything in the same order each time. */
static size_t lives_with(enum how h, int error, void (*life)(struct world *w),
                         size_t stride)
{
    size_t hit = 0, lives = 0;
    for (size_t i = 0; i < n_noted; i += stride)
        for (long k = 0; k < TIMES; k++) {
            struct world w;
            const long n = k ? noted[i].passed : 1;
            if ((k && n == 1) || (h == IS_SHORT && !can_be_short(&noted[i])))
                continue;
            begin(&w);
            memcpy(places, noted, sizeof(noted));
            n_places = n_noted;
            arm_at(h, error, i, n);
            life(&w);
            hit += happened;
            lives++;
            check(&w);
            finish(&w);
        }
    assert_true(hit * 10 >= lives * 9);
    return hit;
}

static void test_each_place_fails_once(void **state)
{
    (void)state;
    note_places();
    lives_with(FAILS, EIO, live, 1);
    lives_with(FAILS, EMFILE, live, 1);
}

static void test_each_read_and_write_is_short_once(void **state)
{
    (void)state;
    assert_true(lives_with(IS_SHORT, 0, live, 1) > 5);
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

static void live_and_die(struct world *w)
{
    happened = killed_while(w, live, 0);
}

/* A fork takes long with sanitizers, and what a kill leaves does not depend on them. */
static void test_each_place_is_the_last_before_a_kill(void **state)
{
    const size_t stride = SANITIZED ? 4 : 1;
    (void)state;
    lives_with(DIES_BEFORE, 0, live_and_die, stride);
    lives_with(DIES_AFTER, 0, live_and_die, stride);
}

/* However much there is, opening makes the same calls. */
static void test_opening_does_not_look_at_blocks(void **state)
{
    struct world w;
    long calls[2];
    (void)state;
    begin(&w);
    for (int more = 0; more < 2; more++) {
        assert_int_equal(start(&w), 0);
        for (uint32_t i = 4; more == 0 && i < 5; i++)
            put(&w, i);
        end(&w);
        calls_here = 0;
        assert_int_equal(start(&w), 0);
        calls[more] = calls_here;
        for (uint32_t i = 5; i < BLOCKS; i++)
            put(&w, i);
        end(&w);
    }
    assert_true(calls[0] > 10);
    assert_int_equal(calls[0], calls[1]);
    finish(&w);
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
        cmocka_unit_test(test_each_place_fails_once),
        cmocka_unit_test(test_each_read_and_write_is_short_once),
        cmocka_unit_test(test_first_start_may_fail_anywhere),
        cmocka_unit_test(test_each_place_is_the_last_before_a_kill),
        cmocka_unit_test(test_opening_does_not_look_at_blocks),
        cmocka_unit_test(test_kills_at_random_moments),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
