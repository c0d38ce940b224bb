/* SPDX-License-Identifier: MIT */

/* What the store does about what is there already, while it is used. */

#include "store/store.h"

#include <fcntl.h>
#include <ftw.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/mem.h"
#include "cmocka_all.h"
#include "store_rig.h"

#define TOKENS 4
#define ROWS 8
#define FILE_BYTES (96 + 4 * TOKENS + ROWS + 16)
#define MANY 900

static struct store_rig rig;
static struct store *store;
static char *dir;

static const struct hash128 model = {0x1111, 0x2222}, other_model = {0x3333, 0x4444};

static void open_store(void)
{
    struct err e = {0};
    store = store_open(&(struct store_options){.dir = dir}, rig.workers, &e);
    if (!store)
        fail_msg("%s", e.text);
}

static void close_store(void)
{
    store_rig_settle(&rig);
    store_close(store);
    store = NULL;
}

static int set_up(void **state)
{
    (void)state;
    store_rig_up(&rig, 2);
    dir = mem_printf("%s/store", rig.root);
    open_store();
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    close_store();
    free(dir);
    store_rig_down(&rig);
    return 0;
}

static struct store_stats stats(void)
{
    struct store_stats s;
    store_stats(store, &s);
    return s;
}

static struct hash128 hash_of(uint32_t i)
{
    return (struct hash128){0x9e3779b97f4a7c15u * (i + 1), 0xd1b54a32d192ed03u * (i + 1)};
}

/* Number i of a chain. */
static struct store_block *make_block(struct hash128 fingerprint, uint32_t i)
{
    const struct store_head head = {
        .fingerprint = fingerprint,
        .hash = hash_of(i),
        .parent = i ? hash_of(i - 1) : (struct hash128){7, 7},
        .index = i,
        .n_tokens = TOKENS,
        .rows_bytes = ROWS,
    };
    uint32_t *tokens;
    unsigned char *rows;
    struct store_block *b = store_block_new(&head, &tokens, &rows);
    for (uint32_t t = 0; t < TOKENS; t++)
        tokens[t] = i * TOKENS + t;
    memset(rows, 1, ROWS);
    store_block_seal(b);
    return b;
}

static void put(struct hash128 fingerprint, uint32_t i)
{
    struct store_block *b = make_block(fingerprint, i);
    store_put(store, &b, 1, NULL, NULL);
    store_block_put(b);
}

static void plant(uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) {
        struct store_block *b = make_block(model, i);
        store_rig_plant(dir, b, 1000 + i);
        store_block_put(b);
    }
}

static size_t n_files;

static int count_one(const char *path, const struct stat *st, int kind, struct FTW *ftw)
{
    (void)path;
    (void)st;
    (void)ftw;
    n_files += kind == FTW_F;
    return 0;
}

static size_t count_files(const char *folder)
{
    char *path = mem_printf("%s/%s", dir, folder);
    n_files = 0;
    nftw(path, count_one, 16, FTW_PHYS);
    free(path);
    return n_files;
}

/* ---- counting ---------------------------------------------------------------------- */

/* What it counts is what is there, whatever comes and goes meanwhile. */
static void test_files_come_and_go_while_they_are_counted(void **state)
{
    (void)state;
    plant(MANY);
    for (uint32_t round = 0; round < 4; round++) {
        close_store();
        open_store();
        assert_true(stats().counting);
        for (uint32_t i = 0; i < 300; i++) {
            const uint32_t gone = (i * 7 + round * 13) % MANY;
            store_drop(store, model, hash_of(gone));
            put(model, MANY + (i * 5 + round) % 400);
            if (i % 3 == 0)
                put(model, gone);
        }
        store_rig_settle(&rig);
        assert_false(stats().counting);
        const size_t there = count_files("blocks");
        assert_true(there > MANY / 2);
        assert_int_equal(stats().disk_blocks, there);
        assert_int_equal(stats().disk_bytes, there * FILE_BYTES);
    }
}

