/* SPDX-License-Identifier: MIT */
#include "llamacpp_probe.h"

/*
 * Who is there? A table of steps, each one control call; a reply says which step is next.
 *
 *     props → models → lora → slots → template → (slot directory known?)
 *         → can it restore (llamacpp_selftest.c)?
 *         → tasks → attach (recover stored blocks) → ready in store mode
 *
 * Anything short of the end leaves the engine in observe mode with the reason. An engine
 * that does not answer, is loading, or whose slots are used by others is asked again; so
 * is one whose slots cannot be managed, since its next process may be another.
 */

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/log.h"
#include "base/mem.h"

#define MAX_CONTEXT (1 << 30) /* of a slot; where the engine does not tell, too */
#define PATIENCE 20           /* retries until jobs no longer wait for the probe */

enum step {
    STEP_PROPS,
    STEP_MODELS,
    STEP_LORA,
    STEP_SLOTS,
    STEP_TEMPLATE,
    STEP_TASKS,
    STEP_COUNT
};

static void go(struct probe *p, enum step step);

static void drop_file(char **path)
{
    if (*path)
        unlink(*path);
    free(*path);
    *path = NULL;
}

static void free_probe(struct probe *p)
{
    timer_fini(&p->retry);
    buf_free(&p->identity);
    buf_free(&p->look.layout);
    buf_free(&p->look.ids);
    buf_free(&p->look.more);
    buf_free(&p->look.parted);
    json_decref(p->adapters);
    drop_file(&p->saved_path);
    drop_file(&p->cut_path);
    free(p->look.frame);
    free(p);
}

void llama_probe_stop(struct llama *l)
{
    struct probe *p = l->probe;
    l->probe = NULL;
    if (!p)
        return;
    ask_cancel(p->ask);
    p->ask = NULL;
    p->stopped = true;
    if (!p->working)
        free_probe(p);
}

bool llama_probe_worked(struct probe *p)
{
    const bool stopped = p->stopped;
    p->working = false;
    if (stopped)
        free_probe(p);
    return !stopped;
}

/* As llama_probe_stop(), of one that requests do not wait for any more. */
void llama_probe_lost(struct llama *l)
{
    if (l->recovering)
        l->recovering->stopped = true;
    l->recovering = NULL;
}

void llama_probe_observe(struct probe *p, const char *why)
{
    struct llama *l = p->l;
    replica_set_mode(l->r, REPLICA_OBSERVE, "%s", why);
    llama_probe_stop(l);
    llama_retry_later(l);
    if (l->n_slots)
        llama_probed(l);
}

/* From the start: it may be another process by then. */
static void again_later(struct probe *p)
{
    timer_start(&p->retry, LLAMA_RETRY_MS);
}

void llama_probe_doubt(struct probe *p, const char *why)
{
    if (p->doubted) {
        llama_probe_observe(p, why);
        return;
    }
    p->doubted = true;
    again_later(p);
}

/* Jobs go to the engine as they come. */
static void pass_jobs(struct llama *l)
{
    l->phase = LLAMA_DOWN;
    llama_release_queue(l);
}

/* Nothing can be done with it but to pass jobs on, and to look again now and then. */
static void leave_alone(struct probe *p, const char *why)
{
    p->l->n_slots = 0;
    pass_jobs(p->l);
    replica_set_mode(p->l->r, REPLICA_OBSERVE, "%s", why);
    timer_start(&p->retry, LLAMA_HEARTBEAT_MS);
}

/* ---- who is there ------------------------------------------------------------------ */

/* A server without llama-server's /props: another driver's business. */
static void hand_over(struct llama *l)
{
    struct replica *r = l->r;
    struct list waiting;
    list_init(&waiting);
    while (!list_empty(&l->queue)) {
        struct list *it = l->queue.next;
        llama_dequeue(l, LIST_ENTRY(it, struct job, link));
        list_push_back(&waiting, it);
    }
    r->driver->close(l);
    r->driver = &engine_openai;
    r->state = r->driver->open(r);
    while (!list_empty(&waiting)) {
        struct job *job = LIST_ENTRY(waiting.next, struct job, link);
        list_del(&job->link);
        r->driver->admit(r->state, job);
    }
}

static void not_llama(struct probe *p)
{
    /* It may have been one before; what is under way still needs its driver. */
    p->foreign = strcmp(p->l->r->o.driver, "auto") == 0 && !p->l->ops;
    if (p->foreign)
        timer_start(&p->retry, 0);
    else
        leave_alone(p, "/props is not that of a llama-server");
}

/* There is so much stored that it takes a while: requests do not wait for it. */
static void serve_meanwhile(struct probe *p)
{
    struct llama *l = p->l;
    l->recovering = p;
    l->probe = NULL;
    replica_set_mode(l->r, REPLICA_RECOVERING, "stored blocks are being read");
    llama_probed(l);
}

