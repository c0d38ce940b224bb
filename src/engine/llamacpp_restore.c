/* SPDX-License-Identifier: MIT */
#include "llamacpp_internal.h"

/*
 * Blocks into a slot, before a job runs on it:
 *
 *     fetch blocks (verified) → compose a slot file (worker) → is it the same engine? →
 *     is the slot idle? → POST restore → count right? → job ready
 *
 * Any failure ends in a run of the same job without it. Where the slot may have been
 * touched it is erased first. That also comes behind a restore that was not answered in
 * time and may still be waiting; where the erase is not answered either, what the slot
 * holds is not known until the job is over and the engine has said idle (a zombie).
 *
 * Blocks that are damaged or missing cost what lies behind them: the good ones before are
 * restored where that still pays.
 */

#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/log.h"
#include "base/mem.h"
#include "route/plan.h"

struct restore {
    struct llama *l;
    struct llama_slot *slot;
    struct job *job; /* NULL: it left; the restore is finished all the same */
    struct lesson *what;
    struct hash128 whose;
    uint32_t tokens, resident; /* resident: what the slot has without it */
    bool whole;                /* the only block is a slot file */
    uint64_t bytes;            /* of the file */
    uint64_t start_us, sent_us;
    bool beside;                /* others prefilled when it was sent */
    struct hash128 fingerprint; /* of the engine that it was planned for */

    struct store_block **blocks;
    size_t n_blocks;
    struct slotfile_frame frame;
    char *path, name[64];
    int error; /* errno of the worker, 0 fine */
};

void llama_restore_failed(struct llama *l, enum restore_failure why, const char *text)
{
    l->r->n.restore_failures[why]++;
    log_event(LOG_WARN, "restore-failed", "replica", "%s", l->r->name, "kind", "%s",
              restore_failure_name(why), "why", "%s", text, NULL);
    if (why == RESTORE_LOST || why == RESTORE_NOT_IDLE || why == RESTORE_SCRATCH_FULL)
        return; /* says nothing about the engine's ability to restore */
    if (++l->failures_in_row >= LLAMA_MAX_FAILURES && l->store_on) {
        l->store_on = false;
        replica_set_mode(l->r, REPLICA_OBSERVE, "%d restores in a row failed, last: %s",
                         LLAMA_MAX_FAILURES, restore_failure_name(why));
        llama_retry_later(l);
    }
}

static void free_restore(struct restore *op)
{
    for (size_t i = 0; i < op->n_blocks; i++)
        store_block_put(op->blocks[i]);
    free(op->blocks);
    if (op->path)
        unlink(op->path);
    free(op->path);
    lesson_free(op->what);
    op->l->ops--;
    free(op);
}

/* The slot is clean or rightly filled: the job runs, or the slot is free again. */
static void end(struct restore *op)
{
    struct llama *l = op->l;
    struct llama_slot *s = op->slot;
    struct job *job = op->job;
    free_restore(op);
    if (job) {
        job->restore = NULL;
        llama_job_ready(l, job);
    } else if (s->doubtful) {
        llama_make_zombie(l, s);
    } else {
        s->state = SLOT_IDLE;
        s->job = NULL;
    }
    llama_pump(l);
}

/* With `resident` tokens of its prompt. */
static void go_without(struct restore *op, uint32_t resident)
{
    if (op->job) {
        op->job->plan.promised = resident;
        op->job->plan.restored = false;
        op->job->plan.miss = "restore-failed";
    }
}

static void on_erased(void *arg, int status, json_t *doc, const struct err *err)
{
    struct restore *op = arg;
    (void)doc;
    (void)err;
    op->slot->whose = status == 200 ? LLAMA_NOBODY : (struct hash128){0, 0};
    if (status != 200)
        log_event(LOG_WARN, "erase-failed", "replica", "%s", op->l->r->name, "slot", "%d",
                  op->slot->id, NULL);
    op->slot->doubtful = status == 0;
    end(op);
}

/* After a restore that went wrong the slot must hold nothing that was not asked for. */
static void fail_and_erase(struct restore *op, enum restore_failure why, const char *text)
{
    char path[64];
    llama_restore_failed(op->l, why, text);
    llama_forget(op->l, op->slot);
    go_without(op, 0);
    snprintf(path, sizeof(path), "/slots/%d?action=erase", op->slot->id);
    ask_json(op->l->r->up, path, "{}", op->l->r->authorization, op->l->r->o.slot_ms,
             op->l->r->loop, on_erased, op);
}

/* The slot is not what it was. */
static void fail_unknown(struct restore *op, enum restore_failure why, const char *text)
{
    llama_restore_failed(op->l, why, text);
    llama_forget(op->l, op->slot);
    go_without(op, 0);
    end(op);
}

