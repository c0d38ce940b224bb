/* SPDX-License-Identifier: MIT */

/* `incipit store ls` and `incipit store stat`: looking, also beside a running gateway. */

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "base/units.h"
#include "cmd_store.h"

#define LIMIT 100     /* lines, unless told otherwise */
#define MAX_INDENT 20 /* levels that are shown by indentation */

void cmd_store_print(json_t *root)
{
    json_dumpf(root, stdout, JSON_INDENT(1));
    printf("\n");
    json_decref(root);
}

static json_int_t seconds(int64_t ns)
{
    return ns / 1000000000;
}

/* ---- models ------------------------------------------------------------------------ */

static json_t *json_models(const struct inventory *v)
{
    json_t *list = json_array();
    for (size_t i = 0; i < v->n_models; i++) {
        const struct inventory_model *m = &v->models[i];
        char hex[HASH128_HEX];
        json_array_append_new(list, json_pack("{sssIsIsIsI}", "fingerprint",
                                              hash128_hex(m->fingerprint, hex), "blocks",
                                              (json_int_t)m->blocks, "bytes",
                                              (json_int_t)m->bytes, "oldest_use",
                                              seconds(m->oldest_ns), "newest_use",
                                              seconds(m->newest_ns)));
    }
    return list;
}

static void print_models(const struct inventory *v)
{
    char hex[HASH128_HEX], size[24], newest[24], oldest[24];
    printf("%-32s %10s %12s %12s %12s\n", "MODEL", "BLOCKS", "BYTES", "LAST USE",
           "OLDEST USE");
    for (size_t i = 0; i < v->n_models; i++) {
        const struct inventory_model *m = &v->models[i];
        printf("%s %10" PRIu64 " %12s %12s %12s\n", hash128_hex(m->fingerprint, hex),
               m->blocks, units_format_bytes(m->bytes, size),
               cmd_store_age(m->newest_ns, newest), cmd_store_age(m->oldest_ns, oldest));
    }
}

/* ---- sequences --------------------------------------------------------------------- */

/* The inventory's blocks as a tree: the first child of each and the next one of its
 * parent, the most recently used first. */
struct forest {
    const struct inventory *v;
    size_t *child, *next;
    uint32_t *n_children;
    size_t root; /* the first of the roots */
};

static int by_use(const void *x, const void *y)
{
    const struct inventory_block *a = *(const struct inventory_block *const *)x;
    const struct inventory_block *b = *(const struct inventory_block *const *)y;
    return a->used_ns < b->used_ns ? -1 : a->used_ns > b->used_ns;
}

static void forest_add(struct forest *f, size_t i)
{
    const size_t parent = f->v->blocks[i].parent;
    size_t *first = parent == INVENTORY_NONE ? &f->root : &f->child[parent];
    f->next[i] = *first;
    *first = i;
    if (parent != INVENTORY_NONE)
        f->n_children[parent]++;
}

static struct forest forest_new(const struct inventory *v)
{
    struct forest f = {.v = v, .root = INVENTORY_NONE};
    const size_t n = v->n_blocks;
    const struct inventory_block **order =
        mem_array(n + 1, sizeof(struct inventory_block *));
    f.child = mem_array(n + 1, sizeof(*f.child));
    f.next = mem_array(n + 1, sizeof(*f.next));
    f.n_children = mem_zalloc((n + 1) * sizeof(*f.n_children));
    for (size_t i = 0; i < n; i++) {
        f.child[i] = f.next[i] = INVENTORY_NONE;
        order[i] = &v->blocks[i];
    }
    qsort(order, n, sizeof(*order), by_use);
    for (size_t i = 0; i < n; i++) /* each goes before those used earlier */
        forest_add(&f, (size_t)(order[i] - v->blocks));
    free(order);
    return f;
}

static void forest_free(struct forest *f)
{
    free(f->child);
    free(f->next);
    free(f->n_children);
}

/* Blocks without a branch between them. */
struct run {
    const struct inventory_block *first, *last;
    uint64_t blocks, tokens, bytes;
    uint32_t level;
};

static struct run run_from(const struct forest *f, size_t i, uint32_t level, size_t *end)
{
    struct run r = {.first = &f->v->blocks[i], .level = level};
    for (;; i = f->child[i]) {
        const struct inventory_block *b = &f->v->blocks[i];
        r.last = b;
        r.blocks++;
        r.tokens += b->head.n_tokens;
        r.bytes += b->bytes;
        *end = i;
        if (f->n_children[i] != 1)
            return r;
    }
}

