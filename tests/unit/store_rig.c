/* SPDX-License-Identifier: MIT */
#include "store_rig.h"

#include <fcntl.h>
#include <ftw.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "../../src/store/store_internal.h"
#include "base/log.h"
#include "base/mem.h"
#include "cmocka_all.h"

void store_rig_up(struct store_rig *r, unsigned n_workers)
{
    const char *tmp = getenv("TMPDIR");
    memset(r, 0, sizeof(*r));
    log_set_level(LOG_ERROR);
    r->root = mem_printf("%s/incipit-test-XXXXXX", tmp ? tmp : "/tmp");
    assert_non_null(mkdtemp(r->root));
    r->loop = loop_new();
    r->workers = workers_new(r->loop, n_workers);
}

static int remove_one(const char *path, const struct stat *st, int kind, struct FTW *ftw)
{
    (void)st;
    (void)kind;
    (void)ftw;
    return remove(path);
}

void store_rig_remove(const char *path)
{
    nftw(path, remove_one, 16, FTW_DEPTH | FTW_PHYS);
}

void store_rig_down(struct store_rig *r)
{
    workers_free(r->workers);
    loop_free(r->loop);
    store_rig_remove(r->root);
    free(r->root);
}

static void stop(void *arg)
{
    loop_stop(arg);
}

void store_rig_settle(struct store_rig *r)
{
    for (int quiet = 0; quiet < 4; quiet++) { /* a deferred call may give them more */
        loop_defer(r->loop, stop, r->loop);
        loop_run(r->loop);
        if (workers_pending(r->workers)) {
            quiet = -1;
            sched_yield(); /* to them */
        }
    }
}

static const char *wanted;
static char *found;

static int look_at(const char *path, const struct stat *st, int kind, struct FTW *ftw)
{
    (void)st;
    if (kind == FTW_F && strncmp(path + ftw->base, wanted, strlen(wanted)) == 0) {
        assert_null(found);
        found = mem_strdup(path);
    }
    return 0;
}

char *store_rig_find(const char *dir, const char *name)
{
    wanted = name;
    found = NULL;
    nftw(dir, look_at, 16, FTW_PHYS);
    return found;
}

char *store_rig_block_path(const char *dir, struct hash128 fingerprint, const char *hash)
{
    char hex[HASH128_HEX];
    return mem_printf("%s/blocks/%s/%.2s/%s.kv", dir, hash128_hex(fingerprint, hex), hash,
                      hash);
}

void store_rig_plant(const char *dir, const struct store_block *b, time_t used)
{
    char model[HASH128_HEX], hash[HASH128_HEX];
    const struct timespec times[2] = {{.tv_sec = used}, {.tv_sec = used}};
    const struct slice bytes = store_block_file(b);
    hash128_hex(b->head.fingerprint, model);
    hash128_hex(b->head.hash, hash);
    char *folder = mem_printf("%s/blocks/%s", dir, model);
    char *shard = mem_printf("%s/%.2s", folder, hash);
    char *path = store_rig_block_path(dir, b->head.fingerprint, hash);
    mkdir(folder, 0700);
    mkdir(shard, 0700);
    const int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    assert_true(fd >= 0);
    assert_int_equal(write(fd, bytes.ptr, bytes.len), bytes.len);
    assert_int_equal(futimens(fd, times), 0);
    close(fd);
    free(folder);
    free(shard);
    free(path);
}

void store_rig_flip(const char *path, long at)
{
    FILE *f = fopen(path, "r+");
    assert_non_null(f);
    assert_int_equal(fseek(f, at, at < 0 ? SEEK_END : SEEK_SET), 0);
    const int c = fgetc(f);
    assert_true(c >= 0);
    assert_int_equal(fseek(f, -1, SEEK_CUR), 0);
    fputc(c ^ 1, f);
    fclose(f);
}
