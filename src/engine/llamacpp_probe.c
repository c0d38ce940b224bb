/* SPDX-License-Identifier: MIT */
#include "llamacpp_internal.h"

/*
 * Who is there, and can it restore? One table of steps, each one control call; a reply
 * says which step is next.
 *
 *     props → models → lora → slots → template → (slot directory known?)
 *         → erase → prompt → save → look (worker) → erase → restore → extend → erase
 *         → tasks → attach (recover stored blocks) → ready in store mode
 *
 * Anything short of the end leaves the engine in observe mode with the reason. An engine
 * that does not answer, is loading, or whose slots are used by others is asked again; so
 * is one whose slots cannot be managed, since its next process may be another.
 *
 * The self-test saves a short prompt, restores it cut by a few tokens and sends it again:
 * reuse of exactly the cut is the proof; the opposite is believed the second time, since
 * others may use the engine as well. The rows of that prompt also enter the
 * fingerprint: other weights, adapters or RoPE settings give other rows.
 */

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/log.h"
#include "base/mem.h"

#define CUT_TOKENS 8
#define MIN_TOKENS 32
#define MAX_TOKENS 4096           /* nobody cuts the prompt into so many */
#define MAX_FILE ((off_t)4 << 30) /* of a saved slot that is looked at */
#define MAX_CONTEXT (1 << 30)     /* of a slot; where the engine does not tell, too */
#define PATIENCE 20               /* retries until jobs no longer wait for the probe */

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
    STEP_ERASE_AGAIN,
    STEP_RESTORE,
    STEP_EXTEND,
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

    char model_path[1024];
    struct buf identity; /* what goes into the fingerprint */
    int slot;            /* where the self-test runs */
    uint32_t n_tokens;   /* of the probe prompt */
    uint64_t written;
    char *saved_path, saved_name[64], *cut_path, cut_name[64];
    struct slotfile_frame *frame;
    struct err err;
    bool doubted; /* the self-test has failed once */
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
    drop_file(&p->saved_path);
    drop_file(&p->cut_path);
    free(p->frame);
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
        list_del(it);
        list_push_back(&waiting, it);
        r->queued--;
        timer_fini(&LIST_ENTRY(it, struct job, link)->deadline);
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
    buf_append_str(&p->identity, l->build);
    buf_append_char(&p->identity, '\0');
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
    json_t *model = json_array_get(json_object_get(doc, "data"), 0);
    add_json(p, status == 200 ? json_object_get(model, "meta") : NULL);
    go(p, STEP_LORA);
}

