/* SPDX-License-Identifier: MIT */
#include "warm_internal.h"

/*
 * What is to be warm, and what is next. Every entry has an item for each replica it is
 * for; the clock (one timer) looks at all of them and moves on those that can be. Nothing
 * here waits inside a call: replicas, runs and saves only set the clock to now.
 */

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/list.h"
#include "base/log.h"
#include "base/mem.h"

#define TRIES 4          /* of one item, until it has failed */
#define RETRY_MS 1000    /* before the second one; doubled for each further one */
#define LOOK_MS 2000     /* how often what is done is looked at */
#define SAVE_LOOK_MS 100 /* the same for what should be in the store soon */
#define SAVE_MS 60000    /* until it is clear that nobody saves it */
#define REPAIRS 5 /* of an item whose blocks get lost, for each start of its engine */
#define KEPT_COMMANDS 64 /* finished ones, for the admin pages */
#define MAX_FILE ((size_t)64 << 20)

enum state { PENDING, RUNNING, ANSWERED, SAVING, DONE, FAILED };

struct item {
    struct warm_entry *entry;
    struct replica *replica;
    enum state state;
    struct warm_run *run; /* NULL while nothing is done for it */
    struct hash128 seed;  /* of the model that it is done for, or being done */
    uint64_t restarts;    /* of its engine by then */
    unsigned tries, repairs;
    uint64_t due_us; /* pending: not before; saving: not long after */
    uint64_t began_us;
    struct warm_outcome outcome; /* its texts are the entry's and `why` */
    char why[240];
};

struct warm_entry {
    struct list link;
    struct warm *w;
    char *name, *wanted_replica;
    struct warm_body body;
    bool listed, pin, public, compute;
    char unreadable[240]; /* why it has no body */
    struct item *items;
    size_t n_items;
    warm_done_cb done; /* of a command that somebody waits for */
    void *arg;
};

struct warm {
    struct request_world *world;
    struct list entries;
    struct loop_timer clock;
    bool save, before_ready, closing;
    bool looking, again; /* the clock is at it; it has to look once more */
    uint64_t computed_tokens;
};

static const char *const state_names[] = {"pending", "running", "running",
                                          "saving",  "done",    "failed"};

static uint64_t now_us(const struct warm *w)
{
    return loop_now_us(w->world->loop);
}

static void soon(struct warm *w)
{
    w->again = true;
    if (!w->closing && !w->looking)
        timer_start(&w->clock, 0);
}

static bool is_active(const struct item *it)
{
    return it->state >= RUNNING && it->state <= SAVING;
}

/* ---- how items end ----------------------------------------------------------------- */

static void stop_run(struct item *it)
{
    warm_run_free(it->run);
    it->run = NULL;
}

static void log_item(const struct item *it)
{
    const struct warm_outcome *o = &it->outcome;
    log_event(it->state == FAILED ? LOG_WARN : LOG_INFO, "warm", "name", "%s", o->name,
              "replica", "%s", o->replica, "state", "%s", state_names[it->state],
              "tokens", "%u", o->tokens, "computed", "%u", o->computed, "ms", "%.0f",
              o->seconds * 1e3, "why", "%s", *o->why ? o->why : "-", NULL);
}

static void finish(struct item *it, enum state state, int status, const char *why)
{
    struct warm *w = it->entry->w;
    snprintf(it->why, sizeof(it->why), "%s", why);
    it->state = state;
    it->outcome.status = status;
    it->outcome.why = it->why;
    if (it->began_us)
        it->outcome.seconds = (double)(now_us(w) - it->began_us) / 1e6;
    stop_run(it);
    log_item(it);
    soon(w);
}

/* A few more times, with more and more time between them. */
static void try_again(struct item *it, int status, const char *why)
{
    struct warm *w = it->entry->w;
    if (++it->tries >= TRIES) {
        finish(it, FAILED, status, why);
        return;
    }
    log_event(LOG_INFO, "warm", "name", "%s", it->outcome.name, "replica", "%s",
              it->outcome.replica, "state", "%s", "again", "try", "%u", it->tries + 1,
              "why", "%s", why, NULL);
    stop_run(it);
    it->state = PENDING;
    it->due_us = now_us(w) + ((uint64_t)RETRY_MS << (it->tries - 1)) * 1000;
    soon(w);
}

static int status_of(int code)
{
    return code == ERR_LIMIT ? 507 : code == ERR_NOT_FOUND ? 404 : 400;
}

