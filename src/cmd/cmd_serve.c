/* SPDX-License-Identifier: MIT */

/* Defaults, then the file, then flags: each over the one before. */

#include "cmd/cmd.h"
#include "gateway/gateway.h"
#include "gateway/options.h"

enum { CONFIG };

/* Applied in this order: the upstream is there before what belongs to it. */
const struct cmd_flag cmd_serve_flags[] = {
    [CONFIG] = {"--config", "FILE", NULL, "read this configuration first"},
    {"--upstream", "URL", "upstream", "the engine: http://HOST:PORT"},
    {"--listen", "ADDR:PORT", "listen", "where clients connect (127.0.0.1:8090)"},
    {"--admin", "ADDR:PORT", "admin.listen", "health, metrics, cache (127.0.0.1:8091)"},
    {"--slot-dir", "DIR", "upstreams.slot_dir", "the engine's --slot-save-path"},
    {"--observe", NULL, "observe", "only look, and tell what a store would gain"},
    {"--store-dir", "DIR", "store.dir", "folder for saved blocks (RAM only)"},
    {NULL, NULL, NULL, NULL},
};

static int apply_flags(const struct cmd *self, const char **given, struct options *o,
                       struct err *e)
{
    for (int i = 0; self->flags[i].name; i++)
        if (self->flags[i].key && given[i] &&
            options_set(o, self->flags[i].key, self->flags[i].value ? given[i] : "on",
                        e) != 0)
            return err_wrap(e, "%s", self->flags[i].name);
    return options_check(o, e);
}

/* What the command line says. */
struct given {
    const struct cmd *self;
    const char **flags;
};

/* As at the start: the file again, and the flags over it. */
static int load(void *arg, struct options *o, struct err *e)
{
    const struct given *g = arg;
    if (!g->flags[CONFIG])
        return err_set(e, ERR_INVALID,
                       "there is nothing to read again: started without --config");
    if (options_load(o, g->flags[CONFIG], e) != 0)
        return e->code;
    return apply_flags(g->self, g->flags, o, e) ? err_wrap(e, "%s", g->flags[CONFIG]) : 0;
}

int cmd_serve(const struct cmd *self, int argc, char **argv)
{
    const char *given[CMD_MAX_FLAGS];
    const int operands = cmd_parse(self, argc, argv, given);
    if (operands != 0) {
        if (operands > 0)
            fprintf(stderr, "incipit serve: \"%s\" is no flag\n", argv[1]);
        return CMD_USAGE;
    }
    struct given known = {self, given};
    const struct gateway_source source = {load, &known};
    struct options o;
    struct err e = {0};
    options_default(&o);
    int status = CMD_OK;
    if (given[CONFIG] && options_load(&o, given[CONFIG], &e) != 0)
        status = CMD_FAILED;
    else if (apply_flags(self, given, &o, &e) != 0)
        status = CMD_USAGE;
    if (status != CMD_OK)
        fprintf(stderr, "incipit serve: %s\n", e.text);
    else
        status = gateway_run(&o, &source) == 0 ? CMD_OK : CMD_FAILED;
    options_free(&o);
    return status;
}
