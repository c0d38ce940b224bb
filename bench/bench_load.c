/* SPDX-License-Identifier: MIT */

/*
 * What `incipit bench` itself can do, on one core, in front of a service (stub.h) on
 * another: requests a second, streams side by side, and how far its times are off. It is
 * run as a child; processor time is the child's, user and system.
 *
 *     bench_load [PATH OF incipit [speed | clocks]]
 */

#include <jansson.h>
#include <math.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/mem.h"
#include "stub.h"

#define MAX_ARGS 32
#define STUB_CORE 0
#define LOAD_CORE 1

static const char *program;
static char folder[] = "/tmp/incipit-bench-XXXXXX";

struct result {
    json_t *arm;
    double cpu_s; /* user and system */
    long rss_kib; /* at most */
};

/* ---- running ----------------------------------------------------------------------- */

static char *in_folder(const char *name)
{
    return mem_printf("%s/%s", folder, name);
}

static void exec_bench(const char *const *args, const char *json)
{
    const char *argv[MAX_ARGS + 6] = {program, "bench", "--json", json};
    cpu_set_t set;
    size_t n = 4;
    CPU_ZERO(&set);
    CPU_SET(LOAD_CORE, &set);
    if (sysconf(_SC_NPROCESSORS_ONLN) > 1)
        sched_setaffinity(0, sizeof(set), &set);
    while (*args)
        argv[n++] = *args++;
    if (!freopen("/dev/null", "w", stdout))
        _exit(126);
    execv(program, (char *const *)(uintptr_t)argv);
    perror(program);
    _exit(127);
}

static double seconds(struct timeval t)
{
    return (double)t.tv_sec + 1e-6 * (double)t.tv_usec;
}

/* Runs `incipit bench URL ARGS…`; its first arm belongs to the caller. */
static struct result run_bench(const struct stub *s, const char *const *args)
{
    const char *all[MAX_ARGS] = {NULL};
    struct rusage used;
    json_error_t why;
    int status = 0;
    size_t n = 1;
    char *json = in_folder("report.json"), url[64];
    snprintf(url, sizeof(url), "http://127.0.0.1:%u", s->port);
    all[0] = url;
    while (*args && n < MAX_ARGS - 1)
        all[n++] = *args++;
    fflush(stdout);
    const pid_t pid = fork();
    if (pid == 0)
        exec_bench(all, json);
    if (wait4(pid, &status, 0, &used) != pid || status != 0) {
        fprintf(stderr, "bench_load: incipit bench ended with %d\n", status);
        exit(1);
    }
    json_t *doc = json_load_file(json, 0, &why);
    json_t *arm = json_array_get(json_object_get(doc, "arms"), 0);
    if (!arm) {
        fprintf(stderr, "bench_load: %s\n", why.text);
        exit(1);
    }
    json_incref(arm);
    json_decref(doc);
    free(json);
    return (struct result){arm, seconds(used.ru_utime) + seconds(used.ru_stime),
                           used.ru_maxrss};
}

static double at(const json_t *o, const char *first, const char *second)
{
    return json_number_value(json_object_get(json_object_get(o, first), second));
}

/* Processor time while it was sending: reading and writing files is not the load's. */
static double load_cpu_s(const json_t *arm)
{
    return at(json_object_get(arm, "resources"), "generator", "cpu_s");
}

/* ---- how fast ---------------------------------------------------------------------- */

static void requests_a_second(const char *name, const struct stub_options *o,
                              const char *const *args)
{
    struct stub s;
    stub_start(&s, o);
    const struct result r = run_bench(&s, args);
    const double n = at(r.arm, "outcomes", "completed");
    printf("%-44s %8.0f /s, %6.1f us of a core each (whole program %.1f), %.0f of %.0f "
           "completed\n",
           name, at(r.arm, "throughput", "requests_per_s"), 1e6 * load_cpu_s(r.arm) / n,
           1e6 * r.cpu_s / n, n, at(r.arm, "outcomes", "sent"));
    json_decref(r.arm);
    stub_stop(&s);
}

static void streams(const char *name, const struct stub_options *o,
                    const char *const *args)
{
    struct stub s;
    stub_start(&s, o);
    const struct result r = run_bench(&s, args);
    const double n = at(r.arm, "outcomes", "completed"),
                 wall = json_number_value(json_object_get(r.arm, "seconds"));
    const json_t *q = json_object_get(r.arm, "quantiles");
    printf("%-44s %.0f of %.0f completed, %.0f events/s, %.2f us of a core each, %.2f "
           "of a core, %ld MiB; gaps p50 %.1f p99 %.1f ms\n",
           name, n, at(r.arm, "outcomes", "sent"), n * o->tokens / wall,
           1e6 * load_cpu_s(r.arm) / (n * o->tokens), load_cpu_s(r.arm) / wall,
           r.rss_kib / 1024, at(q, "gaps_ms", "p50"), at(q, "gaps_ms", "p99"));
    json_decref(r.arm);
    stub_stop(&s);
}

/* ---- how far its clocks are off ---------------------------------------------------- */

static void write_bodies(const char *path, size_t n)
{
    FILE *f = fopen(path, "we");
    for (size_t i = 0; f && i < n; i++)
        fprintf(
            f,
            "{\"messages\":[{\"role\":\"user\",\"content\":\"x\"}],\"user\":\"%zu\"}\n",
            i);
    if (!f || fclose(f) != 0) {
        perror(path);
        exit(1);
    }
}