static uint64_t pin_bytes(const struct item *it)
{
    struct cache_pin_view v;
    for (size_t i = 0; cache_pin_view(it->replica->cache, i, &v); i++)
        if (strcmp(v.name, it->entry->name) == 0 && hash128_eq(v.fingerprint, it->seed))
            return v.bytes;
    return 0;
}

/* It is stored: it is pinned, and that is all. */
static void settle(struct item *it)
{
    const struct warm_entry *e = it->entry;
    struct err err = {0};
    if (e->pin && warm_run_pin(it->run, e->name, e->public, &err) != 0) {
        finish(it, FAILED, status_of(err.code), err.text);
        return;
    }
    it->outcome.pinned = e->pin;
    it->outcome.bytes = e->pin ? pin_bytes(it) : 0;
    finish(it, DONE, 200, "");
}

/* ---- how they go on ---------------------------------------------------------------- */

/* May come from inside of a run: the clock acts on it. */
static void on_run(void *arg, int status, uint32_t computed, const char *why)
{
    struct item *it = arg;
    struct warm *w = it->entry->w;
    w->computed_tokens += computed;
    it->outcome.computed += computed;
    it->outcome.status = status;
    snprintf(it->why, sizeof(it->why), "%s", why);
    it->state = ANSWERED;
    soon(w);
}

static void take_answer(struct item *it)
{
    char why[sizeof(it->why)];
    const int status = it->outcome.status;
    memcpy(why, it->why, sizeof(why));
    if (status >= 200 && status < 300) {
        it->state = SAVING;
        it->due_us = now_us(it->entry->w) + SAVE_MS * UINT64_C(1000);
    } else if (status >= 400 && status < 500 && status != 429) {
        finish(it, FAILED, 400, why);
    } else {
        try_again(it, status == 503 ? 503 : 502, why);
    }
}

/* Since it was begun: then nobody saves what the engine had computed. */
static bool is_another_engine(const struct item *it)
{
    const struct replica *r = it->replica;
    return !hash128_eq(it->seed, r->seed) || it->restarts != r->n.restarts;
}

/* Is it in the store by now? */
static void look_for_save(struct item *it)
{
    const bool late = now_us(it->entry->w) >= it->due_us && !replica_busy(it->replica);
    if (warm_run_stored(it->run, &it->outcome.tokens))
        settle(it);
    else if (late || is_another_engine(it))
        try_again(it, 502, "it was computed and not stored");
}

/* Who gave it no name can find it under this one. */
static void name_entry(struct warm_entry *e, const struct warm_run *run)
{
    char name[32];
    warm_run_name(run, name);
    free(e->name);
    e->name = mem_strdup(name);
    for (size_t i = 0; i < e->n_items; i++)
        e->items[i].outcome.name = e->name;
}

static void begin(struct item *it)
{
    struct warm_entry *e = it->entry;
    struct warm *w = e->w;
    struct err err = {0};
    it->state = RUNNING;
    it->seed = it->replica->seed;
    it->restarts = it->replica->n.restarts;
    it->began_us = now_us(w);
    it->run = warm_run_new(it->replica, w->world->tenants, &e->body, &err);
    if (it->run && !*e->name)
        name_entry(e, it->run);
    if (!it->run)
        finish(it, FAILED, status_of(err.code), err.text);
    else if (warm_run_stored(it->run, &it->outcome.tokens))
        settle(it);
    else if (!e->compute)
        finish(it, FAILED, 404, "it is not stored: POST /cache/warm computes it");
    else if (!w->save)
        finish(it, FAILED, 503, "nothing is stored: store.save is off");
    else
        warm_run_go(it->run, on_run, it);
}

static bool same_model(const struct item *a, const struct item *b)
{
    return hash128_eq(a->replica->seed, b->replica->seed);
}

/* One start at a time on each replica, and each start once for each model. */
static bool may_begin(const struct item *it)
{
    const struct warm *w = it->entry->w;
    if (it->replica->mode != REPLICA_STORE || now_us(w) < it->due_us)
        return false;
    LIST_EACH (link, &w->entries) {
        const struct warm_entry *e = LIST_ENTRY(link, struct warm_entry, link);
        for (size_t i = 0; i < e->n_items; i++) {
            const struct item *other = &e->items[i];
            if (is_active(other) && (other->replica == it->replica ||
                                     (e == it->entry && same_model(other, it))))
                return false;
        }
    }
    return true;
}

/* What the configuration lists is warm again after its model or its engine changed, or a
 * block was lost. */
