/* SPDX-License-Identifier: MIT */

/* `incipit bench report`: a stored document as the table, and as a page. */

#include "cmd/cmd.h"
#include "cmd_bench.h"
#include "load/page.h"
#include "load/report.h"

enum { HTML };

const struct cmd_flag cmd_bench_report_flags[] = {
    [HTML] = {"--html", "FILE", NULL, "write a page instead: drawings and tables"},
    {NULL, NULL, NULL, NULL},
};

static int write_page(const struct cmd *self, const json_t *doc, const char *file)
{
    struct buf page = {0};
    page_report(doc, &page);
    const int status = cmd_bench_write(self->name, file, &page);
    buf_free(&page);
    return status;
}

static int show(const struct cmd *self, const char *from, const char *html)
{
    json_t *doc = cmd_bench_read(self->name, from);
    int status = CMD_OK;
    if (!doc)
        return CMD_FAILED;
    if (!report_is(doc)) {
        fprintf(stderr, "incipit %s: %s: no report of \"incipit bench --json\" (%s)\n",
                self->name, from, REPORT_SCHEMA);
        status = CMD_FAILED;
    } else if (html) {
        status = write_page(self, doc, html);
    } else {
        report_print(doc, stdout);
    }
    json_decref(doc);
    return status;
}

int cmd_bench_report(const struct cmd *self, int argc, char **argv)
{
    const char *given[CMD_MAX_FLAGS];
    const int n = cmd_parse(self, argc, argv, given);
    if (n != 1) {
        if (n >= 0)
            cmd_usage(self, stderr);
        return CMD_USAGE;
    }
    return show(self, argv[1], given[HTML]);
}
