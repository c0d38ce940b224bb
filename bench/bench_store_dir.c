/* SPDX-License-Identifier: MIT */

/*
 * The store's directory with 2,000 to a million blocks: opening it, counting what is
 * there, taking a model in (heads read on workers, tree and index filled on the loop), the
 * longest turn of the loop meanwhile, memory, and single calls.
 *
 *     bench_store_dir [BLOCKS]…      without: 2000 10000 100000
 *
 * A million takes some minutes, most of it to make and delete the files: name it.
 *
 * Blocks of 64 tokens in chats of 8 to 40 blocks over 500 system prompts. The rows of the
 * files have their real size where there are 2,000 and are small above; recovery does not
 * read them. Files are made without syncing; what a put costs is measured apart, with
 * syncing. Everything is in the page cache unless the machine has too little memory.
 */

#include <fcntl.h>
#include <ftw.h>
#include <malloc.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "../src/store/store_internal.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/quantile.h"
#include "store/cache.h"

#define BLOCK_TOKENS 64
#define SMALL_ROWS 64       /* bytes */
#define REAL_ROWS (1 << 20) /* about 16 KiB a token */
#define SYSTEM_BLOCKS 30
#define CALLS 300

static const struct hash128 model = {0xbe, 0xcc};
static uint64_t random_state = 88172645463325252u;

static uint64_t next_random(void)
{
    random_state ^= random_state << 13;
    random_state ^= random_state >> 7;
    random_state ^= random_state << 17;
    return random_state;
}

static double now_s(void)
{
    struct timespec ts;
    clock_gettime(CLOCK_MONOTONIC, &ts);
    return (double)ts.tv_sec + (double)ts.tv_nsec / 1e9;
}

/* Of all threads. The machine may be busy with other work: this is what it costs. */
static double cpu_s(void)
{
    struct timespec ts;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &ts);
    return (double)ts.tv_sec + (double)ts.tv_nsec / 1e9;
}

static size_t heap_bytes(void)
{
    const struct mallinfo2 m = mallinfo2();
    return m.uordblks + m.hblkhd;
}

/* ---- a directory ------------------------------------------------------------------- */

struct rig {
    struct loop *loop;
    struct workers *workers;
    struct cache *cache;
    char *root, *dir;
    size_t rows;
    struct chain_key key;
    struct hash128 *made; /* a sample of what is there, CALLS of them */
    size_t n_made;
};

static void open_cache(struct rig *r, uint64_t max_blocks)
{
    struct err e = {0};
    const struct cache_options o = {.block_tokens = BLOCK_TOKENS,
                                    .max_blocks = max_blocks,
                                    .index_bytes = 1 << 20,
                                    .store = {.dir = r->dir, .ram_bytes = 0}};
    r->cache = cache_open(&o, r->workers, &e);
    if (!r->cache) {
        fprintf(stderr, "%s\n", e.text);
        exit(1);
    }
}

static struct store_block *make_block(struct rig *r, struct hash128 parent,
                                      uint32_t index)
{
    uint32_t ids[BLOCK_TOKENS], *tokens;
    unsigned char *rows;
    for (size_t i = 0; i < BLOCK_TOKENS; i++)
        ids[i] = (uint32_t)next_random() % 150000;
    const struct store_head head = {.fingerprint = model,
                                    .hash =
                                        chain_block(&r->key, parent, ids, BLOCK_TOKENS),
                                    .parent = parent,
                                    .index = index,
                                    .n_tokens = BLOCK_TOKENS,
                                    .rows_bytes = r->rows};
    struct store_block *b = store_block_new(&head, &tokens, &rows);
    memcpy(tokens, ids, sizeof(ids));
    memset(rows, 1, r->rows);
    store_block_seal(b);
    return b;
}

