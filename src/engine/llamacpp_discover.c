/* SPDX-License-Identifier: MIT */
#include "llamacpp_internal.h"

/*
 * Before a job is placed the first time, other gateways are asked what they know of its
 * prompt (store/cache.h), where there are any. It stays in the queue meanwhile and others
 * pass it; once is enough, and the answer is never waited for longer than the timeout of
 * the shared tier.
 */

static void on_discovered(void *arg)
{
    struct job *job = arg;
    struct llama *l = job->engine;
    job->discovery = NULL;
    l->discovering -= !job->background;
    llama_discovered(l, job);
}

bool llama_discovering(struct llama *l, struct job *job)
{
    const bool shares = l->store_on && !l->whole;
    if (!job->asked && !job->wants_all && shares && llama_is_current(l, job)) {
        const struct cache_question q = {.fingerprint = l->fingerprint,
                                         .root = llama_kv_root(l, job),
                                         .v = job->pieces->v,
                                         .n = job->pieces->n};
        job->asked = true;
        job->discovery = cache_discover(l->r->cache, &q, on_discovered, job);
        l->discovering += job->discovery && !job->background;
    }
    return job->discovery != NULL;
}

void llama_discover_left(struct llama *l, struct job *job)
{
    if (!job->discovery)
        return;
    cache_discover_cancel(job->discovery);
    job->discovery = NULL;
    l->discovering -= !job->background;
}
