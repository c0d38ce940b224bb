/* SPDX-License-Identifier: MIT */

/*
 * `incipit kvsize`: what a model's KV cache costs (docs/kvsize.md). The numbers come from
 * lab/kvsize.h; here is what a person types and what is printed, as text or as JSON.
 */

#include <inttypes.h>
#include <jansson.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "base/units.h"
#include "cmd/cmd.h"
#include "lab/kvsize.h"

enum {
    LAYERS,
    KV_HEADS,
    HEAD_DIM,
    LATENT,
    WINDOW,
    WINDOW_LAYERS,
    TYPE,
    V_TYPE,
    CONTEXT,
    MEMORY,
    CHAT,
    DOCUMENT,
    JSON
};

const struct cmd_flag cmd_kvsize_flags[] = {
    [LAYERS] = {"--layers", "N", NULL, "layers with attention"},
    [KV_HEADS] = {"--kv-heads", "N", NULL, "KV heads of a layer"},
    [HEAD_DIM] = {"--head-dim", "N", NULL, "values of a head"},
    [LATENT] = {"--latent", "N", NULL, "values of a latent row (instead of heads)"},
    [WINDOW] = {"--window", "N", NULL, "tokens of a sliding window"},
    [WINDOW_LAYERS] = {"--window-layers", "N", NULL, "layers that have it (all)"},
    [TYPE] = {"--type", "TYPE", NULL, "of K and V: f16 (default), q8_0, …"},
    [V_TYPE] = {"--v-type", "TYPE", NULL, "of V, where it differs"},
    [CONTEXT] = {"--context", "N", NULL, "tokens of a context (the model's)"},
    [MEMORY] = {"--memory", "SIZE", NULL, "how much fits into it: 8GiB"},
    [CHAT] = {"--chat", "N", NULL, "tokens of a chat (4096)"},
    [DOCUMENT] = {"--document", "N", NULL, "tokens of a document (1000)"},
    [JSON] = {"--json", NULL, NULL, "print JSON"},
    {NULL, NULL, NULL, NULL},
};

struct question {
    struct kvsize_given given;
    struct kvsize_types types;
    const char *file; /* NULL: flags alone */
    uint32_t context, chat, document;
    uint64_t memory; /* 0: not asked */
    bool json;
};

/* ---- what was typed ---------------------------------------------------------------- */

static bool complain(const char *flag, const char *value)
{
    fprintf(stderr, "incipit kvsize: %s: \"%s\" is out of range\n", flag, value);
    return false;
}

static bool take_count(const char **given, int flag, uint32_t *out)
{
    uint64_t n;
    if (!given[flag])
        return true;
    if (!units_parse_count(given[flag], &n) || n == 0 || n > KVSIZE_MAX_TOKENS)
        return complain(cmd_kvsize_flags[flag].name, given[flag]);
    *out = (uint32_t)n;
    return true;
}

static bool take_type(const char **given, int flag, const struct kvsize_type **out)
{
    if (!given[flag])
        return true;
    *out = kvsize_type_find(given[flag]);
    if (*out)
        return true;
    fprintf(stderr, "incipit kvsize: %s: \"%s\" is none of", cmd_kvsize_flags[flag].name,
            given[flag]);
    const struct kvsize_type *t;
    for (size_t i = 0; (t = kvsize_type_at(i)); i++)
        fprintf(stderr, " %s", t->name);
    fprintf(stderr, "\n");
    return false;
}

static bool take_question(const char **given, struct question *q)
{
    *q = (struct question){.chat = 4096, .document = 1000, .json = given[JSON]};
    q->types.k = kvsize_type_find("f16");
    bool fine =
        take_count(given, LAYERS, &q->given.layers) &&
        take_count(given, KV_HEADS, &q->given.kv_heads) &&
        take_count(given, HEAD_DIM, &q->given.head_dim) &&
        take_count(given, LATENT, &q->given.latent) &&
        take_count(given, WINDOW, &q->given.window) &&
        take_count(given, WINDOW_LAYERS, &q->given.window_layers) &&
        take_count(given, CONTEXT, &q->context) && take_count(given, CHAT, &q->chat) &&
        take_count(given, DOCUMENT, &q->document) && take_type(given, TYPE, &q->types.k);
    q->types.v = q->types.k;
    fine = fine && take_type(given, V_TYPE, &q->types.v);
    if (fine && given[MEMORY] &&
        (!units_parse_bytes(given[MEMORY], &q->memory) || q->memory == 0))
        return complain("--memory", given[MEMORY]);
    return fine;
}