static struct hash128 write_block(struct rig *r, int folder, struct hash128 parent,
                                  uint32_t index, size_t number, size_t n)
{
    struct store_block *b = make_block(r, parent, index);
    const struct hash128 hash = b->head.hash;
    const struct slice bytes = store_block_file(b);
    char hex[HASH128_HEX], path[64];
    hash128_hex(hash, hex);
    snprintf(path, sizeof(path), "%.2s", hex);
    mkdirat(folder, path, 0700);
    snprintf(path, sizeof(path), "%.2s/%s.kv", hex, hex);
    const int fd = openat(folder, path, O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
    if (fd < 0 || write(fd, bytes.ptr, bytes.len) != (ssize_t)bytes.len) {
        perror(path);
        exit(1);
    }
    close(fd);
    store_block_put(b);
    if (r->n_made < CALLS && number % (n / CALLS) == 0)
        r->made[r->n_made++] = hash;
    return hash;
}

/* System prompts first, then chats behind them. */
static void fill(struct rig *r, size_t n)
{
    const size_t n_systems = n >= 100000 ? 500 : 50;
    struct hash128 *systems = mem_array(n_systems, sizeof(*systems));
    char hex[HASH128_HEX], *path;
    path = mem_printf("%s/blocks/%s", r->dir, hash128_hex(model, hex));
    mkdir(path, 0700);
    const int folder = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    size_t made = 0;
    r->n_made = 0;
    for (size_t s = 0; s < n_systems; s++) {
        struct hash128 h = {s + 1, 1};
        for (uint32_t i = 0; i < SYSTEM_BLOCKS; i++)
            h = write_block(r, folder, h, i, made++, n);
        systems[s] = h;
    }
    while (made < n) {
        struct hash128 h = systems[next_random() % n_systems];
        const uint32_t more = 8 + (uint32_t)(next_random() % 33);
        for (uint32_t i = 0; i < more && made < n; i++)
            h = write_block(r, folder, h, SYSTEM_BLOCKS + i, made++, n);
    }
    close(folder);
    free(path);
    free(systems);
}

/* ---- measuring --------------------------------------------------------------------- */

struct turns {
    struct rig *r;
    bool watched;
    double last, longest;
    uint64_t n;
    size_t n_blocks;
};

/* Processor time of the loop's thread: others may be busy on this machine. */
static double thread_s(void)
{
    struct timespec ts;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &ts);
    return (double)ts.tv_sec + (double)ts.tv_nsec / 1e9;
}

static void on_turn(void *arg)
{
    struct turns *t = arg;
    const double now = thread_s();
    if (now - t->last > t->longest)
        t->longest = now - t->last;
    t->last = now;
    t->n++;
    if (t->watched)
        loop_defer(t->r->loop, on_turn, t);
}

static void on_attached(void *arg, size_t n_blocks)
{
    struct turns *t = arg;
    t->n_blocks = n_blocks;
    t->watched = false;
    loop_stop(t->r->loop);
}

static void settle(struct rig *r);

/* Watching each turn keeps a processor busy, so it is done in another life. */
static void attach(struct rig *r, size_t n, bool watch)
{
    const size_t before = heap_bytes();
    const double start = now_s(), cpu = thread_s(), all = cpu_s();
    struct turns t = {.r = r, .last = cpu, .watched = watch};
    cache_attach(r->cache, model, r->rows / BLOCK_TOKENS, on_attached, &t);
    if (watch)
        loop_defer(r->loop, on_turn, &t);
    loop_run(r->loop);
    const double took = now_s() - start, took_cpu = thread_s() - cpu;
    const double took_all = cpu_s() - all;
    settle(r);
    if (t.n_blocks != n)
        printf("  %zu blocks of %zu\n", t.n_blocks, n);
    if (watch) {
        printf("  longest turn            %10.2f ms\n", t.longest * 1e3);
        return;
    }
    printf("  take a model in         %10.3f s   %6.2f us a block\n", took,
           took * 1e6 / (double)n);
    printf("  processor time          %10.3f s   %6.2f us a block\n", took_all,
           took_all * 1e6 / (double)n);
    printf("  of it on the loop       %10.3f s   %6.2f us a block\n", took_cpu,
           took_cpu * 1e6 / (double)n);
    printf("  memory afterwards       %10.1f MiB %6.0f bytes a block\n",
           (double)(heap_bytes() - before) / (1 << 20),
           (double)(heap_bytes() - before) / (double)n);
}

static void stop(void *arg)
{
    loop_stop(arg);
}

static void settle(struct rig *r)
{
    do {
        loop_defer(r->loop, stop, r->loop);
        loop_run(r->loop);
    } while (workers_pending(r->workers));
}

static void on_get(void *arg, struct store_block **blocks, size_t good,
                   const struct err *err)
{
    struct rig *r = arg;
    if (err)
        printf("  %s\n", err->text);
    for (size_t i = 0; i < good; i++)
        store_block_put(blocks[i]);
    loop_stop(r->loop);
}

