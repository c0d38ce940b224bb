/* SPDX-License-Identifier: MIT */

/*
 * `incipit warm`: has a running gateway compute, store and pin files, one after the other
 * (docs/warm.md). It is a client of the admin listener and knows no more than POST
 * /cache/warm says.
 */

#include <inttypes.h>
#include <jansson.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "cmd/cmd.h"
#include "gateway/credential.h"
#include "gateway/options.h"
#include "wire/upstream.h"

#define PATIENCE_MS (24 * UINT64_C(3600000)) /* a long document on a slow machine */
#define MAX_ANSWER ((size_t)1 << 20)

enum { ADMIN, KEY_FILE, NAME, PATH, MODEL, REPLICA, PUBLIC, NO_PIN };

const struct cmd_flag cmd_warm_flags[] = {
    [ADMIN] = {"--admin", "ADDR:PORT", NULL, "the gateway's admin side (127.0.0.1:8091)"},
    [KEY_FILE] = {"--key-file", "FILE", NULL, "with the key of the admin side (none)"},
    [NAME] = {"--name", "NAME", NULL, "of the pin, for one file (its name)"},
    [PATH] = {"--path", "PATH", NULL, "of the API (by the shape of the body)"},
    [MODEL] = {"--model", "NAME", NULL, "that clients name, where a file names none"},
    [REPLICA] = {"--replica", "NAME", NULL, "only on this upstream (all)"},
    [PUBLIC] = {"--public", NULL, NULL, "prompts of all tenants may begin with it"},
    [NO_PIN] = {"--no-pin", NULL, NULL, "store, and let it go like any other prompt"},
    {NULL, NULL, NULL, NULL},
};

struct asking {
    struct loop *loop;
    struct buf answer;
    int status; /* 0: none */
    struct err err;
};

static void on_head(void *arg, const struct http_head *h)
{
    struct asking *a = arg;
    a->status = h->status;
}

static void on_body(void *arg, struct slice bytes)
{
    struct asking *a = arg;
    if (buf_len(&a->answer) + bytes.len <= MAX_ANSWER)
        buf_append_slice(&a->answer, bytes);
}

static void on_end(void *arg)
{
    struct asking *a = arg;
    loop_stop(a->loop);
}

static void on_fail(void *arg, const struct err *why)
{
    struct asking *a = arg;
    a->status = 0;
    a->err = *why;
    loop_stop(a->loop);
}

