/* SPDX-License-Identifier: MIT */
#include "llamacpp_internal.h"

/*
 * Tenants where nothing can be put into a body. A request that takes no `cache_prompt`
 * (/v1/messages, and what cannot be read) runs on a slot that the engine chooses, and
 * there the engine reuses what it finds. So nothing of others may be in the idle slots
 * when it is sent: they are erased first, and nothing is placed meanwhile.
 *
 *     idle, somebody else's ─► (saved, where that pays) ─► ERASING ─► idle, nobody's
 *
 * An engine without --slot-save-path erases nothing; there a prompt of one token is run
 * over what the slot holds.
 *
 * What is left, a slot that another request leaves in the moment between sending and the
 * engine's choice, llamacpp_bind.c sees to.
 */

#include <stdio.h>
#include <stdlib.h>

#include "base/log.h"
#include "base/mem.h"

struct erase {
    struct llama *l;
    struct llama_slot *slot;
};

static void start(struct llama *l, struct llama_slot *s);

static bool is_unsupported(int status)
{
    return status == 404 || status == 405 || status == 501;
}

static void on_erased(void *arg, int status, json_t *doc, const struct err *err)
{
    struct erase *op = arg;
    struct llama *l = op->l;
    struct llama_slot *s = op->slot;
    const bool current = s->state == SLOT_ERASING; /* not if the engine was lost */
    (void)doc;
    free(op);
    l->ops--;
    if (!current) {
        llama_pump(l);
        return;
    }
    s->state = SLOT_IDLE;
    s->asked = false;
    if (status == 200) {
        s->whose = LLAMA_NOBODY;
    } else if (is_unsupported(status) && !l->overwrites) {
        l->overwrites = true;
        start(l, s);
    } else {
        log_event(LOG_WARN, "erase-failed", "replica", "%s", l->r->name, "slot", "%d",
                  s->id, "status", "%d", status, "why", "%s", status ? "-" : err->text,
                  NULL);
        llama_taint(l, s); /* it is tried again when the engine says idle */
    }
    llama_pump(l);
}

static void start(struct llama *l, struct llama_slot *s)
{
    char path[64] = "/completion", body[128] = "{}";
    struct erase *op = mem_zalloc(sizeof(*op));
    *op = (struct erase){l, s};
    llama_forget(l, s);
    s->state = SLOT_ERASING;
    l->ops++;
    if (l->overwrites) {
        s->unseen++; /* a task of our own */
        s->asked = false;
        snprintf(body, sizeof(body),
                 "{\"prompt\":\"x\",\"id_slot\":%d,\"cache_prompt\":false,"
                 "\"n_predict\":1,\"stream\":false}",
                 s->id);
    } else {
        snprintf(path, sizeof(path), "/slots/%d?action=erase", s->id);
    }
    ask_json(l->r->up, path, body, l->r->authorization, l->r->o.slot_ms, l->r->loop,
             on_erased, op);
}

/* Its job has ended in the engine, or shall be waited for. */
static bool leaves_soon(const struct llama_slot *s, const struct job *job)
{
    return s->state == SLOT_OWNED && (s->doubtful || job->n_again >= LLAMA_MAX_AGAIN);
}

bool llama_erase_foreign(struct llama *l, struct job *job)
{
    bool waits = false;
    if (llama_pins(l, job) || llama_can_pin(job))
        return false;
    for (size_t i = 0; i < l->n_slots; i++) {
        struct llama_slot *s = &l->slots[i];
        if (!llama_is_foreign(l, s, job))
            continue;
        waits |= s->state == SLOT_ZOMBIE || leaves_soon(s, job);
        if (s->state != SLOT_IDLE)
            continue;
        if (llama_save_first(l, s, job))
            return true;
        if (s->unsaved)
            llama_skip_save(l, s, SAVE_OVERWRITTEN);
        start(l, s);
        waits = true;
    }
    return waits;
}
