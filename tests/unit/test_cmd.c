/* SPDX-License-Identifier: MIT */
#include "cmd/cmd.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cmocka_all.h"
#include "gateway/gateway.h"

/* Stands for the gateway: notes the configuration it was started with. */
static char started_with[1 << 14];
static int gateway_status;

int gateway_run(const struct options *o, const struct gateway_source *source)
{
    (void)source;
    FILE *f = fmemopen(started_with, sizeof(started_with), "w");
    options_print(o, f);
    fclose(f);
    return gateway_status;
}

/* ---- running a command with its output caught -------------------------------------- */

static char out[1 << 14], err_text[1 << 14];

static void redirect(int fd, FILE *to, int *saved)
{
    fflush(NULL);
    *saved = dup(fd);
    assert_true(dup2(fileno(to), fd) >= 0);
}

static void restore(int fd, int saved, FILE *from, char *text, size_t size)
{
    fflush(NULL);
    dup2(saved, fd);
    close(saved);
    rewind(from);
    text[fread(text, 1, size - 1, from)] = '\0';
    fclose(from);
}

#define run(...) run_words((const char *[]){"incipit", __VA_ARGS__, NULL})

static int run_words(const char **words)
{
    char *argv[16] = {NULL};
    int argc = 0, saved_out, saved_err;
    for (; words[argc]; argc++)
        argv[argc] = strdup(words[argc]);
    char *owned[16];
    memcpy(owned, argv, sizeof(owned));
    FILE *to_out = tmpfile(), *to_err = tmpfile();
    started_with[0] = '\0';
    redirect(STDOUT_FILENO, to_out, &saved_out);
    redirect(STDERR_FILENO, to_err, &saved_err);
    const int status = cmd_main(argc, argv);
    restore(STDERR_FILENO, saved_err, to_err, err_text, sizeof(err_text));
    restore(STDOUT_FILENO, saved_out, to_out, out, sizeof(out));
    for (int i = 0; i < argc; i++)
        free(owned[i]);
    return status;
}

static void assert_has(const char *text, const char *part)
{
    if (!strstr(text, part))
        fail_msg("\"%s\" lacks \"%s\"", text, part);
}

/* ---- tests ------------------------------------------------------------------------- */

static void test_cmd_serve_needs_nothing_but_an_upstream(void **state)
{
    (void)state;
    assert_int_equal(run("serve", "--upstream", "http://127.0.0.1:8080"), CMD_OK);
    assert_has(started_with, "url: \"http://127.0.0.1:8080\"");
    assert_has(started_with, "listen: \"127.0.0.1:8090\"");
    assert_string_equal(err_text, "");
}

static void test_cmd_serve_flags_are_stronger_than_the_file(void **state)
{
    (void)state;
    assert_int_equal(run("serve", "--config=conf/incipit.yaml", "--listen", ":1"),
                     CMD_OK);
    assert_has(started_with, "listen: \":1\"");
    assert_has(started_with, "url: \"http://127.0.0.1:8080\"");
    assert_int_equal(
        run("serve", "--upstream=http://h:2/b", "--config", "conf/minimal.yaml"), CMD_OK);
    assert_has(started_with, "url: \"http://h:2/b\"");
    assert_has(started_with, "dir: \"/var/lib/incipit\"");
}

static void test_cmd_serve_flags_come_in_any_order(void **state)
{
    (void)state;
    assert_int_equal(run("serve", "--slot-dir", "/s", "--store-dir=/b", "--admin", ":2",
                         "--upstream", "http://h:1"),
                     CMD_OK);
    assert_has(started_with, "slot_dir: \"/s\"");
    assert_has(started_with, "dir: \"/b\"");
    assert_has(started_with, "listen: \":2\"");
}

static void test_cmd_serve_refuses_wrong_calls(void **state)
{
    (void)state;
    assert_int_equal(run("serve"), CMD_USAGE);
    assert_has(err_text, "no upstream");
    assert_int_equal(run("serve", "--upstrem", "http://h:1"), CMD_USAGE);
    assert_has(err_text, "unknown flag --upstrem; did you mean --upstream?");
    assert_int_equal(run("serve", "--upstream"), CMD_USAGE);
    assert_has(err_text, "a value is missing behind --upstream");
    assert_int_equal(run("serve", "--upstream=http://h:1", "--upstream=http://h:2"),
                     CMD_USAGE);
    assert_has(err_text, "given twice: --upstream");
    assert_int_equal(run("serve", "--upstream=h:1"), CMD_USAGE);
    assert_has(err_text, "--upstream: upstream: \"h:1\" is no URL");
    assert_int_equal(run("serve", "--slot-dir=/s"), CMD_USAGE);
    assert_has(err_text, "there is no upstream");
    assert_int_equal(run("serve", "conf.yaml"), CMD_USAGE);
    assert_has(err_text, "\"conf.yaml\" is no flag");
    assert_int_equal(run("serve", "--zzz=1"), CMD_USAGE);
    assert_has(err_text, "unknown flag --zzz\n");
    assert_string_equal(started_with, "");
}

static void test_cmd_serve_passes_failures_on(void **state)
{
    (void)state;
    assert_int_equal(run("serve", "--config", "no/such.yaml"), CMD_FAILED);
    assert_has(err_text, "no/such.yaml");
    gateway_status = ERR_IO;
    assert_int_equal(run("serve", "--upstream=http://h:1"), CMD_FAILED);
    gateway_status = 0;
}

