/* SPDX-License-Identifier: MIT */
#include "store/store.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "cmocka_all.h"
#include "base/log.h"
#include "base/mem.h"

/* ---- a store in a folder of its own, real loop and workers ------------------------- */

struct fixture {
    struct loop *loop;
    struct workers *workers;
    struct store *store;
    char *root; /* removed in the end */
    char *dir;  /* the store's, inside root; NULL: RAM only */
    uint64_t ram_bytes;
};

#define MIB ((uint64_t)1 << 20)
static const struct hash128 model = {0x1111, 0x2222}, other_model = {0x3333, 0x4444};

static int set_up(void **state)
{
    struct fixture *f = mem_zalloc(sizeof *f);
    const char *tmp = getenv("TMPDIR");
    f->root = mem_printf("%s/incipit-test-XXXXXX", tmp ? tmp : "/tmp");
    assert_non_null(mkdtemp(f->root));
    f->dir = mem_printf("%s/store", f->root);
    f->ram_bytes = MIB;
    f->loop = loop_new();
    f->workers = workers_new(f->loop, 2);
    log_set_level(LOG_ERROR);
    *state = f;
    return 0;
}

static int remove_one(const char *path, const struct stat *st, int kind, struct FTW *ftw)
{
    (void)st;
    (void)kind;
    (void)ftw;
    return remove(path);
}

static int tear_down(void **state)
{
    struct fixture *f = *state;
    workers_free(f->workers);
    store_close(f->store);
    loop_free(f->loop);
    nftw(f->root, remove_one, 16, FTW_DEPTH | FTW_PHYS);
    free(f->root);
    free(f->dir);
    free(f);
    return 0;
}

static void stop(void *arg)
{
    loop_stop(arg);
}

/* Runs the loop until the workers have nothing left to do. */
static void settle(struct fixture *f)
{
    do {
        loop_defer(f->loop, stop, f->loop);
        loop_run(f->loop);
    } while (workers_pending(f->workers));
}

static int try_open(struct fixture *f, struct err *e)
{
    const struct store_options o = {.dir = f->dir, .ram_bytes = f->ram_bytes};
    assert_null(f->store);
    f->store = store_open(&o, f->workers, e);
    return f->store ? 0 : e->code;
}

static void open_store(struct fixture *f)
{
    struct err e = {0};
    if (try_open(f, &e))
        fail_msg("%s", e.text);
}

static void open_ram_only(struct fixture *f)
{
    free(f->dir);
    f->dir = NULL;
    open_store(f);
}

static void close_store(struct fixture *f)
{
    settle(f);
    store_close(f->store);
    f->store = NULL;
}

static void reopen(struct fixture *f)
{
    close_store(f);
    open_store(f);
    settle(f); /* all is counted */
}

static struct store_stats stats(const struct fixture *f)
{
    struct store_stats st;
    store_stats(f->store, &st);
    return st;
}

/* ---- blocks ------------------------------------------------------------------------ */

#define TOKENS 4

static struct hash128 hash_of(uint32_t i)
{
    return (struct hash128){0x9e3779b97f4a7c15u * (i + 1), 0xd1b54a32d192ed03u * (i + 1)};
}

/* Block `i` of a chain 0, 1, 2 …; its contents follow from its number. */
static struct store_block *make_block(struct hash128 fingerprint, uint32_t i,
                                      size_t rows_bytes)
{
    const struct store_head head = {
        .fingerprint = fingerprint,
        .hash = hash_of(i),
        .parent = i ? hash_of(i - 1) : (struct hash128){7, 7},
        .index = i,
        .n_tokens = TOKENS,
        .rows_bytes = rows_bytes,
    };
    uint32_t *tokens;
    unsigned char *rows;
    struct store_block *b = store_block_new(&head, &tokens, &rows);
    for (uint32_t t = 0; t < TOKENS; t++)
        tokens[t] = i * TOKENS + t;
    for (size_t r = 0; r < rows_bytes; r++)
        rows[r] = (unsigned char)(i + r * 31);
    store_block_seal(b);
    return b;
}

static uint64_t file_bytes(size_t rows_bytes)
{
    return 96 + 4 * TOKENS + rows_bytes + 16;
}

static void assert_block(const struct store_block *b, uint32_t i)
{
    assert_true(hash128_eq(b->head.hash, hash_of(i)));
    assert_int_equal(b->head.index, i);
    assert_int_equal(b->head.n_tokens, TOKENS);
    for (uint32_t t = 0; t < TOKENS; t++)
        assert_int_equal(b->tokens[t], i * TOKENS + t);
    for (size_t r = 0; r < b->head.rows_bytes; r++)
        assert_int_equal(b->rows[r], (unsigned char)(i + r * 31));
    assert_true(store_block_verify(b));
}

/* ---- puts and gets that wait ------------------------------------------------------- */

struct put_result {
    bool called;
    size_t n_stored;
};

static void on_put(void *arg, size_t n_stored)
{
    struct put_result *r = arg;
    assert_false(r->called);
    r->called = true;
    r->n_stored = n_stored;
}

/* Puts block i without waiting. */
static void put_later(struct fixture *f, struct hash128 fingerprint, uint32_t i,
                      size_t rows_bytes, struct put_result *r)
{
    struct store_block *b = make_block(fingerprint, i, rows_bytes);
    store_put(f->store, &b, 1, r ? on_put : NULL, r);
    store_block_put(b);
}

static size_t put(struct fixture *f, uint32_t i, size_t rows_bytes)
{
    struct put_result r = {0};
    put_later(f, model, i, rows_bytes, &r);
    assert_false(r.called); /* never inside the call */
    settle(f);
    assert_true(r.called);
    return r.n_stored;
}

#define MAX_GET 16
struct get_result {
    bool called;
    size_t good;
    int code;
    struct store_block *blocks[MAX_GET];
};

static void on_get(void *arg, struct store_block **blocks, size_t good,
                   const struct err *err)
{
    struct get_result *r = arg;
    assert_false(r->called);
    r->called = true;
    r->good = good;
    r->code = err ? err->code : 0;
    assert_true(good <= MAX_GET);
    for (size_t i = 0; i < good; i++)
        r->blocks[i] = blocks[i];
}

