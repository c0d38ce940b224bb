/* SPDX-License-Identifier: MIT */
#include "cmd/cmd.h"
#include "gateway/keys.h"
#include "gateway/options.h"

enum { PRINT };

const struct cmd_flag cmd_check_flags[] = {
    [PRINT] = {"--print", NULL, NULL, "print the whole effective configuration"},
    {NULL, NULL, NULL, NULL},
};

int cmd_check(const struct cmd *self, int argc, char **argv)
{
    const char *given[CMD_MAX_FLAGS];
    const int operands = cmd_parse(self, argc, argv, given);
    if (operands != 1) {
        if (operands >= 0)
            cmd_usage(self, stderr);
        return CMD_USAGE;
    }
    struct options o;
    struct err e = {0};
    options_default(&o);
    int rc = options_load(&o, argv[1], &e);
    if (rc == 0 && options_check(&o, &e) != 0)
        rc = err_wrap(&e, "%s", argv[1]);
    struct keys *keys = rc == 0 ? keys_new(&o, &e) : NULL;
    if (rc == 0 && !keys)
        rc = err_wrap(&e, "%s", argv[1]);
    keys_free(keys);
    if (rc != 0)
        fprintf(stderr, "incipit check: %s\n", e.text);
    else if (given[PRINT])
        options_print(&o, stdout);
    else
        printf("%s: right\n", argv[1]);
    options_free(&o);
    return rc ? CMD_FAILED : CMD_OK;
}
