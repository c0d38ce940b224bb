/* SPDX-License-Identifier: MIT */
#include "io/workers.h"

#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <unistd.h>

#include "cmocka_all.h"
#include "io_rig.h"

#define JOBS 1000

static struct loop *loop;
static pthread_t loop_thread;
static atomic_int started;
static int n_done, stop_at;

struct job {
    int started_as, done_as;
    struct workers *submit_to; /* once more, from `done` */
    struct job *next;
};

static struct job jobs[JOBS];

static int up(void **state)
{
    const int rc = rig_up(state);
    loop = *state;
    loop_thread = pthread_self();
    atomic_store(&started, 0);
    n_done = stop_at = 0;
    for (int i = 0; i < JOBS; i++)
        jobs[i] = (struct job){-1, -1, NULL, NULL};
    return rc;
}

static void run(void *arg)
{
    struct job *job = arg;
    assert_false(pthread_equal(pthread_self(), loop_thread));
    job->started_as = atomic_fetch_add(&started, 1);
}

static void done(void *arg)
{
    struct job *job = arg;
    assert_true(pthread_equal(pthread_self(), loop_thread));
    job->done_as = n_done++;
    if (job->submit_to)
        workers_submit(job->submit_to, run, done, job->next);
    if (n_done == stop_at)
        loop_stop(loop);
}

static void submit_all(struct workers *w, int n)
{
    for (int i = 0; i < n; i++)
        workers_submit(w, run, done, &jobs[i]);
}

static void test_workers_with_one_thread_keep_the_order(void **state)
{
    (void)state;
    struct workers *w = workers_new(loop, 1);
    submit_all(w, JOBS);
    assert_int_equal(workers_pending(w), JOBS);
    assert_int_equal(n_done, 0); /* never inside */
    stop_at = JOBS;
    loop_run(loop);
    for (int i = 0; i < JOBS; i++) {
        assert_int_equal(jobs[i].started_as, i);
        assert_int_equal(jobs[i].done_as, i);
    }
    assert_int_equal(workers_pending(w), 0);
    workers_free(w);
}

static void test_workers_with_many_threads_do_every_job_once(void **state)
{
    (void)state;
    struct workers *w = workers_new(loop, 4);
    submit_all(w, JOBS);
    stop_at = JOBS;
    loop_run(loop);
    workers_free(w);
    assert_int_equal(atomic_load(&started), JOBS);
    for (int i = 0; i < JOBS; i++)
        assert_int_not_equal(jobs[i].done_as, -1);
}

/* Both threads must be in their job at once, or neither gets out. */
static pthread_barrier_t both;

static void meet(void *arg)
{
    (void)arg;
    pthread_barrier_wait(&both);
}

static void test_workers_run_jobs_side_by_side(void **state)
{
    (void)state;
    struct workers *w = workers_new(loop, 2);
    pthread_barrier_init(&both, NULL, 2);
    workers_submit(w, meet, done, &jobs[0]);
    workers_submit(w, meet, done, &jobs[1]);
    stop_at = 2;
    loop_run(loop);
    workers_free(w);
    pthread_barrier_destroy(&both);
}

static void test_workers_free_finishes_what_is_queued(void **state)
{
    (void)state;
    struct workers *w = workers_new(loop, 2);
    submit_all(w, JOBS);
    workers_free(w);
    assert_int_equal(n_done, JOBS);
    rig_idle(loop, 10); /* the post that was on its way finds nothing */
    assert_int_equal(n_done, JOBS);
}

static void test_workers_free_does_what_done_submits(void **state)
{
    (void)state;
    struct workers *w = workers_new(loop, 2);
    for (int i = 0; i < 10; i++) {
        jobs[i].submit_to = w;
        jobs[i].next = &jobs[i + 1];
    }
    workers_submit(w, run, done, &jobs[0]);
    workers_free(w);
    assert_int_equal(n_done, 11);
}

static void test_workers_free_before_the_loop_ran_leaves_nothing(void **state)
{
    (void)state;
    workers_free(workers_new(loop, 3));
    struct workers *w = workers_new(loop, 1);
    workers_submit(w, run, done, &jobs[0]);
    workers_free(w);
    workers_free(NULL);
    assert_int_equal(n_done, 1);
}

static void look_at_mask(void *arg)
{
    sigset_t now;
    pthread_sigmask(SIG_BLOCK, NULL, &now);
    *(int *)arg = sigismember(&now, SIGTERM) && sigismember(&now, SIGINT);
}

static void ignore(void *arg)
{
    (void)arg;
}

static void test_workers_leave_signals_to_the_loop(void **state)
{
    (void)state;
    sigset_t here;
    int blocked = 0;
    struct workers *w = workers_new(loop, 1);
    workers_submit(w, look_at_mask, ignore, &blocked);
    workers_free(w);
    assert_true(blocked);
    pthread_sigmask(SIG_BLOCK, NULL, &here);
    assert_false(sigismember(&here, SIGTERM));
}

int main(void)
{
#define TEST(f) cmocka_unit_test_setup_teardown(f, up, rig_down)
    const struct CMUnitTest tests[] = {
        TEST(test_workers_with_one_thread_keep_the_order),
        TEST(test_workers_with_many_threads_do_every_job_once),
        TEST(test_workers_run_jobs_side_by_side),
        TEST(test_workers_free_finishes_what_is_queued),
        TEST(test_workers_free_does_what_done_submits),
        TEST(test_workers_free_before_the_loop_ran_leaves_nothing),
        TEST(test_workers_leave_signals_to_the_loop),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
