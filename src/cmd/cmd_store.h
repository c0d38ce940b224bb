/* SPDX-License-Identifier: MIT */
#ifndef INCIPIT_CMD_STORE_H
#define INCIPIT_CMD_STORE_H

/* What the commands `incipit store …` share. */

#include <jansson.h>
#include <stdbool.h>

#include "base/err.h"
#include "cmd/cmd.h"
#include "store/inventory.h"

/* The first flags of each; its own follow from CMD_STORE_OWN on. */
enum { CMD_STORE_DIR, CMD_STORE_CONFIG, CMD_STORE_KEY, CMD_STORE_OWN };
#define CMD_STORE_FLAGS                                                                  \
    [CMD_STORE_DIR] = {"--dir", "DIR", NULL, "the store's directory"},                   \
    [CMD_STORE_CONFIG] = {"--config", "FILE", NULL, "the gateway's configuration"},      \
    [CMD_STORE_KEY] = {"--key-file", "FILE", NULL, "store.key_file, where one is used"}

struct cmd_store {
    const struct cmd *self;
    const char *given[CMD_MAX_FLAGS];
    int n_operands;
    char *dir, *key_file; /* key_file NULL: the directory's own key */
    bool has_model;
    struct hash128 model;
};

/* Reads the command line. Other than CMD_OK: it said why. */
int cmd_store_start(const struct cmd *self, int argc, char **argv, int most_operands,
                    struct cmd_store *c);

/* Also where the start failed. */
void cmd_store_end(struct cmd_store *c);

/* The one model whose fingerprint begins so. */
int cmd_store_model(struct cmd_store *c, const char *text);

int cmd_store_say(const struct cmd *self, const struct err *e); /* CMD_FAILED */
void cmd_store_print(json_t *root);                             /* takes the reference */

/* "3 h" since then. */
const char *cmd_store_age(int64_t ns, char out[24]);

#endif
