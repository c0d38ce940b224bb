/* SPDX-License-Identifier: MIT */
#include "llamacpp_internal.h"

/*
 * What the engine says of its slots. GET /slots is answered even while a batch runs; it
 * is the only way to see that a zombie has become idle, which slot an unpinned job got,
 * and that the engine was restarted: the task numbers of a slot only grow within one
 * process, and a fresh process shows none. Where a connection was lost the numbers must
 * show that it is still the same one.
 */

#include <assert.h>
#include <string.h>

#include "base/log.h"

#define ZOMBIE_LOOKS 3 /* at one whose task was never seen: it may not have begun */

static bool any_restless(const struct llama *l)
{
    for (size_t i = 0; i < l->n_slots; i++)
        if (l->slots[i].state == SLOT_ZOMBIE || l->slots[i].busy_twice)
            return true;
    return false;
}

void llama_poll(struct llama *l)
{
    if (l->phase != LLAMA_READY) /* the probe has its own clock */
        timer_stop(&l->poll);
    else if ((l->binding.active && l->binding.sent) || l->looking)
        timer_start(&l->poll, LLAMA_BIND_MS);
    else
        timer_start(&l->poll, any_restless(l) ? LLAMA_ZOMBIE_MS : LLAMA_HEARTBEAT_MS);
}

void llama_on_poll(void *arg)
{
    struct llama *l = arg;
    llama_scratch_late_look(l);
    if (!l->asking)
        llama_ask_slots(l, NULL, NULL);
    if (list_empty(&l->watches) && !any_restless(l) && !l->binding.active)
        llama_watch(l, NULL, NULL); /* it is the heartbeat */
}

void llama_restarted(struct llama *l, const char *why)
{
    log_event(LOG_WARN, "engine-restarted", "replica", "%s", l->r->name, "why", "%s", why,
              NULL);
    l->r->n.restarts++;
    l->phase = LLAMA_PROBING;
    llama_lost(l);
    replica_set_mode(l->r, REPLICA_STARTING, "%s", why);
    llama_probe_start(l);
}

/* Reads one entry; false where it is no slot of ours. */
static bool read_slot(struct llama *l, json_t *v)
{
    json_t *id = json_object_get(v, "id"), *task = json_object_get(v, "id_task");
    const json_int_t i = json_is_integer(id) ? json_integer_value(id) : -1;
    if (i < 0 || (size_t)i >= l->n_slots)
        return false;
    struct llama_slot *s = &l->slots[i];
    s->task_before = s->task;
    s->task = json_is_integer(task) ? json_integer_value(task) : -1;
    s->processing = json_is_true(json_object_get(v, "is_processing"));
    return true;
}

bool llama_read_slots(struct llama *l, json_t *doc)
{
    size_t i;
    json_t *v;
    if (!json_is_array(doc) || json_array_size(doc) != l->n_slots)
        return false;
    json_array_foreach(doc, i, v)
    {
        if (!read_slot(l, v))
            return false;
    }
    return true;
}

/* Is it another process than the one that was asked before? */
static bool is_other_process(const struct llama *l)
{
    bool same = !l->suspect_asked || !l->store_on; /* then no number is needed */
    for (size_t i = 0; i < l->n_slots; i++) {
        const struct llama_slot *s = &l->slots[i];
        if (s->task < s->task_before)
            return true;
        same |= s->task >= 0 && s->task == s->task_before && !s->unseen;
    }
    return !same;
}

/*
 * Whose are the tasks that are new? A look that was asked for since the last job came to
 * its slot tells all that there is to see when that job is over, has content, or runs: it
 * came to an idle slot. Else a number that has changed may be that of the job before it,
 * where that was not seen.
 */
static void note_task(struct llama_slot *s)
{
    const bool moved = s->task != s->task_before;
    s->stranger |= moved && !s->unseen;
    if (s->asked && (s->processing || s->begun || s->state == SLOT_IDLE))
        s->unseen = 0;
    else if (moved && s->unseen > (s->asked ? 0 : 1))
        s->unseen--;
}

static void note_tasks(struct llama *l)
{
    for (size_t i = 0; i < l->n_slots; i++)
        note_task(&l->slots[i]);
}

/* Idle says little of a request that the engine has not even begun. */
static void wake_zombies(struct llama *l)
{
    for (size_t i = 0; i < l->n_slots; i++) {
        struct llama_slot *s = &l->slots[i];
        if (s->state != SLOT_ZOMBIE || !s->asked || s->processing)
            continue;
        if (s->unseen && !s->begun && ++s->n_looks < ZOMBIE_LOOKS)
            continue;
        s->state = SLOT_IDLE;
        s->prefill = 0;
    }
}

/* It holds we do not know what of whom. */
void llama_forget_stranger(struct llama *l, struct llama_slot *s)
{
    llama_forget(l, s);
    s->stranger = false;
    s->whose = (struct hash128){0, 0};
}

/* Slots that are used by somebody else: other clients of the engine, a request that took
 * more slots than could be known. A single look that says busy may be older than what we
 * know of the slot. */
static void note_strangers(struct llama *l)
{
    for (size_t i = 0; i < l->n_slots; i++) {
        struct llama_slot *s = &l->slots[i];
        const bool busy = s->state == SLOT_IDLE && s->processing;
        if (s->state == SLOT_OWNED && s->stranger)
            llama_taint(l, s);
        if (s->state == SLOT_IDLE && s->stranger)
            llama_forget_stranger(l, s);
        if (busy && s->busy_twice)
            llama_taint(l, s);
        s->busy_twice = busy && s->state == SLOT_IDLE;
    }
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

static void look_at_slots(struct llama *l)
{
    l->suspect &= !l->suspect_asked;
    note_tasks(l);
    wake_zombies(l);
    if (list_empty(&l->queue))
        l->looking = false;
    if (l->binding.asked)
        llama_bind_look(l);
    if (!l->binding.active)
        note_strangers(l);
}

static void on_slots(void *arg, int status, json_t *doc, const struct err *err);

static void send_ask(struct llama *l)
{
    l->n_served = l->n_waiters;
    l->binding.asked = l->binding.active && l->binding.sent;
    l->suspect_asked = l->suspect;
    for (size_t i = 0; i < l->n_slots; i++)
        l->slots[i].asked = true;
    l->asking = ask_json(l->r->up, "/slots", NULL, l->r->authorization, LLAMA_ASK_MS,
                         l->r->loop, on_slots, l);
}

/* Those who wait are told last: they act on what is known then. */
static void on_slots(void *arg, int status, json_t *doc, const struct err *err)
{
    struct llama *l = arg;
    l->asking = NULL;
    const bool restarted =
        status == 200 && (!llama_read_slots(l, doc) || is_other_process(l));
    const bool answered = status == 200 && !restarted;
    if (answered)
        look_at_slots(l);
    if (l->phase == LLAMA_READY && restarted) {
        llama_restarted(l, "the engine was restarted");
    } else if (l->phase == LLAMA_READY && !answered) {
        llama_down(l, status ? "GET /slots failed" : err->text);
        llama_probe_start(l);
    }
    tell_waiters(l, answered);
    if (l->n_waiters && !l->asking)
        send_ask(l);
    llama_poll(l);
    llama_pump(l);
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