static void on_retry(void *arg)
{
    struct probe *p = arg;
    if (p->stopped)
        return;
    if (p->foreign)
        hand_over(p->l);
    else if (p->attaching)
        serve_meanwhile(p);
    else
        go(p, STEP_PROPS);
}

static const char *text_of(json_t *doc, const char *key)
{
    const char *s = json_string_value(json_object_get(doc, key));
    return s ? s : "";
}

/* Where the process can be seen: settings that change the state of every token and that
 * the engine tells nobody. */
static void add_position_settings(struct probe *p)
{
    static const char *const names[] = {"--rope", "--yarn", NULL};
    procfind_options(upstream_addr(p->l->r->up), names, &p->identity);
    buf_append_char(&p->identity, '\0');
}

/* The hash of the model file is kept beside the store for as long as the file is. */
static void recall_model(struct probe *p)
{
    char hex[HASH128_HEX];
    hash128_hex(chain_checksum(slice_of(p->model_path)), hex);
    snprintf(p->memo_name, sizeof(p->memo_name), "model-%s", hex);
    if (!store_note_get(cache_store(p->l->r->cache), p->memo_name, p->look.model_memo,
                        sizeof(p->look.model_memo)))
        p->look.model_memo[0] = '\0';
}

static void on_props(struct probe *p, int status, json_t *doc)
{
    struct llama *l = p->l;
    const json_int_t n = json_integer_value(json_object_get(doc, "total_slots"));
    const json_t *settings = json_object_get(doc, "default_generation_settings");
    if (status >= 500 && status != 501) {
        if (status == 503)
            replica_set_mode(l->r, REPLICA_STARTING, "the engine is loading its model");
        else
            replica_set_mode(l->r, REPLICA_STARTING, "the engine answers %d", status);
        pass_jobs(l); /* its own word is the truthful answer meanwhile */
        again_later(p);
        return;
    }
    if (strcmp(text_of(doc, "role"), "router") == 0) {
        leave_alone(p, ENGINE_SEVERAL_MODELS);
        return;
    }
    if (status != 200 || n <= 0) {
        not_llama(p);
        return;
    }
    if (n > LLAMA_MAX_SLOTS) {
        leave_alone(p, "it has more slots than can be managed");
        return;
    }
    const json_int_t n_ctx = json_integer_value(json_object_get(settings, "n_ctx"));
    l->n_slots = (size_t)n;
    l->n_ctx = n_ctx > 0 && n_ctx < MAX_CONTEXT ? (uint32_t)n_ctx : MAX_CONTEXT;
    snprintf(l->build, sizeof(l->build), "%s", text_of(doc, "build_info"));
    snprintf(p->model_path, sizeof(p->model_path), "%s", text_of(doc, "model_path"));
    l->props = llama_props_digest(doc);
    buf_append_str(&p->identity, l->build);
    buf_append_char(&p->identity, '\0');
    add_position_settings(p);
    recall_model(p);
    go(p, STEP_MODELS);
}

static void add_json(struct probe *p, json_t *doc)
{
    char *text =
        doc ? json_dumps(doc, JSON_SORT_KEYS | JSON_COMPACT | JSON_ENCODE_ANY) : NULL;
    buf_append_str(&p->identity, text ? text : "-");
    buf_append_char(&p->identity, '\0');
    free(text);
}

static void on_models(struct probe *p, int status, json_t *doc)
{
    json_t *data = json_object_get(doc, "data");
    json_t *meta = json_object_get(json_array_get(data, 0), "meta");
    if (status == 200 && json_array_size(data) > 1) {
        leave_alone(p, ENGINE_SEVERAL_MODELS);
        return;
    }
    json_t *some = status == 200 && json_is_object(meta) ? json_copy(meta) : NULL;
    json_object_del(some, "n_ctx"); /* room, not content */
    add_json(p, some);
    json_decref(some);
    go(p, STEP_LORA);
}

/* Adapters count by file and scale, in the order of their ids, which requests name. */
static void on_lora(struct probe *p, int status, json_t *doc)
{
    struct llama *l = p->l;
    const size_t n = status == 200 ? json_array_size(doc) : 0;
    json_decref(p->adapters);
    p->adapters = n ? json_incref(doc) : NULL;
    l->has_adapters = n > 0;
    l->adapters = llama_adapters_digest(doc);
    if (n > LLAMA_MAX_ADAPTERS) {
        leave_alone(p, "it has more adapters than can be told apart");
        return;
    }
    for (size_t i = 0; i < n; i++) {
        json_t *one = json_array_get(doc, i);
        p->adapter_paths[i] = text_of(one, "path");
        add_json(p, json_object_get(one, "scale"));
    }
    p->look.n_adapters = n;
    go(p, STEP_SLOTS);
}

/* ---- its slots --------------------------------------------------------------------- */

