/* SPDX-License-Identifier: MIT */
#include "load/usage.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/utsname.h>
#include <time.h>
#include <unistd.h>

#include "base/mem.h"
#include "base/procs.h"
#include "base/units.h"
#include "load/report.h"
#include "wire/ask.h"

#define LOOK_MS 200
#define LOOKS_FOR_ASK 5 /* the admin side is asked once a second */
#define ASK_MS 2000

struct watched {
    pid_t pid;
    const char *how; /* it was found */
    struct procs_usage first, last;
    uint64_t peak_bytes;
    bool ended;
};

/* Bytes of KV in the store; peak is of what was seen. */
struct level {
    int64_t begin, peak, end; /* -1: unknown */
};

enum { KV_RAM, KV_DISK, KV_LEVELS };
static const char *const kv_names[KV_LEVELS] = {"ram_bytes", "disk_bytes"};

struct usage {
    struct loop *loop;
    pid_t *named;
    size_t n_named;
    uint16_t port;

    struct watched *all;
    size_t n;
    uint64_t begun_us, begun_cpu_us;
    uint64_t begin_bytes, peak_bytes, end_bytes; /* of all together */
    struct loop_timer timer;
    unsigned looks;

    struct upstream *admin; /* NULL: none */
    struct ask *ask;        /* under way */
    bool waiting;           /* the loop runs for it alone */
    int64_t told[KV_LEVELS];
    struct level kv[KV_LEVELS];
};

/* ---- processes --------------------------------------------------------------------- */

static uint64_t own_cpu_us(void)
{
    struct timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (uint64_t)t.tv_sec * 1000000 + (uint64_t)t.tv_nsec / 1000;
}

/* Reads all that are still there; the sum of what is resident. */
static uint64_t look(struct usage *u)
{
    uint64_t sum = 0;
    for (size_t i = 0; i < u->n; i++) {
        struct watched *w = &u->all[i];
        struct procs_usage now;
        if (w->ended)
            continue;
        if (!procs_usage(w->pid, &now) || now.started != w->first.started) {
            w->ended = true;
            continue;
        }
        w->last = now;
        w->peak_bytes = now.rss_bytes > w->peak_bytes ? now.rss_bytes : w->peak_bytes;
        sum += now.rss_bytes;
    }
    u->peak_bytes = sum > u->peak_bytes ? sum : u->peak_bytes;
    return sum;
}

static void watch(struct usage *u, pid_t pid, const char *how)
{
    struct watched *w = &u->all[u->n];
    *w = (struct watched){.pid = pid, .how = how};
    if (pid == getpid() || !procs_usage(pid, &w->first))
        return;
    w->last = w->first;
    u->n++;
}

static void find_processes(struct usage *u)
{
    pid_t pids[USAGE_MAX];
    size_t n = u->n_named;
    memcpy(pids, u->named, n * sizeof(*pids));
    if (u->port)
        n += procs_listening(u->port, pids + n, USAGE_MAX - n);
    const size_t roots = n;
    n = procs_descendants(pids, n, USAGE_MAX);
    u->n = 0;
    for (size_t i = 0; i < n; i++) {
        bool known = false;
        for (size_t k = 0; k < u->n; k++)
            known |= u->all[k].pid == pids[i];
        if (!known)
            watch(u, pids[i], i < u->n_named ? "named" : i < roots ? "listens" : "child");
    }
}

/* ---- the store --------------------------------------------------------------------- */

static void on_stats(void *arg, int status, json_t *doc, const struct err *err)
{
    struct usage *u = arg;
    const json_t *store = json_object_get(doc, "store");
    (void)err;
    u->ask = NULL;
    for (int i = 0; i < KV_LEVELS; i++) {
        const json_t *v = json_object_get(store, kv_names[i]);
        u->told[i] = status == 200 && json_is_integer(v) ? json_integer_value(v) : -1;
        u->kv[i].peak = u->told[i] > u->kv[i].peak ? u->told[i] : u->kv[i].peak;
    }
    if (u->waiting)
        loop_stop(u->loop);
}

static void ask(struct usage *u)
{
    if (u->admin && !u->ask)
        u->ask = ask_json(u->admin, "/stats", NULL, "", ASK_MS, u->loop, on_stats, u);
}

static void give_up(struct usage *u)
{
    if (u->ask)
        ask_cancel(u->ask);
    u->ask = NULL;
}

/* What the store holds now, in told[]. */
static void ask_and_wait(struct usage *u)
{
    give_up(u);
    for (int i = 0; i < KV_LEVELS; i++)
        u->told[i] = -1;
    ask(u);
    if (!u->ask)
        return;
    u->waiting = true;
    loop_run(u->loop);
    u->waiting = false;
    give_up(u); /* a signal ended the loop */
}