static void look_after(struct item *it)
{
    const struct replica *r = it->replica;
    const bool other = is_another_engine(it);
    if (!it->entry->listed || r->mode != REPLICA_STORE || (it->state == FAILED && !other))
        return;
    it->seed = r->seed;
    it->restarts = r->n.restarts;
    if (other)
        it->repairs = 0;
    if (cache_pin_whole(r->cache, r->seed, it->entry->name))
        return;
    if (!other && ++it->repairs > REPAIRS) {
        finish(it, FAILED, 502, "its blocks were lost again and again");
        return;
    }
    it->state = PENDING;
    it->tries = 0;
    it->due_us = 0;
    it->outcome.computed = 0;
}

static void look_at(struct item *it)
{
    if (!it->replica) /* it has left */
        return;
    const enum replica_mode mode = it->replica->mode;
    if (it->state == DONE || it->state == FAILED)
        look_after(it);
    if (it->state == PENDING && !it->entry->listed &&
        (mode == REPLICA_OBSERVE || mode == REPLICA_DOWN)) {
        char why[240];
        snprintf(why, sizeof(why), "the replica does not store: %.200s",
                 it->replica->mode_reason);
        finish(it, FAILED, 503, why);
    } else if (it->state == PENDING && may_begin(it)) {
        begin(it);
    } else if (it->state == ANSWERED) {
        take_answer(it);
    } else if (it->state == SAVING) {
        look_for_save(it);
    }
}

/* ---- entries ----------------------------------------------------------------------- */

static void free_entry(struct warm_entry *e)
{
    list_del(&e->link);
    for (size_t i = 0; i < e->n_items; i++)
        stop_run(&e->items[i]);
    warm_body_free(&e->body);
    free(e->items);
    free(e->name);
    free(e->wanted_replica);
    free(e);
}

static void tell(struct warm_entry *e)
{
    warm_done_cb done = e->done;
    struct warm_outcome none = {
        .status = 400, .name = e->name, .replica = "", .why = e->unreadable};
    if (!done)
        return;
    e->done = NULL;
    if (e->n_items == 0) {
        done(e->arg, &none, 1);
        return;
    }
    struct warm_outcome *v = mem_array(e->n_items, sizeof(*v));
    for (size_t i = 0; i < e->n_items; i++)
        v[i] = e->items[i].outcome;
    done(e->arg, v, e->n_items);
    free(v);
}

static bool is_over(const struct warm_entry *e)
{
    for (size_t i = 0; i < e->n_items; i++)
        if (e->items[i].state != DONE && e->items[i].state != FAILED)
            return false;
    return true;
}

/* Finished commands stay for a while, to be looked at. */
static void forget_old(struct warm *w)
{
    size_t n = 0;
    for (struct list *it = w->entries.prev, *next; it != &w->entries; it = next) {
        struct warm_entry *e = LIST_ENTRY(it, struct warm_entry, link);
        next = it->prev;
        if (!e->listed && !e->done && is_over(e) && ++n > KEPT_COMMANDS)
            free_entry(e);
    }
}

static void on_clock(void *arg)
{
    struct warm *w = arg;
    uint64_t next_ms = LOOK_MS;
    w->looking = true;
    w->again = false;
    LIST_EACH (link, &w->entries) {
        struct warm_entry *e = LIST_ENTRY(link, struct warm_entry, link);
        for (size_t i = 0; i < e->n_items; i++) {
            struct item *it = &e->items[i];
            look_at(it);
            if (it->state == SAVING || (it->state == PENDING && it->tries))
                next_ms = SAVE_LOOK_MS;
        }
        if (is_over(e))
            tell(e);
    }
    forget_old(w);
    w->looking = false;
    timer_start(&w->clock, w->again ? 0 : next_ms);
}

static void on_replica(void *arg, struct replica *r)
{
    (void)r;
    soon(arg);
}

static void watch(struct warm *w, struct replica *r)
{
    r->on_mode = r->on_saved = on_replica;
    r->arg = w;
}

/* Items for the replicas it is for; without a body there is none. */
static void add_items(struct warm_entry *e)
{
    const struct request_world *world = e->w->world;
    if (*e->unreadable)
        return;
    e->items = mem_zalloc((world->n_targets + 1) * sizeof(*e->items));
    for (size_t i = 0; i < world->n_targets; i++) {
        struct replica *r = world->targets[i]->replica;
        if (*e->wanted_replica && strcmp(e->wanted_replica, r->name) != 0)
            continue;
        e->items[e->n_items++] =
            (struct item){.entry = e,
                          .replica = r,
                          .outcome = {.name = e->name, .replica = r->name, .why = ""}};
    }
    if (!e->n_items)
        snprintf(e->unreadable, sizeof(e->unreadable), "no replica is named \"%.64s\"",
                 e->wanted_replica);
}

