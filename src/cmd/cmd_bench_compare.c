/* SPDX-License-Identifier: MIT */

/* `incipit bench compare`: what changed between two runs, and whether it is noise. */

#include <stdbool.h>

#include "cmd/cmd.h"
#include "load/compare.h"

enum { JSON };

const struct cmd_flag cmd_bench_compare_flags[] = {
    [JSON] = {"--json", NULL, NULL, "the comparison as JSON"},
    {NULL, NULL, NULL, NULL},
};

static json_t *read_report(const char *file)
{
    json_error_t why;
    json_t *doc = json_load_file(file, 0, &why);
    if (!doc)
        fprintf(stderr, "incipit bench compare: %s:%d: %s\n", file, why.line, why.text);
    return doc;
}

static int print_comparison(const json_t *a, const json_t *b, bool as_json)
{
    struct err e = {0};
    json_t *comparison = compare_documents(a, b, &e);
    if (!comparison) {
        fprintf(stderr, "incipit bench compare: %s\n", e.text);
        return CMD_FAILED;
    }
    if (as_json) {
        json_dumpf(comparison, stdout, JSON_INDENT(2) | JSON_REAL_PRECISION(12));
        printf("\n");
    } else {
        compare_print(comparison, stdout);
    }
    json_decref(comparison);
    return CMD_OK;
}

int cmd_bench_compare(const struct cmd *self, int argc, char **argv)
{
    const char *given[CMD_MAX_FLAGS];
    const int n = cmd_parse(self, argc, argv, given);
    if (n != 2) {
        if (n >= 0)
            cmd_usage(self, stderr);
        return CMD_USAGE;
    }
    json_t *a = read_report(argv[1]), *b = a ? read_report(argv[2]) : NULL;
    const int status = b ? print_comparison(a, b, given[JSON] != NULL) : CMD_FAILED;
    json_decref(a);
    json_decref(b);
    return status;
}
