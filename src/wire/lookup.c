/* SPDX-License-Identifier: MIT */
#include "wire/lookup.h"

/*
 *     lookup_again() ──► worker: getaddrinfo() ──► on_ended: keep, move or note why not
 *
 * The work owns what the worker needs. Where the lookup is closed meanwhile it forgets
 * its owner and ends for nobody.
 */

#include <stdlib.h>

#include "base/log.h"
#include "base/mem.h"

struct lookup_work {
    struct lookup *owner; /* NULL: nobody waits any more */
    char *where;
    struct addr found[LOOKUP_MAX];
    size_t n;
    struct err err;
};

static void run(void *arg)
{
    struct lookup_work *w = arg;
    w->n = LOOKUP_MAX;
    addr_resolve_all(w->found, &w->n, w->where, &w->err);
}

/* The one it is at, where that is still among them and answers; else the next one. */
static const struct addr *choose(const struct lookup *k, const struct lookup_work *w)
{
    for (size_t i = 0; i < w->n; i++)
        if (addr_eq(&w->found[i], &k->addr))
            return &w->found[k->unreachable ? (i + 1) % w->n : i];
    return &w->found[0];
}

/* True where it is another one now. */
static bool move(struct lookup *k, const struct addr *to)
{
    const bool first = !lookup_known(k), moved = !first && !addr_eq(&k->addr, to);
    if (moved)
        log_event(LOG_INFO, "upstream-moved", "name", "%s", k->where, "from", "%s",
                  k->addr.text, "to", "%s", to->text, NULL);
    k->addr = *to;
    k->unreachable = false;
    return moved;
}

/* Said when it begins and when it is over. */
static void note_result(struct lookup *k, const struct err *e)
{
    if (e->code && !k->why.code)
        log_event(LOG_WARN, "name-not-found", "name", "%s", k->where, "why", "%s",
                  e->text, NULL);
    if (!e->code && k->why.code)
        log_event(LOG_INFO, "name-found", "name", "%s", k->where, NULL);
    k->why = *e;
}

static void free_work(struct lookup_work *w)
{
    free(w->where);
    free(w);
}

static void on_ended(void *arg)
{
    struct lookup_work *w = arg;
    struct lookup *k = w->owner;
    bool moved = false;
    if (k) {
        k->work = NULL;
        k->ended_us = loop_now_us(k->loop);
        note_result(k, &w->err);
        if (!w->err.code)
            moved = move(k, choose(k, w));
        k->done(k->arg, moved);
    }
    free_work(w);
}

static void start(struct lookup *k)
{
    k->work = mem_zalloc(sizeof(*k->work));
    k->work->owner = k;
    k->work->where = mem_strdup(k->where);
    workers_submit(k->workers, run, on_ended, k->work);
}

int lookup_open(struct lookup *k, struct loop *l, struct workers *workers,
                const char *where, void (*done)(void *arg, bool moved), void *arg,
                struct err *e)
{
    struct err why = {0};
    *k = (struct lookup){.loop = l, .done = done, .arg = arg};
    int rc = addr_parse(&k->addr, where, &why);
    if (rc == ERR_NOT_FOUND && !workers)
        rc = addr_resolve(&k->addr, where, &why);
    if (rc == ERR_NOT_FOUND && workers) {
        k->workers = workers;
        k->where = mem_strdup(where);
        start(k);
        return 0;
    }
    if (rc != 0)
        *e = why;
    return rc;
}

void lookup_close(struct lookup *k)
{
    if (k->work)
        k->work->owner = NULL;
    k->work = NULL;
    free(k->where);
    k->where = NULL;
}

bool lookup_again(struct lookup *k)
{
    if (!k->where || k->work)
        return true;
    if (loop_now_us(k->loop) - k->ended_us < LOOKUP_AGAIN_MS * 1000ull)
        return false;
    start(k);
    return true;
}
