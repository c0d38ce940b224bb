/* SPDX-License-Identifier: MIT */
#include "cmd_bench.h"

#include <stdio.h>

#include "cmd/cmd.h"
#include "load/report.h"

json_t *cmd_bench_read(const char *command, const char *file)
{
    json_error_t why;
    json_t *doc = json_load_file(file, 0, &why);
    if (!doc)
        fprintf(stderr, "incipit %s: %s:%d: %s\n", command, file, why.line, why.text);
    return doc;
}

int cmd_bench_write(const char *command, const char *file, struct buf *page)
{
    const struct slice s = buf_slice(page);
    FILE *f = fopen(file, "we");
    bool good = f && fwrite(s.ptr, 1, s.len, f) == s.len;
    if (f && fclose(f) != 0)
        good = false;
    if (!good)
        fprintf(stderr, "incipit %s: %s cannot be written\n", command, file);
    return good ? CMD_OK : CMD_FAILED;
}
