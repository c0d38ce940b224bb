/* SPDX-License-Identifier: MIT */
#include "io/workers.h"

/*
 *       loop                        threads                          loop
 *     submit ──► queued ──(work)──► run(arg) ──► finished ──(post)──► done(arg)
 *
 * Both lists are guarded by one lock. Threads wait for `work`, which counts the jobs that
 * are queued; a thread that finds none there is to end. It is a semaphore because a
 * condition on which several threads wait can lose the call that wakes one of them
 * (glibc's bug 25847). `finished` is posted once for each time that it
 * stops being empty, not once a job. workers_free() works it off itself, waiting for
 * `more_finished`; a post that is still under way then finds `freed` and frees the rest.
 */

#include <assert.h>
#include <errno.h>
#include <pthread.h>
#include <semaphore.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>

#include "base/list.h"
#include "base/log.h"
#include "base/mem.h"

#define WORKERS_MAGIC 0x776f726bu

struct job {
    struct list link;
    void (*run)(void *arg);
    void (*done)(void *arg);
    void *arg;
};

struct workers {
    unsigned magic;
    struct loop *loop;
    unsigned pending; /* the loop's own count */
    bool freed;

    pthread_t *threads;
    unsigned n_threads;

    sem_t work;
    pthread_mutex_t lock; /* guards what follows */
    pthread_cond_t more_finished;
    struct list queued, finished;
    bool posted; /* on_finished() is on its way */
};

static struct job *take_first(struct list *head)
{
    if (list_empty(head))
        return NULL;
    struct list *link = head->next;
    list_del(link);
    return LIST_ENTRY(link, struct job, link);
}

/* ---- on the loop ------------------------------------------------------------------- */

static void free_workers(struct workers *w)
{
    pthread_mutex_destroy(&w->lock);
    sem_destroy(&w->work);
    pthread_cond_destroy(&w->more_finished);
    free(w->threads);
    w->magic = 0;
    free(w);
}

/* Tells the owners of the jobs that are finished by now. */
static void finish(struct workers *w)
{
    struct list batch;
    struct job *job;
    list_init(&batch);
    pthread_mutex_lock(&w->lock);
    while ((job = take_first(&w->finished)))
        list_push_back(&batch, &job->link);
    pthread_mutex_unlock(&w->lock);
    while ((job = take_first(&batch))) {
        w->pending--;
        job->done(job->arg);
        free(job);
    }
}

static void on_finished(void *arg)
{
    struct workers *w = arg;
    assert(w->magic == WORKERS_MAGIC);
    if (w->freed) {
        free_workers(w);
        return;
    }
    pthread_mutex_lock(&w->lock);
    w->posted = false;
    pthread_mutex_unlock(&w->lock);
    finish(w);
}

/* ---- on the threads ---------------------------------------------------------------- */

/* NULL: the thread is to end. */
static struct job *wait_for_work(struct workers *w)
{
    while (sem_wait(&w->work) != 0)
        assert(errno == EINTR);
    pthread_mutex_lock(&w->lock);
    struct job *job = take_first(&w->queued);
    pthread_mutex_unlock(&w->lock);
    return job;
}

static void *work(void *arg)
{
    struct workers *w = arg;
    struct job *job;
    while ((job = wait_for_work(w))) {
        job->run(job->arg);
        pthread_mutex_lock(&w->lock);
        list_push_back(&w->finished, &job->link);
        pthread_cond_signal(&w->more_finished);
        if (!w->posted)
            loop_post(w->loop, on_finished, w);
        w->posted = true;
        pthread_mutex_unlock(&w->lock);
    }
    return NULL;
}

/* ---- the owner's side -------------------------------------------------------------- */

/* Signals are for the loop's thread. */
static unsigned start_threads(struct workers *w, unsigned n)
{
    sigset_t all, before;
    unsigned started = 0;
    int rc = 0;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    while (started < n && (rc = pthread_create(&w->threads[started], NULL, work, w)) == 0)
        pthread_setname_np(w->threads[started++], "incipit-worker");
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (rc != 0)
        log_event(LOG_WARN, "workers", "wanted", "%u", n, "started", "%u", started,
                  "errno", "%s", strerror(rc), NULL);
    return started;
}

struct workers *workers_new(struct loop *l, unsigned n_threads)
{
    assert(n_threads > 0);
    struct workers *w = mem_zalloc(sizeof(*w));
    w->magic = WORKERS_MAGIC;
    w->loop = l;
    pthread_mutex_init(&w->lock, NULL);
    sem_init(&w->work, 0, 0);
    pthread_cond_init(&w->more_finished, NULL);
    list_init(&w->queued);
    list_init(&w->finished);
    w->threads = mem_array(n_threads, sizeof(*w->threads));
    w->n_threads = start_threads(w, n_threads);
    if (w->n_threads == 0) {
        free_workers(w);
        return NULL;
    }
    return w;
}

void workers_submit(struct workers *w, void (*run)(void *arg), void (*done)(void *arg),
                    void *arg)
{
    assert(w->magic == WORKERS_MAGIC && !w->freed && run && done);
    struct job *job = mem_alloc(sizeof(*job));
    *job = (struct job){.run = run, .done = done, .arg = arg};
    w->pending++;
    pthread_mutex_lock(&w->lock);
    list_push_back(&w->queued, &job->link);
    pthread_mutex_unlock(&w->lock);
    sem_post(&w->work);
}

unsigned workers_threads(const struct workers *w)
{
    return w->n_threads;
}

unsigned workers_pending(const struct workers *w)
{
    return w->pending;
}

static void wait_for_finished(struct workers *w)
{
    pthread_mutex_lock(&w->lock);
    while (list_empty(&w->finished))
        pthread_cond_wait(&w->more_finished, &w->lock);
    pthread_mutex_unlock(&w->lock);
}

void workers_free(struct workers *w)
{
    if (!w)
        return;
    assert(w->magic == WORKERS_MAGIC && !w->freed);
    while (w->pending) {
        wait_for_finished(w);
        finish(w);
    }
    for (unsigned i = 0; i < w->n_threads; i++)
        sem_post(&w->work);
    for (unsigned i = 0; i < w->n_threads; i++)
        pthread_join(w->threads[i], NULL);
    w->freed = true;
    if (!w->posted)
        free_workers(w);
}