static void test_cmd_check_says_right_or_what_is_wrong(void **state)
{
    (void)state;
    assert_int_equal(run("check", "conf/incipit.yaml"), CMD_OK);
    assert_string_equal(out, "conf/incipit.yaml: right\n");
    assert_int_equal(run("check", "tests/data/config/typo.yaml"), CMD_FAILED);
    assert_has(err_text,
               "typo.yaml:4: unknown key \"store.dri\"; did you mean \"store.dir\"?");
    assert_int_equal(run("check", "tests/data/config/no-upstream.yaml"), CMD_FAILED);
    assert_has(err_text, "no-upstream.yaml: no upstream");
    assert_int_equal(run("check"), CMD_USAGE);
    assert_has(err_text, "usage: incipit check [FLAG…] FILE");
    assert_int_equal(run("check", "a", "b"), CMD_USAGE);
}

static void test_cmd_check_prints_the_effective_configuration(void **state)
{
    (void)state;
    assert_int_equal(run("check", "conf/minimal.yaml", "--print"), CMD_OK);
    assert_has(out, "slot_dir: \"/dev/shm/slots\"");
    assert_has(out, "  queue: 256\n");
    assert_int_equal(run("check", "--print=yes", "conf/minimal.yaml"), CMD_USAGE);
    assert_has(err_text, "takes no value: --print");
}

static void test_cmd_dashes_end_the_flags(void **state)
{
    (void)state;
    assert_int_equal(run("check", "--", "--print"), CMD_FAILED);
    assert_has(err_text, "--print: No such file");
}

static void test_cmd_version_names_the_libraries(void **state)
{
    (void)state;
    assert_int_equal(run("version"), CMD_OK);
    assert_has(out, "incipit 0.1.0\nlibevent 2.");
    assert_has(out, "llhttp ");
    assert_int_equal(run("--version"), CMD_OK);
    assert_int_equal(run("version", "x"), CMD_USAGE);
}

static void test_cmd_help_knows_every_command_and_flag(void **state)
{
    (void)state;
    assert_int_equal(run("help"), CMD_OK);
    const struct cmd *c;
    for (size_t i = 0; (c = cmd_at(i)); i++) {
        assert_int_equal(run("help"), CMD_OK);
        assert_has(out, c->help);
        assert_int_equal(run("help", c->name), CMD_OK);
        assert_has(out, c->help);
        for (const struct cmd_flag *f = c->flags; f && f->name; f++)
            assert_has(out, f->name);
        assert_int_equal(run(c->name, "--help"), CMD_OK);
    }
    assert_int_equal(run("--help"), CMD_OK);
    assert_int_equal(run("help", "nothing"), CMD_USAGE);
}

static void test_cmd_names_may_have_two_words(void **state)
{
    (void)state;
    assert_int_equal(run("lab", "serve", "--help"), CMD_OK);
    assert_has(out, "usage: incipit lab serve [FLAG…]");
    assert_int_equal(run("help", "lab", "serve"), CMD_OK);
    assert_has(out, "--slot-save-path");
    assert_int_equal(run("help", "lab", "swerve"), CMD_USAGE);
    assert_has(err_text, "there is no command \"lab swerve\"");
}

static void test_cmd_lab_serve_refuses_wrong_calls(void **state)
{
    (void)state;
    assert_int_equal(run("lab", "serve", "now"), CMD_USAGE);
    assert_has(err_text, "incipit lab serve: \"now\" is no flag");
    assert_int_equal(run("lab", "serve", "--slots", "0"), CMD_USAGE);
    assert_has(err_text, "--slots wants a number from 1 to 64");
    assert_int_equal(run("lab", "serve", "--state-version", "3"), CMD_USAGE);
    assert_has(err_text, "state versions are 2 and 4");
    assert_int_equal(run("lab", "serve", "--slot-save-path", "/nowhere"), CMD_USAGE);
    assert_has(err_text, "/nowhere is no directory");
    assert_int_equal(run("lab", "serve", "--misbehave", "cut,late,resets"), CMD_USAGE);
    assert_has(err_text, "did you mean \"reset\"?");
    assert_int_equal(run("lab", "serve", "--listen", "127.0.0.1"), CMD_FAILED);
}

static void test_cmd_unknown_commands_are_refused(void **state)
{
    (void)state;
    assert_int_equal(run("sreve"), CMD_USAGE);
    assert_int_equal(run("serv"), CMD_USAGE);
    assert_has(err_text, "unknown command \"serv\"; did you mean \"serve\"?");
    assert_int_equal(run_words((const char *[]){"incipit", NULL}), CMD_USAGE);
    assert_has(err_text, "usage: incipit COMMAND");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_cmd_serve_needs_nothing_but_an_upstream),
        cmocka_unit_test(test_cmd_serve_flags_are_stronger_than_the_file),
        cmocka_unit_test(test_cmd_serve_flags_come_in_any_order),
        cmocka_unit_test(test_cmd_serve_refuses_wrong_calls),
        cmocka_unit_test(test_cmd_serve_passes_failures_on),
        cmocka_unit_test(test_cmd_check_says_right_or_what_is_wrong),
        cmocka_unit_test(test_cmd_check_prints_the_effective_configuration),
        cmocka_unit_test(test_cmd_dashes_end_the_flags),
        cmocka_unit_test(test_cmd_version_names_the_libraries),
        cmocka_unit_test(test_cmd_help_knows_every_command_and_flag),
        cmocka_unit_test(test_cmd_names_may_have_two_words),
        cmocka_unit_test(test_cmd_lab_serve_refuses_wrong_calls),
        cmocka_unit_test(test_cmd_unknown_commands_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