/* The highest slot that is idle and known empty, else the highest idle one (it is erased
 * before use), else -1. All slots must be idle: other work would change the batches and
 * with them the last bits of the rows. */
static int pick_slot(struct llama *l, json_t *doc)
{
    int empty = -1, idle = -1;
    size_t i;
    json_t *v;
    json_array_foreach(doc, i, v)
    {
        if (json_is_true(json_object_get(v, "is_processing")))
            return -1;
        idle = (int)json_integer_value(json_object_get(v, "id"));
        if (!json_object_get(v, "id_task"))
            empty = idle;
    }
    for (i = 0; i < l->n_slots; i++)
        if (l->slots[i].state == SLOT_OWNED || l->slots[i].state == SLOT_SAVING ||
            l->slots[i].state == SLOT_ERASING)
            return -1;
    return empty >= 0 ? empty : idle;
}

/* Others use the engine as well. Jobs must not wait for ever. */
static void wait_for_idle(struct probe *p)
{
    struct llama *l = p->l;
    if (p->again) { /* another time */
        for (size_t i = 0; i < l->n_slots; i++)
            llama_forget(l, &l->slots[i]);
        llama_probe_observe(p, l->r->mode_reason);
        return;
    }
    if (++p->n_waits == PATIENCE) {
        replica_set_mode(
            l->r, REPLICA_OBSERVE,
            "others use its slots: they are looked at as soon as all are idle");
        pass_jobs(l);
    }
    again_later(p);
}

static void on_slots(struct probe *p, int status, json_t *doc)
{
    struct llama *l = p->l;
    if (status >= 500 && status != 501) {
        again_later(p);
        return;
    }
    if (status != 200 ||
        !llama_read_slots(l, doc)) { /* without it nobody can tell a busy slot */
        leave_alone(p, "GET /slots is off (--no-slots): slots cannot be managed");
        return;
    }
    p->slot = pick_slot(l, doc);
    if (p->slot < 0) {
        wait_for_idle(p);
        return;
    }
    l->phase = LLAMA_PROBING;
    if (!p->again)
        replica_set_mode(l->r, REPLICA_STARTING, "looking at the engine");
    for (size_t i = 0; i < l->n_slots; i++) {
        const struct llama_slot *s = &l->slots[i];
        llama_forget(l, &l->slots[i]);
        l->slots[i] = (struct llama_slot){
            .id = s->id, .task = s->task, .last_used_us = s->last_used_us};
    }
    go(p, STEP_TEMPLATE);
}

/* ---- its template ------------------------------------------------------------------ */

static const char template_question[] =
    "{\"messages\":[{\"role\":\"system\",\"content\":\"sentinel-system\"},"
    "{\"role\":\"user\",\"content\":\"sentinel-first\"},"
    "{\"role\":\"assistant\",\"content\":\"sentinel-answer\"},"
    "{\"role\":\"user\",\"content\":\"sentinel-last\"}],"
    "\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"sentinel_tool\","
    "\"description\":\"d\",\"parameters\":{\"type\":\"object\",\"properties\":{}}}}]}";

static void on_template(struct probe *p, int status, json_t *doc)
{
    struct llama *l = p->l;
    const char *text = status == 200 ? text_of(doc, "prompt") : "";
    const char *system = strstr(text, "sentinel-system");
    const char *answer = strstr(text, "sentinel-answer");
    const char *tool = strstr(text, "sentinel_tool");
    l->r->order = PROMPT_ORDER_SYSTEM_FIRST;
    if (tool && system && tool < system)
        l->r->order = PROMPT_ORDER_TOOLS_FIRST;
    else if (tool && answer && tool > answer)
        l->r->order = PROMPT_ORDER_TOOLS_LATE;
    if (!l->r->slot_dir) {
        char dir[1024];
        if (procfind_slot_dir(upstream_addr(l->r->up), dir, sizeof(dir)))
            l->r->slot_dir = mem_strdup(dir);
    }
    if (l->r->slot_dir) {
        llama_scratch_clean(l->r->slot_dir);
        drop_file(&p->saved_path);
        drop_file(&p->cut_path);
        p->saved_path = llama_scratch(l, p->saved_name);
        p->cut_path = llama_scratch(l, p->cut_name);
        llama_selftest(p);
    } else {
        llama_probe_observe(
            p, "the directory of --slot-save-path is not known: set slot_dir");
    }
}

/* ---- it can restore ---------------------------------------------------------------- */

