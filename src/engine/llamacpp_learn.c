/* SPDX-License-Identifier: MIT */
#include "llamacpp_internal.h"

/*
 * A slot into blocks, when llamacpp_save.c has chosen it:
 *
 *     POST save → was it the same engine? → parse, hash blocks (worker) → insert into the
 *     tree → cut the new blocks (worker) → store → teach the prompt index
 *
 * The slot is free again as soon as the engine has answered; the scratch file is unlinked
 * as soon as it is open, and whatever else happens: a torn one would fill the directory.
 */

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/log.h"
#include "base/mem.h"

struct learn {
    struct llama *l;
    struct llama_slot *slot;
    struct lesson *what;        /* a copy of what the slot holds */
    uint64_t n_forgets;         /* when it began */
    struct hash128 fingerprint; /* of the engine that saves it */
    bool whole;                 /* its state cannot be cut: one block is all of it */
    uint64_t start_us, saved_bytes;
    bool beside; /* others prefilled when it was sent */
    char *path, name[64];

    struct slotfile *file; /* slices into the mapping */
    uint32_t *order;       /* of its cells */
    void *map;
    size_t map_size;
    uint32_t *tokens;
    struct hash128 *chain; /* of full blocks, and of the tail where there is one */
    size_t n_full;
    uint32_t tail;
    uint32_t n_kept; /* tokens of the slot that are to be stored */
    struct tree_mark end;
    struct store_block **blocks;       /* the new ones */
    size_t first_new, n_wanted, n_new; /* wanted: what the budgets allow */
    struct err err;
};

static struct lesson *lesson_copy(const struct lesson *ls)
{
    struct lesson *copy = mem_alloc(sizeof(*copy));
    *copy = *ls;
    copy->v = mem_array(ls->n + 1, sizeof(*copy->v));
    memcpy(copy->v, ls->v, ls->n * sizeof(*copy->v));
    return copy;
}

static void free_learn(struct learn *op)
{
    struct replica *r = op->l->r;
    if (op->map)
        munmap(op->map, op->map_size);
    if (op->path)
        unlink(op->path);
    free(op->path);
    free(op->file);
    free(op->order);
    free(op->tokens);
    free(op->chain);
    free(op->blocks);
    lesson_free(op->what);
    op->l->ops--;
    free(op);
    if (r->on_saved)
        r->on_saved(r->arg, r);
}

static void fail(struct learn *op, const char *why)
{
    struct llama *l = op->l;
    l->r->n.save_failures++;
    if (trouble_begins(&l->saving, loop_now_us(l->r->loop)))
        log_event(LOG_WARN, "save-failed", "replica", "%s", l->r->name, "why", "%s", why,
                  NULL);
    free_learn(op);
}

static void skip(struct learn *op, enum save_skip why)
{
    op->l->r->n.saves_skipped[why]++;
    free_learn(op);
}

/* ---- fourth: store and learn ------------------------------------------------------- */

static void on_cut(void *arg)
{
    struct learn *op = arg;
    struct llama *l = op->l;
    const struct lesson *ls = op->what;
    const uint32_t n = op->n_kept;
    struct index_lesson lesson = {.v = ls->v,
                                  .n = ls->n,
                                  .n_prompt = ls->n_prompt,
                                  .prompt_tokens = ls->prompt_tokens,
                                  .total_tokens = n < op->file->n_tokens ? 0 : n,
                                  .owner = ls->tenant,
                                  .end = &op->end};
    if (op->n_forgets == l->n_forgets)
        cache_learn(l->r->cache, op->fingerprint, &lesson);
    cache_put(l->r->cache, &op->end, op->blocks, op->n_new);
    l->r->n.saves++;
    if (trouble_ends(&l->saving, loop_now_us(l->r->loop)))
        log_event(LOG_INFO, "save-works", "replica", "%s", l->r->name, "failures", "%llu",
                  (unsigned long long)l->saving.n, NULL);
    l->r->n.saved_tokens += n;
    if (op->whole)
        llama_whole_learn_size(l, op->map_size, n);
    if (op->slot->holds && op->slot->holds->number == ls->number) /* still */
        op->slot->holds->known_tokens = n;
    log_event(LOG_DEBUG, "saved", "replica", "%s", l->r->name, "slot", "%d", op->slot->id,
              "tokens", "%u", n, "new_blocks", "%zu", op->n_new, NULL);
    free_learn(op);
    llama_pump(l);
}

/* ---- third: cut the new blocks ----------------------------------------------------- */