static void get_later(struct fixture *f, const uint32_t *numbers, size_t n,
                      struct get_result *r)
{
    struct hash128 hashes[MAX_GET];
    *r = (struct get_result){0};
    for (size_t i = 0; i < n; i++)
        hashes[i] = hash_of(numbers[i]);
    store_get(f->store, model, hashes, n, on_get, r);
    assert_false(r->called);
}

/* The blocks were right; lets them go. */
static void check_and_put(struct get_result *r, const uint32_t *numbers)
{
    assert_true(r->called);
    for (size_t i = 0; i < r->good; i++) {
        assert_block(r->blocks[i], numbers[i]);
        store_block_put(r->blocks[i]);
    }
}

/* 0, or why block i cannot be had. */
static int get(struct fixture *f, uint32_t i)
{
    struct get_result r;
    get_later(f, &i, 1, &r);
    settle(f);
    check_and_put(&r, &i);
    assert_true(r.good == 1 ? r.code == 0 : r.code != 0);
    return r.code;
}

/* ---- files ------------------------------------------------------------------------- */

static char *path_of(const struct fixture *f, struct hash128 fingerprint, uint32_t i)
{
    char a[HASH128_HEX], b[HASH128_HEX];
    hash128_hex(hash_of(i), b);
    return mem_printf("%s/blocks/%s/%.2s/%s.kv", f->dir, hash128_hex(fingerprint, a), b,
                      b);
}

static bool file_there(const struct fixture *f, uint32_t i)
{
    struct stat st;
    char *path = path_of(f, model, i);
    const bool there = lstat(path, &st) == 0;
    free(path);
    return there;
}

static size_t files_in(const struct fixture *f, const char *folder)
{
    size_t n = 0;
    char *path = mem_printf("%s/%s", f->dir, folder);
    DIR *d = opendir(path);
    assert_non_null(d);
    for (struct dirent *e; (e = readdir(d));)
        n += e->d_name[0] != '.';
    closedir(d);
    free(path);
    return n;
}

static unsigned char *read_file(const char *path, size_t *size)
{
    FILE *in = fopen(path, "rb");
    assert_non_null(in);
    fseek(in, 0, SEEK_END);
    *size = (size_t)ftell(in);
    rewind(in);
    unsigned char *bytes = mem_alloc(*size + 1);
    assert_int_equal(fread(bytes, 1, *size, in), *size);
    fclose(in);
    return bytes;
}

static void write_file(const char *path, const void *bytes, size_t size)
{
    FILE *out = fopen(path, "wb");
    assert_non_null(out);
    assert_int_equal(fwrite(bytes, 1, size, out), size);
    assert_int_equal(fclose(out), 0);
}

/* Waits for the clock of file times to tick, a few milliseconds at most. */
static void next_tick(void)
{
    struct timespec before, now;
    clock_gettime(CLOCK_REALTIME_COARSE, &before);
    do
        clock_gettime(CLOCK_REALTIME_COARSE, &now);
    while (now.tv_sec == before.tv_sec && now.tv_nsec == before.tv_nsec);
}

/* Last used so many seconds ago. */
static void age(const char *path, time_t seconds)
{
    const struct timespec t = {.tv_sec = time(NULL) - seconds};
    assert_int_equal(utimensat(AT_FDCWD, path, (const struct timespec[2]){t, t}, 0), 0);
}

static void age_block(const struct fixture *f, struct hash128 fingerprint, uint32_t i,
                      time_t seconds)
{
    char *path = path_of(f, fingerprint, i);
    age(path, seconds);
    free(path);
}

/* ---- put, get, restart ------------------------------------------------------------- */

static void test_store_gets_back_what_was_put(void **state)
{
    struct fixture *f = *state;
    open_store(f);
    struct store_block *b[3];
    struct put_result put = {0};
    for (uint32_t i = 0; i < 3; i++)
        b[i] = make_block(model, i, 1000);
    store_put(f->store, b, 3, on_put, &put);
    for (uint32_t i = 0; i < 3; i++)
        store_block_put(b[i]);
    settle(f);
    assert_int_equal(put.n_stored, 3);

    const uint32_t numbers[] = {2, 0, 1};
    struct get_result got;
    get_later(f, numbers, 3, &got);
    settle(f);
    assert_int_equal(got.good, 3);
    assert_int_equal(got.code, 0);
    check_and_put(&got, numbers);
    const struct store_stats st = stats(f);
    assert_int_equal(st.puts, 3);
    assert_int_equal(st.gets, 3);
    assert_int_equal(st.ram_hits, 3);
    assert_int_equal(st.disk_hits, 0);
    assert_int_equal(st.ram_blocks, 3);
    assert_int_equal(st.ram_bytes, 3 * file_bytes(1000));
    assert_int_equal(st.disk_blocks, 3);
    assert_int_equal(st.disk_bytes, 3 * file_bytes(1000));
}

static void test_store_survives_a_restart(void **state)
{
    struct fixture *f = *state;
    unsigned char key[32];
    open_store(f);
    memcpy(key, store_key(f->store), 32);
    assert_int_equal(put(f, 0, 500), 1);
    assert_int_equal(put(f, 1, 600), 1);
    reopen(f);
    assert_memory_equal(store_key(f->store), key, 32);
    assert_int_equal(stats(f).ram_blocks, 0);
    assert_int_equal(stats(f).disk_blocks, 2);
    assert_int_equal(stats(f).disk_bytes, file_bytes(500) + file_bytes(600));
    assert_int_equal(get(f, 0), 0);
    assert_int_equal(get(f, 1), 0);
    assert_int_equal(stats(f).disk_hits, 2);
    assert_int_equal(get(f, 1), 0); /* reading brought it into RAM */
    assert_int_equal(stats(f).ram_hits, 1);
}