/* "?name=…" with what is not plain written as %XX. */
static void put_field(struct buf *out, const char *name, const char *value)
{
    static const char plain[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
                                "0123456789._:-/";
    if (!value || !*value)
        return;
    buf_printf(out, "%s%s=", memchr(out->data, '?', buf_len(out)) ? "&" : "?", name);
    for (const unsigned char *p = (const unsigned char *)value; *p; p++)
        if (strchr(plain, *p))
            buf_append_char(out, (char)*p);
        else
            buf_printf(out, "%%%02X", *p);
}

/* The file's name without its folders. */
static const char *base_of(const char *file)
{
    const char *slash = strrchr(file, '/');
    return slash ? slash + 1 : file;
}

static char *name_of(const char *file)
{
    const char *base = base_of(file), *dot = strrchr(base, '.');
    char *name = mem_dup(base, dot && dot > base ? (size_t)(dot - base) : strlen(base));
    for (char *p = name; *p; p++)
        if (!strchr("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._:-",
                    *p))
            *p = '-';
    name[strnlen(name, 64)] = '\0';
    return name;
}

static char *target_of(const char *file, const char **given)
{
    struct buf out = {0};
    char *name = given[NAME] ? mem_strdup(given[NAME]) : name_of(file);
    buf_append_str(&out, "/cache/warm");
    put_field(&out, "name", name);
    put_field(&out, "path", given[PATH]);
    put_field(&out, "model", given[MODEL]);
    put_field(&out, "replica", given[REPLICA]);
    put_field(&out, "public", given[PUBLIC] ? "on" : NULL);
    put_field(&out, "pin", given[NO_PIN] ? "off" : NULL);
    free(name);
    return buf_take_str(&out);
}

static void post(struct asking *a, struct upstream *u, const char *target,
                 const char *key, struct slice body)
{
    static const struct call_events events = {
        .on_head = on_head, .on_body = on_body, .on_end = on_end, .on_fail = on_fail};
    struct buf head = {0};
    buf_printf(&head,
               "POST %s HTTP/1.1\r\nHost: %s\r\nContent-Type: application/json\r\n"
               "%s%s%sContent-Length: %zu\r\n\r\n",
               target, upstream_host(u), *key ? "X-Admin-Key: " : "", key,
               *key ? "\r\n" : "", body.len);
    const struct call_request rq = {
        .head = buf_slice(&head), .body = {body, {0}, {0}}, .once = true};
    call_start(u, &rq, &events, a);
    buf_free(&head);
    loop_run(a->loop);
}

static json_int_t count_of(const json_t *o, const char *key)
{
    return json_integer_value(json_object_get(o, key));
}

static void print_outcome(const char *file, const json_t *o)
{
    const json_int_t tokens = count_of(o, "tokens"),
                     fresh = count_of(o, "computed_tokens");
    printf("%s: %s, %" JSON_INTEGER_FORMAT " tokens stored, %" JSON_INTEGER_FORMAT
           " computed in %.2f s, ",
           base_of(file), json_string_value(json_object_get(o, "replica")), tokens, fresh,
           json_real_value(json_object_get(o, "seconds")));
    if (json_is_true(json_object_get(o, "pinned")))
        printf("%" JSON_INTEGER_FORMAT " bytes pinned as %s\n", count_of(o, "bytes"),
               json_string_value(json_object_get(o, "name")));
    else
        printf("not pinned\n");
    fflush(stdout);
}

static int print_answer(const char *file, const struct asking *a)
{
    const struct slice s = buf_slice(&a->answer);
    json_t *doc = json_loadb(s.ptr, s.len, 0, NULL), *o;
    const json_t *error = json_object_get(doc, "error");
    const char *why = json_string_value(json_object_get(error, "message"));
    size_t i;
    if (a->status == 200)
        json_array_foreach(json_object_get(doc, "warmed"), i, o) print_outcome(file, o);
    else if (a->status)
        fprintf(stderr, "incipit warm: %s: %s (%d)\n", file,
                why ? why : "no reason given", a->status);
    else
        fprintf(stderr, "incipit warm: %s: %s\n", file, a->err.text);
    json_decref(doc);
    return a->status == 200 ? CMD_OK : CMD_FAILED;
}

static int read_file(const char *path, struct buf *out)
{
    FILE *f = fopen(path, "rbe");
    size_t n = 1;
    while (f && n > 0) {
        n = fread(buf_reserve(out, 65536), 1, 65536, f);
        buf_commit(out, n);
    }
    const bool good = f && !ferror(f);
    if (!good)
        fprintf(stderr, "incipit warm: %s cannot be read\n", path);
    if (f)
        fclose(f);
    return good ? CMD_OK : CMD_FAILED;
}

static int warm_file(struct loop *l, struct upstream *u, const char *key,
                     const char *file, const char **given)
{
    struct buf text = {0};
    struct asking a = {.loop = l};
    int status = read_file(file, &text);
    if (status == CMD_OK) {
        char *target = target_of(file, given);
        post(&a, u, target, key, buf_slice(&text));
        status = print_answer(file, &a);
        free(target);
    }
    buf_free(&text);
    buf_free(&a.answer);
    return status;
}

static int warm_files(const char **given, int n, char **files)
{
    const char *admin = given[ADMIN] ? given[ADMIN] : "127.0.0.1:8091";
    const char *key_file = given[KEY_FILE] ? given[KEY_FILE] : "";
    char key[512];
    struct err e = {0};
    char *url = strncmp(admin, "unix:", 5) == 0
                    ? mem_strdup(admin)
                    : mem_printf("http://%s%s", *admin == ':' ? "127.0.0.1" : "", admin);
    const struct upstream_options o = {.url = url,
                                       .connect_ms = 3000,
                                       .first_byte_ms = PATIENCE_MS,
                                       .stall_ms = PATIENCE_MS,
                                       .pool_max_requests = 1};
    struct loop *l = loop_new();
    struct upstream *u = NULL;
    if (l && credential_file("the admin key", key_file, key, sizeof(key), &e) == 0)
        u = upstream_new(l, &o, &e);
    int status = u ? CMD_OK : CMD_FAILED;
    if (!u)
        fprintf(stderr, "incipit warm: %s\n", e.text);
    for (int i = 0; u && i < n; i++)
        if (warm_file(l, u, key, files[i], given) != CMD_OK)
            status = CMD_FAILED;
    upstream_free(u);
    loop_free(l);
    free(url);
    return status;
}

int cmd_warm(const struct cmd *self, int argc, char **argv)
{
    const char *given[CMD_MAX_FLAGS];
    const int n = cmd_parse(self, argc, argv, given);
    if (n <= 0) {
        if (n == 0)
            cmd_usage(self, stderr);
        return CMD_USAGE;
    }
    if (n > 1 && given[NAME]) {
        fprintf(stderr, "incipit warm: --name is for one file\n");
        return CMD_USAGE;
    }
    return warm_files(given, n, argv + 1);
}