/* Of a token of a block; of a whole state a little more than is there. */
static uint64_t token_bytes(const struct learn *op)
{
    const uint32_t bt = cache_block_tokens(op->l->r->cache);
    return op->whole ? (op->map_size + bt - 1) / bt : op->file->frame.token_bytes;
}

static void run_cut(void *arg)
{
    struct learn *op = arg;
    const uint32_t bt = cache_block_tokens(op->l->r->cache);
    for (size_t i = op->first_new; op->n_new < op->n_wanted; i++) {
        const uint32_t n = i < op->n_full ? bt : op->tail;
        const struct store_head head = {
            .fingerprint = op->fingerprint,
            .hash = op->chain[i],
            .parent = i ? op->chain[i - 1] : op->what->kv_root,
            .index = (uint32_t)i,
            .n_tokens = n,
            .rows_bytes = op->whole ? op->map_size : n * token_bytes(op)};
        uint32_t *tokens;
        unsigned char *rows;
        struct store_block *b = store_block_new(&head, &tokens, &rows);
        memcpy(tokens, op->tokens + i * bt, n * sizeof(*tokens));
        if (op->whole)
            memcpy(rows, op->map, op->map_size);
        else
            slotfile_cut(op->file, i * bt, n, rows);
        store_block_seal(b);
        op->blocks[op->n_new++] = b;
    }
}

static void on_parsed(void *arg)
{
    struct learn *op = arg;
    struct llama *l = op->l;
    if (op->err.code) {
        fail(op, op->err.text);
        return;
    }
    if (!op->file->n_tokens && l->empties_idle) { /* another request was faster */
        skip(op, SAVE_OVERWRITTEN);
        return;
    }
    if (!hash128_eq(op->fingerprint, l->fingerprint)) {
        fail(op, "another engine answers by now");
        return;
    }
    if (!l->store_on) {
        skip(op, SAVE_OFF);
        return;
    }
    if (!slotfile_same_layout(&op->file->frame, l->frame) ||
        op->file->window != l->window) {
        fail(op, "the saved slot has another layout than the probe had");
        return;
    }
    if (op->file->n_tokens != op->what->total_tokens &&
        op->file->n_tokens + 1 != op->what->total_tokens) {
        fail(op, "the saved slot holds another number of tokens than its request had");
        return;
    }
    if (op->n_forgets != l->n_forgets) {
        fail(op, "it was to be forgotten meanwhile");
        return;
    }
    const struct tree_sequence s = {.chain = op->chain,
                                    .n = op->n_full,
                                    .tokens = op->tokens,
                                    .tail_tokens = op->tail,
                                    .token_bytes = token_bytes(op),
                                    .owner = op->what->tenant};
    op->n_wanted = cache_insert(l->r->cache, op->fingerprint, &s, &op->end);
    op->first_new = tree_mark_blocks(&op->end) - op->n_wanted;
    op->blocks = mem_array(op->n_wanted + 1, sizeof(*op->blocks));
    workers_submit(l->r->workers, run_cut, on_cut, op);
}

/* ---- second: parse and hash -------------------------------------------------------- */

static void name_whole(struct learn *op)
{
    const struct lesson *ls = op->what;
    op->n_kept = op->file->n_tokens;
    op->tokens = mem_array(cache_block_tokens(op->l->r->cache), sizeof(*op->tokens));
    op->chain = mem_array(1, sizeof(*op->chain));
    op->chain[0] = llama_whole_name(op->l, ls->kv_root, &ls->v[ls->n - 1], op->tokens);
    op->n_full = 1;
}

static void hash_blocks(struct learn *op)
{
    const struct chain_key *key = cache_key(op->l->r->cache);
    const uint32_t bt = cache_block_tokens(op->l->r->cache);
    /* What is not to be stored as a whole is cut at the end of a block. */
    const bool whole = op->file->n_tokens <= op->what->admitted;
    const uint32_t n = whole ? op->file->n_tokens : op->what->admitted / bt * bt;
    op->n_kept = n;
    op->tokens = mem_array(n + 1, sizeof(*op->tokens));
    op->chain = mem_array(n / bt + 1, sizeof(*op->chain));
    for (uint32_t i = 0; i < n; i++)
        op->tokens[i] = slotfile_token(op->file, i);
    op->n_full = chain_blocks(key, op->what->kv_root, op->tokens, n, bt, op->chain);
    op->tail = n - (uint32_t)op->n_full * bt;
    if (op->tail) {
        const struct hash128 parent =
            op->n_full ? op->chain[op->n_full - 1] : op->what->kv_root;
        op->chain[op->n_full] =
            chain_block(key, parent, op->tokens + op->n_full * bt, op->tail);
    }
}