static void print_run(const struct run *r)
{
    char hex[HASH128_HEX], size[24], age[24];
    const uint32_t indent = r->level < MAX_INDENT ? r->level : MAX_INDENT;
    cmd_store_age(r->first->used_ns, age);
    printf("%*s%.12s  depth %u, %" PRIu64 " blocks, %" PRIu64
           " tokens, %s, used %s%s%s\n",
           2 * (int)indent, "", hash128_hex(r->last->head.hash, hex),
           r->first->head.index, r->blocks, r->tokens, units_format_bytes(r->bytes, size),
           age, strcmp(age, "now") == 0 ? "" : " ago",
           r->first->cut_off ? ", cut off: its start is missing" : "");
}

static json_t *json_run(const struct run *r)
{
    char hex[HASH128_HEX];
    return json_pack("{sssIsIsIsIsIsIsb}", "end", hash128_hex(r->last->head.hash, hex),
                     "level", (json_int_t)r->level, "depth",
                     (json_int_t)r->first->head.index, "blocks", (json_int_t)r->blocks,
                     "tokens", (json_int_t)r->tokens, "bytes", (json_int_t)r->bytes,
                     "last_use", seconds(r->first->used_ns), "cut_off",
                     r->first->cut_off);
}

static void show_run(const struct run *r, json_t *list)
{
    if (list)
        json_array_append_new(list, json_run(r));
    else
        print_run(r);
}

struct todo {
    size_t at;
    uint32_t level;
};

/* Runs from the root on, those behind a run before the next one beside it; returns how
 * many there are. */
static uint64_t list_runs(const struct forest *f, uint64_t limit, json_t *list)
{
    struct todo *stack = mem_array(f->v->n_blocks + 1, sizeof(*stack));
    uint64_t n_runs = 0;
    size_t n = 0;
    if (f->root != INVENTORY_NONE)
        stack[n++] = (struct todo){f->root, 0};
    while (n) {
        const struct todo t = stack[--n];
        size_t end;
        const struct run r = run_from(f, t.at, t.level, &end);
        if (n_runs++ < limit)
            show_run(&r, list);
        if (f->next[t.at] != INVENTORY_NONE)
            stack[n++] = (struct todo){f->next[t.at], t.level};
        if (f->child[end] != INVENTORY_NONE)
            stack[n++] = (struct todo){f->child[end], t.level + 1};
    }
    free(stack);
    return n_runs;
}

static void show_sequences(const struct cmd_store *c, const struct inventory *v,
                           uint64_t limit, bool json)
{
    char hex[HASH128_HEX];
    struct forest f = forest_new(v);
    json_t *list = json ? json_array() : NULL;
    const uint64_t n = list_runs(&f, limit, list);
    const uint64_t more = n > limit ? n - limit : 0;
    if (json)
        cmd_store_print(json_pack("{sssosI}", "fingerprint", hash128_hex(c->model, hex),
                                  "runs", list, "more", (json_int_t)more));
    else if (more)
        printf("… %" PRIu64 " more (--limit)\n", more);
    forest_free(&f);
}

enum { LS_LIMIT = CMD_STORE_OWN, LS_JSON };

const struct cmd_flag cmd_store_ls_flags[] = {
    CMD_STORE_FLAGS,
    [LS_LIMIT] = {"--limit", "N", NULL, "lines at most (100)"},
    [LS_JSON] = {"--json", NULL, NULL, "print JSON"},
    {NULL, NULL, NULL, NULL},
};

static int list(struct cmd_store *c, const char *model)
{
    struct inventory v;
    struct err e = {0};
    uint64_t limit = LIMIT;
    const char *text = c->given[LS_LIMIT];
    if (text && (!units_parse_count(text, &limit) || limit == 0)) {
        fprintf(stderr, "incipit store ls: --limit: \"%s\" is no count\n", text);
        return CMD_USAGE;
    }
    if (model && cmd_store_model(c, model) != CMD_OK)
        return CMD_FAILED;
    if (inventory_read(&v, c->dir, model, &c->model, &e) != 0)
        return cmd_store_say(c->self, &e);
    if (model)
        show_sequences(c, &v, limit, c->given[LS_JSON]);
    else if (c->given[LS_JSON])
        cmd_store_print(json_pack("{so}", "models", json_models(&v)));
    else
        print_models(&v);
    inventory_free(&v);
    return CMD_OK;
}

int cmd_store_ls(const struct cmd *self, int argc, char **argv)
{
    struct cmd_store c;
    int status = cmd_store_start(self, argc, argv, 1, &c);
    if (status == CMD_OK)
        status = list(&c, c.n_operands ? argv[1] : NULL);
    cmd_store_end(&c);
    return status;
}

/* ---- stat -------------------------------------------------------------------------- */

enum { STAT_JSON = CMD_STORE_OWN };

const struct cmd_flag cmd_store_stat_flags[] = {
    CMD_STORE_FLAGS,
    [STAT_JSON] = {"--json", NULL, NULL, "print JSON"},
    {NULL, NULL, NULL, NULL},
};

