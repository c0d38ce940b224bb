/* SPDX-License-Identifier: MIT */
#include "cmd/cmd.h"

#include <assert.h>
#include <stdbool.h>
#include <string.h>

#include "base/mem.h"
#include "base/nearest.h"

static const struct cmd commands[] = {
    {"serve", "", "Run the gateway.", cmd_serve_flags, cmd_serve},
    {"check", "FILE", "Check a configuration file.", cmd_check_flags, cmd_check},
    {"warm", "FILE…", "Have a running gateway compute, store and pin prompts.",
     cmd_warm_flags, cmd_warm},
    {"lab", "", "Show what a KV cache does, on a small built-in model.", cmd_lab_flags,
     cmd_lab},
    {"lab serve", "", "Serve the built-in model as llama-server would, for tests.",
     cmd_lab_serve_flags, cmd_lab_serve},
    {"kvsize", "[FILE]", "Say what the KV cache of a model takes (GGUF, config.json).",
     cmd_kvsize_flags, cmd_kvsize},
    {"observe", "FILE|-", "Say what a store would gain on the prompts of a file.",
     cmd_observe_flags, cmd_observe},
    {"bench", "URL", "Load a service and say what its clients see.", cmd_bench_flags,
     cmd_bench},
    {"bench compare", "A.json B.json", "Say what changed between two runs.",
     cmd_bench_compare_flags, cmd_bench_compare},
    {"bench report", "RUN.json", "Show a stored run again, as table or page.",
     cmd_bench_report_flags, cmd_bench_report},
    {"store", "ls|stat|verify|prune|export|import", "Look at a store's directory.", NULL,
     cmd_store_help},
    {"store ls", "[FINGERPRINT]", "List the models in a store, or one's sequences.",
     cmd_store_ls_flags, cmd_store_ls},
    {"store stat", "", "Say what a store holds and what sharing saves.",
     cmd_store_stat_flags, cmd_store_stat},
    {"store verify", "", "Read every block of a store and say what is wrong.",
     cmd_store_verify_flags, cmd_store_verify},
    {"store prune", "", "Delete the least recently used blocks of a store.",
     cmd_store_prune_flags, cmd_store_prune},
    {"store export", "FILE|-", "Write blocks and prompts of a store into one archive.",
     cmd_store_export_flags, cmd_store_export},
    {"store import", "FILE|-", "Take an archive into a store.", cmd_store_import_flags,
     cmd_store_import},
    {"version", "", "Print the version and those of the libraries.", NULL, cmd_version},
    {"help", "[COMMAND]", "Explain a command.", NULL, cmd_help},
};

#define N_COMMANDS (sizeof(commands) / sizeof(commands[0]))

const struct cmd *cmd_at(size_t i)
{
    return i < N_COMMANDS ? &commands[i] : NULL;
}

const struct cmd *cmd_find(const char *name)
{
    static const char *const other[][2] = {
        {"--help", "help"}, {"-h", "help"}, {"--version", "version"}, {"-V", "version"}};
    for (size_t i = 0; i < sizeof(other) / sizeof(other[0]); i++)
        if (strcmp(name, other[i][0]) == 0)
            name = other[i][1];
    for (size_t i = 0; i < N_COMMANDS; i++)
        if (strcmp(name, commands[i].name) == 0)
            return &commands[i];
    return NULL;
}

static int unknown_command(const char *name)
{
    struct nearest n = nearest_to(name);
    for (size_t i = 0; i < N_COMMANDS; i++)
        nearest_offer(&n, commands[i].name);
    const char *near = nearest_get(&n);
    fprintf(stderr, "incipit: unknown command \"%s\"", name);
    if (near)
        fprintf(stderr, "; did you mean \"%s\"?", near);
    fprintf(stderr, "\nincipit help lists the commands.\n");
    return CMD_USAGE;
}

/* The command that the first words name; a name of two words goes before one of one. */
static const struct cmd *find_typed(int argc, char **argv, int *words)
{
    char both[64];
    snprintf(both, sizeof(both), "%s %s", argv[1], argc > 2 ? argv[2] : "");
    const struct cmd *c = cmd_find(both);
    *words = c ? 2 : 1;
    return c ? c : cmd_find(argv[1]);
}

