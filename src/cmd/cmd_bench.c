/* SPDX-License-Identifier: MIT */

/* `incipit bench`: what clients of a service see under a load (docs/bench.md). */

#include <inttypes.h>
#include <math.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/mem.h"
#include "base/units.h"
#include "cmd/cmd.h"
#include "base/draw.h"
#include "load/page.h"
#include "load/report.h"
#include "load/service.h"
#include "cmd_bench.h"

#define ASK_MS 5000

enum {
    PROFILE,
    INPUT,
    SCALE,
    AT_ONCE,
    MAX_TOKENS,
    REQUESTS,
    DURATION,
    CONCURRENCY,
    RATE,
    ARRIVALS,
    SPEED,
    STEPS,
    SETTLE,
    GOOD,
    KNEE,
    UNTIL,
    WARMUP,
    SEED,
    MODEL,
    NO_STREAM,
    HEADER,
    TIMEOUT,
    NO_KEEP_ALIVE,
    TLS_CA,
    TLS_NO_VERIFY,
    AB,
    CHECK_OUTPUT,
    NO_LOGPROBS,
    WATCH,
    ADMIN,
    JSON,
    CSV,
    HTML
};

const struct cmd_flag cmd_bench_flags[] = {
    [PROFILE] = {"--profile", "NAME[,KEY=N…]", NULL,
                 "short, long-in, long-out, mix, interrupt, shared, chat (short)"},
    [INPUT] = {"--input", "FILE", NULL, "requests, conversations or a trace instead"},
    [SCALE] = {"--scale", "S", NULL, "of a trace's lengths: 1/8, 0.5 (1)"},
    [AT_ONCE] = {"--at-once", "N", NULL, "conversations that take turns (8)"},
    [MAX_TOKENS] = {"--max-tokens", "N", NULL, "no answer may be longer"},
    [REQUESTS] = {"--requests", "N", NULL, "of each side (one pass of the profile)"},
    [DURATION] = {"--duration", "TIME", NULL, "send for so long: 30s, 5m"},
    [CONCURRENCY] = {"--concurrency", "N", NULL,
                     "requests under way (1; with --rate at most 500)"},
    [RATE] = {"--rate", "R[,R…]", NULL,
              "open loop: so many a second, answered or not; a list or 1..16x2: steps"},
    [ARRIVALS] = {"--arrivals", "KIND", NULL,
                  "poisson, constant (of --rate), trace, none (by what there is)"},
    [SPEED] = {"--speed", "X", NULL, "of a trace's times: 2 is twice as fast (1)"},
    [STEPS] = {"--steps", "N,N…", NULL,
               "raise the load: so many under way in each step; or 1..32x2, 2..10+2"},
    [SETTLE] = {"--settle", "N|TIME", NULL,
                "of each step, told apart (a fifth; closed: at least twice its load)"},
    [GOOD] = {"--good", "ttft=TIME,…", NULL,
              "what a good answer keeps: ttft, gap (its longest), total"},
    [KNEE] = {"--knee", "SHARE", NULL, "name the highest step with so many good (95%)"},
    [UNTIL] = {"--until", "good<SHARE", NULL, "no step behind one with fewer good"},
    [WARMUP] = {"--warmup", "N", NULL, "requests before, reported apart (0)"},
    [SEED] = {"--seed", "N", NULL, "of words, lengths, arrivals (drawn, and told)"},
    [MODEL] = {"--model", "NAME", NULL, "in the bodies (the first of /v1/models)"},
    [NO_STREAM] = {"--no-stream", NULL, NULL, "answers in one piece: no time to first"},
    [HEADER] = {"--header", "LINE|@FILE", NULL, "sent along; a file may hold several"},
    [NO_KEEP_ALIVE] = {"--no-keep-alive", NULL, NULL,
                       "a new connection for each request (they are used again)"},
    [TIMEOUT] = {"--timeout", "TIME", NULL, "for the first byte, and between two (10m)"},
    [TLS_CA] = {"--tls-ca", "FILE", NULL, "authorities (PEM) for https (the system's)"},
    [TLS_NO_VERIFY] = {"--tls-no-verify", NULL, NULL, "take any certificate"},
    [AB] = {"--ab", "URL", NULL, "compare with this service, in turn"},
    [WATCH] =
        {"--watch", "PID[,PID…][:PID…]", NULL,
         "processes of the service, behind \":\" of --ab's, besides those on its port"},
    [ADMIN] = {"--admin", "URL", NULL, "incipit's admin side: bytes of KV in its store"},
    [CHECK_OUTPUT] = {"--check-output", NULL, NULL,
                      "with --ab: the same words to both, are their answers equal?"},
    [NO_LOGPROBS] = {"--no-logprobs", NULL, NULL,
                     "of --check-output: for services that refuse to tell them"},
    [JSON] = {"--json", "FILE", NULL, "write the report with all samples (- for stdout)"},
    [CSV] = {"--csv", "FILE", NULL, "write a line for each request"},
    [HTML] = {"--html", "FILE", NULL, "write the report as a page, with drawings"},
    {NULL, NULL, NULL, NULL},
};