static void test_store_works_in_ram_alone(void **state)
{
    struct fixture *f = *state;
    const unsigned char zero[32] = {0};
    open_ram_only(f);
    assert_memory_not_equal(store_key(f->store), zero, 32);
    assert_int_equal(put(f, 0, 100), 1);
    assert_int_equal(get(f, 0), 0);
    assert_int_equal(get(f, 1), ERR_NOT_FOUND);
    store_drop(f->store, model, hash_of(0));
    assert_int_equal(get(f, 0), ERR_NOT_FOUND);
    assert_int_equal(stats(f).disk_blocks, 0);
    assert_int_equal(stats(f).missing, 2);
    assert_int_equal(store_foreign_bytes(f->store), 0);
    store_prune_foreign(f->store, model, 0);
    settle(f);
}

static void test_store_get_hands_over_the_good_blocks_before_a_gap(void **state)
{
    struct fixture *f = *state;
    const uint32_t numbers[] = {0, 1, 2, 3};
    struct get_result got;
    open_store(f);
    put(f, 0, 100);
    put(f, 1, 100);
    put(f, 3, 100); /* found as well, and let go again */
    get_later(f, numbers, 4, &got);
    settle(f);
    assert_int_equal(got.good, 2);
    assert_int_equal(got.code, ERR_NOT_FOUND);
    check_and_put(&got, numbers);
    assert_int_equal(stats(f).missing, 1);
}

static void test_store_calls_for_nothing_call_back_later(void **state)
{
    struct fixture *f = *state;
    struct put_result put = {0};
    struct get_result got;
    open_store(f);
    store_put(f->store, NULL, 0, on_put, &put);
    get_later(f, NULL, 0, &got);
    assert_false(put.called);
    settle(f);
    assert_true(put.called && got.called);
    assert_int_equal(got.code, 0);
}

static void test_store_names_are_fingerprint_and_hash(void **state)
{
    struct fixture *f = *state;
    open_store(f);
    put_later(f, other_model, 5, 100, NULL);
    settle(f);
    assert_int_equal(get(f, 5), ERR_NOT_FOUND);
    assert_int_equal(put(f, 5, 100), 1);
    assert_int_equal(get(f, 5), 0);
    assert_int_equal(stats(f).disk_blocks, 2);
}

static void test_store_does_not_write_what_is_there(void **state)
{
    struct fixture *f = *state;
    struct stat before, after;
    open_store(f);
    put(f, 0, 100);
    char *path = path_of(f, model, 0);
    assert_int_equal(stat(path, &before), 0);
    assert_int_equal(put(f, 0, 100), 1);
    assert_int_equal(stat(path, &after), 0);
    assert_int_equal(before.st_ino, after.st_ino);
    assert_int_equal(stats(f).disk_blocks, 1);
    free(path);
}

/* ---- budget ------------------------------------------------------------------------ */

static void test_store_ram_keeps_what_was_used_last(void **state)
{
    struct fixture *f = *state;
    f->ram_bytes = 3 * file_bytes(1000);
    open_ram_only(f);
    for (uint32_t i = 0; i < 3; i++)
        put(f, i, 1000);
    assert_int_equal(get(f, 0), 0);
    put(f, 3, 1000);
    assert_int_equal(get(f, 1), ERR_NOT_FOUND);
    assert_int_equal(get(f, 0), 0);
    assert_int_equal(get(f, 2), 0);
    assert_int_equal(get(f, 3), 0);
    assert_int_equal(stats(f).ram_bytes, f->ram_bytes);
    put(f, 4, 2000); /* two of them go */
    assert_int_equal(stats(f).ram_blocks, 2);
    assert_true(stats(f).ram_bytes <= f->ram_bytes);
    assert_int_equal(put(f, 5, 4000), 0); /* larger than the budget */
    assert_int_equal(get(f, 4), 0);
}

static void test_store_reads_evicted_blocks_from_disk(void **state)
{
    struct fixture *f = *state;
    f->ram_bytes = file_bytes(1000);
    open_store(f);
    for (uint32_t i = 0; i < 5; i++)
        assert_int_equal(put(f, i, 1000), 1);
    assert_int_equal(stats(f).ram_blocks, 1);
    for (uint32_t i = 0; i < 5; i++)
        assert_int_equal(get(f, i), 0);
    assert_int_equal(stats(f).ram_blocks, 1);
    assert_int_equal(stats(f).disk_hits, 5);
}

static void test_store_blocks_in_use_outlive_eviction_and_drop(void **state)
{
    struct fixture *f = *state;
    const uint32_t zero = 0;
    struct get_result got;
    f->ram_bytes = file_bytes(1000);
    open_store(f);
    put(f, 0, 1000);
    get_later(f, &zero, 1, &got);
    settle(f);
    put(f, 1, 1000);
    store_drop(f->store, model, hash_of(0));
    reopen(f);
    check_and_put(&got, &zero); /* the reference was ours */
}

static void test_store_get_waits_for_a_block_that_is_being_written(void **state)
{
    struct fixture *f = *state;
    const uint32_t zero = 0;
    struct get_result got;
    f->ram_bytes = 0;
    open_store(f);
    put_later(f, model, 0, 100000, NULL);
    get_later(f, &zero, 1, &got);
    settle(f);
    assert_int_equal(got.good, 1);
    check_and_put(&got, &zero);
    assert_int_equal(stats(f).disk_hits, 1);
}

/* ---- damage ------------------------------------------------------------------------ */

static void test_store_block_verify_sees_every_byte(void **state)
{
    (void)state;
    struct store_block *b = make_block(model, 3, 64);
    unsigned char *tokens = (unsigned char *)(uintptr_t)b->tokens;
    assert_true(store_block_verify(b));
    for (size_t i = 0; i < 4 * TOKENS + 64; i++) { /* rows follow the tokens */
        tokens[i] ^= 1;
        assert_false(store_block_verify(b));
        tokens[i] ^= 1;
    }
    b->head.index++;
    assert_false(store_block_verify(b));
    b->head.index--;
    b->checksum.hi ^= 1;
    assert_false(store_block_verify(b));
    b->checksum.hi ^= 1;
    assert_true(store_block_verify(b));
    store_block_put(b);
}