/* ---- begin and end ----------------------------------------------------------------- */

static void on_timer(void *arg)
{
    struct usage *u = arg;
    look(u);
    if (++u->looks % LOOKS_FOR_ASK == 0)
        ask(u);
    timer_start(&u->timer, LOOK_MS);
}

void usage_begin(struct usage *u)
{
    for (int i = 0; i < KV_LEVELS; i++)
        u->kv[i].peak = -1;
    ask_and_wait(u);
    for (int i = 0; i < KV_LEVELS; i++)
        u->kv[i].begin = u->told[i];
    find_processes(u);
    u->looks = 0;
    u->peak_bytes = 0;
    u->begin_bytes = look(u);
    u->begun_us = loop_now_us(u->loop);
    u->begun_cpu_us = own_cpu_us();
    timer_start(&u->timer, LOOK_MS);
}

static json_t *bytes_json(uint64_t n, bool known)
{
    return known ? json_integer((json_int_t)n) : json_null();
}

static void put_cpu(json_t *out, uint64_t cpu_us, double seconds, bool known)
{
    const double cpu_s = known ? (double)cpu_us / 1e6 : (double)NAN;
    json_object_set_new(out, "cpu_s", report_number(cpu_s));
    json_object_set_new(out, "cores", report_number(cpu_s / seconds));
}

static uint64_t cpu_of(const struct watched *w)
{
    return w->last.cpu_us - w->first.cpu_us;
}

static json_t *process_json(const struct watched *w, double seconds)
{
    json_t *out =
        json_pack("{s:o, s:s, s:b, s:I, s:I, s:o}", "name",
                  json_string(w->first.name) ?: json_null(), "how", w->how, "ended",
                  w->ended, "rss_begin_bytes", (json_int_t)w->first.rss_bytes,
                  "rss_peak_bytes", (json_int_t)w->peak_bytes, "rss_end_bytes",
                  bytes_json(w->last.rss_bytes, !w->ended));
    put_cpu(out, cpu_of(w), seconds, true);
    return out;
}

static json_t *level_json(const struct level *v)
{
    return json_pack("{s:o, s:o, s:o}", "begin",
                     bytes_json((uint64_t)v->begin, v->begin >= 0), "peak",
                     bytes_json((uint64_t)v->peak, v->peak >= 0), "end",
                     bytes_json((uint64_t)v->end, v->end >= 0));
}

static json_t *kv_json(const struct usage *u)
{
    json_t *out = json_object();
    for (int i = 0; i < KV_LEVELS; i++)
        json_object_set_new(out, kv_names[i], level_json(&u->kv[i]));
    return out;
}

static json_t *resources_json(const struct usage *u, double seconds, uint64_t own_us)
{
    json_t *out = json_object(), *list = json_array(), *own = json_object();
    uint64_t cpu_us = 0;
    for (size_t i = 0; i < u->n; i++) {
        cpu_us += cpu_of(&u->all[i]);
        json_array_append_new(list, process_json(&u->all[i], seconds));
    }
    put_cpu(out, cpu_us, seconds, u->n > 0);
    json_object_set_new(out, "rss_begin_bytes", bytes_json(u->begin_bytes, u->n > 0));
    json_object_set_new(out, "rss_peak_bytes", bytes_json(u->peak_bytes, u->n > 0));
    json_object_set_new(out, "rss_end_bytes", bytes_json(u->end_bytes, u->n > 0));
    json_object_set_new(out, "kv", u->admin ? kv_json(u) : json_null());
    json_object_set_new(out, "processes", list);
    put_cpu(own, own_us, seconds, true);
    json_object_set_new(out, "generator", own);
    return out;
}

json_t *usage_end(struct usage *u)
{
    const uint64_t own_us = own_cpu_us() - u->begun_cpu_us;
    timer_stop(&u->timer);
    u->end_bytes = look(u);
    const double seconds = (double)(loop_now_us(u->loop) - u->begun_us) / 1e6;
    ask_and_wait(u);
    for (int i = 0; i < KV_LEVELS; i++)
        u->kv[i].end = u->told[i];
    return resources_json(u, seconds, own_us);
}

/* ---- life -------------------------------------------------------------------------- */

static int check_named(const struct usage_options *o, struct err *e)
{
    struct procs_usage now;
    for (size_t i = 0; i < o->n_pids; i++)
        if (!procs_usage(o->pids[i], &now))
            return err_set(e, ERR_NOT_FOUND, "there is no process %d to watch",
                           (int)o->pids[i]);
    return 0;
}