struct bench {
    const char **given;
    struct runner_options o;
    struct workload_options wo;
    struct bench_input_flags input;
    pid_t pids[RUNNER_ARMS][USAGE_MAX];
    struct bench_steps steps;
    struct verdict_limits good;
    struct agree *agree;
    char *headers;
    struct loop *loop;
    struct service_facts facts;
    struct workload *workload;
    struct runner *runner;
    bool shown; /* a line of progress is on the terminal */
};

/* ---- flags ------------------------------------------------------------------------- */

static bool bad_flag(int flag, const char *value, const char *wanted)
{
    fprintf(stderr, "incipit bench: %s: \"%s\" is no %s\n", cmd_bench_flags[flag].name,
            value, wanted);
    return false;
}

static bool take_count(const char **given, int flag, uint64_t least, uint64_t most,
                       uint64_t *out)
{
    char wanted[80];
    snprintf(wanted, sizeof(wanted), "number from %" PRIu64 " to %" PRIu64, least, most);
    if (!given[flag])
        return true;
    if (!units_parse_count(given[flag], out) || *out < least || *out > most)
        return bad_flag(flag, given[flag], wanted);
    return true;
}

static bool take_time(const char **given, int flag, uint64_t *ms)
{
    if (!given[flag] || (units_parse_ms(given[flag], ms) && *ms > 0))
        return true;
    return bad_flag(flag, given[flag], "time like 30s");
}

static bool take_rate(const char **given, struct runner_options *o)
{
    char *end = NULL;
    if (!given[RATE] || o->n_steps)
        return true;
    o->rate = strtod(given[RATE], &end);
    if (end == given[RATE] || *end || !(o->rate >= 0.001 && o->rate <= RUNNER_MAX_RATE))
        return bad_flag(RATE, given[RATE], "rate from 0.001 to 100000 a second");
    return true;
}

/* Numbers with commas between, up to `end`; false where one is none. */
static bool take_pids(const char *text, const char *end, struct bench *b, unsigned arm)
{
    struct usage_options *w = &b->o.watch[arm];
    w->pids = b->pids[arm];
    while (text < end) {
        char number[12];
        uint64_t pid;
        const size_t len = strcspn(text, ",:");
        snprintf(number, sizeof(number), "%.*s", (int)len, text);
        if (w->n_pids == USAGE_MAX || len >= sizeof(number) ||
            !units_parse_count(number, &pid) || pid < 1 || pid > INT32_MAX)
            return false;
        b->pids[arm][w->n_pids++] = (pid_t)pid;
        text += len + (text[len] == ',');
    }
    return true;
}

static bool take_watch(struct bench *b)
{
    const char *text = b->given[WATCH];
    b->o.watch[0].admin = b->given[ADMIN];
    if (!text)
        return true;
    const char *colon = strchr(text, ':'), *end = text + strlen(text);
    const bool good = take_pids(text, colon ? colon : end, b, 0) &&
                      (!colon || (b->given[AB] && take_pids(colon + 1, end, b, 1)));
    return good ||
           bad_flag(WATCH, text, "list of processes: 12,13, and 12,13:20 with --ab");
}

static bool take_good(struct bench *b)
{
    const char *text = b->given[GOOD];
    struct err e = {0};
    if (text && verdict_parse(text, &b->good, &e)) {
        fprintf(stderr, "incipit bench: --good: %s\n", e.text);
        return false;
    }
    if (b->given[NO_STREAM] &&
        (b->good.ms[VERDICT_TTFT] > 0 || b->good.ms[VERDICT_GAP] > 0)) {
        fprintf(stderr, "incipit bench: --good: an answer in one piece (--no-stream) has "
                        "a total, no ttft and no gap\n");
        return false;
    }
    return true;
}

