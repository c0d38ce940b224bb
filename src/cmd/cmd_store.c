/* SPDX-License-Identifier: MIT */

/*
 * `incipit store …`: the store's directory as a person looks at it and works on it. What
 * is in it comes from store/inventory.h, archives from store/archive.h; ls and stat are
 * in cmd_store_ls.c.
 */

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/mem.h"
#include "base/units.h"
#include "cmd_store.h"
#include "gateway/options.h"
#include "store/archive.h"

/* ---- what all of them share -------------------------------------------------------- */

int cmd_store_say(const struct cmd *self, const struct err *e)
{
    fprintf(stderr, "incipit %s: %s\n", self->name, e->text);
    return CMD_FAILED;
}

static int take_config(struct cmd_store *c, const char *file, struct err *e)
{
    struct options o;
    options_default(&o);
    int rc = options_load(&o, file, e);
    if (!rc && !*o.store_dir)
        rc = err_set(e, ERR_INVALID, "%s has no store.dir", file);
    if (!rc)
        c->dir = mem_strdup(o.store_dir);
    if (!rc && *o.store_key_file && !c->key_file)
        c->key_file = mem_strdup(o.store_key_file);
    options_free(&o);
    return rc;
}

int cmd_store_start(const struct cmd *self, int argc, char **argv, int most_operands,
                    struct cmd_store *c)
{
    struct err e = {0};
    *c = (struct cmd_store){.self = self};
    c->n_operands = cmd_parse(self, argc, argv, c->given);
    if (c->n_operands < 0)
        return CMD_USAGE;
    if (c->n_operands > most_operands ||
        !c->given[CMD_STORE_DIR] == !c->given[CMD_STORE_CONFIG]) {
        if (c->n_operands <= most_operands)
            fprintf(stderr, "incipit %s: give either --dir or --config\n", self->name);
        else
            cmd_usage(self, stderr);
        return CMD_USAGE;
    }
    if (c->given[CMD_STORE_KEY])
        c->key_file = mem_strdup(c->given[CMD_STORE_KEY]);
    if (c->given[CMD_STORE_DIR])
        c->dir = mem_strdup(c->given[CMD_STORE_DIR]);
    else if (take_config(c, c->given[CMD_STORE_CONFIG], &e) != 0)
        return cmd_store_say(self, &e);
    return CMD_OK;
}

void cmd_store_end(struct cmd_store *c)
{
    free(c->dir);
    free(c->key_file);
}

int cmd_store_model(struct cmd_store *c, const char *text)
{
    struct inventory v;
    struct err e = {0};
    size_t found = 0;
    int status = CMD_FAILED;
    if (inventory_read(&v, c->dir, false, NULL, &e) != 0)
        return cmd_store_say(c->self, &e);
    for (size_t i = 0; i < v.n_models; i++) {
        char hex[HASH128_HEX];
        hash128_hex(v.models[i].fingerprint, hex);
        if (strncasecmp(hex, text, strlen(text)) == 0) {
            c->model = v.models[i].fingerprint;
            found++;
        }
    }
    if (found == 1 && *text)
        status = CMD_OK;
    else
        fprintf(stderr, "incipit %s: %s models begin with \"%s\"; ls lists them\n",
                c->self->name, found ? "several" : "no", text);
    inventory_free(&v);
    c->has_model = status == CMD_OK;
    return status;
}

const char *cmd_store_age(int64_t ns, char out[24])
{
    static const struct {
        const char *unit;
        int64_t seconds;
    } units[] = {{"d", 86400}, {"h", 3600}, {"min", 60}, {"s", 1}};
    const int64_t age = (int64_t)(clock_wall_ms() / 1000) - ns / 1000000000;
    snprintf(out, 24, "now");
    for (size_t i = 0; i < sizeof(units) / sizeof(units[0]); i++)
        if (age >= units[i].seconds) {
            snprintf(out, 24, "%" PRId64 " %s", age / units[i].seconds, units[i].unit);
            break;
        }
    return out;
}

int cmd_store_help(const struct cmd *self, int argc, char **argv)
{
    (void)argc;
    (void)argv;
    fprintf(stderr, "usage: incipit store COMMAND …\n%s\n\n", self->help);
    const struct cmd *c;
    for (size_t i = 0; (c = cmd_at(i)); i++)
        if (strncmp(c->name, "store ", 6) == 0)
            fprintf(stderr, "  %-22s %s\n", c->name, c->help);
    return CMD_USAGE;
}

/* ---- verify ------------------------------------------------------------------------ */

enum { VERIFY_FIX = CMD_STORE_OWN, VERIFY_JSON };

const struct cmd_flag cmd_store_verify_flags[] = {
    CMD_STORE_FLAGS,
    [VERIFY_FIX] = {"--fix", NULL, NULL, "move damaged files to damaged/"},
    [VERIFY_JSON] = {"--json", NULL, NULL, "print JSON"},
    {NULL, NULL, NULL, NULL},
};