static void test_store_finds_every_flipped_byte_of_a_file(void **state)
{
    struct fixture *f = *state;
    size_t size;
    f->ram_bytes = 0;
    open_store(f);
    put(f, 0, 24);
    char *path = path_of(f, model, 0);
    unsigned char *bytes = read_file(path, &size);
    assert_int_equal(size, file_bytes(24));
    for (size_t i = 0; i < size; i++) {
        bytes[i] ^= (unsigned char)(1 << (i % 8));
        write_file(path, bytes, size);
        bytes[i] ^= (unsigned char)(1 << (i % 8));
        if (get(f, 0) != ERR_CHECKSUM)
            fail_msg("byte %zu", i);
        assert_false(file_there(f, 0)); /* never offered again */
        assert_int_equal(get(f, 0), ERR_NOT_FOUND);
    }
    assert_int_equal(stats(f).damaged, size);
    assert_int_equal(files_in(f, "damaged"), 1); /* all of one name */
    write_file(path, bytes, size);
    assert_int_equal(get(f, 0), 0);
    free(bytes);
    free(path);
}

static void test_store_finds_files_of_every_other_length(void **state)
{
    struct fixture *f = *state;
    size_t size;
    f->ram_bytes = 0;
    open_store(f);
    put(f, 0, 24);
    char *path = path_of(f, model, 0);
    unsigned char *bytes = read_file(path, &size);
    bytes[size] = 0; /* read_file() left room for one more */
    for (size_t n = 0; n <= size + 1; n++) {
        write_file(path, bytes, n);
        assert_int_equal(get(f, 0), n == size ? 0 : ERR_CHECKSUM);
    }
    free(bytes);
    free(path);
}

static void test_store_keeps_a_bounded_number_of_damaged_files(void **state)
{
    struct fixture *f = *state;
    f->ram_bytes = 0;
    open_store(f);
    for (uint32_t i = 0; i < 80; i++) {
        put(f, i, 24);
        char *path = path_of(f, model, i);
        write_file(path, "broken", 6);
        free(path);
        assert_int_equal(get(f, i), ERR_CHECKSUM);
    }
    assert_int_equal(files_in(f, "damaged"), 64);
    assert_int_equal(stats(f).damaged, 80);
    assert_int_equal(stats(f).disk_blocks, 0);
}

static void test_store_refuses_a_block_under_another_name(void **state)
{
    struct fixture *f = *state;
    f->ram_bytes = 0;
    open_store(f);
    put(f, 0, 24);
    put(f, 1, 24);
    char *from = path_of(f, model, 0), *to = path_of(f, model, 1);
    assert_int_equal(rename(from, to), 0);
    assert_int_equal(get(f, 1), ERR_CHECKSUM);
    free(from);
    free(to);
}

/* Flips a bit of a block that the RAM tier holds. */
static void flip_in_ram(struct fixture *f, uint32_t i)
{
    struct get_result got;
    get_later(f, &i, 1, &got);
    settle(f);
    assert_int_equal(got.good, 1);
    unsigned char *rows = (unsigned char *)(uintptr_t)got.blocks[0]->rows;
    rows[13] ^= 0x10;
    store_block_put(got.blocks[0]);
}

static void test_store_reads_the_file_where_ram_went_bad(void **state)
{
    struct fixture *f = *state;
    log_set_level(LOG_ERROR + 1);
    open_store(f);
    put(f, 0, 100);
    flip_in_ram(f, 0);
    assert_int_equal(get(f, 0), 0);
    assert_int_equal(stats(f).damaged, 1);
    assert_int_equal(stats(f).disk_hits, 1);
    assert_int_equal(stats(f).ram_blocks, 0);
    assert_int_equal(get(f, 0), 0);
    assert_int_equal(stats(f).ram_blocks, 1);
}

static void test_store_never_hands_out_a_flipped_bit(void **state)
{
    struct fixture *f = *state;
    log_set_level(LOG_ERROR + 1);
    open_ram_only(f);
    put(f, 0, 100);
    flip_in_ram(f, 0);
    assert_int_equal(get(f, 0), ERR_CHECKSUM);
    assert_int_equal(get(f, 0), ERR_NOT_FOUND);
    assert_int_equal(stats(f).damaged, 1);
}

/* ---- who may write where ----------------------------------------------------------- */

static void test_store_is_closed_to_others(void **state)
{
    struct fixture *f = *state;
    const char *const folders[] = {"", "/blocks", "/tmp", "/damaged", "/notes"};
    struct stat st;
    open_store(f);
    put(f, 0, 100);
    for (size_t i = 0; i < sizeof folders / sizeof *folders; i++) {
        char *path = mem_printf("%s%s", f->dir, folders[i]);
        assert_int_equal(stat(path, &st), 0);
        assert_int_equal(st.st_mode & 0777, 0700);
        free(path);
    }
    char *paths[] = {path_of(f, model, 0), mem_printf("%s/key", f->dir)};
    for (size_t i = 0; i < 2; i++) {
        assert_int_equal(stat(paths[i], &st), 0);
        assert_int_equal(st.st_mode & 0777, 0600);
        free(paths[i]);
    }
}

static void test_store_dir_belongs_to_one_gateway(void **state)
{
    struct fixture *f = *state;
    struct err e = {0};
    open_store(f);
    const struct store_options o = {.dir = f->dir, .ram_bytes = 1};
    assert_null(store_open(&o, f->workers, &e));
    assert_int_equal(e.code, ERR_REFUSED);
    reopen(f); /* the lock goes with the store */
}

static void test_store_refuses_a_dir_that_others_may_write_to(void **state)
{
    struct fixture *f = *state;
    struct err e = {0};
    assert_int_equal(mkdir(f->dir, 0700), 0);
    assert_int_equal(chmod(f->dir, 0777), 0);
    assert_int_equal(try_open(f, &e), ERR_REFUSED);
    assert_int_equal(chmod(f->dir, 0755), 0);
    open_store(f);
}