/* ---- text -------------------------------------------------------------------------- */

/* "36,864" into one of a few buffers, so that one line can print several. */
static const char *grouped(uint64_t n)
{
    static _Thread_local char texts[8][32];
    static _Thread_local unsigned next;
    char *text = texts[next++ % 8], digits[24];
    const int len = snprintf(digits, sizeof(digits), "%" PRIu64, n);
    int at = 0;
    for (int i = 0; i < len; i++) {
        if (i > 0 && (len - i) % 3 == 0)
            text[at++] = ',';
        text[at++] = digits[i];
    }
    text[at] = '\0';
    return text;
}

static bool same_layer(const struct kvsize_layer *a, const struct kvsize_layer *b)
{
    return a->k == b->k && a->v == b->v && a->window == b->window;
}

/* How many layers are like layer i; 0 where an earlier one is, so that was told. */
static uint32_t count_like(const struct kvsize_model *m, uint32_t i)
{
    uint32_t n = 0;
    for (uint32_t j = 0; j < m->n_layers; j++) {
        if (!same_layer(&m->layers[i], &m->layers[j]))
            continue;
        if (j < i)
            return 0;
        n++;
    }
    return n;
}

static void print_layers(const struct kvsize_model *m, const struct question *q)
{
    for (uint32_t i = 0; i < m->n_layers; i++) {
        const struct kvsize_layer *l = &m->layers[i];
        const uint32_t n = count_like(m, i);
        if (n == 0)
            continue;
        printf("%6u layer%s ", n, n == 1 ? "" : "s");
        if (l->k == 0) {
            printf("without attention: their state has a fixed size, not counted here\n");
            continue;
        }
        if (l->v)
            printf("with K %s and V %s", grouped(l->k), grouped(l->v));
        else
            printf("with one latent row of %s", grouped(l->k));
        printf(" values: %s B a token", grouped(kvsize_layer(l, q->types)));
        if (l->window)
            printf(", the last %s tokens", grouped(l->window));
        printf("\n");
    }
}

static void print_model(const struct kvsize_model *m, const struct question *q)
{
    if (q->file)
        printf("%s%s%s, architecture %s\n", q->file, *m->name ? ": " : "", m->name,
               m->arch);
    printf("K in %s, V in %s\n", q->types.k->name, q->types.v->name);
    print_layers(m, q);
}

/* "37.7 MB, 36.0 MiB": people use both. */
static void print_size(uint64_t bytes)
{
    char size[24];
    const bool giga = bytes >= 1000000000;
    printf(" (%.1f %s, %s)\n", (double)bytes / (giga ? 1e9 : 1e6), giga ? "GB" : "MB",
           units_format_bytes(bytes, size));
}

static void print_tokens(const struct kvsize_model *m, const struct question *q)
{
    const uint32_t window = kvsize_window(m);
    printf("\n%-16s %s B", "a token", grouped(kvsize_next(m, q->types, 0)));
    if (window)
        printf("; behind the first %s: %s B", grouped(window),
               grouped(kvsize_next(m, q->types, window)));
    printf("\n");
    if (q->context) {
        const uint64_t bytes = kvsize_bytes(m, q->types, q->context);
        char label[40];
        snprintf(label, sizeof(label), "%s tokens", grouped(q->context));
        printf("%-16s %s B", label, grouped(bytes));
        print_size(bytes);
    }
}

static void print_memory(const struct kvsize_model *m, const struct question *q)
{
    char size[24];
    const uint32_t tokens = kvsize_fit(m, q->types, q->memory);
    printf("\ninto %s go\n", units_format_bytes(q->memory, size));
    printf("%12s tokens in one sequence%s\n", grouped(tokens),
           tokens == KVSIZE_MAX_TOKENS ? ", or more" : "");
    printf("%12s chats of %s tokens\n",
           grouped(q->memory / kvsize_bytes(m, q->types, q->chat)), grouped(q->chat));
    printf("%12s documents of %s tokens\n",
           grouped(q->memory / kvsize_bytes(m, q->types, q->document)),
           grouped(q->document));
}