struct usage *usage_new(struct loop *l, const struct usage_options *o, struct err *e)
{
    const struct upstream_options uo = {.url = o->admin,
                                        .connect_ms = ASK_MS,
                                        .first_byte_ms = ASK_MS,
                                        .stall_ms = ASK_MS};
    if (check_named(o, e))
        return NULL;
    struct usage *u = mem_zalloc(sizeof(*u));
    if (o->admin && !(u->admin = upstream_new(l, &uo, e))) {
        free(u);
        return NULL;
    }
    u->loop = l;
    u->port = o->port;
    u->n_named = o->n_pids;
    u->named = mem_array(o->n_pids + 1, sizeof(*u->named));
    if (o->n_pids)
        memcpy(u->named, o->pids, o->n_pids * sizeof(*u->named));
    u->all = mem_array(USAGE_MAX + 1, sizeof(*u->all));
    timer_init(&u->timer, l, on_timer, u);
    return u;
}

void usage_free(struct usage *u)
{
    if (!u)
        return;
    give_up(u);
    timer_fini(&u->timer);
    upstream_free(u->admin);
    free(u->named);
    free(u->all);
    free(u);
}

/* ---- for people -------------------------------------------------------------------- */

static void print_bytes(const json_t *v, FILE *out)
{
    char text[24];
    fprintf(out, "%s",
            json_is_integer(v) ? units_format_bytes((uint64_t)json_integer_value(v), text)
                               : "not known");
}

static void print_levels(const json_t *begin, const json_t *peak, const json_t *end,
                         FILE *out)
{
    print_bytes(begin, out);
    fprintf(out, " at the start, ");
    print_bytes(peak, out);
    fprintf(out, " at most, ");
    print_bytes(end, out);
    fprintf(out, " at the end\n");
}

static double cores_of(const json_t *o)
{
    return json_number_value(json_object_get(o, "cores"));
}

static void print_processes(const json_t *resources, FILE *out)
{
    size_t i;
    json_t *p;
    const json_t *list = json_object_get(resources, "processes");
    fprintf(out, "  service: %.2f of a core (", cores_of(resources));
    json_array_foreach(list, i, p)
    {
        const char *name = json_string_value(json_object_get(p, "name"));
        fprintf(out, "%s%s %.2f%s", i ? ", " : "", name ? name : "?", cores_of(p),
                json_is_true(json_object_get(p, "ended")) ? " until it ended" : "");
    }
    fprintf(out, "); resident ");
    print_levels(json_object_get(resources, "rss_begin_bytes"),
                 json_object_get(resources, "rss_peak_bytes"),
                 json_object_get(resources, "rss_end_bytes"), out);
}

void usage_print(const json_t *resources, FILE *out)
{
    static const char *const words[KV_LEVELS] = {"KV in RAM", "KV on disk"};
    const json_t *kv = json_object_get(resources, "kv");
    if (json_array_size(json_object_get(resources, "processes")))
        print_processes(resources, out);
    else
        fprintf(out, "  service: its processes are not seen (--watch PID)\n");
    for (int i = 0; i < KV_LEVELS && json_is_object(kv); i++) {
        const json_t *v = json_object_get(kv, kv_names[i]);
        fprintf(out, "  %s: ", words[i]);
        print_levels(json_object_get(v, "begin"), json_object_get(v, "peak"),
                     json_object_get(v, "end"), out);
    }
    fprintf(out, "  this program: %.2f of a core\n",
            cores_of(json_object_get(resources, "generator")));
}

/* ---- the machine ------------------------------------------------------------------- */

/* The value of the first line "name : value" of a file in /proc; NULL where there is
 * none. */
static char *proc_value(const char *path, const char *name)
{
    char line[512], *found = NULL;
    FILE *f = fopen(path, "re");
    if (!f)
        return NULL;
    while (!found && fgets(line, sizeof(line), f)) {
        const char *colon = strchr(line, ':');
        if (!colon || strncmp(line, name, strlen(name)) != 0)
            continue;
        colon += 1 + strspn(colon + 1, " \t");
        found = mem_dup(colon, strcspn(colon, "\n"));
    }
    fclose(f);
    return found;
}

json_t *usage_machine(void)
{
    struct utsname name = {0};
    char *cpu = proc_value("/proc/cpuinfo", "model name");
    const int64_t pages = sysconf(_SC_PHYS_PAGES), page = sysconf(_SC_PAGESIZE);
    uname(&name);
    json_t *out = json_pack(
        "{s:I, s:s?, s:o, s:o}", "cores", (json_int_t)sysconf(_SC_NPROCESSORS_ONLN),
        "processor", cpu, "memory_bytes", bytes_json((uint64_t)(pages * page), pages > 0),
        "kernel", json_sprintf("%s %s %s", name.sysname, name.release, name.machine));
    free(cpu);
    return out;
}
