/* SPDX-License-Identifier: MIT */

/*
 * 24 pinned starts stay while many times the budget passes through the store, and memory
 * and disk stay within theirs. PRESSURE_MB=10240 in the environment is the long form:
 * 10 GB of blocks of 1 MiB through 200 MB on disk and 50 MB in RAM; without it, 64 MiB of
 * blocks of 16 KiB through 4 MiB and 1 MiB.
 */

#include <ftw.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/mem.h"
#include "cmocka_all.h"
#include "store/cache.h"
#include "store_rig.h"

#define MIB ((uint64_t)1 << 20)
#define BT 64
#define PINS 24
#define BLOCKS 2 /* of a sequence */
#define BATCH 8  /* sequences that are under way together */

static struct store_rig rig;
static struct cache *cache;
static char *dir;
static uint64_t row_bytes, budget, ram;
static const struct hash128 model = {0xa, 1};

static void on_attached(void *arg, size_t n_blocks)
{
    (void)arg;
    (void)n_blocks;
}

static void open_cache(void)
{
    struct err e = {0};
    const struct cache_options o = {.block_tokens = BT,
                                    .max_bytes = budget,
                                    .max_blocks = 1000000,
                                    .max_pinned = budget / 2,
                                    .index_bytes = 1 << 20,
                                    .store = {.dir = dir, .ram_bytes = ram}};
    cache = cache_open(&o, rig.workers, &e);
    if (!cache)
        fail_msg("%s", e.text);
    cache_attach(cache, model, row_bytes / BT, on_attached, NULL);
    store_rig_settle(&rig);
}

static void close_cache(void)
{
    store_rig_settle(&rig);
    cache_close(cache);
    cache = NULL;
}

/* ---- sequences: number `id` -------------------------------------------------------- */

static struct piece piece_of(uint32_t id)
{
    const struct hash128 h = chain_link(cache_key(cache), (struct hash128){1, 1},
                                        slice_make((const char *)&id, sizeof(id)));
    return (struct piece){
        .hash = h, .check = h.hi ^ 5, .end_bytes = 256, .ends_part = true};
}

static struct store_block *block_of(uint32_t id, const struct hash128 *chain, size_t i,
                                    struct hash128 root, const uint32_t *tokens)
{
    const struct store_head head = {.fingerprint = model,
                                    .hash = chain[i],
                                    .parent = i ? chain[i - 1] : root,
                                    .index = (uint32_t)i,
                                    .n_tokens = BT,
                                    .rows_bytes = row_bytes};
    uint32_t *ids;
    unsigned char *rows;
    struct store_block *b = store_block_new(&head, &ids, &rows);
    memcpy(ids, tokens + i * BT, BT * sizeof(*ids));
    memset(rows, (int)(id % 251), row_bytes);
    store_block_seal(b);
    return b;
}

static void put(uint32_t id)
{
    const struct hash128 root = cache_root(cache, model, 0, SLICE_LIT(""));
    uint32_t tokens[BLOCKS * BT];
    struct hash128 chain[BLOCKS];
    struct store_block *blocks[BLOCKS];
    struct tree_mark m = {0};
    for (uint32_t i = 0; i < BLOCKS * BT; i++)
        tokens[i] = id * BLOCKS * BT + i;
    chain_blocks(cache_key(cache), root, tokens, BLOCKS * BT, BT, chain);
    const struct tree_sequence s = {
        .chain = chain, .n = BLOCKS, .tokens = tokens, .token_bytes = row_bytes / BT};
    const size_t n_new = cache_insert(cache, model, &s, &m);
    assert_int_equal(n_new, BLOCKS);
    for (size_t i = 0; i < n_new; i++)
        blocks[i] = block_of(id, chain, i, root, tokens);
    const struct piece v = piece_of(id);
    const struct index_lesson lesson = {.v = &v,
                                        .n = 1,
                                        .n_prompt = 1,
                                        .prompt_tokens = BLOCKS * BT,
                                        .total_tokens = BLOCKS * BT,
                                        .end = &m};
    cache_learn(cache, model, &lesson);
    cache_put(cache, &m, blocks, n_new);
}

static void pin_them(void)
{
    for (uint32_t id = 0; id < PINS; id++) {
        struct err e = {0};
        char name[16];
        const struct piece v = piece_of(id);
        put(id);
        store_rig_settle(&rig);
        snprintf(name, sizeof(name), "pin-%u", id);
        if (cache_pin(cache, model, name, &v, 1, false, &e) != 0)
            fail_msg("%s", e.text);
    }
}