/* The slot holds what it held before. */
static void fail_untouched(struct restore *op, enum restore_failure why, const char *text)
{
    llama_restore_failed(op->l, why, text);
    go_without(op, op->resident);
    end(op);
}

static void learn_rate(const struct restore *op, json_t *doc)
{
    struct llama *l = op->l;
    const uint64_t now = loop_now_us(l->r->loop);
    const json_t *timings = json_object_get(doc, "timings");
    const struct call_times t = {
        .bytes = op->bytes,
        .all_ms = (double)(now - op->start_us) / 1e3,
        .call_ms = (double)(now - op->sent_us) / 1e3,
        .own_ms = json_number_value(json_object_get(timings, "restore_ms")),
        .beside = op->beside};
    llama_learn_call(l, &l->restore_rate, &t);
}

static void on_restored(void *arg, int status, json_t *doc, const struct err *err)
{
    struct restore *op = arg;
    struct llama *l = op->l;
    const json_int_t n = json_integer_value(json_object_get(doc, "n_restored"));
    if (status == 0 && err->code == ERR_TIMEOUT) {
        fail_and_erase(op, RESTORE_UNREACHABLE, err->text);
        return;
    }
    if (status == 0) {
        op->slot->doubtful = true;
        fail_unknown(op, RESTORE_UNREACHABLE, err->text);
        return;
    }
    if (status != 200) {
        fail_and_erase(op, RESTORE_ENGINE_SAID_NO, "the engine refused a composed file");
        return;
    }
    if (n != (json_int_t)op->tokens) {
        fail_and_erase(op, RESTORE_COUNT, "the engine restored another number of tokens");
        return;
    }
    l->r->n.restores++;
    l->r->n.restored_tokens += op->tokens;
    l->r->n.restore_us += loop_now_us(l->r->loop) - op->start_us;
    learn_rate(op, doc);
    op->slot->whose = op->whose;
    llama_holds(l, op->slot, op->what, op->tokens);
    op->what = NULL;
    if (op->job)
        op->job->plan.restored = true;
    end(op);
}

/* False while a new process is being looked at: it may have other weights. */
static bool same_engine(const struct restore *op)
{
    const struct llama *l = op->l;
    return l->phase == LLAMA_READY && l->store_on &&
           hash128_eq(op->fingerprint, l->fingerprint);
}

static void on_checked(void *arg, bool answered)
{
    struct restore *op = arg;
    char path[64], body[128];
    if (!answered || op->slot->processing || !same_engine(op)) {
        fail_unknown(op, answered ? RESTORE_NOT_IDLE : RESTORE_UNREACHABLE,
                     "the slot or its engine was not what it had been");
        return;
    }
    if (!op->job) { /* nothing was done yet, and nobody wants it any more */
        end(op);
        return;
    }
    llama_forget(op->l, op->slot);
    op->sent_us = loop_now_us(op->l->r->loop);
    op->beside = llama_prefill_ms(op->l, op->slot) > 0;
    snprintf(path, sizeof(path), "/slots/%d?action=restore", op->slot->id);
    snprintf(body, sizeof(body), "{\"filename\":\"%s\"}", op->name);
    ask_json(op->l->r->up, path, body, op->l->r->authorization, op->l->r->o.slot_ms,
             op->l->r->loop, on_restored, op);
}

/* On a worker: a file that only the engine will read. */
static void write_file(struct restore *op, const unsigned char *bytes, size_t size)
{
    op->error = llama_scratch_write(op->path, bytes, size);
    op->bytes = size;
}

/* A window needs one cell more, or the engine would not go on behind it. */
static void write_padded(struct restore *op, struct slice file, size_t more)
{
    unsigned char *bytes = mem_alloc(file.len + more);
    if (slotfile_pad_window(file, bytes) == 0)
        write_file(op, bytes, file.len + more);
    else
        op->error = EBADMSG;
    free(bytes);
}

/* The file says itself how many tokens it holds. */
static void run_copy(void *arg)
{
    struct restore *op = arg;
    const struct store_block *b = op->blocks[0];
    const struct slice file =
        slice_make((const char *)b->rows, (size_t)b->head.rows_bytes);
    struct slotfile *f = mem_alloc(sizeof(*f));
    if (slotfile_parse_whole(f, file, NULL) != 0)
        op->error = EBADMSG;
    else if (f->window)
        write_padded(op, file, (size_t)f->window_bytes);
    else
        write_file(op, b->rows, file.len);
    op->tokens = op->error ? op->tokens : f->n_tokens;
    free(f);
}

