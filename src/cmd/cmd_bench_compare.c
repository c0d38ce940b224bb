/* SPDX-License-Identifier: MIT */

/* `incipit bench compare`: what changed between two runs, and whether it is noise. */

#include <stdbool.h>

#include "cmd/cmd.h"
#include "cmd_bench.h"
#include "load/compare.h"
#include "load/page.h"

enum { JSON, HTML };

const struct cmd_flag cmd_bench_compare_flags[] = {
    [JSON] = {"--json", NULL, NULL, "the comparison as JSON"},
    [HTML] = {"--html", "FILE", NULL, "write a page instead: drawings and tables"},
    {NULL, NULL, NULL, NULL},
};

static int write_page(const struct cmd *self, const json_t *a, const json_t *b,
                      const json_t *comparison, const char *file)
{
    struct buf page = {0};
    page_comparison(a, b, comparison, &page);
    const int status = cmd_bench_write(self->name, file, &page);
    buf_free(&page);
    return status;
}

static int compare(const struct cmd *self, const json_t *a, const json_t *b,
                   const char **given)
{
    int status = CMD_OK;
    struct err e = {0};
    json_t *comparison = compare_documents(a, b, &e);
    if (!comparison) {
        fprintf(stderr, "incipit bench compare: %s\n", e.text);
        return CMD_FAILED;
    }
    if (given[HTML])
        status = write_page(self, a, b, comparison, given[HTML]);
    if (given[JSON]) {
        json_dumpf(comparison, stdout, JSON_INDENT(2) | JSON_REAL_PRECISION(12));
        printf("\n");
    } else if (!given[HTML]) {
        compare_print(comparison, stdout);
    }
    json_decref(comparison);
    return status;
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
    json_t *a = cmd_bench_read(self->name, argv[1]),
           *b = a ? cmd_bench_read(self->name, argv[2]) : NULL;
    const int status = b ? compare(self, a, b, given) : CMD_FAILED;
    json_decref(a);
    json_decref(b);
    return status;
}
