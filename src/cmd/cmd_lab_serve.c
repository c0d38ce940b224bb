/* SPDX-License-Identifier: MIT */
#include <string.h>
#include <sys/stat.h>

#include "base/units.h"
#include "cmd/cmd.h"
#include "lab/serve.h"

enum {
    LISTEN,
    SLOTS,
    CONTEXT,
    SLOT_SAVE_PATH,
    SEED,
    STATE_VERSION,
    ALIAS,
    PREDICT,
    TOKEN_COST,
    MISBEHAVE
};

const struct cmd_flag cmd_lab_serve_flags[] = {
    [LISTEN] = {"--listen", "ADDR:PORT", NULL, "where to listen (127.0.0.1:8080)"},
    [SLOTS] = {"--slots", "N", NULL, "sequences side by side (2)"},
    [CONTEXT] = {"--context", "N", NULL, "tokens a slot can hold (8192)"},
    [SLOT_SAVE_PATH] = {"--slot-save-path", "DIR", NULL, "where slot files go (nowhere)"},
    [SEED] = {"--seed", "N", NULL, "of the weights (1)"},
    [STATE_VERSION] = {"--state-version", "2|4", NULL, "of slot files (2)"},
    [ALIAS] = {"--alias", "NAME", NULL, "name of the model (incipit-lab)"},
    [PREDICT] = {"--predict", "N", NULL, "tokens of an answer without limit (no end)"},
    [TOKEN_COST] = {"--token-cost-us", "N", NULL, "artificial time a prompt token (0)"},
    [MISBEHAVE] = {"--misbehave", "NAME,…", NULL, "see docs/lab.md"},
    {NULL, NULL, NULL, NULL},
};

/* The flag's number, where it was given, between low and high. */
static int take_count(const struct cmd *self, const char **given, int flag, uint64_t low,
                      uint64_t high, uint64_t *out)
{
    uint64_t n;
    if (!given[flag])
        return CMD_OK;
    if (!units_parse_count(given[flag], &n) || n < low || n > high) {
        fprintf(stderr, "incipit %s: %s wants a number from %llu to %llu\n", self->name,
                self->flags[flag].name, (unsigned long long)low,
                (unsigned long long)high);
        return CMD_USAGE;
    }
    *out = n;
    return CMD_OK;
}

static int take_counts(const struct cmd *self, const char **given,
                       struct lab_serve_options *o)
{
    uint64_t slots = o->slots, context = o->context, version = o->state_version;
    uint64_t predict = (uint64_t)o->predict;
    if (take_count(self, given, SLOTS, 1, LAB_SERVE_MAX_SLOTS, &slots) ||
        take_count(self, given, CONTEXT, 16, LAB_SERVE_MAX_CONTEXT, &context) ||
        take_count(self, given, SEED, 0, UINT64_MAX, &o->seed) ||
        take_count(self, given, STATE_VERSION, 2, 4, &version) ||
        take_count(self, given, PREDICT, 0, LAB_SERVE_MAX_CONTEXT, &predict) ||
        take_count(self, given, TOKEN_COST, 0, 1000000, &o->token_cost_us))
        return CMD_USAGE;
    if (version == 3) {
        fprintf(stderr, "incipit %s: state versions are 2 and 4\n", self->name);
        return CMD_USAGE;
    }
    o->slots = (uint32_t)slots;
    o->context = (uint32_t)context;
    o->state_version = (uint32_t)version;
    o->predict = (int64_t)predict;
    return CMD_OK;
}

static int take_options(const struct cmd *self, const char **given,
                        struct lab_serve_options *o)
{
    struct err e = {0};
    struct stat st;
    if (given[LISTEN])
        o->listen = given[LISTEN];
    if (given[ALIAS])
        o->alias = given[ALIAS];
    o->slot_save_path = given[SLOT_SAVE_PATH];
    if (o->slot_save_path &&
        (stat(o->slot_save_path, &st) != 0 || !S_ISDIR(st.st_mode))) {
        fprintf(stderr, "incipit %s: %s is no directory\n", self->name,
                o->slot_save_path);
        return CMD_USAGE;
    }
    if (given[MISBEHAVE] &&
        lab_misbehave_parse(given[MISBEHAVE], &o->misbehave, &e) != 0) {
        fprintf(stderr, "incipit %s: %s\n", self->name, e.text);
        return CMD_USAGE;
    }
    return take_counts(self, given, o);
}

int cmd_lab_serve(const struct cmd *self, int argc, char **argv)
{
    const char *given[CMD_MAX_FLAGS];
    struct lab_serve_options o = LAB_SERVE_DEFAULT;
    struct err e = {0};
    const int operands = cmd_parse(self, argc, argv, given);
    if (operands != 0) {
        if (operands > 0)
            fprintf(stderr, "incipit %s: \"%s\" is no flag\n", self->name, argv[1]);
        return CMD_USAGE;
    }
    if (take_options(self, given, &o) != CMD_OK)
        return CMD_USAGE;
    if (lab_serve_run(&o, &e) == 0)
        return CMD_OK;
    fprintf(stderr, "incipit %s: %s\n", self->name, e.text);
    return CMD_FAILED;
}