static void test_store_says_why_it_cannot_open(void **state)
{
    struct fixture *f = *state;
    struct err e = {0};
    free(f->dir);
    f->dir = mem_printf("%s/no/such", f->root);
    assert_int_equal(try_open(f, &e), ERR_IO);
    assert_non_null(strstr(e.text, f->dir));
    assert_non_null(strstr(e.text, "No such file"));
}

static void test_store_refuses_a_broken_key(void **state)
{
    struct fixture *f = *state;
    open_store(f);
    close_store(f);
    char *key = mem_printf("%s/key", f->dir);
    write_file(key, "too short", 9);
    struct err e = {0};
    assert_int_equal(try_open(f, &e), ERR_FORMAT);
    free(key);
}

/* Puts a symlink to `target` (inside root) in the place of `path`. */
static void plant(const struct fixture *f, const char *path, const char *target)
{
    char *to = mem_printf("%s/%s", f->root, target);
    remove(path);
    assert_int_equal(symlink(to, path), 0);
    free(to);
}

static void test_store_does_not_read_through_a_symlink(void **state)
{
    struct fixture *f = *state;
    size_t size;
    struct stat st;
    f->ram_bytes = 0;
    open_store(f);
    put(f, 0, 100);
    char *path = path_of(f, model, 0), *copy = mem_printf("%s/copy", f->root);
    unsigned char *bytes = read_file(path, &size);
    write_file(copy, bytes, size); /* a block that would verify */
    plant(f, path, "copy");
    assert_int_equal(get(f, 0), ERR_CHECKSUM);
    assert_false(file_there(f, 0));
    assert_int_equal(stat(copy, &st), 0);
    assert_int_equal(st.st_size, size);
    /* A put replaces a link instead of following it. */
    plant(f, path, "copy");
    assert_int_equal(put(f, 0, 50), 1);
    assert_int_equal(lstat(path, &st), 0);
    assert_true(S_ISREG(st.st_mode));
    assert_int_equal(stat(copy, &st), 0);
    assert_int_equal(st.st_size, size);
    assert_int_equal(get(f, 0), 0);
    free(bytes);
    free(path);
    free(copy);
}

static void test_store_does_not_write_through_a_linked_folder(void **state)
{
    struct fixture *f = *state;
    char hex[HASH128_HEX];
    log_set_level(LOG_ERROR);
    open_store(f);
    char *outside = mem_printf("%s/outside", f->root);
    char *folder = mem_printf("%s/blocks/%s", f->dir, hash128_hex(model, hex));
    assert_int_equal(mkdir(outside, 0700), 0);
    plant(f, folder, "outside");
    assert_int_equal(put(f, 0, 100), 0);
    assert_int_equal(stats(f).write_errors, 1);
    assert_int_equal(rmdir(outside), 0); /* still empty */
    assert_int_equal(get(f, 0), 0);      /* RAM has it */
    assert_int_equal(get(f, 1), ERR_IO);
    assert_int_equal(stats(f).read_errors, 1);
    free(outside);
    free(folder);
}

static void test_store_does_not_open_linked_parts(void **state)
{
    struct fixture *f = *state;
    const char *const parts[] = {"blocks", "tmp", "damaged", "notes", "key", "lock"};
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) {
        struct err e = {0};
        char *path = mem_printf("%s/%s", f->dir, parts[i]);
        open_store(f);
        close_store(f);
        plant(f, path, "elsewhere");
        assert_int_equal(try_open(f, &e), ERR_IO);
        assert_int_equal(unlink(path), 0);
        free(path);
    }
}

static void test_store_does_not_wait_for_a_fifo(void **state)
{
    struct fixture *f = *state;
    f->ram_bytes = 0;
    open_store(f);
    put(f, 0, 100);
    char *path = path_of(f, model, 0);
    assert_int_equal(unlink(path), 0);
    assert_int_equal(mkfifo(path, 0600), 0);
    assert_int_equal(get(f, 0), ERR_CHECKSUM);
    free(path);
}

/* ---- a disk that is full ----------------------------------------------------------- */

static void limit_file_size(rlim_t bytes)
{
    struct rlimit limit;
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &limit), 0);
    limit.rlim_cur = bytes == RLIM_INFINITY ? limit.rlim_max : bytes;
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &limit), 0);
}

static void test_store_keeps_blocks_in_ram_while_the_disk_is_full(void **state)
{
    struct fixture *f = *state;
    signal(SIGXFSZ, SIG_IGN);
    open_store(f);
    limit_file_size(1000);
    const size_t full = put(f, 0, 5000);
    const size_t again = put(f, 1, 5000);
    limit_file_size(RLIM_INFINITY);
    assert_int_equal(full, 0);
    assert_int_equal(again, 0);
    assert_int_equal(stats(f).write_errors, 2);
    assert_int_equal(stats(f).disk_blocks, 0);
    assert_int_equal(files_in(f, "tmp"), 0);
    assert_false(file_there(f, 0));
    assert_int_equal(get(f, 0), 0);
    assert_int_equal(put(f, 0, 5000), 1); /* it works again */
    assert_int_equal(stats(f).disk_blocks, 1);
}

/* Somebody cleaned up while it runs. */
static void test_store_makes_removed_folders_anew(void **state)
{
    static const char *const folders[] = {"blocks", "tmp", "damaged", "notes"};
    struct fixture *f = *state;
    open_store(f);
    for (uint32_t i = 0; i < 4; i++) {
        char *path = mem_printf("%s/%s", f->dir, folders[i]);
        nftw(path, remove_one, 16, FTW_DEPTH | FTW_PHYS);
        assert_int_equal(put(f, i, 5000), 1);
        assert_true(file_there(f, i));
        assert_int_equal(access(path, F_OK), i < 2 ? 0 : -1); /* as they are needed */
        free(path);
    }
    assert_int_equal(stats(f).write_errors, 0);
    reopen(f);
    assert_int_equal(get(f, 0), 0);
    assert_int_equal(get(f, 3), 0);
}

static void test_store_clears_what_a_crash_left_behind(void **state)
{
    struct fixture *f = *state;
    open_store(f);
    put(f, 0, 100);
    close_store(f);
    char *left = mem_printf("%s/tmp/w17", f->dir);
    write_file(left, "half a blo", 10);
    free(left);
    open_store(f);
    settle(f);
    assert_int_equal(files_in(f, "tmp"), 0);
    assert_int_equal(get(f, 0), 0);
}