int cmd_main(int argc, char **argv)
{
    mem_setup();
    int words;
    if (argc < 2) {
        fprintf(stderr, "usage: incipit COMMAND …\nincipit help lists the commands.\n");
        return CMD_USAGE;
    }
    const struct cmd *c = find_typed(argc, argv, &words);
    if (!c)
        return unknown_command(argv[1]);
    for (int i = 2; i < argc && strcmp(argv[i], "--") != 0; i++)
        if (strcmp(argv[i], "--help") == 0 || strcmp(argv[i], "-h") == 0) {
            cmd_usage(c, stdout);
            return CMD_OK;
        }
    return c->run(c, argc - words, argv + words);
}

void cmd_usage(const struct cmd *self, FILE *out)
{
    fprintf(out, "usage: incipit %s%s%s%s\n%s\n", self->name,
            self->flags ? " [FLAG…]" : "", *self->operands ? " " : "", self->operands,
            self->help);
    for (const struct cmd_flag *f = self->flags; f && f->name; f++) {
        char left[40];
        snprintf(left, sizeof(left), "%s%s%s", f->name, f->value ? " " : "",
                 f->value ? f->value : "");
        fprintf(out, "%s  %-22s %s\n", f == self->flags ? "\n" : "", left, f->help);
    }
}

/* ---- flags ------------------------------------------------------------------------- */

/* "--name" or "--name=…": the flag's number, -1 where there is none. */
static int find_flag(const struct cmd *self, const char *word, size_t len)
{
    for (int i = 0; self->flags && self->flags[i].name; i++)
        if (strlen(self->flags[i].name) == len &&
            memcmp(self->flags[i].name, word, len) == 0)
            return i;
    return -1;
}

static int complain(const struct cmd *self, const char *what, const char *flag, int len)
{
    fprintf(stderr, "incipit %s: %s %.*s\n", self->name, what, len, flag);
    fprintf(stderr, "incipit help %s lists the flags.\n", self->name);
    return -1;
}

static int unknown_flag(const struct cmd *self, const char *word, size_t len)
{
    char name[64];
    snprintf(name, sizeof(name), "%.*s", (int)len, word);
    struct nearest n = nearest_to(name);
    for (int i = 0; self->flags && self->flags[i].name; i++)
        nearest_offer(&n, self->flags[i].name);
    const char *near = nearest_get(&n);
    if (!near)
        return complain(self, "unknown flag", name, (int)sizeof(name));
    fprintf(stderr, "incipit %s: unknown flag %s; did you mean %s?\n", self->name, name,
            near);
    return -1;
}

/* Reads the flag at argv[at]; returns how many words it took, -1 on an error. */
static int take_flag(const struct cmd *self, int argc, char **argv, int at,
                     const char **given)
{
    const char *word = argv[at], *equals = strchr(word, '=');
    const size_t len = equals ? (size_t)(equals - word) : strlen(word);
    const int i = find_flag(self, word, len);
    if (i < 0)
        return unknown_flag(self, word, len);
    assert(i < CMD_MAX_FLAGS);
    if (given[i])
        return complain(self, "given twice:", word, (int)len);
    if (!self->flags[i].value) {
        given[i] = "";
        return equals ? complain(self, "takes no value:", word, (int)len) : 1;
    }
    given[i] = equals ? equals + 1 : argv[at + 1]; /* argv ends with NULL */
    if (!given[i] || (!equals && at + 1 >= argc))
        return complain(self, "a value is missing behind", word, (int)len);
    return equals ? 1 : 2;
}

int cmd_parse(const struct cmd *self, int argc, char **argv, const char **given)
{
    memset(given, 0, CMD_MAX_FLAGS * sizeof(*given));
    int operands = 0;
    bool flags = true;
    for (int i = 1; i < argc;) {
        if (flags && strcmp(argv[i], "--") == 0) {
            flags = false;
            i++;
        } else if (flags && argv[i][0] == '-' && argv[i][1] != '\0') {
            const int taken = take_flag(self, argc, argv, i, given);
            if (taken < 0)
                return -1;
            i += taken;
        } else {
            argv[1 + operands++] = argv[i++];
        }
    }
    return operands;
}
