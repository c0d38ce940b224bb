/* SPDX-License-Identifier: MIT */
#include "llamacpp_internal.h"

/*
 * Who is there, and can it restore? One table of steps, each one control call; a reply
 * says which step is next.
 *
 *     props → models → lora → slots → template → (slot directory known?)
 *         → erase → prompt → save → look (worker) → erase → restore → extend
 *         → beside → again → erase → tasks → attach (recover stored blocks) → ready in
 *         store mode
 *
 * Where a state cannot be cut (llamacpp_whole.c) its prompt goes on behind look, and is
 * compared with what goes on behind the same state, restored.
 *
 * Anything short of the end leaves the engine in observe mode with the reason. An engine
 * that does not answer, is loading, or whose slots are used by others is asked again; so
 * is one whose slots cannot be managed, since its next process may be another.
 *
 * The self-test saves a short prompt, restores it cut by a few tokens and sends it again:
 * reuse of exactly the cut, and the answer that the whole prompt got, is the proof; the
 * opposite is believed the second time, since others may use the engine as well. That
 * answer is also what tells engines apart (llamacpp_identity.c). Then a request runs
 * beside it, on another slot: are idle slots emptied meanwhile (--cache-idle-slots)?
 */

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/log.h"
#include "base/mem.h"

#define CUT_TOKENS 8
#define MIN_TOKENS 32
#define MAX_ADAPTERS 32
#define MAX_TOKENS 4096       /* nobody cuts the prompt into so many */
#define MAX_CONTEXT (1 << 30) /* of a slot; where the engine does not tell, too */
#define PATIENCE 20           /* retries until jobs no longer wait for the probe */

static const char probe_text[] =
    "The tide tables of a small harbour are kept by hand. Every morning somebody reads "
    "the "
    "gauge at the inner pier, writes the height and the hour into a book with a blue "
    "cover, "
    "and compares both with the printed forecast. When the two differ by more than a "
    "hand's "
    "width, a note goes to the pilots, because a ship that counts on water which is not "
    "there will sit on the bar until evening. The book is older than anyone who writes "
    "in "
    "it, and its first page says only that figures are to be written as they were seen.";

/* Behind it, where a state is of use behind all of it only. */
static const char probe_more[] = " Nobody knows who began it.";

enum step {
    STEP_PROPS,
    STEP_MODELS,
    STEP_LORA,
    STEP_SLOTS,
    STEP_TEMPLATE,
    STEP_ERASE,
    STEP_PROMPT,
    STEP_SAVE,
    STEP_LOOK,
    STEP_LEFT,
    STEP_ERASE_AGAIN,
    STEP_RESTORE,
    STEP_EXTEND,
    STEP_BESIDE,
    STEP_AGAIN,
    STEP_CLEAN,
    STEP_TASKS,
    STEP_ATTACH,
    STEP_COUNT
};

struct probe {
    struct llama *l;
    enum step step;
    struct ask *ask;
    struct loop_timer retry;
    bool stopped; /* a worker still has it; freed when it comes back */
    bool working;
    bool foreign;     /* another driver's business */
    unsigned n_waits; /* for idle slots */

