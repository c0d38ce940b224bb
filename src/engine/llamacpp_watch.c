/* SPDX-License-Identifier: MIT */
#include "llamacpp_internal.h"

/*
 * Is it still what the probe saw? Somebody may set other adapters (POST /lora-adapters),
 * and a program that swaps models may have put another one behind the port; GET /slots
 * looks the same then. So the engine is asked once more before each restore, behind each
 * save, and with the heartbeat:
 *
 *     GET /props ── same? ──► GET /lora-adapters (if it had any) ── same? ──► fine
 *                     └─────────── another: forget its slots, probe again
 */

#include <stdlib.h>

#include "base/log.h"
#include "base/mem.h"

struct watch {
    struct list link; /* in llama.watches */
    struct llama *l;
    struct ask *ask;
    slots_cb cb;
    void *arg;
};

static struct hash128 digest(json_t *v)
{
    char *text =
        v ? json_dumps(v, JSON_SORT_KEYS | JSON_COMPACT | JSON_ENCODE_ANY) : NULL;
    const struct hash128 h = chain_checksum(slice_of(text ? text : ""));
    free(text);
    return h;
}

struct hash128 llama_props_digest(json_t *doc)
{
    static const char *const keys[] = {"model_path",  "model_alias",   "build_info",
                                       "role",        "chat_template", "total_slots",
                                       "media_marker"};
    json_t *some = json_object();
    for (size_t i = 0; i < sizeof(keys) / sizeof(*keys); i++)
        if (json_object_get(doc, keys[i]))
            json_object_set(some, keys[i], json_object_get(doc, keys[i]));
    const struct hash128 h = digest(some);
    json_decref(some);
    return h;
}

struct hash128 llama_adapters_digest(json_t *doc)
{
    return digest(doc);
}

static void end(struct watch *w, bool same)
{
    const slots_cb cb = w->cb;
    void *arg = w->arg;
    list_del(&w->link);
    free(w);
    if (cb)
        cb(arg, same);
}

/* Another model, or other adapters. What is under way for the old one ends by itself. */
static void end_changed(struct watch *w, const char *why)
{
    struct llama *l = w->l;
    if (l->phase == LLAMA_READY)
        llama_restarted(l, why);
    end(w, false);
}

static void on_adapters(void *arg, int status, json_t *doc, const struct err *err)
{
    struct watch *w = arg;
    (void)err;
    w->ask = NULL;
    if (status != 200)
        end(w, false);
    else if (!hash128_eq(llama_adapters_digest(doc), w->l->adapters))
        end_changed(w, "its adapters were changed");
    else
        end(w, true);
}

static void on_props(void *arg, int status, json_t *doc, const struct err *err)
{
    struct watch *w = arg;
    struct llama *l = w->l;
    (void)err;
    w->ask = NULL;
    if (status != 200)
        end(w, false);
    else if (!hash128_eq(llama_props_digest(doc), l->props))
        end_changed(w, "another model or process answers");
    else if (!l->has_adapters)
        end(w, true);
    else
        w->ask = ask_json(l->r->up, "/lora-adapters", NULL, l->r->authorization,
                          LLAMA_ASK_MS, l->r->loop, on_adapters, w);
}

void llama_watch(struct llama *l, slots_cb cb, void *arg)
{
    struct watch *w = mem_zalloc(sizeof(*w));
    w->l = l;
    w->cb = cb;
    w->arg = arg;
    list_push_back(&l->watches, &w->link);
    w->ask = ask_json(l->r->up, "/props", NULL, l->r->authorization, LLAMA_ASK_MS,
                      l->r->loop, on_props, w);
}

void llama_watch_stop(struct llama *l)
{
    LIST_EACH_SAFE (it, next, &l->watches) {
        struct watch *w = LIST_ENTRY(it, struct watch, link);
        ask_cancel(w->ask);
        list_del(it);
        free(w);
    }
}