static struct warm_entry *add_entry(struct warm *w, const struct warm_command *c,
                                    const struct err *unread)
{
    struct warm_entry *e = mem_zalloc(sizeof(*e));
    struct err err = *unread;
    e->w = w;
    e->name = mem_strdup(c->name);
    e->wanted_replica = mem_strdup(c->replica);
    e->pin = c->pin;
    e->public = c->public;
    e->compute = c->compute;
    list_push_back(&w->entries, &e->link);
    if (*c->name && !cache_pin_name_ok(c->name))
        err_set(&err, ERR_INVALID, "a name has 1 to %d letters, digits and . _ : -",
                CACHE_PIN_NAME);
    if (err.code || warm_body_make(&e->body, c->text, c->path, c->model, &err) != 0)
        snprintf(e->unreadable, sizeof(e->unreadable), "%s", err.text);
    add_items(e);
    if (*e->unreadable)
        log_event(LOG_WARN, "warm", "name", "%s", e->name, "state", "%s", "failed", "why",
                  "%s", e->unreadable, NULL);
    soon(w);
    return e;
}

/* ---- the list of the configuration ------------------------------------------------- */

static int read_file(const char *path, struct buf *out, struct err *e)
{
    FILE *f = fopen(path, "rbe");
    size_t n = 1;
    if (!f)
        return err_errno(e, "reading %s", path);
    while (n > 0 && buf_len(out) <= MAX_FILE) {
        n = fread(buf_reserve(out, 65536), 1, 65536, f);
        buf_commit(out, n);
    }
    if (ferror(f))
        err_errno(e, "reading %s", path);
    else if (buf_len(out) > MAX_FILE)
        err_set(e, ERR_LIMIT, "%s is larger than 64 MiB", path);
    fclose(f);
    return e->code;
}

/* The file's name without folder and ending; what a pin cannot be called becomes "-". */
static void name_of_file(const char *path, char out[CACHE_PIN_NAME + 1])
{
    const char *slash = strrchr(path, '/');
    const char *base = slash ? slash + 1 : path;
    const char *dot = strrchr(base, '.');
    const size_t len = dot && dot > base ? (size_t)(dot - base) : strlen(base);
    snprintf(out, CACHE_PIN_NAME + 1, "%.*s", (int)len, base);
    for (char *p = out; *p; p++)
        if (!strchr("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._:-",
                    *p))
            *p = '-';
}

static bool is_taken(const struct warm *w, const char *name)
{
    LIST_EACH (link, &w->entries)
        if (strcmp(LIST_ENTRY(link, struct warm_entry, link)->name, name) == 0)
            return true;
    return false;
}

/* For all replicas that it names, or for one that came later: under the same name. */
static void add_listed(struct warm *w, const struct options_warm *o,
                       const struct replica *only)
{
    char name[CACHE_PIN_NAME + 1], first[CACHE_PIN_NAME + 1];
    struct buf text = {0};
    struct err e = {0};
    if (*o->name)
        snprintf(first, sizeof(first), "%s", o->name);
    else
        name_of_file(o->file, first);
    snprintf(name, sizeof(name), "%s", first);
    for (int i = 2; !only && is_taken(w, name); i++)
        snprintf(name, sizeof(name), "%.56s-%d", first, i);
    read_file(o->file, &text, &e);
    const struct warm_command c = {.text = buf_slice(&text),
                                   .name = name,
                                   .path = o->path,
                                   .model = o->model,
                                   .replica = only ? only->name : o->replica,
                                   .pin = true,
                                   .public = o->public,
                                   .compute = true};
    add_entry(w, &c, &e)->listed = true;
    buf_free(&text);
}

struct warm *warm_open(struct request_world *world, const struct options *o)
{
    struct warm *w = mem_zalloc(sizeof(*w));
    w->world = world;
    w->save = o->store_save;
    w->before_ready = o->warm_before_ready;
    list_init(&w->entries);
    timer_init(&w->clock, world->loop, on_clock, w);
    for (size_t i = 0; i < world->n_targets; i++)
        watch(w, world->targets[i]->replica);
    for (size_t i = 0; i < o->n_warm; i++)
        add_listed(w, &o->warm[i], NULL);
    return w;
}

void warm_join(struct warm *w, const struct options *o, struct replica *r)
{
    watch(w, r);
    for (size_t i = 0; i < o->n_warm; i++)
        if (!*o->warm[i].replica || strcmp(o->warm[i].replica, r->name) == 0)
            add_listed(w, &o->warm[i], r);
}

