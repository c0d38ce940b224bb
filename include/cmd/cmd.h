/* SPDX-License-Identifier: MIT */
#ifndef INCIPIT_CMD_CMD_H
#define INCIPIT_CMD_CMD_H

/*
 * What a person can type: `incipit COMMAND …`. One table in cmd.c has a row per command;
 * a new one is a row there and a file cmd_x.c. A name may have two words. Commands print
 * to standard output what was asked for and to standard error what went wrong.
 */

#include <stddef.h>
#include <stdio.h>

/* Exit statuses. */
enum { CMD_OK = 0, CMD_FAILED = 1, CMD_USAGE = 2 };

#define CMD_MAX_FLAGS 40

/* A flag of a command: "--name VALUE" or "--name=VALUE", or a switch "--name". */
struct cmd_flag {
    const char *name;  /* with its dashes; NULL ends an array */
    const char *value; /* what the help calls it; NULL for a switch */
    const char *key;   /* of the configuration that it sets, or NULL */
    const char *help;
};

struct cmd {
    const char *name;
    const char *operands; /* what may follow the flags, for the help */
    const char *help;
    const struct cmd_flag *flags;                              /* NULL: none */
    int (*run)(const struct cmd *self, int argc, char **argv); /* argv[0] is its name */
};

/* main() without its process: finds the command and runs it. Returns the exit status. */
int cmd_main(int argc, char **argv);

/* Row `i` of the table, NULL behind the last; and the row of a name or NULL. */
const struct cmd *cmd_at(size_t i);
const struct cmd *cmd_find(const char *name);

/* How to call `self`: usage line, help sentence, flags. */
void cmd_usage(const struct cmd *self, FILE *out);

/*
 * Reads flags: given[i] becomes the value of self->flags[i] ("" for a switch), NULL where
 * it is absent. What is no flag moves to the front of argv, behind argv[0]; returns how
 * many there are, or -1 after saying what is wrong (with the nearest flag).
 */
int cmd_parse(const struct cmd *self, int argc, char **argv, const char **given);

/* The commands. */
extern const struct cmd_flag cmd_serve_flags[], cmd_check_flags[], cmd_kvsize_flags[],
    cmd_lab_flags[], cmd_observe_flags[], cmd_lab_serve_flags[], cmd_store_ls_flags[],
    cmd_store_stat_flags[], cmd_store_verify_flags[], cmd_store_prune_flags[],
    cmd_store_export_flags[], cmd_store_import_flags[], cmd_warm_flags[],
    cmd_bench_flags[], cmd_bench_compare_flags[], cmd_bench_report_flags[];
int cmd_serve(const struct cmd *self, int argc, char **argv);
int cmd_check(const struct cmd *self, int argc, char **argv);
int cmd_warm(const struct cmd *self, int argc, char **argv);
int cmd_lab(const struct cmd *self, int argc, char **argv);
int cmd_lab_serve(const struct cmd *self, int argc, char **argv);
int cmd_kvsize(const struct cmd *self, int argc, char **argv);
int cmd_store_ls(const struct cmd *self, int argc, char **argv);
int cmd_store_stat(const struct cmd *self, int argc, char **argv);
int cmd_store_verify(const struct cmd *self, int argc, char **argv);
int cmd_store_prune(const struct cmd *self, int argc, char **argv);
int cmd_store_export(const struct cmd *self, int argc, char **argv);
int cmd_store_import(const struct cmd *self, int argc, char **argv);
int cmd_store_help(const struct cmd *self, int argc, char **argv);
int cmd_observe(const struct cmd *self, int argc, char **argv);
int cmd_bench(const struct cmd *self, int argc, char **argv);
int cmd_bench_compare(const struct cmd *self, int argc, char **argv);
int cmd_bench_report(const struct cmd *self, int argc, char **argv);
int cmd_version(const struct cmd *self, int argc, char **argv);
int cmd_help(const struct cmd *self, int argc, char **argv);

#endif
