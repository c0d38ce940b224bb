/* SPDX-License-Identifier: MIT */
#include <string.h>

#include "cmd/cmd.h"

static void list_commands(void)
{
    printf("incipit: a gateway that reuses the start of prompts.\n\n"
           "usage: incipit COMMAND …\n\n");
    const struct cmd *c;
    for (size_t i = 0; (c = cmd_at(i)); i++)
        printf("  %-14s %s\n", c->name, c->help);
    printf("\nThe shortest way: incipit serve --upstream http://127.0.0.1:8080\n");
}

int cmd_help(const struct cmd *self, int argc, char **argv)
{
    const char *given[CMD_MAX_FLAGS];
    const int operands = cmd_parse(self, argc, argv, given);
    if (operands < 0)
        return CMD_USAGE;
    if (operands == 0) {
        list_commands();
        return CMD_OK;
    }
    char name[64];
    snprintf(name, sizeof(name), "%s%s%s", argv[1], operands > 1 ? " " : "",
             operands > 1 ? argv[2] : "");
    const struct cmd *c = cmd_find(name);
    if (!c) {
        fprintf(stderr, "incipit help: there is no command \"%s\"\n", name);
        return CMD_USAGE;
    }
    cmd_usage(c, stdout);
    return CMD_OK;
}
