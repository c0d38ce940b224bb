/* SPDX-License-Identifier: MIT */
#include "store/prompt_log.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/mem.h"
#include "cmocka_all.h"
#include "store_rig.h"

#define RECORD PROMPT_LOG_RECORD
#define BLOCKS 8

static struct store_rig rig;
static struct prompt_log *log_;
static struct tree *tree;
static struct index *index_;
static struct hash128 chain[BLOCKS];
static uint32_t placed[1024]; /* number of blocks of each record that was asked for */
static size_t n_placed;

static struct hash128 hash_of(uint64_t i)
{
    return (struct hash128){i * 0x9e3779b97f4a7c15u, i + 1};
}

static int set_up(void **state)
{
    (void)state;
    const struct tree_options to = {.block_tokens = 16};
    store_rig_up(&rig, 4);
    tree = tree_new(&to);
    index_ = index_new(1 << 20, tree);
    for (size_t i = 0; i < BLOCKS; i++)
        chain[i] = hash_of(1000 + i);
    const struct tree_sequence s = {.chain = chain, .n = BLOCKS, .token_bytes = 1};
    tree_insert(tree, &s, NULL);
    n_placed = 0;
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    store_rig_settle(&rig);
    prompt_log_close(log_);
    log_ = NULL;
    index_free(index_);
    tree_free(tree);
    store_rig_down(&rig);
    return 0;
}

static void open_log(uint64_t max_bytes)
{
    log_ = prompt_log_open(rig.root, max_bytes, rig.workers);
    assert_non_null(log_);
}

static void close_log(void)
{
    store_rig_settle(&rig);
    prompt_log_close(log_);
    log_ = NULL;
}

/* Boundary `i` of one long prompt: 16 tokens each, so it ends with block i. */
static void add(uint32_t i)
{
    const struct prompt_record r = {
        .boundary = {.hash = hash_of(i + 1),
                     .parent = i ? hash_of(i) : (struct hash128){0, 0},
                     .check = i,
                     .low = i * 16 + 10,
                     .high = i * 16 + 16,
                     .reach = i * 16 + 32},
        .block = chain[i % BLOCKS],
        .n_blocks = i % BLOCKS + 1};
    prompt_log_add(log_, &r);
}

static void add_some(uint32_t from, uint32_t to)
{
    for (uint32_t i = from; i < to; i++)
        add(i);
    prompt_log_flush(log_);
}

static size_t n_imported;

/* As a recovery does it: each record at its block, oldest first. */
static void on_records(void *arg, struct prompt_record *v, size_t n)
{
    assert_ptr_equal(arg, &rig);
    for (size_t i = 0; i < n; i++) {
        struct tree_mark m = {0};
        assert_true(v[i].n_blocks >= 1 && v[i].n_blocks <= BLOCKS);
        assert_true(hash128_eq(v[i].block, chain[v[i].n_blocks - 1]));
        placed[n_placed++] = v[i].n_blocks;
        tree_match(tree, chain, v[i].n_blocks, NULL, &m);
        n_imported += index_import(index_, &v[i].boundary, &m);
        tree_mark_clear(tree, &m);
    }
    free(v);
}

static size_t replay(void)
{
    n_placed = n_imported = 0;
    prompt_log_read(log_, on_records, &rig);
    assert_int_equal(n_placed, 0); /* never from inside */
    store_rig_settle(&rig);
    return n_imported;
}

static char *path_of(const char *name)
{
    return mem_printf("%s/%s", rig.root, name);
}

static long size_of(const char *name)
{
    struct stat st;
    char *path = path_of(name);
    const long size = stat(path, &st) == 0 ? (long)st.st_size : -1;
    free(path);
    return size;
}

/* The log knows a prompt of n boundaries, and nothing else. */
static void assert_known(uint32_t n)
{
    struct piece v[64];
    struct index_hit hit = {0};
    memset(v, 0, sizeof(v));
    for (uint32_t i = 0; i < 64; i++)
        v[i] =
            (struct piece){.hash = hash_of(i + 1), .check = i, .end_bytes = (i + 1) * 64};
    index_find(index_, v, 64, &hit);
    assert_int_equal(hit.n_pieces, n);
    if (n) {
        assert_int_equal(hit.low, (n - 1) * 16 + 10);
        assert_int_equal(hit.high, (n - 1) * 16 + 16);
        assert_int_equal(hit.reach, (n - 1) * 16 + 32);
    }
    tree_mark_clear(tree, &hit.at);
}

static void test_what_was_written_comes_back_in_order(void **state)
{
    (void)state;
    open_log(1 << 20);
    add_some(0, 3);
    add_some(3, 5);
    close_log();
    assert_int_equal(size_of("prompts.log"), 5 * RECORD);
    open_log(1 << 20);
    assert_int_equal(replay(), 5);
    for (uint32_t i = 0; i < 5; i++)
        assert_int_equal(placed[i], i + 1);
    assert_known(5);
}

static void test_close_writes_what_was_not_flushed(void **state)
{
    (void)state;
    open_log(1 << 20);
    add(0);
    add(1);
    prompt_log_close(log_);
    open_log(1 << 20);
    assert_int_equal(replay(), 2);
    prompt_log_close(NULL);
}

static void test_order_is_kept_whatever_the_workers_do(void **state)
{
    (void)state;
    enum { N = 400 };
    open_log(1 << 20);
    for (uint32_t i = 0; i < N; i++)
        add_some(i, i + 1);
    close_log();
    open_log(1 << 20);
    assert_int_equal(size_of("prompts.log"), N * RECORD);
    replay();
    assert_int_equal(n_placed, N);
    for (uint32_t i = 0; i < N; i++)
        assert_int_equal(placed[i], i % BLOCKS + 1);
}