static void test_folder_that_is_new_counts_as_well(void **state)
{
    (void)state;
    put(model, 0);
    close_store();
    open_store();
    put(other_model, 1);
    put(model, 2);
    store_rig_settle(&rig);
    assert_int_equal(stats().disk_blocks, 3);
    assert_int_equal(store_found_bytes(store, model), FILE_BYTES);
    assert_int_equal(store_found_bytes(store, other_model), 0);
}

/* What another life was writing goes, what this one writes does not. */
static void test_leftovers_go_beside_new_writes(void **state)
{
    (void)state;
    close_store();
    for (int i = 0; i < 50; i++) {
        char *path = mem_printf("%s/tmp/0123456789abcdef-%d", dir, i);
        const int fd = open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
        assert_true(fd >= 0);
        close(fd);
        free(path);
    }
    open_store();
    for (uint32_t i = 0; i < 50; i++)
        put(model, i);
    store_rig_settle(&rig);
    assert_int_equal(count_files("tmp"), 0);
    assert_int_equal(stats().disk_blocks, 50);
    assert_int_equal(stats().write_errors, 0);
}

/* ---- scans and pruning ------------------------------------------------------------- */

static size_t n_told, n_ends;

static void on_told(void *arg, const struct store_block *b)
{
    (void)arg;
    n_told += b != NULL;
    n_ends += b == NULL;
}

static void scan(void)
{
    n_told = n_ends = 0;
    store_scan(store, model, on_told, NULL);
}

/* Parents that were not seen are not parents that are missing. */
static void test_scan_that_is_stopped_deletes_nothing(void **state)
{
    (void)state;
    plant(MANY);
    close_store();
    open_store();
    scan();
    store_part(store);
    store_rig_settle(&rig);
    assert_int_equal(n_ends, 1);
    assert_int_equal(n_told, 0);
    assert_int_equal(count_files("blocks"), MANY);
    close_store();
    open_store();
    scan();
    store_rig_settle(&rig);
    assert_int_equal(n_told, MANY);
}

static void test_pruning_waits_until_all_is_counted(void **state)
{
    (void)state;
    plant(100);
    close_store();
    open_store();
    store_prune_foreign(store, other_model, 90 * FILE_BYTES);
    store_prune_foreign(store, other_model, 60 * FILE_BYTES); /* the least counts … */
    store_prune_foreign(store, other_model, 80 * FILE_BYTES); /* … of all */
    store_rig_settle(&rig);
    assert_int_equal(store_foreign_bytes(store), 60 * FILE_BYTES);
    assert_int_equal(stats().disk_blocks, 60);
    assert_int_equal(count_files("blocks"), 60);
}

static size_t n_calls;

static void on_recovered(void *arg)
{
    assert_ptr_equal(arg, &rig);
    assert_false(store_recovers(store));
    n_calls++;
}

static void test_it_says_when_it_has_recovered(void **state)
{
    (void)state;
    plant(20);
    close_store();
    open_store();
    n_calls = 0;
    assert_true(store_recovers(store));
    store_when_recovered(store, on_recovered, &rig);
    scan();
    store_rig_settle(&rig);
    assert_int_equal(n_told, 20);
    assert_int_equal(n_calls, 1);
    store_when_recovered(store, on_recovered, &rig);
    assert_int_equal(n_calls, 1); /* not from inside */
    store_rig_settle(&rig);
    assert_int_equal(n_calls, 2);
}

#define TEST(name) cmocka_unit_test_setup_teardown(test_##name, set_up, tear_down)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(files_come_and_go_while_they_are_counted),
        TEST(folder_that_is_new_counts_as_well),
        TEST(leftovers_go_beside_new_writes),
        TEST(scan_that_is_stopped_deletes_nothing),
        TEST(pruning_waits_until_all_is_counted),
        TEST(it_says_when_it_has_recovered),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