    char model_path[1024], memo_name[64];
    struct buf identity;                     /* what goes into the fingerprint */
    json_t *adapters;                        /* as the engine lists them; NULL: none */
    const char *adapter_paths[MAX_ADAPTERS]; /* in it */
    int slot;                                /* where the self-test runs */
    char *saved_path, saved_name[64], *cut_path, cut_name[64];
    struct llama_look look;
    struct llama_logits logits; /* of its prompt, computed */
    struct llama_logits left;   /* of its prompt and more, in the slot left in place */
    unsigned n_more;            /* what goes behind it, so many times */
    bool doubted;               /* the self-test has failed once */
    bool again;                 /* an engine that is in observe mode */
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

/* The end of the probe without store mode. */
static void observe(struct probe *p, const char *why)
{
    struct llama *l = p->l;
    replica_set_mode(l->r, REPLICA_OBSERVE, "%s",
                     why); /* `why` may belong to the probe */
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

/* Somebody else may have used the slot in between: what counts happens twice. */
static void doubt(struct probe *p, const char *why)
{
    if (p->doubted) {
        observe(p, why);
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

static void on_retry(void *arg)
{
    struct probe *p = arg;
    if (p->foreign)
        hand_over(p->l);
    else
        go(p, STEP_PROPS);
}

static const char *text_of(json_t *doc, const char *key)
{
    const char *s = json_string_value(json_object_get(doc, key));
    return s ? s : "";
}

static const char one_port[] =
    "several models share this port, and slots belong to one of them: name each model's "
    "own server as an upstream";

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
        leave_alone(p, one_port);
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
        leave_alone(p, one_port);
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
    if (n > MAX_ADAPTERS) {
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
        if (l->slots[i].state == SLOT_OWNED || l->slots[i].state == SLOT_SAVING)
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
        observe(p, l->r->mode_reason);
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
        go(p, STEP_ERASE);
    } else {
        observe(p, "the directory of --slot-save-path is not known: set slot_dir");
    }
}

/* ---- can it restore? --------------------------------------------------------------- */

static void on_erase(struct probe *p, int status, json_t *doc)
{
    (void)doc;
    if (status == 501)
        observe(p, "the engine was started without --slot-save-path");
    else if (status != 200)
        observe(p, "the engine refuses to erase a slot");
    else
        go(p, p->step == STEP_ERASE ? STEP_PROMPT : STEP_RESTORE);
}

static void on_prompt(struct probe *p, int status, json_t *doc)
{
    json_t *t = json_object_get(doc, "timings");
    const json_int_t n = json_integer_value(json_object_get(t, "prompt_n"));
    p->look.n_tokens = (uint32_t)n;
    llama_logits_read(doc, &p->logits);
    if (status != 200 || n < MIN_TOKENS || n > MAX_TOKENS)
        observe(p, "the self-test's prompt did not run");
    else
        go(p, STEP_SAVE);
}

static void on_save(struct probe *p, int status, json_t *doc)
{
    const json_int_t n = json_integer_value(json_object_get(doc, "n_saved"));
    p->look.written = (uint64_t)json_integer_value(json_object_get(doc, "n_written"));
    if (status != 200)
        observe(p, status == 501 ? "the engine was started without --slot-save-path"
                                 : "the engine could not save a slot");
    else if (n != (json_int_t)p->look.n_tokens)
        doubt(p, "a saved slot does not hold exactly its prompt");
    else
        go(p, STEP_LOOK);
}

static void run_look(void *arg)
{
    struct probe *p = arg;
    llama_look(&p->look);
}

static void on_looked(void *arg)
{
    struct probe *p = arg;
    p->working = false;
    if (p->stopped)
        free_probe(p);
    else if (p->look.err.code)
        observe(p, p->look.err.text);
    else
        go(p, p->look.whole ? STEP_LEFT : STEP_ERASE_AGAIN);
}

/* A whole state is of use behind all of it: its prompt goes on. */
static void on_left(struct probe *p, int status, json_t *doc)
{
    llama_logits_read(doc, &p->left);
    if (status != 200)
        observe(p, "the self-test's prompt did not run");
    else
        go(p, STEP_ERASE_AGAIN);
}

/* Tokens that are restored. */
static uint32_t restored(const struct probe *p)
{
    return p->look.whole ? p->look.n_tokens : p->look.n_tokens - CUT_TOKENS;
}

static void on_restore(struct probe *p, int status, json_t *doc)
{
    const json_int_t n = json_integer_value(json_object_get(doc, "n_restored"));
    if (status != 200 || n != (json_int_t)restored(p))
        observe(p, "the self-test's slot file was not restored");
    else
        go(p, STEP_EXTEND);
}

/* Both were computed by the same process, in batches of another shape; that alone moves
 * models of noise by more than what tells two engines apart. */
static bool same_answer(const struct llama_logits *before, json_t *doc)
{
    struct llama_logits now;
    llama_logits_read(doc, &now);
    return !before->n || llama_logits_agree(before, &now, LLAMA_ANSWER_TOLERANCE);
}

static void on_extend(struct probe *p, int status, json_t *doc)
{
    char why[160];
    json_t *t = json_object_get(doc, "timings");
    const json_int_t n = json_integer_value(json_object_get(t, "cache_n"));
    const uint32_t wanted = restored(p);
    if (status != 200 || n != (json_int_t)wanted) {
        snprintf(why, sizeof(why), "restored slots are not reused (%lld of %u tokens)",
                 (long long)n, wanted);
        doubt(p, why);
    } else if (!same_answer(p->look.whole ? &p->left : &p->logits, doc)) {
        doubt(p, "restored slots are reused and give other answers");
    } else {
        p->l->empties_idle = false;
        go(p, p->l->n_slots > 1 ? STEP_BESIDE : STEP_CLEAN);
    }
}

static void on_beside(struct probe *p, int status, json_t *doc)
{
    (void)doc;
    if (status == 200)
        go(p, STEP_AGAIN);
    else
        doubt(p, "the self-test's second prompt did not run");
}

static void on_again(struct probe *p, int status, json_t *doc)
{
    json_t *t = json_object_get(doc, "timings");
    const json_int_t n = json_integer_value(json_object_get(t, "cache_n"));
    p->l->empties_idle = status == 200 && n < (json_int_t)p->look.n_tokens / 2;
    go(p, STEP_CLEAN);
}

static void on_clean(struct probe *p, int status, json_t *doc)
{
    (void)doc;
    if (status == 200)
        p->l->slots[p->slot].whose = LLAMA_NOBODY;
    go(p, STEP_TASKS);
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
    l->slots[p->slot].unseen = false;
    go(p, STEP_ATTACH);
}

static void on_attached(void *arg, size_t n_blocks)
{
    struct probe *p = arg;
    struct llama *l = p->l;
    p->working = false;
    if (p->stopped) {
        free_probe(p);
        return;
    }
    l->store_on = true;
    l->failures_in_row = l->retries = 0;
    llama_probe_stop(l);
    replica_set_mode(l->r, REPLICA_STORE, "%zu blocks known%s%s", n_blocks,
                     l->whole ? "; states of this model cannot be cut: chats are kept "
                                "whole, other prompts are not"
                              : "",
                     l->empties_idle ? "; the engine empties idle slots when a request "
                                       "begins: --no-cache-idle-slots keeps them"
                                     : "");
    llama_scratch_look(l);
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
    l->whole_size =
        (struct whole_size){.bytes = (double)p->look.written, .tokens = p->look.n_tokens};
    l->r->seed = l->fingerprint;
    if (!l->whole) /* those are not shared */
        llama_vouch(store, l->fingerprint, &p->logits);
    p->working = true;
    cache_attach(l->r->cache, l->fingerprint, l->whole ? 0 : l->frame->token_bytes,
                 on_attached, p);
}

/* ---- the table --------------------------------------------------------------------- */

static const struct {
    const char *path; /* with %d: the slot */
    const char *body; /* NULL: GET. Words alone are what make_body() knows */
    void (*reply)(struct probe *p, int status, json_t *doc);
} steps[STEP_COUNT] = {
    [STEP_PROPS] = {"/props", NULL, on_props},
    [STEP_MODELS] = {"/v1/models", NULL, on_models},
    [STEP_LORA] = {"/lora-adapters", NULL, on_lora},
    [STEP_SLOTS] = {"/slots", NULL, on_slots},
    [STEP_TEMPLATE] = {"/apply-template", template_question, on_template},
    [STEP_ERASE] = {"/slots/%d?action=erase", "{}", on_erase},
    [STEP_PROMPT] = {"/completion", "prompt", on_prompt},
    [STEP_SAVE] = {"/slots/%d?action=save", "save", on_save},
    [STEP_LEFT] = {"/completion", "prompt", on_left},
    [STEP_ERASE_AGAIN] = {"/slots/%d?action=erase", "{}", on_erase},
    [STEP_RESTORE] = {"/slots/%d?action=restore", "restore", on_restore},
    [STEP_EXTEND] = {"/completion", "prompt", on_extend},
    [STEP_BESIDE] = {"/completion", "beside", on_beside},
    [STEP_AGAIN] = {"/completion", "prompt", on_again},
    [STEP_CLEAN] = {"/slots/%d?action=erase", "{}", on_clean},
    [STEP_TASKS] = {"/slots", NULL, on_tasks},
};

static void on_reply(void *arg, int status, json_t *doc, const struct err *err)
{
    struct probe *p = arg;
    p->ask = NULL;
    if (status != 0) {
        steps[p->step].reply(p, status, doc);
        return;
    }
    llama_down(p->l, err->text);
    again_later(p);
}

static char *make_body(const struct probe *p, const char *kind)
{
    if (!kind)
        return NULL;
    if (strcmp(kind, "save") == 0)
        return mem_printf("{\"filename\":\"%s\"}", p->saved_name);
    if (strcmp(kind, "restore") == 0)
        return mem_printf("{\"filename\":\"%s\"}",
                          p->look.whole ? p->saved_name : p->cut_name);
    if (strcmp(kind, "prompt") == 0)
        return mem_printf("{\"id_slot\":%d,\"n_predict\":0,\"cache_prompt\":true,"
                          "\"n_probs\":%d,\"prompt\":\"%s%s%s\"}",
                          p->slot, LLAMA_LOGITS, probe_text,
                          p->n_more > 0 ? probe_more : "",
                          p->n_more > 1 ? probe_more : "");
    if (strcmp(kind, "beside") == 0)
        return mem_printf("{\"id_slot\":%d,\"n_predict\":0,\"prompt\":\"beside it\"}",
                          (p->slot + 1) % (int)p->l->n_slots);
    return mem_strdup(kind);
}

static void go(struct probe *p, enum step step)
{
    char path[128];
    p->step = step;
    if (step == STEP_PROPS) {
        buf_clear(&p->identity);
        p->l->suspect = false;
        p->n_more = 0;
    } else if (step == STEP_LEFT || (step == STEP_AGAIN && p->look.whole)) {
        p->n_more++; /* what went before is all in the slot */
    } else if (step == STEP_LOOK) {
        p->working = true;
        p->look.saved_path = p->saved_path;
        p->look.cut_path = p->cut_path;
        workers_submit(p->l->r->workers, run_look, on_looked, p);
        return;
    } else if (step == STEP_ATTACH) {
        attach(p);
        return;
    } else if (step == STEP_PROMPT) {
        p->l->slots[p->slot].unseen = true; /* ours, when its task is seen */
    }
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wformat-nonliteral"
    snprintf(path, sizeof(path), steps[step].path, p->slot);
#pragma GCC diagnostic pop
    char *body = make_body(p, steps[step].body);
    p->ask = ask_json(p->l->r->up, path, body, p->l->r->authorization, LLAMA_KV_MS,
                      p->l->r->loop, on_reply, p);
    free(body);
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
    p->look.cut_tokens = CUT_TOKENS;
    p->look.model_path = p->model_path;
    p->look.adapter_paths = p->adapter_paths;
    l->probe = p;
    timer_init(&p->retry, l->r->loop, on_retry, p);
    go(p, STEP_PROPS);
}