struct figures {
    uint64_t bytes, tokens;
    uint64_t endings;        /* sequences: blocks with nothing behind them */
    uint64_t snapshot_bytes; /* if each of them were kept whole */
    uint64_t cut_off;
    uint64_t least, median, most; /* bytes of a block */
};

static int by_size(const void *x, const void *y)
{
    const uint64_t a = *(const uint64_t *)x, b = *(const uint64_t *)y;
    return a < b ? -1 : a > b;
}

static struct figures figures_of(const struct inventory *v)
{
    struct figures f = {0};
    const size_t n = v->n_blocks;
    uint64_t *sizes = mem_array(n + 1, sizeof(*sizes));
    uint64_t *path = mem_array(n + 1, sizeof(*path)); /* bytes up to each block */
    bool *has_child = mem_zalloc(n + 1);
    for (size_t i = 0; i < n; i++) {
        const struct inventory_block *b = &v->blocks[i];
        const bool below = b->parent != INVENTORY_NONE;
        f.bytes += sizes[i] = b->bytes;
        f.tokens += b->head.n_tokens;
        f.cut_off += b->cut_off;
        path[i] = b->bytes + (below ? path[b->parent] : 0);
        if (below)
            has_child[b->parent] = true;
    }
    for (size_t i = 0; i < n; i++)
        if (!has_child[i]) {
            f.endings++;
            f.snapshot_bytes += path[i];
        }
    if (n) {
        qsort(sizes, n, sizeof(*sizes), by_size);
        f.least = sizes[0];
        f.median = sizes[n / 2];
        f.most = sizes[n - 1];
    }
    free(sizes);
    free(path);
    free(has_child);
    return f;
}

static json_t *json_figures(const struct inventory *v, const struct figures *f)
{
    return json_pack(
        "{sIsIsIsIs{sIsIsI}s{sIsI}sIsIs{sIsI}sIs{sIsI}sb}", "models",
        (json_int_t)v->n_models, "blocks", (json_int_t)v->n_blocks, "bytes",
        (json_int_t)f->bytes, "tokens", (json_int_t)f->tokens, "block_bytes", "least",
        (json_int_t)f->least, "median", (json_int_t)f->median, "most",
        (json_int_t)f->most, "sequences", "endings", (json_int_t)f->endings,
        "bytes_if_kept_whole", (json_int_t)f->snapshot_bytes, "cut_off",
        (json_int_t)f->cut_off, "bad_heads", (json_int_t)v->bad_heads, "damaged", "files",
        (json_int_t)v->damaged_files, "bytes", (json_int_t)v->damaged_bytes, "notes",
        (json_int_t)v->notes, "prompts", "records", (json_int_t)v->prompt_records,
        "bytes", (json_int_t)v->prompt_bytes, "key", v->has_key);
}

static void print_figures(const struct inventory *v, const struct figures *f)
{
    char a[24], b[24], c[24];
    printf("%-12s %zu\n", "models", v->n_models);
    printf("%-12s %zu, %s, %" PRIu64 " tokens\n", "blocks", v->n_blocks,
           units_format_bytes(f->bytes, a), f->tokens);
    printf("%-12s least %s, median %s, most %s\n", "block size",
           units_format_bytes(f->least, a), units_format_bytes(f->median, b),
           units_format_bytes(f->most, c));
    printf("%-12s %" PRIu64 " endings; each kept whole they would take %s", "sequences",
           f->endings, units_format_bytes(f->snapshot_bytes, a));
    if (f->bytes)
        printf(" (%.1f times as much)", (double)f->snapshot_bytes / (double)f->bytes);
    printf("\n%-12s %" PRIu64 " files, %s\n", "damaged", v->damaged_files,
           units_format_bytes(v->damaged_bytes, a));
    if (v->bad_heads || f->cut_off)
        printf("%-12s %" PRIu64 " blocks are damaged, %" PRIu64
               " are behind a missing one (incipit store verify)\n",
               "to check", v->bad_heads, f->cut_off);
    printf("%-12s %" PRIu64 "\n", "notes", v->notes);
    printf("%-12s %" PRIu64 " records, %s\n", "prompts.log", v->prompt_records,
           units_format_bytes(v->prompt_bytes, a));
    if (!v->has_key)
        printf("%-12s is missing: without it the blocks are useless\n", "key");
}

int cmd_store_stat(const struct cmd *self, int argc, char **argv)
{
    struct cmd_store c;
    struct inventory v;
    struct err e = {0};
    int status = cmd_store_start(self, argc, argv, 0, &c);
    if (status == CMD_OK && inventory_read(&v, c.dir, true, NULL, &e) != 0)
        status = cmd_store_say(self, &e);
    if (status == CMD_OK) {
        const struct figures f = figures_of(&v);
        if (c.given[STAT_JSON])
            cmd_store_print(json_figures(&v, &f));
        else
            print_figures(&v, &f);
        inventory_free(&v);
    }
    cmd_store_end(&c);
    return status;
}