static void on_fault(void *arg, const char *file, const char *what, const char *todo)
{
    json_t *faults = arg;
    if (faults)
        json_array_append_new(
            faults, json_pack("{ssssss}", "file", file, "what", what, "todo", todo));
    else
        printf("%s: %s (%s)\n", file, what, todo);
}

int cmd_store_verify(const struct cmd *self, int argc, char **argv)
{
    struct cmd_store c;
    struct inventory_checked n;
    struct err e = {0};
    char size[24];
    int status = cmd_store_start(self, argc, argv, 0, &c);
    if (status != CMD_OK)
        return status;
    json_t *faults = c.given[VERIFY_JSON] ? json_array() : NULL;
    if (inventory_verify(c.dir, c.key_file, c.given[VERIFY_FIX], on_fault, faults, &n,
                         &e) != 0) {
        status = cmd_store_say(self, &e);
        json_decref(faults);
    } else if (faults) {
        cmd_store_print(json_pack("{sIsIsosI}", "blocks", (json_int_t)n.blocks, "bytes",
                                  (json_int_t)n.bytes, "faults", faults, "fixed",
                                  (json_int_t)n.fixed));
    } else {
        printf("%" PRIu64 " blocks, %s: ", n.blocks, units_format_bytes(n.bytes, size));
        printf(n.faults ? "%" PRIu64 " faults\n" : "all right\n", n.faults);
    }
    if (status == CMD_OK && n.faults)
        status = CMD_FAILED;
    cmd_store_end(&c);
    return status;
}

/* ---- prune ------------------------------------------------------------------------- */

enum { PRUNE_KEEP = CMD_STORE_OWN, PRUNE_OLDER, PRUNE_MODEL, PRUNE_DRY, PRUNE_JSON };

const struct cmd_flag cmd_store_prune_flags[] = {
    CMD_STORE_FLAGS,
    [PRUNE_KEEP] = {"--keep", "SIZE", NULL, "delete until at most this remains: 20GiB"},
    [PRUNE_OLDER] = {"--older", "AGE", NULL, "delete what was not used for so long: 7d"},
    [PRUNE_MODEL] = {"--model", "FINGERPRINT", NULL, "of this model (alone: all of it)"},
    [PRUNE_DRY] = {"--dry-run", NULL, NULL, "only say what would go"},
    [PRUNE_JSON] = {"--json", NULL, NULL, "print JSON"},
    {NULL, NULL, NULL, NULL},
};

static int prune_rules(struct cmd_store *c, struct inventory_rules *r)
{
    uint64_t age_ms = 0;
    const char *keep = c->given[PRUNE_KEEP], *older = c->given[PRUNE_OLDER];
    *r = (struct inventory_rules){
        .keep_bytes = UINT64_MAX, .before_ns = INT64_MIN, .dry_run = c->given[PRUNE_DRY]};
    if (keep && !units_parse_bytes(keep, &r->keep_bytes)) {
        fprintf(stderr, "incipit store prune: --keep: \"%s\" is no size (20GiB)\n", keep);
        return CMD_USAGE;
    }
    if (older && (!units_parse_ms(older, &age_ms) || age_ms > clock_wall_ms())) {
        fprintf(stderr, "incipit store prune: --older: \"%s\" is no age (7d)\n", older);
        return CMD_USAGE;
    }
    if (older)
        r->before_ns = (int64_t)(clock_wall_ms() - age_ms) * 1000000;
    if (!keep && !older && !c->given[PRUNE_MODEL]) {
        fprintf(stderr, "incipit store prune: give --keep, --older or --model\n");
        return CMD_USAGE;
    }
    if (!keep && !older)
        r->keep_bytes = 0;
    if (!c->given[PRUNE_MODEL])
        return CMD_OK;
    r->model = &c->model;
    return cmd_store_model(c, c->given[PRUNE_MODEL]);
}

static void on_pruned(void *arg, const struct inventory_model *was, uint64_t blocks,
                      uint64_t bytes)
{
    char hex[HASH128_HEX], gone[24], left[24];
    json_t *models = arg;
    hash128_hex(was->fingerprint, hex);
    if (models)
        json_array_append_new(models,
                              json_pack("{sssIsIsIsI}", "fingerprint", hex, "blocks",
                                        (json_int_t)blocks, "bytes", (json_int_t)bytes,
                                        "blocks_left", (json_int_t)(was->blocks - blocks),
                                        "bytes_left", (json_int_t)(was->bytes - bytes)));
    else
        printf("%s  %" PRIu64 " blocks go (%s), %" PRIu64 " stay (%s)\n", hex, blocks,
               units_format_bytes(bytes, gone), was->blocks - blocks,
               units_format_bytes(was->bytes - bytes, left));
}

int cmd_store_prune(const struct cmd *self, int argc, char **argv)
{
    struct cmd_store c;
    struct inventory_rules r;
    struct err e = {0};
    int status = cmd_store_start(self, argc, argv, 0, &c);
    if (status == CMD_OK)
        status = prune_rules(&c, &r);
    if (status == CMD_OK) {
        json_t *models = c.given[PRUNE_JSON] ? json_array() : NULL;
        if (inventory_prune(c.dir, &r, on_pruned, models, &e) != 0) {
            status = cmd_store_say(self, &e);
            json_decref(models);
        } else if (models) {
            cmd_store_print(json_pack("{sbso}", "dry_run", r.dry_run, "models", models));
        }
    }
    cmd_store_end(&c);
    return status;
}