static bool take_check(struct bench *b)
{
    const char **given = b->given;
    if (given[CHECK_OUTPUT] && !given[AB]) {
        fprintf(stderr, "incipit bench: --check-output compares with --ab URL\n");
        return false;
    }
    if (given[NO_LOGPROBS] && !given[CHECK_OUTPUT]) {
        fprintf(stderr, "incipit bench: --no-logprobs belongs to --check-output\n");
        return false;
    }
    if (given[CHECK_OUTPUT])
        b->o.agree = b->agree = agree_new();
    return true;
}

static bool take_load(struct bench *b)
{
    const char **given = b->given;
    const struct bench_step_flags f = {given[STEPS], given[RATE], given[SETTLE],
                                       given[KNEE], given[UNTIL]};
    if (given[STEPS] && given[CONCURRENCY]) {
        fprintf(stderr, "incipit bench: --steps and --concurrency exclude each other\n");
        return false;
    }
    return cmd_bench_take_steps(&f, &b->steps, &b->o) && take_rate(given, &b->o);
}

static bool take_options(struct bench *b)
{
    const char **given = b->given;
    struct runner_options *o = &b->o;
    uint64_t concurrency = given[RATE] ? BENCH_OPEN_CONCURRENCY : 1,
             now = clock_mono_us();
    o->timeout_ms = 600000;
    o->keep_alive = !given[NO_KEEP_ALIVE];
    o->seed = draw_next(&now) >> 33;
    if (!take_count(given, REQUESTS, 1, RUNNER_MAX_REQUESTS, &o->requests) ||
        !take_count(given, CONCURRENCY, 1, RUNNER_MAX_CONCURRENCY, &concurrency) ||
        !take_count(given, WARMUP, 0, RUNNER_MAX_REQUESTS, &o->warmup) ||
        !take_count(given, SEED, 0, INT64_MAX, &o->seed) ||
        !take_time(given, DURATION, &o->duration_ms) ||
        !take_time(given, TIMEOUT, &o->timeout_ms))
        return false;
    o->concurrency = (unsigned)concurrency;
    o->tls.ca_file = given[TLS_CA];
    o->tls.no_verify = given[TLS_NO_VERIFY] != NULL;
    b->input = (struct bench_input_flags){
        given[PROFILE],  given[INPUT], given[SCALE], given[AT_ONCE], given[MAX_TOKENS],
        given[ARRIVALS], given[SPEED], given[RATE],  given[STEPS],   given[CONCURRENCY]};
    return take_load(b) && take_good(b) && take_check(b) &&
           cmd_bench_take_input(&b->input, &b->wo, o);
}

/* Adds "Name: value"; false where it is none. */
static bool add_header(struct buf *out, const char *line)
{
    const size_t name = strcspn(line, ": \t");
    if (name == 0 || line[name] != ':')
        return false;
    for (const char *p = line; *p; p++)
        if ((unsigned char)*p < ' ' && *p != '\t')
            return false;
    buf_printf(out, "%s\r\n", line);
    return true;
}

static bool add_header_file(struct buf *out, const char *path)
{
    char *line = NULL;
    size_t room = 0;
    bool good = true;
    FILE *f = fopen(path, "re");
    if (!f)
        return false;
    while (good && getline(&line, &room, f) >= 0) {
        line[strcspn(line, "\r\n")] = '\0';
        good = *line == '\0' || add_header(out, line);
    }
    free(line);
    fclose(f);
    return good;
}

/* What is wrong is not told: it may be a key. */
static bool take_headers(struct bench *b)
{
    struct buf out = {0};
    const char *h = b->given[HEADER];
    const bool good =
        !h || (*h == '@' ? add_header_file(&out, h + 1) : add_header(&out, h));
    if (!good)
        fprintf(stderr, "incipit bench: --header: no line \"Name: value\", or no file of "
                        "such lines\n");
    b->headers = buf_take_str(&out);
    b->o.headers = b->headers;
    return good;
}

/* ---- the run ----------------------------------------------------------------------- */