/* ---- dropping, and races ----------------------------------------------------------- */

static void test_store_drop_removes_from_all_tiers(void **state)
{
    struct fixture *f = *state;
    open_store(f);
    put(f, 0, 100);
    put(f, 1, 100);
    store_drop(f->store, model, hash_of(0));
    store_drop(f->store, model, hash_of(9)); /* unknown: fine */
    store_drop(f->store, other_model, hash_of(1));
    settle(f);
    assert_false(file_there(f, 0));
    assert_int_equal(get(f, 0), ERR_NOT_FOUND);
    assert_int_equal(get(f, 1), 0);
    assert_int_equal(stats(f).drops, 3);
    assert_int_equal(stats(f).disk_blocks, 1);
    assert_int_equal(stats(f).disk_bytes, file_bytes(100));
}

static void test_store_drop_wins_over_a_pending_put(void **state)
{
    struct fixture *f = *state;
    open_store(f);
    for (uint32_t i = 0; i < 20; i++) {
        put_later(f, model, i, 20000, NULL);
        store_drop(f->store, model, hash_of(i));
    }
    settle(f);
    for (uint32_t i = 0; i < 20; i++) {
        assert_false(file_there(f, i));
        assert_int_equal(get(f, i), ERR_NOT_FOUND);
    }
    assert_int_equal(stats(f).disk_bytes, 0);
}

static void test_store_drop_wins_over_a_pending_get(void **state)
{
    struct fixture *f = *state;
    struct get_result got[MAX_GET];
    open_store(f);
    for (uint32_t i = 0; i < MAX_GET; i++)
        put(f, i, 20000);
    reopen(f); /* nothing in RAM: the gets read files */
    for (uint32_t i = 0; i < MAX_GET; i++) {
        get_later(f, &i, 1, &got[i]);
        store_drop(f->store, model, hash_of(i));
    }
    settle(f);
    for (uint32_t i = 0; i < MAX_GET; i++) {
        assert_int_equal(got[i].good, 1); /* asked for before the drop */
        check_and_put(&got[i], &i);
        assert_false(file_there(f, i));
    }
    assert_int_equal(stats(f).ram_blocks, 0);
}

static void test_store_put_wins_over_a_pending_drop(void **state)
{
    struct fixture *f = *state;
    open_store(f);
    for (uint32_t i = 0; i < 10; i++) {
        put_later(f, model, i, 20000, NULL);
        store_drop(f->store, model, hash_of(i));
        put_later(f, model, i, 20000, NULL);
    }
    reopen(f);
    for (uint32_t i = 0; i < 10; i++)
        assert_int_equal(get(f, i), 0);
}

/*
 * Random calls for a few names, against a model: the last put or drop of a name counts.
 * A get finds what was there when it was asked; what is put later in the same round it
 * may find as well.
 */
enum { NAMES = 5, CALLS = 12 };

struct round {
    bool there[NAMES];
    struct get_result got[CALLS];
    uint32_t asked[CALLS];
    bool must[CALLS], may[CALLS];
    size_t n_gets;
};

static void random_call(struct fixture *f, struct round *r, unsigned *seed)
{
    const uint32_t i = (uint32_t)rand_r(seed) % NAMES;
    switch (rand_r(seed) % 3) {
    case 0:
        put_later(f, model, i, 3000, NULL);
        r->there[i] = true;
        for (size_t g = 0; g < r->n_gets; g++)
            r->may[g] |= r->asked[g] == i;
        break;
    case 1:
        store_drop(f->store, model, hash_of(i));
        r->there[i] = false;
        break;
    default:
        r->asked[r->n_gets] = i;
        r->must[r->n_gets] = r->may[r->n_gets] = r->there[i];
        get_later(f, &i, 1, &r->got[r->n_gets++]);
    }
}

static void check_round(struct fixture *f, struct round *r)
{
    const struct store_stats st = stats(f);
    uint64_t n = 0;
    for (size_t g = 0; g < r->n_gets; g++) {
        assert_true(r->got[g].called);
        assert_true(r->got[g].good == 1 ? r->may[g] : !r->must[g]);
        check_and_put(&r->got[g], &r->asked[g]);
    }
    for (uint32_t i = 0; i < NAMES; i++) {
        assert_int_equal(file_there(f, i), r->there[i]);
        n += r->there[i];
    }
    assert_int_equal(st.disk_blocks, n);
    assert_int_equal(st.disk_bytes, n * file_bytes(3000));
    assert_true(st.ram_blocks <= n && st.ram_bytes <= f->ram_bytes);
}

static void test_store_orders_calls_for_a_name(void **state)
{
    struct fixture *f = *state;
    struct round r = {0};
    unsigned seed = 4711;
    f->ram_bytes = 2 * file_bytes(3000);
    open_store(f);
    for (int round = 0; round < 100; round++) {
        r.n_gets = 0;
        for (int call = 0; call < CALLS; call++)
            random_call(f, &r, &seed);
        settle(f);
        check_round(f, &r);
    }
}

/* ---- recovery ---------------------------------------------------------------------- */

#define MAX_TOLD 2000
struct told {
    size_t n;
    uint32_t order[MAX_TOLD];
    bool ended;
};

static void on_told(void *arg, const struct store_block *b)
{
    struct told *t = arg;
    assert_false(t->ended);
    if (!b) {
        t->ended = true;
        return;
    }
    assert_null(b->rows);
    assert_true(t->n < MAX_TOLD);
    assert_int_equal(b->head.n_tokens, TOKENS);
    const uint32_t i = b->tokens[0] / TOKENS;
    assert_true(hash128_eq(b->head.hash, hash_of(i)));
    assert_int_equal(b->tokens[TOKENS - 1], i * TOKENS + TOKENS - 1);
    t->order[t->n++] = i;
}