static void part_from(struct item *it)
{
    if (it->state != DONE && it->state != FAILED)
        finish(it, FAILED, 503, "the upstream was taken out of the configuration");
    it->replica = NULL;
    it->outcome.replica = "";
}

void warm_part(struct warm *w, struct replica *r)
{
    r->on_mode = r->on_saved = NULL;
    for (struct list *link = w->entries.next, *next; link != &w->entries; link = next) {
        struct warm_entry *e = LIST_ENTRY(link, struct warm_entry, link);
        size_t left = 0;
        next = link->next;
        for (size_t i = 0; i < e->n_items; i++) {
            if (e->items[i].replica == r)
                part_from(&e->items[i]);
            left += e->items[i].replica == NULL;
        }
        if (e->listed && left && left == e->n_items)
            free_entry(e);
    }
}

void warm_set_save(struct warm *w, bool save)
{
    w->save = save;
}

void warm_close(struct warm *w)
{
    if (!w)
        return;
    w->closing = true;
    for (size_t i = 0; i < w->world->n_targets; i++)
        w->world->targets[i]->replica->on_mode = w->world->targets[i]->replica->on_saved =
            NULL;
    while (!list_empty(&w->entries)) {
        struct warm_entry *e = LIST_ENTRY(w->entries.next, struct warm_entry, link);
        for (size_t i = 0; i < e->n_items; i++)
            if (e->items[i].state != DONE && e->items[i].state != FAILED)
                finish(&e->items[i], FAILED, 503, "the gateway is stopping");
        tell(e);
        free_entry(e);
    }
    timer_fini(&w->clock);
    free(w);
}

/* ---- commands ---------------------------------------------------------------------- */

struct warm_entry *warm_start(struct warm *w, const struct warm_command *c,
                              warm_done_cb done, void *arg)
{
    const struct err none = {0};
    struct warm_entry *e = add_entry(w, c, &none);
    e->done = done;
    e->arg = arg;
    return e;
}

void warm_forget(struct warm_entry *e)
{
    e->done = NULL;
}

/* ---- being looked at --------------------------------------------------------------- */

void warm_counts(const struct warm *w, struct warm_counts *out)
{
    *out = (struct warm_counts){.computed_tokens = w->computed_tokens};
    LIST_EACH (link, &w->entries) {
        const struct warm_entry *e = LIST_ENTRY(link, struct warm_entry, link);
        out->failed += e->n_items == 0;
        for (size_t i = 0; i < e->n_items; i++) {
            const enum state s = e->items[i].state;
            out->pending += s == PENDING;
            out->running += is_active(&e->items[i]);
            out->done += s == DONE;
            out->failed += s == FAILED;
        }
    }
}

bool warm_is_ready(struct warm *w)
{
    LIST_EACH (link, &w->entries) {
        const struct warm_entry *e = LIST_ENTRY(link, struct warm_entry, link);
        for (size_t i = 0; w->before_ready && e->listed && i < e->n_items; i++) {
            const struct item *it = &e->items[i];
            if (!it->replica)
                continue;
            const enum replica_mode mode = it->replica->mode;
            const bool may_run = mode == REPLICA_STORE || mode == REPLICA_STARTING ||
                                 mode == REPLICA_RECOVERING;
            if (is_active(it) || (it->state == PENDING && may_run))
                return false;
        }
    }
    w->before_ready = false; /* what is lost later is no reason to turn clients away */
    return true;
}

static json_t *item_json(const struct item *it)
{
    const struct warm_outcome *o = &it->outcome;
    json_t *out =
        json_pack("{s:s,s:s,s:s,s:b,s:I,s:I}", "name", o->name, "replica", o->replica,
                  "state", state_names[it->state], "listed", it->entry->listed, "tokens",
                  (json_int_t)o->tokens, "computed_tokens", (json_int_t)o->computed);
    if (it->state == DONE || it->state == FAILED)
        json_object_set_new(out, "seconds", json_real(o->seconds));
    if (it->state == FAILED || (it->state == PENDING && it->tries))
        json_object_set_new(out, "why", json_string(it->why));
    return out;
}

json_t *warm_json(const struct warm *w)
{
    json_t *out = json_array();
    LIST_EACH (link, &w->entries) {
        const struct warm_entry *e = LIST_ENTRY(link, struct warm_entry, link);
        if (!e->n_items)
            json_array_append_new(out, json_pack("{s:s,s:s,s:b,s:s}", "name", e->name,
                                                 "state", "failed", "listed", e->listed,
                                                 "why", e->unreadable));
        for (size_t i = 0; i < e->n_items; i++)
            json_array_append_new(out, item_json(&e->items[i]));
    }
    return out;
}