static void on_lora(struct probe *p, int status, json_t *doc)
{
    add_json(p, status == 200 ? doc : NULL);
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
    if (++p->n_waits == PATIENCE) {
        replica_set_mode(
            p->l->r, REPLICA_OBSERVE,
            "others use its slots: they are looked at as soon as all are idle");
        pass_jobs(p->l);
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
        if (addr_is_loopback(upstream_addr(l->r->up)) &&
            procfind_slot_dir(addr_port(upstream_addr(l->r->up)), dir, sizeof(dir)))
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
    p->n_tokens = (uint32_t)n;
    if (status != 200 || n < MIN_TOKENS || n > MAX_TOKENS)
        observe(p, "the self-test's prompt did not run");
    else
        go(p, STEP_SAVE);
}

static void on_save(struct probe *p, int status, json_t *doc)
{
    const json_int_t n = json_integer_value(json_object_get(doc, "n_saved"));
    p->written = (uint64_t)json_integer_value(json_object_get(doc, "n_written"));
    if (status != 200)
        observe(p, status == 501 ? "the engine was started without --slot-save-path"
                                 : "the engine could not save a slot");
    else if (n != (json_int_t)p->n_tokens)
        doubt(p, "a saved slot does not hold exactly its prompt");
    else
        go(p, STEP_LOOK);
}

static int write_file(const char *path, const unsigned char *bytes, size_t n,
                      struct err *e)
{
    const int fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
    if (fd < 0)
        return err_errno(e, "creating a file in the slot directory");
    const ssize_t wrote = write(fd, bytes, n);
    close(fd);
    if (wrote != (ssize_t)n)
        return err_set(e, ERR_IO, "writing to the slot directory: no space?");
    return 0;
}

/* Writes the same slot without its last tokens. */
static void write_cut(struct probe *p, const struct slotfile *f)
{
    const uint32_t n = f->n_tokens - CUT_TOKENS;
    uint32_t *tokens = mem_array(n, sizeof(*tokens));
    unsigned char *rows = mem_array(n, f->frame.token_bytes);
    const size_t size = (size_t)slotfile_size(&f->frame, n);
    unsigned char *out = mem_alloc(size);
    for (uint32_t i = 0; i < n; i++)
        tokens[i] = slotfile_token(f, i);
    slotfile_cut(f, 0, n, rows);
    const struct hash128 seen =
        chain_checksum(slice_make((const char *)rows, n * f->frame.token_bytes));
    buf_append(&p->identity, &seen, sizeof(seen));
    const struct slotfile_part part = {rows, n, n};
    slotfile_compose(&f->frame, 0, tokens, n, &part, 1, out);
    write_file(p->cut_path, out, size, &p->err);
    free(out);
    free(rows);
    free(tokens);
}

static void add_model_file(struct probe *p)
{
    struct hash128 h;
    if (!p->model_path[0] || !modelfile_hash(p->model_path, &h))
        h = (struct hash128){0, 0}; /* on another host: the rows have to tell */
    buf_append(&p->identity, &h, sizeof(h));
}

static void run_look(void *arg)
{
    struct probe *p = arg;
    struct stat st;
    const int fd = open(p->saved_path, O_RDONLY | O_NOFOLLOW | O_CLOEXEC);
    if (fd < 0 || fstat(fd, &st) != 0 || (uint64_t)st.st_size != p->written) {
        err_set(&p->err, ERR_NOT_FOUND,
                "what the engine saved is not in the slot directory: another directory?");
    } else if (st.st_size > MAX_FILE) {
        err_set(&p->err, ERR_LIMIT, "the slot that the self-test saved is too large");
    } else {
        unsigned char *bytes = mem_alloc((size_t)st.st_size);
        struct slotfile *f = mem_alloc(sizeof(*f));
        if (read(fd, bytes, (size_t)st.st_size) != st.st_size)
            err_errno(&p->err, "reading a saved slot");
        else if (slotfile_parse(f, slice_make((char *)bytes, (size_t)st.st_size),
                                &p->err) != 0) {
            /* it says why */
        } else if (f->n_tokens != p->n_tokens) {
            err_set(&p->err, ERR_MISMATCH, "a saved slot file does not hold its prompt");
        } else {
            *p->frame = f->frame;
            slotfile_layout_bytes(&f->frame, &p->identity);
            buf_append(&p->identity, &f->frame.version, sizeof(f->frame.version));
            add_model_file(p);
            write_cut(p, f);
        }
        free(f);
        free(bytes);
    }
    if (fd >= 0)
        close(fd);
}

static void on_looked(void *arg)
{
    struct probe *p = arg;
    p->working = false;
    if (p->stopped)
        free_probe(p);
    else if (p->err.code)
        observe(p, p->err.text);
    else
        go(p, STEP_ERASE_AGAIN);
}

static void on_restore(struct probe *p, int status, json_t *doc)
{
    const json_int_t n = json_integer_value(json_object_get(doc, "n_restored"));
    if (status != 200 || n != (json_int_t)(p->n_tokens - CUT_TOKENS))
        observe(p, "the self-test's cut slot file was not restored");
    else
        go(p, STEP_EXTEND);
}

static void on_extend(struct probe *p, int status, json_t *doc)
{
    char why[160];
    json_t *t = json_object_get(doc, "timings");
    const json_int_t n = json_integer_value(json_object_get(t, "cache_n"));
    if (status == 200 && n == (json_int_t)(p->n_tokens - CUT_TOKENS)) {
        go(p, STEP_CLEAN);
        return;
    }
    snprintf(
        why, sizeof(why),
        "restored slots are not reused (%lld of %u tokens): a sliding-window or hybrid "
        "model? try --swa-full",
        (long long)n, p->n_tokens - CUT_TOKENS);
    doubt(p, why);
}

static void on_clean(struct probe *p, int status, json_t *doc)
{
    (void)status;
    (void)doc;
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
    l->failures_in_row = 0;
    llama_probe_stop(l);
    replica_set_mode(l->r, REPLICA_STORE, "%zu blocks known", n_blocks);
    llama_probed(l);
}

static void attach(struct probe *p)
{
    struct llama *l = p->l;
    l->fingerprint = chain_checksum(buf_slice(&p->identity));
    *l->frame = *p->frame;
    l->r->seed = l->fingerprint;
    p->working = true;
    cache_attach(l->r->cache, l->fingerprint, l->frame->token_bytes, on_attached, p);
}

/* ---- the table --------------------------------------------------------------------- */

static const struct {
    const char *path; /* with %d: the slot */
    const char *body; /* NULL: GET. "save", "restore", "prompt": made here */
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
    [STEP_ERASE_AGAIN] = {"/slots/%d?action=erase", "{}", on_erase},
    [STEP_RESTORE] = {"/slots/%d?action=restore", "restore", on_restore},
    [STEP_EXTEND] = {"/completion", "prompt", on_extend},
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
        return mem_printf("{\"filename\":\"%s\"}", p->cut_name);
    if (strcmp(kind, "prompt") == 0)
        return mem_printf("{\"id_slot\":%d,\"n_predict\":0,\"cache_prompt\":true,"
                          "\"prompt\":\"%s\"}",
                          p->slot, probe_text);
    return mem_strdup(kind);
}

static void go(struct probe *p, enum step step)
{
    char path[128];
    p->step = step;
    if (step == STEP_PROPS) {
        buf_clear(&p->identity);
        p->l->suspect = false;
    } else if (step == STEP_LOOK) {
        p->working = true;
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

void llama_probe_start(struct llama *l)
{
    if (l->probe)
        return;
    struct probe *p = mem_zalloc(sizeof(*p));
    p->l = l;
    p->frame = mem_zalloc(sizeof(*p->frame));
    l->probe = p;
    timer_init(&p->retry, l->r->loop, on_retry, p);
    go(p, STEP_PROPS);
}
