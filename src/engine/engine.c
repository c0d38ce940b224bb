/* SPDX-License-Identifier: MIT */
#include "engine/engine.h"

#include <assert.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/mem.h"

static const struct engine_driver *const drivers[] = {&engine_llamacpp, &engine_openai};

/* What a token costs and how long it is, until the engine has shown it. */
#define FIRST_MS_PER_TOKEN 1.0
#define FIRST_BYTES_PER_TOKEN 4.0

const char *restore_failure_name(enum restore_failure f)
{
    static const char *const names[] = {
#define X(code, name) [code] = name,
        RESTORE_FAILURES(X)
#undef X
    };
    assert(f < RESTORE_FAILURE_KINDS);
    return names[f];
}

const char *save_skip_name(enum save_skip s)
{
    static const char *const names[] = {
#define X(code, name) [code] = name,
        SAVE_SKIPS(X)
#undef X
    };
    assert(s < SAVE_SKIP_KINDS);
    return names[s];
}

void replica_set_mode(struct replica *r, enum replica_mode mode, const char *fmt, ...)
{
    static const char *const names[] = {"down", "starting", "observe", "recovering",
                                        "store"};
    char reason[sizeof(r->mode_reason)];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(reason, sizeof(reason), fmt, ap);
    va_end(ap);
    if (r->mode == mode && strcmp(reason, r->mode_reason) == 0)
        return;
    r->mode = mode;
    memcpy(r->mode_reason, reason, sizeof(reason));
    log_event(mode == REPLICA_DOWN ? LOG_WARN : LOG_INFO, "replica", "name", "%s",
              r->name, "driver", "%s", r->driver ? r->driver->name : "auto", "mode", "%s",
              names[mode], "why", "%s", reason, NULL);
    if (r->on_mode)
        r->on_mode(r->arg, r);
}

static void use_driver(struct replica *r, const struct engine_driver *d)
{
    r->driver = d;
    r->state = d->open(r);
}

static const struct engine_driver *driver_named(const char *name)
{
    for (size_t i = 0; i < sizeof(drivers) / sizeof(drivers[0]); i++)
        if (strcmp(drivers[i]->name, name) == 0)
            return drivers[i];
    return NULL;
}

/* Nobody can tell which requests will be held out. */
static uint64_t random_seed(void)
{
    uint64_t seed = clock_wall_ms();
    if (getrandom(&seed, sizeof(seed), GRND_NONBLOCK) != sizeof(seed))
        log_event(LOG_WARN, "no-random-bytes", "for", "%s", "hold-out", NULL);
    return seed;
}

struct replica *replica_new(struct loop *l, struct workers *w, struct cache *c,
                            const struct replica_options *o, struct err *e)
{
    const struct engine_driver *d = NULL;
    if (strcmp(o->driver, "auto") != 0 && !(d = driver_named(o->driver))) {
        err_set(e, ERR_INVALID, "driver \"%s\" of upstream %s: known are auto, %s and %s",
                o->driver, o->url, drivers[0]->name, drivers[1]->name);
        return NULL;
    }
    struct replica *r = mem_zalloc(sizeof(*r));
    r->loop = l;
    r->workers = w;
    r->cache = c;
    r->o = *o;
    r->o.upstream.url = o->url;
    r->up = upstream_new(l, &r->o.upstream, e);
    if (!r->up) {
        free(r);
        return NULL;
    }
    r->name = mem_strdup(o->name && *o->name ? o->name : upstream_host(r->up));
    r->slot_dir = o->slot_dir && *o->slot_dir ? mem_strdup(o->slot_dir) : NULL;
    r->authorization = mem_strdup(o->authorization ? o->authorization : "");
    r->o.name = r->name;
    r->o.url = r->o.upstream.url = NULL;
    r->o.upstream.tls = (struct tls_options){0};
    r->o.slot_dir = r->slot_dir;
    r->o.authorization = r->authorization;
    r->mode = REPLICA_STARTING;
    r->ms_per_token = FIRST_MS_PER_TOKEN;
    r->bytes_per_token = FIRST_BYTES_PER_TOKEN;
    r->holdout = holdout_new(o->holdout, random_seed());
    /* llama-server's driver looks who is there, and hands over if it is another. */
    use_driver(r, d ? d : &engine_llamacpp);
    return r;
}

void replica_set_options(struct replica *r, const struct replica_options *o)
{
    const struct replica_options was = r->o;
    char *before = r->authorization;
    r->authorization = mem_strdup(o->authorization ? o->authorization : "");
    free(before);
    r->o = *o;
    r->o.name = was.name;
    r->o.driver = was.driver;
    r->o.slot_dir = was.slot_dir;
    r->o.observe = was.observe;
    r->o.holdout = was.holdout;
    r->o.authorization = r->authorization;
    r->o.url = r->o.upstream.url = NULL;
    r->o.upstream.tls = (struct tls_options){0};
    upstream_set_options(r->up, &o->upstream);
}

void replica_free(struct replica *r)
{
    if (!r)
        return;
    r->on_mode = r->on_saved = NULL;
    r->driver->close(r->state);
    upstream_free(r->up);
    holdout_free(r->holdout);
    free(r->name);
    free(r->slot_dir);
    free(r->authorization);
    free(r);
}

void replica_admit(struct replica *r, struct job *job)
{
    memset(&job->plan, 0, sizeof(job->plan));
    job->plan.slot = -1;
    job->sent = job->saved_first = false;
    job->engine = NULL;
    job->discovery = NULL;
    job->asked = false;
    job->n_again = 0;
    list_init(&job->link);
    r->in_flight++;
    r->driver->admit(r->state, job);
}

void replica_leave(struct replica *r, struct job *job)
{
    r->in_flight--;
    r->driver->leave(r->state, job);
}

void replica_done(struct replica *r, struct job *job)
{
    assert(job->sent);
    r->in_flight--;
    r->driver->done(r->state, job);
}

void replica_first_content(struct replica *r, struct job *job)
{
    if (r->driver->first_content)
        r->driver->first_content(r->state, job);
}

void replica_forget(struct replica *r, const struct cache_forget *what)
{
    if (r->driver->forget)
        r->driver->forget(r->state, what);
}

unsigned replica_busy(const struct replica *r)
{
    return r->driver->busy ? r->driver->busy(r->state) : 0;
}

void replica_drain(struct replica *r)
{
    if (r->driver->drain)
        r->driver->drain(r->state);
}