static void run_parse(void *arg)
{
    struct learn *op = arg;
    struct stat st;
    const int fd = open(op->path, O_RDONLY | O_NOFOLLOW | O_CLOEXEC);
    unlink(op->path);
    if (fd < 0 || fstat(fd, &st) != 0) {
        err_errno(&op->err, "opening the saved slot %s", op->name);
    } else if ((uint64_t)st.st_size != op->saved_bytes || !st.st_size) {
        err_set(&op->err, ERR_FORMAT,
                "the saved slot has %lld bytes, the engine wrote %llu",
                (long long)st.st_size, (unsigned long long)op->saved_bytes);
    } else {
        op->map_size = (size_t)st.st_size;
        op->map = mmap(NULL, op->map_size, PROT_READ, MAP_PRIVATE, fd, 0);
        if (op->map == MAP_FAILED) {
            op->map = NULL;
            err_errno(&op->err, "mapping the saved slot %s", op->name);
        }
    }
    if (fd >= 0)
        close(fd);
    if (op->err.code)
        return;
    op->file = mem_alloc(sizeof(*op->file));
    const struct slice bytes = slice_make(op->map, op->map_size);
    if (op->whole && slotfile_parse_whole(op->file, bytes, &op->err) == 0)
        name_whole(op);
    if (!op->whole && slotfile_parse_any(op->file, bytes, &op->order, &op->err) == 0)
        hash_blocks(op);
}

/* ---- first: save ------------------------------------------------------------------- */

static void learn_rate(const struct learn *op, json_t *doc)
{
    struct llama *l = op->l;
    const json_t *timings = json_object_get(doc, "timings");
    const double ms = (double)(loop_now_us(l->r->loop) - op->start_us) / 1e3;
    const struct call_times t = {
        .bytes = op->saved_bytes,
        .all_ms = ms,
        .call_ms = ms,
        .own_ms = json_number_value(json_object_get(timings, "save_ms")),
        .beside = op->beside};
    llama_learn_call(l, &l->save_rate, &t);
}

/* What ran since the engine was looked at ran with the model and the adapters of then. */
static void on_watched(void *arg, bool same)
{
    struct learn *op = arg;
    struct llama *l = op->l;
    if (!same || !hash128_eq(op->fingerprint, l->fingerprint))
        fail(op, "the engine is not what it was when the slot was filled");
    else if (!l->store_on)
        skip(op, SAVE_OFF); /* restores have failed meanwhile */
    else
        workers_submit(l->r->workers, run_parse, on_parsed, op);
}

static void on_saved(void *arg, int status, json_t *doc, const struct err *err)
{
    struct learn *op = arg;
    struct llama *l = op->l;
    const bool current = op->slot->state == SLOT_SAVING;
    llama_stalled(l, (double)(loop_now_us(l->r->loop) - op->start_us) / 1e3);
    if (current)
        op->slot->state = SLOT_IDLE;
    if (status == 0) {
        /* It may be at it still: neither slot nor file are ours before it says idle. */
        if (current)
            llama_make_zombie(l, op->slot);
        llama_scratch_late(l, op->path);
        op->path = NULL;
    }
    if (status != 200) {
        fail(op, status ? "the engine refused to save the slot" : err->text);
        llama_pump(l);
        return;
    }
    op->saved_bytes = (uint64_t)json_integer_value(json_object_get(doc, "n_written"));
    learn_rate(op, doc);
    if (op->whole && op->saved_bytes > STORE_MAX_BLOCK_BYTES) {
        llama_whole_learn_size(l, op->saved_bytes, op->what->total_tokens);
        fail(op, "the state is larger than a block may be, and cannot be cut");
        llama_pump(l);
        return;
    }
    llama_watch(l, on_watched, op);
    llama_pump(l);
}

void llama_save(struct llama *l, struct llama_slot *s)
{
    char path[64], body[128];
    struct learn *op = mem_zalloc(sizeof(*op));
    op->l = l;
    op->slot = s;
    op->what = lesson_copy(s->holds);
    op->n_forgets = l->n_forgets;
    op->fingerprint = l->fingerprint;
    op->whole = l->whole;
    op->start_us = loop_now_us(l->r->loop);
    op->beside = llama_prefill_ms(l, s) > 0;
    op->path = llama_scratch(l, op->name);
    l->ops++;
    s->state = SLOT_SAVING;
    s->unsaved = false;
    snprintf(path, sizeof(path), "/slots/%d?action=save", s->id);
    snprintf(body, sizeof(body), "{\"filename\":\"%s\"}", op->name);
    ask_json(l->r->up, path, body, l->r->authorization, l->r->o.slot_ms, l->r->loop,
             on_saved, op);
}