static void on_attached(void *arg, size_t n_blocks)
{
    struct probe *p = arg;
    struct llama *l = p->l;
    if (!llama_probe_worked(p))
        return;
    const bool served = l->recovering == p;
    l->store_on = true;
    l->failures_in_row = l->retries = 0;
    l->probe = l->recovering = NULL;
    free_probe(p);
    char beyond[64] = "";
    if (l->window)
        snprintf(beyond, sizeof(beyond), " (beyond its window of %u tokens)", l->window);
    replica_set_mode(l->r, REPLICA_STORE, "%zu blocks known%s%s%s%s", n_blocks,
                     l->whole ? "; states of this model cannot be cut: chats are kept "
                                "whole"
                              : "",
                     beyond, l->whole ? ", other prompts are not" : "",
                     l->empties_idle ? "; the engine empties idle slots when a request "
                                       "begins: --no-cache-idle-slots keeps them"
                                     : "");
    llama_scratch_look(l);
    if (served)
        llama_pump(l); /* saves */
    else
        llama_probed(l);
}

/* Without the model's file, or its answers, only equal rows prove equal engines. */
static void add_what_was_seen(struct probe *p)
{
    const struct llama_look *k = &p->look;
    buf_append_slice(&p->identity, buf_slice(&k->layout));
    buf_append(&p->identity, &k->model, sizeof(k->model));
    buf_append(&p->identity, &k->adapters, sizeof(k->adapters));
    if (!k->model_read || !p->logits.n)
        buf_append(&p->identity, &k->rows, sizeof(k->rows));
}

static void attach(struct probe *p)
{
    struct llama *l = p->l;
    struct store *store = cache_store(l->r->cache);
    add_what_was_seen(p);
    if (p->look.model_read)
        store_note_set(store, p->memo_name, p->look.model_memo);
    l->fingerprint = llama_fingerprint(store, buf_slice(&p->identity), &p->logits);
    *l->frame = *p->look.frame;
    l->whole = p->look.whole;
    l->window = p->look.window;
    l->whole_size =
        (struct whole_size){.bytes = (double)p->look.written, .tokens = p->look.n_tokens};
    l->r->seed = l->fingerprint;
    if (!l->whole) /* those are not shared */
        llama_vouch(store, l->fingerprint, &p->logits);
    p->working = p->attaching = true;
    timer_start(&p->retry, LLAMA_RECOVER_MS);
    cache_attach(l->r->cache, l->fingerprint, l->whole ? 0 : l->frame->token_bytes,
                 on_attached, p);
}

/* The self-test's own tasks are known from the start. What two processes have answered
 * in turns is the test of neither. */
static void on_tasks(struct probe *p, int status, json_t *doc)
{
    struct llama *l = p->l;
    if (status != 200 || !llama_read_slots(l, doc) || l->suspect) {
        again_later(p);
        return;
    }
    l->slots[p->slot].unseen = 0;
    attach(p);
}

void llama_probe_tested(struct probe *p)
{
    go(p, STEP_TASKS);
}

/* ---- the table --------------------------------------------------------------------- */

static const struct probe_step steps[STEP_COUNT] = {
    [STEP_PROPS] = {"/props", NULL, on_props},
    [STEP_MODELS] = {"/v1/models", NULL, on_models},
    [STEP_LORA] = {"/lora-adapters", NULL, on_lora},
    [STEP_SLOTS] = {"/slots", NULL, on_slots},
    [STEP_TEMPLATE] = {"/apply-template", template_question, on_template},
    [STEP_TASKS] = {"/slots", NULL, on_tasks},
};

static void on_reply(void *arg, int status, json_t *doc, const struct err *err)
{
    struct probe *p = arg;
    p->ask = NULL;
    if (status != 0) {
        p->asked->reply(p, status, doc);
        return;
    }
    llama_down(p->l, err->text);
    again_later(p);
}

void llama_probe_ask(struct probe *p, const struct probe_step *step, const char *body)
{
    struct replica *r = p->l->r;
    char path[128];
    p->asked = step;
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wformat-nonliteral"
    snprintf(path, sizeof(path), step->path, p->slot);
#pragma GCC diagnostic pop
    p->ask = ask_json(r->up, path, body ? body : step->body, r->authorization,
                      LLAMA_KV_MS, r->loop, on_reply, p);
}

static void go(struct probe *p, enum step step)
{
    if (step == STEP_PROPS) {
        buf_clear(&p->identity);
        p->l->suspect = false;
    }
    llama_probe_ask(p, &steps[step], NULL);
}

void llama_probe_again(struct llama *l)
{
    l->phase = LLAMA_PROBING;
    llama_poll(l);
    llama_probe_start(l);
    l->probe->again = true;
}

void llama_probe_start(struct llama *l)
{
    if (l->probe)
        return;
    struct probe *p = mem_zalloc(sizeof(*p));
    p->l = l;
    p->look.frame = mem_zalloc(sizeof(*p->look.frame));
    p->look.model_path = p->model_path;
    p->look.adapter_paths = p->adapter_paths;
    l->probe = p;
    timer_init(&p->retry, l->r->loop, on_retry, p);
    go(p, STEP_PROPS);
}
