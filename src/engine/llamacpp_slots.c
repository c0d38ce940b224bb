/* SPDX-License-Identifier: MIT */
#include "llamacpp_internal.h"

/*
 * What the engine says of its slots. GET /slots is answered even while a batch runs; it
 * is the only way to see that a zombie has become idle, which slot an unpinned job got,
 * and that the engine was restarted: task numbers only grow within one process, and a
 * fresh process shows none.
 */

#include <assert.h>
#include <string.h>

#include "base/log.h"

#define BIND_POLLS 200 /* until a running job is taken for one that uses no slot */
#define BIND_POLLS_ENDED 3

static bool any_zombie(const struct llama *l)
{
    for (size_t i = 0; i < l->n_slots; i++)
        if (l->slots[i].state == SLOT_ZOMBIE)
            return true;
    return false;
}

void llama_poll(struct llama *l)
{
    if (l->phase != LLAMA_READY) /* the probe has its own clock */
        timer_stop(&l->poll);
    else if (l->binding.active)
        timer_start(&l->poll, LLAMA_BIND_MS);
    else
        timer_start(&l->poll, any_zombie(l) ? LLAMA_ZOMBIE_MS : LLAMA_HEARTBEAT_MS);
}

void llama_on_poll(void *arg)
{
    struct llama *l = arg;
    if (!l->asking)
        llama_ask_slots(l, NULL, NULL);
}

void llama_restarted(struct llama *l)
{
    log_event(LOG_WARN, "engine-restarted", "replica", "%s", l->r->name, NULL);
    l->r->n.restarts++;
    l->phase = LLAMA_PROBING;
    l->store_on = false;
    l->last_task = -1;
    for (size_t i = 0; i < l->n_slots; i++)
        llama_forget(l, &l->slots[i]);
    upstream_flush(l->r->up);
    replica_set_mode(l->r, REPLICA_STARTING, "the engine was restarted");
    llama_probe_start(l);
}

/* Reads one entry; false where it is no slot of ours. */
static bool read_slot(struct llama *l, json_t *v, int64_t *task)
{
    json_t *id = json_object_get(v, "id"), *task_id = json_object_get(v, "id_task");
    const json_int_t i = json_is_integer(id) ? json_integer_value(id) : -1;
    if (i < 0 || (size_t)i >= l->n_slots)
        return false;
    struct llama_slot *s = &l->slots[i];
    *task = json_is_integer(task_id) ? json_integer_value(task_id) : -1;
    s->moved = *task != s->task;
    s->task = *task;
    s->processing = json_is_true(json_object_get(v, "is_processing"));
    return true;
}

/* Highest task number, or -2 where the document is not a list of our slots. */
static int64_t read_slots(struct llama *l, json_t *doc)
{
    int64_t highest = -1, task;
    size_t i;
    json_t *v;
    if (!json_is_array(doc) || json_array_size(doc) != l->n_slots)
        return -2;
    json_array_foreach(doc, i, v)
    {
        if (!read_slot(l, v, &task))
            return -2;
        if (task > highest)
            highest = task;
    }
    return highest;
}

static void wake_zombies(struct llama *l)
{
    for (size_t i = 0; i < l->n_slots; i++)
        if (l->slots[i].state == SLOT_ZOMBIE && !l->slots[i].processing)
            l->slots[i].state = SLOT_IDLE;
}

static void bind_to(struct llama *l, struct llama_slot *s)
{
    struct binding *b = &l->binding;
    if (!b->ended) {
        s->state = SLOT_OWNED;
        s->job = b->job;
        s->last_used_us = loop_now_us(l->r->loop);
        llama_forget(l, s);
        b->job->engine = s;
        b->job->plan.slot = s->id;
    } else if (b->lesson) {
        llama_settle(l, s, b->lesson);
        b->lesson = NULL;
    } else if (b->broken && s->processing) {
        llama_make_zombie(l, s);
    } else {
        llama_forget(l, s);
    }
    b->active = false;
}

/* Which idle slot has been given a task that is not ours? That of the unpinned job. */
static void resolve_binding(struct llama *l)
{
    struct binding *b = &l->binding;
    for (size_t i = 0; i < l->n_slots && b->active; i++) {
        struct llama_slot *s = &l->slots[i];
        if (s->state == SLOT_IDLE && (s->processing || s->moved))
            bind_to(l, s);
    }
    if (!b->active || ++b->polls < (b->ended ? BIND_POLLS_ENDED : BIND_POLLS))
        return;
    l->r->n.binds_lost++;
    for (size_t i = 0; i < l->n_slots; i++) /* it may have been any of them */
        if (l->slots[i].state == SLOT_IDLE)
            llama_forget(l, &l->slots[i]);
    lesson_free(b->lesson);
    b->lesson = NULL;
    b->active = false;
}

static void tell_waiters(struct llama *l, bool answered)
{
    struct slots_waiter now[LLAMA_MAX_SLOTS + 2];
    const size_t n = l->n_served;
    memcpy(now, l->waiters, n * sizeof(*now));
    l->n_waiters -= n;
    memmove(l->waiters, l->waiters + n, l->n_waiters * sizeof(*l->waiters));
    l->n_served = 0;
    for (size_t i = 0; i < n; i++)
        now[i].cb(now[i].arg, answered);
}

static void send_ask(struct llama *l);

static void on_slots(void *arg, int status, json_t *doc, const struct err *err)
{
    struct llama *l = arg;
    l->asking = NULL;
    const int64_t highest = status == 200 ? read_slots(l, doc) : -2;
    const bool restarted = status == 200 && highest < l->last_task;
    const bool answered = status == 200 && !restarted;
    if (answered) {
        l->last_task = highest;
        wake_zombies(l);
        if (l->binding.active)
            resolve_binding(l);
    }
    tell_waiters(l, answered);
    if (l->phase == LLAMA_READY && restarted)
        llama_restarted(l);
    else if (l->phase == LLAMA_READY && !answered) {
        llama_down(l, status ? "GET /slots failed" : err->text);
        llama_probe_start(l);
    }
    if (l->n_waiters && !l->asking)
        send_ask(l);
    llama_poll(l);
    llama_pump(l);
}

static void send_ask(struct llama *l)
{
    l->n_served = l->n_waiters;
    l->asking = ask_json(l->r->up, "/slots", NULL, l->r->authorization, LLAMA_ASK_MS,
                         l->r->loop, on_slots, l);
}

void llama_ask_slots(struct llama *l, slots_cb cb, void *arg)
{
    if (cb) {
        assert(l->n_waiters < LLAMA_MAX_SLOTS + 2);
        l->waiters[l->n_waiters++] = (struct slots_waiter){cb, arg};
    }
    if (!l->asking)
        send_ask(l);
}