/* ---- JSON -------------------------------------------------------------------------- */

static json_t *json_layers(const struct kvsize_model *m, const struct question *q)
{
    json_t *list = json_array();
    for (uint32_t i = 0; i < m->n_layers; i++) {
        const struct kvsize_layer *l = &m->layers[i];
        const uint32_t n = count_like(m, i);
        if (n)
            json_array_append_new(
                list, json_pack("{sIsIsIsIsI}", "layers", (json_int_t)n, "k_values",
                                (json_int_t)l->k, "v_values", (json_int_t)l->v, "window",
                                (json_int_t)l->window, "bytes_per_token",
                                (json_int_t)kvsize_layer(l, q->types)));
    }
    return list;
}

static json_t *json_memory(const struct kvsize_model *m, const struct question *q)
{
    const uint64_t chat = kvsize_bytes(m, q->types, q->chat);
    const uint64_t document = kvsize_bytes(m, q->types, q->document);
    return json_pack("{sIsIs{sIsI}s{sIsI}}", "bytes", (json_int_t)q->memory, "tokens",
                     (json_int_t)kvsize_fit(m, q->types, q->memory), "chats", "tokens",
                     (json_int_t)q->chat, "fit", (json_int_t)(q->memory / chat),
                     "documents", "tokens", (json_int_t)q->document, "fit",
                     (json_int_t)(q->memory / document));
}

static void print_json(const struct kvsize_model *m, const struct question *q)
{
    const uint32_t window = kvsize_window(m);
    json_t *root = json_pack(
        "{sssssssssosIs{sIsIsI}}", "model", m->name, "architecture", m->arch, "k_type",
        q->types.k->name, "v_type", q->types.v->name, "layers", json_layers(m, q),
        "n_layers", (json_int_t)m->n_layers, "bytes_per_token", "first",
        (json_int_t)kvsize_next(m, q->types, 0), "behind_window",
        (json_int_t)kvsize_next(m, q->types, window), "window", (json_int_t)window);
    if (q->context)
        json_object_set_new(root, "context",
                            json_pack("{sIsI}", "tokens", (json_int_t)q->context, "bytes",
                                      (json_int_t)kvsize_bytes(m, q->types, q->context)));
    if (q->memory)
        json_object_set_new(root, "memory", json_memory(m, q));
    json_dumpf(root, stdout, JSON_INDENT(1));
    printf("\n");
    json_decref(root);
}

/* ---- the command ------------------------------------------------------------------- */

static int answer(struct kvsize_model *m, struct question *q)
{
    struct err e = {0};
    int rc = q->file ? kvsize_from_file(m, q->file, &q->given, &e)
                     : kvsize_from_flags(m, &q->given, &e);
    if (rc == 0)
        rc = kvsize_check(m, q->types, &e);
    if (rc == 0 && kvsize_next(m, q->types, 0) == 0)
        rc = err_set(&e, ERR_INVALID, "no layer has attention: there is no KV cache");
    if (rc) {
        fprintf(stderr, "incipit kvsize: %s\n", e.text);
        return CMD_FAILED;
    }
    if (!q->context)
        q->context = m->context < KVSIZE_MAX_TOKENS ? m->context : KVSIZE_MAX_TOKENS;
    if (q->json) {
        print_json(m, q);
        return CMD_OK;
    }
    print_model(m, q);
    print_tokens(m, q);
    if (q->memory)
        print_memory(m, q);
    return CMD_OK;
}

int cmd_kvsize(const struct cmd *self, int argc, char **argv)
{
    const char *given[CMD_MAX_FLAGS];
    struct question q;
    const int operands = cmd_parse(self, argc, argv, given);
    if (operands < 0)
        return CMD_USAGE;
    if (!take_question(given, &q))
        return CMD_USAGE;
    const bool flags = q.given.layers && (q.given.latent || q.given.kv_heads);
    if (operands > 1 || (operands == 0 && !flags)) {
        cmd_usage(self, stderr);
        return CMD_USAGE;
    }
    q.file = operands ? argv[1] : NULL;
    struct kvsize_model *m = mem_alloc(sizeof(*m));
    const int status = answer(m, &q);
    free(m);
    return status;
}