static void scan(struct fixture *f, struct told *t)
{
    t->n = 0;
    t->ended = false;
    store_scan(f->store, model, on_told, t);
    assert_false(t->ended);
    settle(f);
    assert_true(t->ended);
}

static void test_store_scan_tells_all_blocks_of_a_model(void **state)
{
    struct fixture *f = *state;
    static struct told t;
    open_store(f);
    scan(f, &t);
    assert_int_equal(t.n, 0);
    for (uint32_t i = 0; i < 300; i++) /* more than one turn of the loop takes */
        put_later(f, model, i, 8, NULL);
    put_later(f, other_model, 7, 8, NULL);
    settle(f);
    reopen(f);
    scan(f, &t);
    assert_int_equal(t.n, 300);
    for (uint32_t i = 0; i < 300; i++) /* one chain: parents first */
        assert_int_equal(t.order[i], i);
    assert_int_equal(stats(f).disk_hits, 0);
    assert_int_equal(stats(f).orphans, 0);
}

/* A block with a parent of choice; its number is not its index. */
static void put_child(struct fixture *f, uint32_t i, uint32_t parent, uint32_t index)
{
    const struct store_head head = {
        .fingerprint = model,
        .hash = hash_of(i),
        .parent = index ? hash_of(parent) : (struct hash128){7, 7},
        .index = index,
        .n_tokens = TOKENS,
        .rows_bytes = 8,
    };
    uint32_t *tokens;
    unsigned char *rows;
    struct store_block *b = store_block_new(&head, &tokens, &rows);
    for (uint32_t t = 0; t < TOKENS; t++)
        tokens[t] = i * TOKENS + t;
    memset(rows, 0, 8);
    store_block_seal(b);
    store_put(f->store, &b, 1, NULL, NULL);
    store_block_put(b);
    settle(f);
}

static void test_store_scan_tells_leaves_in_order_of_use(void **state)
{
    struct fixture *f = *state;
    static struct told t;
    /* number, parent, index, seconds since its last use */
    static const struct {
        uint32_t i, parent, index;
        time_t ago;
    } blocks[] = {{0, 0, 0, 100}, {1, 0, 1, 400}, {2, 0, 1, 100}, {3, 2, 2, 300},
                  {4, 2, 2, 100}, {5, 0, 0, 200}, {6, 5, 1, 200}, {7, 0, 0, 50}};
    open_store(f);
    for (size_t i = 0; i < sizeof blocks / sizeof *blocks; i++) {
        put_child(f, blocks[i].i, blocks[i].parent, blocks[i].index);
        age_block(f, model, blocks[i].i, blocks[i].ago);
    }
    reopen(f);
    scan(f, &t);
    const uint32_t expected[] = {0, 1, 2, 3, 5, 6, 4, 7};
    assert_int_equal(t.n, 8);
    assert_memory_equal(t.order, expected, sizeof expected);
}

static void test_store_scan_deletes_orphans(void **state)
{
    struct fixture *f = *state;
    static struct told t;
    open_store(f);
    for (uint32_t i = 0; i < 5; i++)
        put(f, i, 8);
    close_store(f);
    char *path = path_of(f, model, 2);
    assert_int_equal(unlink(path), 0);
    free(path);
    next_tick();
    open_store(f);
    scan(f, &t);
    assert_int_equal(t.n, 2);
    assert_int_equal(stats(f).orphans, 2);
    assert_int_equal(stats(f).disk_blocks, 2);
    assert_false(file_there(f, 3));
    assert_false(file_there(f, 4));
}

static void test_store_scan_spares_orphans_written_since_it_opened(void **state)
{
    struct fixture *f = *state;
    static struct told t;
    open_store(f);
    put(f, 0, 8);
    put_child(f, 3, 2, 3);
    scan(f, &t);
    assert_int_equal(t.n, 1);
    assert_true(file_there(f, 3));
    assert_int_equal(stats(f).orphans, 0);
}

static void test_store_scan_checks_head_and_tokens(void **state)
{
    struct fixture *f = *state;
    static struct told t;
    size_t size;
    open_store(f);
    put(f, 0, 24);
    char *path = path_of(f, model, 0);
    unsigned char *bytes = read_file(path, &size);
    for (size_t i = 0; i < size; i++) {
        bytes[i] ^= 0x20;
        write_file(path, bytes, size);
        bytes[i] ^= 0x20;
        scan(f, &t);
        const bool row = i >= 96 + 4 * TOKENS; /* these are checked when they are read */
        assert_int_equal(t.n, row);
        assert_int_equal(file_there(f, 0), row);
    }
    free(bytes);
    free(path);
}

static void test_store_ignores_files_that_are_not_its_own(void **state)
{
    struct fixture *f = *state;
    static struct told t;
    open_store(f);
    put(f, 0, 8);
    char *path = path_of(f, model, 0);
    char *slash = strrchr(path, '/');
    *slash = '\0';
    char *notes = mem_printf("%s/README", path);
    char *wrong = mem_printf("%s/%s", path, "0123456789abcdef0123456789abcdef.kv");
    write_file(notes, "hello", 5);
    write_file(wrong, "hello", 5); /* belongs into another folder */
    reopen(f);
    assert_int_equal(stats(f).disk_blocks, 1);
    scan(f, &t);
    assert_int_equal(t.n, 1);
    assert_int_equal(access(notes, F_OK), 0);
    assert_int_equal(access(wrong, F_OK), 0);
    free(path);
    free(notes);
    free(wrong);
}

static void test_store_writes_down_when_a_block_was_used(void **state)
{
    struct fixture *f = *state;
    struct stat st;
    open_store(f);
    put(f, 0, 8);
    char *path = path_of(f, model, 0);
    for (int in_ram = 0; in_ram < 2; in_ram++) {
        if (!in_ram)
            reopen(f);
        age(path, 1000);
        assert_int_equal(get(f, 0), 0);
        assert_int_equal(stat(path, &st), 0);
        assert_true(st.st_mtime > time(NULL) - 100);
        age(path, 30); /* recent enough: not worth a write */
        const time_t before = time(NULL) - 31;
        assert_int_equal(get(f, 0), 0);
        assert_int_equal(stat(path, &st), 0);
        assert_in_range(st.st_mtime, before, before + 10);
    }
    assert_int_equal(stats(f).ram_hits, 3);
    free(path);
}