static void test_torn_tail_is_cut_and_what_follows_is_read(void **state)
{
    (void)state;
    open_log(1 << 20);
    add_some(0, 3);
    close_log();
    char *path = path_of("prompts.log");
    assert_int_equal(truncate(path, 3 * RECORD - 33), 0);
    open_log(1 << 20);
    assert_int_equal(size_of("prompts.log"), 2 * RECORD);
    add_some(2, 4);
    close_log();
    open_log(1 << 20);
    assert_int_equal(replay(), 4);
    assert_known(4);
    free(path);
}

static void test_record_with_a_wrong_sum_is_skipped(void **state)
{
    (void)state;
    open_log(1 << 20);
    add_some(0, 4);
    close_log();
    char *path = path_of("prompts.log");
    store_rig_flip(path, 2 * RECORD + 45);
    open_log(1 << 20);
    assert_int_equal(replay(), 2); /* the last one's parent is not known */
    assert_int_equal(n_placed, 3);
    assert_known(2);
    free(path);
}

static void test_noise_is_no_record(void **state)
{
    (void)state;
    char *path = path_of("prompts.log");
    FILE *f = fopen(path, "w");
    for (int i = 0; i < 1000; i++)
        fputc(i * 7 % 251, f);
    fclose(f);
    open_log(1 << 20);
    assert_int_equal(replay(), 0);
    assert_int_equal(n_placed, 0);
    add_some(0, 2);
    store_rig_settle(&rig);
    assert_int_equal(replay(), 2);
    free(path);
}

static void test_two_generations_are_kept(void **state)
{
    (void)state;
    open_log(8 * RECORD); /* four records each */
    for (uint32_t i = 0; i < 16; i++) {
        add_some(i, i + 1);
        store_rig_settle(&rig);
        assert_true(size_of("prompts.log") <= 4 * RECORD);
        assert_true(size_of("prompts.log.1") <= 4 * RECORD);
    }
    assert_int_equal(size_of("prompts.log"), 4 * RECORD);
    assert_int_equal(size_of("prompts.log.1"), 4 * RECORD);
    replay();
    assert_int_equal(n_placed, 8);
    for (uint32_t i = 0; i < 8; i++) /* the older ones first */
        assert_int_equal(placed[i], i + 1);
}

static void test_folder_that_is_not_there_keeps_nothing(void **state)
{
    (void)state;
    char *dir = path_of("nowhere");
    log_ = prompt_log_open(dir, 1 << 20, rig.workers);
    add_some(0, 3);
    assert_int_equal(replay(), 0);
    free(dir);
}

/* A folder in the place of the file: what comes meanwhile is lost, what comes later not. */
static void test_file_that_can_be_made_later_is_written_then(void **state)
{
    (void)state;
    char *path = path_of("prompts.log");
    assert_int_equal(mkdir(path, 0700), 0);
    open_log(1 << 20);
    add_some(0, 2);
    store_rig_settle(&rig);
    assert_int_equal(replay(), 0);
    assert_int_equal(rmdir(path), 0);
    add_some(0, 3);
    store_rig_settle(&rig);
    assert_int_equal(size_of("prompts.log"), 3 * RECORD);
    assert_int_equal(replay(), 3);
    free(path);
}

/* ---- forgetting --------------------------------------------------------------------- */

static void on_forgotten(void *arg)
{
    ++*(int *)arg;
}

/* `n` records of one chain behind the one that is named, in two files and unwritten. */
static void forget_chain(uint32_t n)
{
    struct prompt_log_forget what = {.gone = mem_array(1, sizeof(*what.gone)),
                                     .n_gone = 1};
    int done = 0;
    what.gone[0] = hash_of(3);
    open_log((uint64_t)n * RECORD);
    add_some(0, n / 2);
    store_rig_settle(&rig);
    add_some(n / 2, n);
    store_rig_settle(&rig);
    add(n); /* waits still */
    prompt_log_forget(log_, &what, on_forgotten, &done);
    store_rig_settle(&rig);
    assert_int_equal(done, 1);
    close_log();
}

static void test_what_continues_a_forgotten_one_is_forgotten(void **state)
{
    (void)state;
    static const uint32_t sizes[] = {8, 300, 700};
    for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
        struct prompt_record *v;
        forget_chain(sizes[i]);
        assert_int_equal(prompt_log_load(rig.root, &v), 2);
        assert_true(hash128_eq(v[0].boundary.hash, hash_of(1)));
        assert_true(hash128_eq(v[1].boundary.hash, hash_of(2)));
        assert_int_equal(size_of("prompts.log.1"), -1);
        free(v);
        char *path = path_of("prompts.log");
        unlink(path);
        free(path);
    }
}

static void test_link_is_not_followed(void **state)
{
    (void)state;
    char *path = path_of("prompts.log"), *target = path_of("target");
    FILE *f = fopen(target, "w");
    fclose(f);
    assert_int_equal(symlink("target", path), 0);
    open_log(1 << 20);
    add_some(0, 3);
    close_log();
    assert_int_equal(size_of("target"), 0);
    free(path);
    free(target);
}

#define TEST(name) cmocka_unit_test_setup_teardown(test_##name, set_up, tear_down)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(what_was_written_comes_back_in_order),
        TEST(close_writes_what_was_not_flushed),
        TEST(order_is_kept_whatever_the_workers_do),
        TEST(torn_tail_is_cut_and_what_follows_is_read),
        TEST(record_with_a_wrong_sum_is_skipped),
        TEST(noise_is_no_record),
        TEST(two_generations_are_kept),
        TEST(folder_that_is_not_there_keeps_nothing),
        TEST(file_that_can_be_made_later_is_written_then),
        TEST(what_continues_a_forgotten_one_is_forgotten),
        TEST(link_is_not_followed),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
