/* SPDX-License-Identifier: MIT */

/*
 * `incipit lab`: the lesson of the KV cache, on the terminal, as text, as a page or as
 * JSON.
 */

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/mem.h"
#include "cmd/cmd.h"
#include "lab/lesson.h"

enum { PLAIN, JSON, HTML };

const struct cmd_flag cmd_lab_flags[] = {
    [PLAIN] = {"--plain", NULL, NULL, "print text, also on a terminal"},
    [JSON] = {"--json", NULL, NULL, "print JSON"},
    [HTML] = {"--html", "FILE", NULL, "write one page with a slider over the steps"},
    {NULL, NULL, NULL, NULL},
};

static bool on_terminal(void)
{
    const char *term = getenv("TERM");
    return isatty(STDIN_FILENO) && isatty(STDOUT_FILENO) && term && *term &&
           strcmp(term, "dumb") != 0;
}

static int print(const struct buf *b)
{
    const struct slice s = buf_slice(b);
    const bool fine = fwrite(s.ptr, 1, s.len, stdout) == s.len && fflush(stdout) == 0;
    return fine ? CMD_OK : CMD_FAILED;
}

static int write_page(const struct buf *b, const char *path)
{
    const struct slice s = buf_slice(b);
    FILE *file = fopen(path, "w");
    const bool opened = file != NULL;
    bool fine = opened && fwrite(s.ptr, 1, s.len, file) == s.len;
    if (opened)
        fine = fclose(file) == 0 && fine;
    if (!fine) {
        fprintf(stderr, "incipit lab: %s: %s\n", path, strerror(errno));
        return CMD_FAILED;
    }
    printf("%s: open it in a browser; it needs no network\n", path);
    return CMD_OK;
}

static int walk(const struct lesson *l)
{
    struct err e = {0};
    if (lesson_tui(l, STDIN_FILENO, STDOUT_FILENO, &e) == 0)
        return CMD_OK;
    fprintf(stderr, "incipit lab: %s\n", e.text);
    return CMD_FAILED;
}

static int show(const struct lesson *l, const char **given)
{
    struct buf b = {0};
    int status;
    if (given[HTML]) {
        lesson_html(l, &b);
        status = write_page(&b, given[HTML]);
    } else if (given[JSON]) {
        lesson_json(l, &b);
        status = print(&b);
    } else if (given[PLAIN] || !on_terminal()) {
        lesson_text(l, &b);
        status = print(&b);
    } else {
        status = walk(l);
    }
    buf_free(&b);
    return status;
}

int cmd_lab(const struct cmd *self, int argc, char **argv)
{
    const char *given[CMD_MAX_FLAGS];
    const int operands = cmd_parse(self, argc, argv, given);
    if (operands < 0)
        return CMD_USAGE;
    if (operands > 0 || !!given[PLAIN] + !!given[JSON] + !!given[HTML] > 1) {
        cmd_usage(self, stderr);
        return CMD_USAGE;
    }
    struct lesson *l = mem_alloc(sizeof(*l));
    lesson_run(l);
    const int status = show(l, given);
    free(l);
    return status;
}