/* ---- export and import ------------------------------------------------------------- */

enum { EXPORT_MODEL = CMD_STORE_OWN, EXPORT_KEY };

const struct cmd_flag cmd_store_export_flags[] = {
    CMD_STORE_FLAGS,
    [EXPORT_MODEL] = {"--model", "FINGERPRINT", NULL, "of this model alone"},
    [EXPORT_KEY] = {"--with-key", NULL, NULL, "with the secret key, for an empty store"},
    {NULL, NULL, NULL, NULL},
};

const struct cmd_flag cmd_store_import_flags[] = {
    CMD_STORE_FLAGS,
    {NULL, NULL, NULL, NULL},
};

/* What went where, on standard error: standard output may be the archive. */
static void print_count(const char *verb, const struct archive_count *n)
{
    char size[24];
    fprintf(stderr, "%s %" PRIu64 " blocks (%s) and %" PRIu64 " prompt records", verb,
            n->blocks, units_format_bytes(n->bytes, size), n->prompts);
    if (n->known)
        fprintf(stderr, "; %" PRIu64 " blocks were there already", n->known);
    if (n->left_out)
        fprintf(stderr, "; left out %" PRIu64 " damaged blocks or such behind them",
                n->left_out);
    fprintf(stderr, "\n");
}

/* A new file under another name until it is whole; or standard output. */
static FILE *open_out(const char *file, char **part, struct err *e)
{
    *part = NULL;
    if (strcmp(file, "-") == 0)
        return stdout;
    *part = mem_printf("%s.part", file);
    const int fd =
        open(*part, O_WRONLY | O_CREAT | O_TRUNC | O_NOFOLLOW | O_CLOEXEC, 0600);
    FILE *out = fd < 0 || fchmod(fd, 0600) != 0 ? NULL : fdopen(fd, "wb");
    if (!out)
        err_errno(e, "cannot write %s", *part);
    return out;
}

static int close_out(FILE *out, const char *file, const char *part, int rc, struct err *e)
{
    if (!part)
        return rc;
    if (out && !rc && fsync(fileno(out)) != 0)
        rc = err_errno(e, "writing %s", part);
    if (out && fclose(out) != 0 && !rc)
        rc = err_errno(e, "writing %s", part);
    if (out && !rc && rename(part, file) != 0)
        rc = err_errno(e, "cannot rename %s to %s", part, file);
    if (out && rc)
        unlink(part);
    return rc;
}

static int export_to(struct cmd_store *c, const char *file)
{
    struct archive_count n = {0};
    struct err e = {0};
    char *part;
    if (strcmp(file, "-") == 0 && isatty(STDOUT_FILENO)) {
        fprintf(stderr, "incipit store export: an archive is not for a terminal\n");
        return CMD_USAGE;
    }
    FILE *out = open_out(file, &part, &e);
    int rc = e.code;
    if (out)
        rc = archive_export(c->dir, c->key_file, c->has_model ? &c->model : NULL,
                            c->given[EXPORT_KEY], out, &n, &e);
    rc = close_out(out, file, part, rc, &e);
    free(part);
    if (rc)
        return cmd_store_say(c->self, &e);
    print_count("wrote", &n);
    return n.left_out ? CMD_FAILED : CMD_OK;
}

int cmd_store_export(const struct cmd *self, int argc, char **argv)
{
    struct cmd_store c;
    int status = cmd_store_start(self, argc, argv, 1, &c);
    if (status == CMD_OK && c.n_operands != 1) {
        cmd_usage(self, stderr);
        status = CMD_USAGE;
    }
    if (status == CMD_OK && c.given[EXPORT_MODEL])
        status = cmd_store_model(&c, c.given[EXPORT_MODEL]);
    if (status == CMD_OK)
        status = export_to(&c, argv[1]);
    cmd_store_end(&c);
    return status;
}

static int import_from(struct cmd_store *c, const char *file)
{
    struct archive_count n;
    struct err e = {0};
    FILE *in = strcmp(file, "-") == 0 ? stdin : fopen(file, "rbe");
    if (!in) {
        err_errno(&e, "cannot read %s", file);
        return cmd_store_say(c->self, &e);
    }
    const int rc = archive_import(c->dir, c->key_file, in, &n, &e);
    if (in != stdin)
        fclose(in);
    print_count("took", &n);
    return rc ? cmd_store_say(c->self, &e) : CMD_OK;
}

int cmd_store_import(const struct cmd *self, int argc, char **argv)
{
    struct cmd_store c;
    int status = cmd_store_start(self, argc, argv, 1, &c);
    if (status == CMD_OK && c.n_operands != 1) {
        cmd_usage(self, stderr);
        status = CMD_USAGE;
    }
    if (status == CMD_OK)
        status = import_from(&c, argv[1]);
    cmd_store_end(&c);
    return status;
}