static double item(const json_t *samples, const char *name, size_t i)
{
    const json_t *v = json_array_get(json_object_get(samples, name), i);
    return json_is_number(v) ? json_number_value(v) : (double)NAN;
}

static int by_value(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Of signed differences, and the nearest rank of their sizes. */
static void print_errors(const char *name, double *v, size_t n)
{
    qsort(v, n, sizeof(*v), by_value);
    const double median = v[(n - 1) / 2];
    for (size_t i = 0; i < n; i++)
        v[i] = fabs(v[i]);
    qsort(v, n, sizeof(*v), by_value);
    printf("  %-12s %+8.3f  %8.3f  %8.3f  %8.3f\n", name, median, v[(n - 1) / 2],
           v[(size_t)ceil(0.99 * (double)n) - 1], v[n - 1]);
}

/* What was told less what the service wrote down of the same request. */
static void compare_clocks(const struct stub *s, const struct stub_options *o,
                           const json_t *samples)
{
    const size_t n = o->notes;
    double *ttft = mem_array(n, sizeof(*ttft)), *gap = mem_array(n, sizeof(*gap)),
           *total = mem_array(n, sizeof(*total));
    size_t m = 0;
    for (size_t i = 0; i < n; i++) {
        const struct stub_note *k = &s->notes[i];
        if (!k->last_us || isnan(item(samples, "ttft_ms", i)))
            continue;
        ttft[m] =
            item(samples, "ttft_ms", i) - (double)(k->first_us - k->received_us) / 1e3;
        gap[m] = item(samples, "gap_ms", i) -
                 (double)(k->last_us - k->first_us) / 1e3 / (o->tokens - 1);
        total[m++] = item(samples, "end_at", i) - item(samples, "sent_at", i) -
                     (double)(k->last_us - k->received_us) / 1e3;
    }
    printf("  %-12s %8s  %8s  %8s  %8s   (ms, %zu requests)\n", "", "median", "|p50|",
           "|p99|", "|max|", m);
    if (m) {
        print_errors("TTFT", ttft, m);
        print_errors("mean gap", gap, m);
        print_errors("sent to end", total, m);
    }
    free(ttft);
    free(gap);
    free(total);
}

static void clocks(const char *name, size_t n, const char *const *args)
{
    const struct stub_options o = {
        .core = STUB_CORE, .tokens = 8, .first_us = 5000, .gap_us = 2000, .notes = n};
    struct stub s;
    char *bodies = in_folder("bodies.jsonl");
    const char *all[MAX_ARGS] = {"--input", bodies};
    for (size_t i = 2; i < MAX_ARGS - 1 && (all[i] = args[i - 2]); i++)
        continue;
    write_bodies(bodies, n);
    stub_start(&s, &o);
    const struct result r = run_bench(&s, all);
    printf("%s: own lag p99 %.3f ms\n", name,
           at(json_object_get(r.arm, "quantiles"), "lag_ms", "p99"));
    compare_clocks(&s, &o, json_object_get(r.arm, "samples"));
    json_decref(r.arm);
    stub_stop(&s);
    free(bodies);
}

static void measure_speed(void)
{
    const struct stub_options json = {.core = STUB_CORE},
                              stream = {.core = STUB_CORE, .tokens = 8},
                              many = {.core = STUB_CORE,
                                      .tokens = 100,
                                      .first_us = 500000,
                                      .gap_us = 100000};
    requests_a_second("documents, closed loop of 16", &json,
                      (const char *[]){"--no-stream", "--requests", "50000",
                                       "--concurrency", "16", NULL});
    requests_a_second("the same, a connection for each", &json,
                      (const char *[]){"--no-stream", "--no-keep-alive", "--requests",
                                       "20000", "--concurrency", "16", NULL});
    requests_a_second(
        "streams of 8 events, closed loop of 16", &stream,
        (const char *[]){"--requests", "50000", "--concurrency", "16", NULL});
    streams("5000 streams side by side", &many,
            (const char *[]){"--requests", "10000", "--concurrency", "5000", NULL});
}

static void measure_clocks(void)
{
    clocks("closed loop of 1", 500, (const char *[]){NULL});
    clocks("closed loop of 32", 5000, (const char *[]){"--concurrency", "32", NULL});
    clocks("open loop, 500 a second", 3000, (const char *[]){"--rate", "500", NULL});
}

/* However it ends. */
static void clean_up(void)
{
    static const char *const names[] = {"report.json", "bodies.jsonl"};
    for (size_t i = 0; i < 2; i++) {
        char *path = in_folder(names[i]);
        unlink(path);
        free(path);
    }
    rmdir(folder);
}

int main(int argc, char **argv)
{
    char self[4096];
    const ssize_t n = readlink("/proc/self/exe", self, sizeof(self) - 64);
    self[n > 0 ? n : 0] = '\0';
    char *slash = strrchr(self, '/');
    if (slash)
        memcpy(slash, "/../incipit", sizeof("/../incipit"));
    program = argc > 1 ? argv[1] : self;
    if (!mkdtemp(folder)) {
        perror(folder);
        return 1;
    }
    atexit(clean_up);
    if (argc < 3 || strcmp(argv[2], "clocks") != 0)
        measure_speed();
    if (argc < 3 || strcmp(argv[2], "speed") != 0)
        measure_clocks();
    return 0;
}