/* ---- what is left ------------------------------------------------------------------ */

static size_t fetched;

static void on_fetched(void *arg, struct store_block **blocks, size_t n,
                       const struct err *err)
{
    const uint32_t *id = arg;
    assert_null(err);
    assert_int_equal(n, BLOCKS);
    for (size_t i = 0; i < n; i++) {
        assert_int_equal(blocks[i]->rows[0], *id % 251);
        assert_int_equal(blocks[i]->rows[row_bytes - 1], *id % 251);
        store_block_put(blocks[i]);
    }
    fetched++;
}

/* All pins are whole, and their rows are theirs. */
static void check_pins(void)
{
    for (uint32_t id = 0; id < PINS; id++) {
        const struct piece v = piece_of(id);
        struct index_hit hit = {0};
        uint32_t tokens = 0;
        assert_true(cache_stored(cache, &v, 1, &tokens));
        assert_int_equal(tokens, BLOCKS * BT);
        index_find(cache_index(cache), &v, 1, &hit);
        fetched = 0;
        cache_fetch(cache, model, &hit.at, BLOCKS * BT, on_fetched, &id);
        tree_mark_clear(cache_tree(cache), &hit.at);
        store_rig_settle(&rig);
        assert_int_equal(fetched, 1);
    }
}

static uint64_t found_bytes;

static int add_file(const char *path, const struct stat *st, int kind, struct FTW *at)
{
    (void)path;
    (void)at;
    found_bytes += kind == FTW_F ? (uint64_t)st->st_size : 0;
    return 0;
}

static uint64_t disk_bytes(void)
{
    found_bytes = 0;
    nftw(dir, add_file, 16, FTW_PHYS);
    return found_bytes;
}

static uint64_t rss_bytes(void)
{
    unsigned long long pages = 0;
    FILE *f = fopen("/proc/self/statm", "re");
    if (!f || fscanf(f, "%*u %llu", &pages) != 1)
        fail_msg("no /proc/self/statm");
    fclose(f);
    return pages * (uint64_t)sysconf(_SC_PAGESIZE);
}

static void test_pins_stay_under_pressure_and_budgets_hold(void **state)
{
    const char *mb = getenv("PRESSURE_MB");
    const uint64_t total = (mb ? strtoull(mb, NULL, 10) : 64) * MIB;
    uint64_t most_disk = 0, most_rss = 0, before;
    (void)state;
    row_bytes = mb ? MIB : MIB / 64;
    budget = mb ? 200 * MIB : 4 * MIB;
    ram = mb ? 50 * MIB : MIB;
    store_rig_up(&rig, 2);
    dir = mem_printf("%s/store", rig.root);
    before = rss_bytes();
    open_cache();
    pin_them();
    uint32_t id = PINS;
    for (uint64_t passed = 0; passed < total; passed += BATCH * BLOCKS * row_bytes) {
        for (int i = 0; i < BATCH; i++)
            put(id++);
        const uint64_t rss = rss_bytes() - before; /* with what is on its way to disk */
        store_rig_settle(&rig);
        const uint64_t disk = disk_bytes();
        most_disk = disk > most_disk ? disk : most_disk;
        most_rss = rss > most_rss ? rss : most_rss;
    }
    check_pins();
    close_cache();
    open_cache(); /* and after a restart */
    check_pins();
    close_cache();
    const uint64_t scratch = 2 * BATCH * BLOCKS * row_bytes; /* in work: RAM and tmp/ */
    print_message(
        "%llu MiB passed: disk %.1f of %.0f MiB, RSS grew by %.1f (RAM tier %.0f)\n",
        (unsigned long long)(total / MIB), (double)most_disk / (double)MIB,
        (double)budget / (double)MIB, (double)most_rss / (double)MIB,
        (double)ram / (double)MIB);
    assert_true(most_disk <= (budget + scratch) * 11 / 10);
    if (!SANITIZED) /* they keep what was freed */
        assert_true(most_rss <= (ram + scratch) * 11 / 10 + 8 * MIB); /* tree, index */
    free(dir);
    store_rig_down(&rig);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_pins_stay_under_pressure_and_budgets_hold),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