/* ---- foreign blocks ---------------------------------------------------------------- */

static void test_store_prunes_blocks_of_other_models(void **state)
{
    struct fixture *f = *state;
    open_store(f);
    for (uint32_t i = 0; i < 4; i++) {
        put_later(f, model, i, 100, NULL);
        put_later(f, other_model, i, 100, NULL);
        settle(f);
        age_block(f, other_model, i, i == 2 ? 900 : 100 + i);
    }
    assert_int_equal(store_foreign_bytes(f->store), 0); /* put here, by us */
    reopen(f);
    static struct told t;
    assert_int_equal(store_foreign_bytes(f->store), 8 * file_bytes(100));
    scan(f, &t);
    assert_int_equal(store_foreign_bytes(f->store), 4 * file_bytes(100));
    store_prune_foreign(f->store, model, 2 * file_bytes(100));
    settle(f);
    assert_int_equal(store_foreign_bytes(f->store), 2 * file_bytes(100));
    assert_int_equal(stats(f).disk_blocks, 6);
    for (uint32_t i = 0; i < 4; i++) {
        char *path = path_of(f, other_model, i);
        assert_int_equal(access(path, F_OK) == 0, i < 2); /* 2 and 3 were the oldest */
        free(path);
        assert_true(file_there(f, i));
    }
    store_prune_foreign(f->store, model, 0);
    settle(f);
    assert_int_equal(store_foreign_bytes(f->store), 0);
    assert_int_equal(files_in(f, "blocks"), 1); /* the empty folder went as well */
    put_later(f, other_model, 0, 100, NULL);
    settle(f);
    assert_int_equal(stats(f).disk_blocks, 5);
    assert_int_equal(stats(f).write_errors, 0);
}

/* ---- notes ------------------------------------------------------------------------- */

static void check_notes(struct fixture *f)
{
    char out[32];
    assert_false(store_note_get(f->store, "selftest-1", out, sizeof out));
    store_note_set(f->store, "selftest-1", "ok 17");
    store_note_set(f->store, "selftest-2", "");
    assert_true(store_note_get(f->store, "selftest-1", out, sizeof out));
    assert_string_equal(out, "ok 17");
    assert_true(store_note_get(f->store, "selftest-2", out, sizeof out));
    assert_string_equal(out, "");
    store_note_set(f->store, "selftest-1", "failed: no room");
    assert_true(store_note_get(f->store, "selftest-1", out, sizeof out));
    assert_string_equal(out, "failed: no room");
    assert_true(store_note_get(f->store, "selftest-1", out, 7));
    assert_string_equal(out, "failed");
}

static void test_store_notes_in_ram(void **state)
{
    struct fixture *f = *state;
    open_ram_only(f);
    check_notes(f);
}

static void test_store_notes_survive_a_restart(void **state)
{
    struct fixture *f = *state;
    char out[32];
    open_store(f);
    check_notes(f);
    reopen(f);
    assert_true(store_note_get(f->store, "selftest-1", out, sizeof out));
    assert_string_equal(out, "failed: no room");
    assert_int_equal(files_in(f, "tmp"), 0);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(test_store_gets_back_what_was_put),
        TEST(test_store_survives_a_restart),
        TEST(test_store_works_in_ram_alone),
        TEST(test_store_get_hands_over_the_good_blocks_before_a_gap),
        TEST(test_store_calls_for_nothing_call_back_later),
        TEST(test_store_names_are_fingerprint_and_hash),
        TEST(test_store_does_not_write_what_is_there),
        TEST(test_store_ram_keeps_what_was_used_last),
        TEST(test_store_reads_evicted_blocks_from_disk),
        TEST(test_store_blocks_in_use_outlive_eviction_and_drop),
        TEST(test_store_get_waits_for_a_block_that_is_being_written),
        cmocka_unit_test(test_store_block_verify_sees_every_byte),
        TEST(test_store_finds_every_flipped_byte_of_a_file),
        TEST(test_store_finds_files_of_every_other_length),
        TEST(test_store_keeps_a_bounded_number_of_damaged_files),
        TEST(test_store_refuses_a_block_under_another_name),
        TEST(test_store_reads_the_file_where_ram_went_bad),
        TEST(test_store_never_hands_out_a_flipped_bit),
        TEST(test_store_is_closed_to_others),
        TEST(test_store_dir_belongs_to_one_gateway),
        TEST(test_store_refuses_a_dir_that_others_may_write_to),
        TEST(test_store_says_why_it_cannot_open),
        TEST(test_store_refuses_a_broken_key),
        TEST(test_store_does_not_read_through_a_symlink),
        TEST(test_store_does_not_write_through_a_linked_folder),
        TEST(test_store_does_not_open_linked_parts),
        TEST(test_store_does_not_wait_for_a_fifo),
        TEST(test_store_keeps_blocks_in_ram_while_the_disk_is_full),
        TEST(test_store_makes_removed_folders_anew),
        TEST(test_store_clears_what_a_crash_left_behind),
        TEST(test_store_drop_removes_from_all_tiers),
        TEST(test_store_drop_wins_over_a_pending_put),
        TEST(test_store_drop_wins_over_a_pending_get),
        TEST(test_store_put_wins_over_a_pending_drop),
        TEST(test_store_orders_calls_for_a_name),
        TEST(test_store_scan_tells_all_blocks_of_a_model),
        TEST(test_store_scan_tells_leaves_in_order_of_use),
        TEST(test_store_scan_deletes_orphans),
        TEST(test_store_scan_spares_orphans_written_since_it_opened),
        TEST(test_store_scan_checks_head_and_tokens),
        TEST(test_store_ignores_files_that_are_not_its_own),
        TEST(test_store_writes_down_when_a_block_was_used),
        TEST(test_store_prunes_blocks_of_other_models),
        TEST(test_store_notes_in_ram),
        TEST(test_store_notes_survive_a_restart),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