static void on_put(void *arg, size_t n_stored)
{
    struct rig *r = arg;
    (void)n_stored;
    loop_stop(r->loop);
}

static void print_calls(const char *what, const struct quantile *q)
{
    printf("  %-10s p50, p99     %10.3f ms  %6.3f ms\n", what, quantile_get(q, 0.5) * 1e3,
           quantile_get(q, 0.99) * 1e3);
}

static void single_calls(struct rig *r)
{
    static struct quantile get, put, drop;
    struct store *s = cache_store(r->cache);
    memset(&get, 0, sizeof(get));
    memset(&put, 0, sizeof(put));
    memset(&drop, 0, sizeof(drop));
    for (size_t i = 0; i < r->n_made; i++) {
        double start = now_s();
        store_get(s, model, &r->made[i], 1, on_get, r);
        loop_run(r->loop);
        quantile_add(&get, now_s() - start);
        struct store_block *b = make_block(r, (struct hash128){i, 2}, 0);
        const struct hash128 hash = b->head.hash;
        start = now_s();
        store_put(s, &b, 1, on_put, r);
        loop_run(r->loop);
        quantile_add(&put, now_s() - start);
        store_block_put(b);
        start = now_s();
        store_drop(s, model, hash);
        settle(r);
        quantile_add(&drop, now_s() - start);
    }
    print_calls("get", &get);
    print_calls("put", &put);
    print_calls("drop", &drop);
}

static int remove_one(const char *path, const struct stat *st, int kind, struct FTW *ftw)
{
    (void)st;
    (void)kind;
    (void)ftw;
    return remove(path);
}

static void measure_opening(struct rig *r, size_t n)
{
    const double start = now_s(), start_cpu = thread_s();
    open_cache(r, 0);
    const double opened = now_s(), cpu = cpu_s();
    printf("  open, processor time    %10.3f ms\n", (thread_s() - start_cpu) * 1e3);
    cache_when_recovered(r->cache, stop, r->loop);
    loop_run(r->loop);
    printf("  open                    %10.3f ms\n", (opened - start) * 1e3);
    printf("  then counted after      %10.3f s   %6.2f us a block\n", now_s() - opened,
           (now_s() - opened) * 1e6 / (double)n);
    printf("  processor time          %10.3f s   %6.2f us a block\n", cpu_s() - cpu,
           (cpu_s() - cpu) * 1e6 / (double)n);
}

static void measure(size_t n)
{
    const char *tmp = getenv("TMPDIR");
    struct rig r = {.rows = n > 2000 ? SMALL_ROWS : REAL_ROWS};
    r.root = mem_printf("%s/incipit-bench-XXXXXX", tmp ? tmp : "/tmp");
    if (!mkdtemp(r.root)) {
        perror(r.root);
        exit(1);
    }
    r.dir = mem_printf("%s/store", r.root);
    r.made = mem_array(CALLS, sizeof(*r.made));
    r.loop = loop_new();
    r.workers = workers_new(r.loop, 2);
    open_cache(&r, 0); /* makes key and folders */
    r.key = *cache_key(r.cache);
    settle(&r);
    cache_close(r.cache);
    fill(&r, n);
    printf("%zu blocks of %zu bytes of rows\n", n, r.rows);
    measure_opening(&r, n);
    settle(&r);
    cache_close(r.cache);
    open_cache(&r, 0);
    attach(&r, n, false); /* while it is counted */
    single_calls(&r);
    settle(&r);
    cache_close(r.cache);
    open_cache(&r, 0);
    attach(&r, n, true);
    settle(&r);
    workers_free(r.workers);
    cache_close(r.cache);
    loop_free(r.loop);
    nftw(r.root, remove_one, 16, FTW_DEPTH | FTW_PHYS);
    free(r.made);
    free(r.dir);
    free(r.root);
}

int main(int argc, char **argv)
{
    static const size_t sizes[] = {2000, 10000, 100000};
    log_set_level(LOG_ERROR);
    setvbuf(stdout, NULL, _IOLBF, 0);
    for (int i = 1; i < argc; i++)
        measure(strtoul(argv[i], NULL, 10));
    for (size_t i = 0; argc == 1 && i < sizeof(sizes) / sizeof(sizes[0]); i++)
        measure(sizes[i]);
    return 0;
}