/* What is left, by the pace so far; of a duration, by the clock. */
static double seconds_left(const struct bench *b, const struct runner_progress *p)
{
    const double elapsed = (double)p->elapsed_us / 1e6;
    double left = p->ended ? elapsed * (double)(p->planned - p->ended) / (double)p->ended
                           : (double)NAN;
    if (!p->warmup && b->o.duration_ms) {
        const uint64_t settle_ms = b->steps.n ? b->steps.steps[p->step].settle_ms : 0;
        const double clock =
            fmax((double)(settle_ms + b->o.duration_ms) / 1e3 - elapsed, 0);
        left = isnan(left) || clock < left ? clock : left;
    }
    return b->steps.n ? left + cmd_bench_seconds_behind(&b->steps, &b->o, p) : left;
}

static void print_phase(const struct bench *b, const struct runner_progress *p)
{
    if (p->warmup)
        fprintf(stderr, "\rwarm-up: ");
    else if (b->steps.n)
        fprintf(stderr, "\rstep %zu of %zu%s: ", p->step + 1, b->steps.n,
                p->settling ? ", settling" : "");
    else
        fprintf(stderr, "\rrun: ");
}

static void on_progress(void *arg, const struct runner_progress *p)
{
    struct bench *b = arg;
    const double left = seconds_left(b, p);
    print_phase(b, p);
    fprintf(stderr, "%" PRIu64 " of %" PRIu64 " ended, %" PRIu64 " under way, ", p->ended,
            p->planned, p->sent - p->ended);
    if (isnan(left))
        fprintf(stderr, "%.0f s\033[K", (double)p->elapsed_us / 1e6);
    else
        fprintf(stderr, "about %.0f s left\033[K", left);
    fflush(stderr);
    b->shown = true;
}

static void on_signal(void *arg)
{
    runner_stop(((struct bench *)arg)->runner);
}

/* A connection for each request under way needs a descriptor. */
static void raise_descriptors(void)
{
    struct rlimit r;
    if (getrlimit(RLIMIT_NOFILE, &r) == 0) {
        r.rlim_cur = r.rlim_max;
        setrlimit(RLIMIT_NOFILE, &r);
    }
}

static int prepare(struct bench *b, struct err *e)
{
    if (service_ask(b->loop, b->o.url[0], &b->o.tls, b->o.headers, ASK_MS, &b->facts, e))
        return e->code;
    if (b->facts.why.code)
        fprintf(stderr, "incipit bench: GET /v1/models: %s\n", b->facts.why.text);
    b->wo.model = b->given[MODEL] ? b->given[MODEL] : b->facts.model;
    b->wo.seed = b->o.seed;
    b->wo.stream = !b->given[NO_STREAM];
    b->wo.fixed = b->agree != NULL;
    b->wo.logprobs = b->agree && !b->given[NO_LOGPROBS];
    b->workload = workload_new(&b->wo, e);
    if (!b->workload || cmd_bench_choose_times(&b->input, b->workload, &b->o, e))
        return e->code;
    if (workload_note(b->workload))
        fprintf(stderr, "incipit bench: %s\n", workload_note(b->workload));
    if (!b->o.requests)
        b->o.requests =
            b->o.duration_ms ? RUNNER_MAX_REQUESTS : workload_pass(b->workload);
    cmd_bench_settle(&b->steps, &b->o);
    b->runner = runner_new(b->loop, b->workload, &b->o, e);
    return b->runner ? 0 : e->code;
}

/* ---- the results ------------------------------------------------------------------- */

static int cannot_write(const char *path)
{
    fprintf(stderr, "incipit bench: %s cannot be written\n", path);
    return CMD_FAILED;
}

static int write_json(const json_t *doc, const char *path)
{
    const size_t flags = JSON_COMPACT | JSON_REAL_PRECISION(12);
    if (strcmp(path, "-") == 0) {
        const int rc = json_dumpf(doc, stdout, flags);
        printf("\n");
        return rc ? cannot_write("standard output") : CMD_OK;
    }
    return json_dump_file(doc, path, flags) ? cannot_write(path) : CMD_OK;
}

static int write_html(const json_t *doc, const char *path)
{
    struct buf page = {0};
    page_report(doc, &page);
    const int status = cmd_bench_write("bench", path, &page);
    buf_free(&page);
    return status;
}