/* All blocks end to end. */
static void run_compose(void *arg)
{
    struct restore *op = arg;
    struct slotfile_part *parts = mem_array(op->n_blocks, sizeof(*parts));
    uint32_t *tokens = mem_array(op->tokens, sizeof(*tokens));
    uint32_t at = 0;
    for (size_t i = 0; i < op->n_blocks; i++) {
        const struct store_block *b = op->blocks[i];
        parts[i] = (struct slotfile_part){b->rows, b->head.n_tokens, b->head.n_tokens};
        memcpy(tokens + at, b->tokens, b->head.n_tokens * sizeof(*tokens));
        at += b->head.n_tokens;
    }
    assert(at == op->tokens);
    const size_t size = (size_t)slotfile_size(&op->frame, op->tokens);
    unsigned char *bytes = mem_alloc(size);
    slotfile_compose(&op->frame, 0, tokens, op->tokens, parts, op->n_blocks, bytes);
    write_file(op, bytes, size);
    free(bytes);
    free(tokens);
    free(parts);
}

static void on_watched(void *arg, bool same)
{
    struct restore *op = arg;
    if (same && same_engine(op))
        llama_ask_slots(op->l, on_checked, op);
    else
        fail_untouched(op, RESTORE_NOT_IDLE, "the engine was not what it had been");
}

static void on_composed(void *arg)
{
    struct restore *op = arg;
    if (op->whole && op->job)
        op->job->plan.promised = op->tokens; /* before it was an estimate */
    if (op->error)
        fail_untouched(op, RESTORE_SCRATCH, strerror(op->error));
    else
        llama_watch(op->l, on_watched, op);
}

/* Fewer blocks came than were planned with: what the slot will hold, and the promise. */
static void cut_plan(struct restore *op, uint32_t tokens)
{
    struct lesson *ls = op->what;
    const uint64_t bytes = ls->n ? ls->v[ls->n - 1].end_bytes : 0;
    while (ls->n &&
           (double)ls->v[ls->n - 1].end_bytes * op->tokens > (double)bytes * tokens)
        ls->n--;
    ls->n_prompt = ls->n;
    op->tokens = tokens;
    if (op->job && op->job->plan.promised > tokens)
        op->job->plan.promised = tokens;
}

static bool still_pays(const struct restore *op)
{
    const struct llama *l = op->l;
    const struct plan_question q = {.restore_ms_per_token =
                                        llama_restore_ms_per_token(l, op->tokens),
                                    .ms_per_token = l->r->ms_per_token,
                                    .batch_tokens = l->batch_tokens};
    return plan_restore_pays(op->tokens, op->resident, llama_prefill_ms(l, op->slot), &q);
}

static uint64_t file_size(const struct restore *op, uint32_t tokens)
{
    return op->whole ? op->blocks[0]->head.rows_bytes : slotfile_size(&op->frame, tokens);
}

static void on_fetched(void *arg, struct store_block **blocks, size_t n,
                       const struct err *err)
{
    struct restore *op = arg;
    uint32_t tokens = 0;
    op->blocks = mem_array(n + 1, sizeof(*op->blocks));
    memcpy(op->blocks, blocks, n * sizeof(*blocks));
    op->n_blocks = n;
    for (size_t i = 0; i < n; i++)
        tokens += blocks[i]->head.n_tokens;
    if (op->whole)
        tokens = n ? op->tokens : 0;
    if (tokens != op->tokens)
        cut_plan(op, tokens);
    if (!n || (err && !still_pays(op))) {
        fail_untouched(op, RESTORE_LOST, err ? err->text : "no block is left");
        return;
    }
    if (!llama_scratch_room(op->l, file_size(op, tokens))) {
        fail_untouched(op, RESTORE_SCRATCH_FULL,
                       "the slot directory has no room for the file");
        return;
    }
    op->path = llama_scratch(op->l, op->name);
    workers_submit(op->l->r->workers, op->whole ? run_copy : run_compose, on_composed,
                   op);
}

void llama_restore(struct llama *l, struct llama_slot *s, struct job *job,
                   const struct restore_wish *wish)
{
    struct restore *op = mem_zalloc(sizeof(*op));
    op->l = l;
    op->slot = s;
    op->job = job;
    op->tokens = wish->tokens;
    op->resident = wish->resident;
    op->whole = l->whole;
    op->start_us = loop_now_us(l->r->loop);
    op->fingerprint = l->fingerprint;
    op->frame = *l->frame;
    op->what = lesson_new(l, job);
    op->whose = llama_whose(job);
    op->what->n = op->what->n_prompt = wish->n_pieces;
    l->ops++;
    job->restore = op;
    job->on_phase(job, JOB_RESTORING);
    cache_fetch(l->r->cache, l->fingerprint, wish->at, wish->tokens, on_fetched, op);
}

/* The job's client has gone; the slot stays taken until the engine has answered. */
void llama_restore_left(struct llama *l, struct job *job)
{
    struct restore *op = job->restore;
    (void)l;
    if (op) {
        op->slot->job = NULL;
        op->job = NULL;
        job->restore = NULL;
    }
}