static int write_csv(const struct report_input *in, const char *path)
{
    FILE *f = fopen(path, "we");
    if (!f)
        return cannot_write(path);
    report_csv(in, f);
    const bool good = !ferror(f);
    return fclose(f) == 0 && good ? CMD_OK : cannot_write(path);
}

/* Some engines name a model by its file: the folders are nobody's business. */
static const char *model_name(const struct bench *b)
{
    const char *name = b->given[MODEL] ? b->given[MODEL] : b->facts.model;
    return name && name[0] == '/' ? strrchr(name, '/') + 1 : name;
}

static int write_results(struct bench *b)
{
    const struct report_input in = {.runner = b->runner,
                                    .options = &b->o,
                                    .workload = b->workload,
                                    .engine = b->facts.engine,
                                    .model = model_name(b),
                                    .stream = !b->given[NO_STREAM],
                                    .good = &b->good,
                                    .agree = b->agree,
                                    .knee = b->steps.knee,
                                    .until = b->steps.until};
    const char *json = b->given[JSON], *csv = b->given[CSV], *html = b->given[HTML];
    json_t *doc = report_json(&in);
    int status = json ? write_json(doc, json) : CMD_OK;
    if (csv && write_csv(&in, csv) != CMD_OK)
        status = CMD_FAILED;
    if (html && write_html(doc, html) != CMD_OK)
        status = CMD_FAILED;
    if (!json || strcmp(json, "-") != 0)
        report_print(doc, stdout);
    json_decref(doc);
    return status;
}

static uint64_t completed(const struct bench *b, unsigned arm)
{
    uint64_t n = 0;
    if (b->steps.n == 0)
        return tally_count(runner_tally(b->runner, arm, false), SAMPLE_COMPLETED);
    for (size_t i = 0; i < runner_steps(b->runner); i++)
        n += tally_count(runner_step_tally(b->runner, i, arm, true), SAMPLE_COMPLETED);
    return n;
}

/* All sides have been answered, and nobody stopped it. */
static bool was_good(const struct bench *b)
{
    for (unsigned i = 0; i < RUNNER_ARMS && b->o.url[i]; i++)
        if (completed(b, i) == 0)
            return false;
    return !runner_stopped(b->runner);
}

/* --until: is there a side that the last step was not too much for? */
static bool on_step(void *arg, size_t step)
{
    const struct bench *b = arg;
    for (unsigned i = 0; i < RUNNER_ARMS && b->o.url[i]; i++) {
        struct verdict_count c = {0};
        verdict_add(&c, &b->good, runner_step_tally(b->runner, step, i, true));
        if (verdict_share(&c) >= b->steps.until)
            return true;
    }
    return false;
}

static int run_bench(struct bench *b)
{
    struct err e = {0};
    int status = CMD_FAILED;
    b->loop = loop_new();
    if (!b->loop || prepare(b, &e)) {
        fprintf(stderr, "incipit bench: %s\n", e.text);
    } else {
        raise_descriptors();
        loop_on_signal(b->loop, SIGINT, on_signal, b);
        loop_on_signal(b->loop, SIGTERM, on_signal, b);
        if (b->steps.until > 0)
            runner_on_step(b->runner, on_step, b);
        if (isatty(STDERR_FILENO))
            runner_on_progress(b->runner, on_progress, b);
        runner_run(b->runner);
        if (b->shown)
            fprintf(stderr, "\r\033[K");
        status = write_results(b);
        if (!was_good(b))
            status = CMD_FAILED;
    }
    runner_free(b->runner);
    workload_free(b->workload);
    service_facts_free(&b->facts);
    loop_free(b->loop);
    return status;
}

int cmd_bench(const struct cmd *self, int argc, char **argv)
{
    const char *given[CMD_MAX_FLAGS];
    struct bench b = {.given = given};
    const int n = cmd_parse(self, argc, argv, given);
    if (n != 1) {
        if (n >= 0)
            cmd_usage(self, stderr);
        return CMD_USAGE;
    }
    b.o.url[0] = argv[1];
    b.o.url[1] = given[AB];
    const int status = take_options(&b) && take_watch(&b) && take_headers(&b)
                           ? run_bench(&b)
                           : CMD_USAGE;
    agree_free(b.agree);
    free(b.headers);
    return status;
}
