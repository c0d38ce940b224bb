/* SPDX-License-Identifier: MIT */
#include "gateway/options.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/mem.h"
#include "base/buf.h"
#include "cmocka_all.h"

static struct options o;
static struct err e;

static int start(void **state)
{
    (void)state;
    options_default(&o);
    e = (struct err){0};
    return 0;
}

static int finish(void **state)
{
    (void)state;
    options_free(&o);
    return 0;
}

/* ---- helpers ----------------------------------------------------------------------- */

static void assert_parses(const char *text)
{
    if (options_parse(&o, slice_of(text), "t.yaml", &e) != 0)
        fail_msg("%s\n%s", e.text, text);
}

/* Parsing fails and the message has all of the parts (ended by NULL). */
#define assert_fails(text, ...) check_fails(text, (const char *[]){__VA_ARGS__, NULL})

static void check_fails(const char *text, const char *const *parts)
{
    struct options fresh;
    struct err why = {0};
    options_default(&fresh);
    const int rc = options_parse(&fresh, slice_of(text), "t.yaml", &why);
    options_free(&fresh);
    if (rc == 0)
        fail_msg("is accepted: %s", text);
    assert_int_equal(rc, why.code);
    for (; *parts; parts++)
        if (!strstr(why.text, *parts))
            fail_msg("\"%s\" lacks \"%s\"", why.text, *parts);
}

static char *printed(const struct options *from)
{
    char *text = NULL;
    size_t len = 0;
    FILE *f = open_memstream(&text, &len);
    options_print(from, f);
    fclose(f);
    return text;
}

static char *file_text(const char *path)
{
    FILE *f = fopen(path, "rb");
    assert_non_null(f);
    char *text = mem_zalloc(1 << 16);
    assert_true(fread(text, 1, (1 << 16) - 1, f) > 0);
    fclose(f);
    return text;
}

/* ---- defaults ---------------------------------------------------------------------- */

static void test_options_defaults_are_those_of_the_table(void **state)
{
    (void)state;
    assert_string_equal(o.listen, "127.0.0.1:8090");
    assert_string_equal(o.store_dir, "");
    assert_int_equal(o.n_upstreams, 0);
    assert_int_equal(o.block_tokens, 64);
    assert_int_equal(o.index_max_bytes, 256u << 20);
    assert_int_equal(o.store_max_bytes, 4ull << 30);
    assert_int_equal(o.timeouts_head_ms, 10000);
    assert_int_equal(o.timeouts_first_byte_ms, 30 * 60 * 1000);
    assert_int_equal(o.upstream_pool_idle_ms, 4000);
    assert_int_equal(o.admin_paths, OPTIONS_ADMIN_REFUSE);
    assert_true(o.store_save);
    assert_int_equal(o.log_level, 1);
    assert_int_equal(o.workers, 2);
}

static void test_options_empty_files_change_nothing(void **state)
{
    (void)state;
    static const char *const empty[] = {"",      "\n", "# a comment\n",
                                        "---\n", "{}", "--- \n...\n"};
    char *before = printed(&o);
    for (size_t i = 0; i < sizeof(empty) / sizeof(empty[0]); i++)
        assert_parses(empty[i]);
    char *after = printed(&o);
    assert_string_equal(before, after);
    free(before);
    free(after);
}

/* ---- reading ----------------------------------------------------------------------- */

static void test_options_nested_maps_give_dotted_keys(void **state)
{
    (void)state;
    assert_parses("listen: :9000\n"
                  "admin: {listen: \"unix:/run/x\"}\n"
                  "store:\n"
                  "  dir: /var/lib/x\n"
                  "  save: off\n"
                  "timeouts.head: 1.5s\n"
                  "log:\n"
                  "  level: debug\n");
    assert_string_equal(o.listen, ":9000");
    assert_string_equal(o.admin_listen, "unix:/run/x");
    assert_string_equal(o.store_dir, "/var/lib/x");
    assert_false(o.store_save);
    assert_int_equal(o.timeouts_head_ms, 1500);
    assert_int_equal(o.log_level, 0);
}

static void test_options_upstreams_are_a_list_in_any_order_of_keys(void **state)
{
    (void)state;
    assert_parses("upstreams:\n"
                  "  - slot_dir: /s\n"
                  "    name: a\n"
                  "    url: http://h:1/base\n"
                  "  - url: http://[::1]:2\n"
                  "    driver: openai\n");
    assert_int_equal(o.n_upstreams, 2);
    assert_string_equal(o.upstreams[0].url, "http://h:1/base");
    assert_string_equal(o.upstreams[0].name, "a");
    assert_string_equal(o.upstreams[0].slot_dir, "/s");
    assert_int_equal(o.upstreams[0].driver, OPTIONS_DRIVER_AUTO);
    assert_string_equal(o.upstreams[1].name, "[::1]:2");
    assert_string_equal(o.upstreams[1].slot_dir, "");
    assert_int_equal(o.upstreams[1].driver, OPTIONS_DRIVER_OPENAI);
    assert_int_equal(options_check(&o, &e), 0);
}

static void test_options_upstream_is_short_for_a_list_of_one(void **state)
{
    (void)state;
    assert_parses("upstream: http://127.0.0.1:8080/\n");
    assert_int_equal(o.n_upstreams, 1);
    assert_string_equal(o.upstreams[0].url, "http://127.0.0.1:8080/");
    assert_string_equal(o.upstreams[0].name, "127.0.0.1:8080");
    assert_int_equal(options_set(&o, "upstream", "http://other:1", &e), 0);
    assert_int_equal(o.n_upstreams, 1);
    assert_string_equal(o.upstreams[0].url, "http://other:1");
    assert_int_equal(options_set(&o, "upstreams.slot_dir", "/s", &e), 0);
    assert_string_equal(o.upstreams[0].slot_dir, "/s");
}

static void test_options_a_list_replaces_the_list_before(void **state)
{
    (void)state;
    assert_int_equal(options_set(&o, "upstream", "http://old:1", &e), 0);
    assert_parses("upstreams: [{url: \"http://new:1\"}]");
    assert_int_equal(o.n_upstreams, 1);
    assert_string_equal(o.upstreams[0].name, "new:1");
}

static void test_options_warm_is_a_list(void **state)
{
    (void)state;
    assert_parses("upstream: http://h:1\n"
                  "warm:\n"
                  "  - file: a.txt\n"
                  "  - {name: n, file: b.json, path: /v1/messages, model: m}\n");
    assert_int_equal(o.n_warm, 2);
    assert_string_equal(o.warm[0].file, "a.txt");
    assert_string_equal(o.warm[0].name, "");
    assert_string_equal(o.warm[1].file, "b.json");
    assert_string_equal(o.warm[1].name, "n");
    assert_string_equal(o.warm[1].path, "/v1/messages");
    assert_string_equal(o.warm[1].model, "m");
    assert_int_equal(options_check(&o, &e), 0);
    assert_fails("warm: a.txt\n", "t.yaml:1", "list of maps");
    assert_fails("warm:\n  - name: x\n", "t.yaml:2", "an entry of warm without file");
}

static void test_options_check_looks_at_warm(void **state)
{
    (void)state;
    assert_parses("upstream: http://h:1\nwarm: [{file: a, replica: g}]\n");
    assert_int_equal(options_check(&o, &e), ERR_INVALID);
    assert_non_null(strstr(e.text, "no upstream is named \"g\""));
    e = (struct err){0};
    assert_parses("warm: [{file: a, name: x}, {file: b, name: x}]\n");
    assert_int_equal(options_check(&o, &e), ERR_INVALID);
    assert_non_null(strstr(e.text, "\"x\" is there twice"));
}

static void test_options_tenants_are_a_list_as_well(void **state)
{
    (void)state;
    assert_parses("isolation: header:X-Team\n"
                  "store: {ttl: 1d}\n"
                  "tenants:\n"
                  "- ttl: 1h\n"
                  "  name: a\n"
                  "  match: blue team\n"
                  "- name: b\n"
                  "upstream: http://h:1\n");
    assert_int_equal(o.n_tenants, 2);
    assert_string_equal(o.tenants[0].name, "a");
    assert_string_equal(o.tenants[0].match, "blue team");
    assert_int_equal(o.tenants[0].ttl_ms, 3600000);
    assert_string_equal(o.tenants[1].match, "");
    assert_int_equal(o.tenants[1].ttl_ms, 0);
    assert_int_equal(options_isolation(&o), OPTIONS_HEADER);
    assert_int_equal(options_check(&o, &e), 0);
    char *first = printed(&o);
    assert_non_null(strstr(first, "tenants:\n  - name: \"a\"\n"));
    assert_parses(first);
    char *second = printed(&o);
    assert_string_equal(first, second);
    free(first);
    free(second);
    assert_parses("tenants:\n"); /* nothing behind it: none */
    assert_int_equal(o.n_tenants, 0);
    assert_fails("tenants: x\n", "is a list of maps");
    assert_fails("tenants:\n- ttl: 1h\n", "t.yaml:2:", "a tenant without name");
    assert_fails("isolation: \"header:\"\n", "no way to tell tenants apart");
    assert_fails("isolation: header:a b\n", "allowed: shared, salt");
    assert_fails("isolation: none\n", "header:NAME");
}

static void assert_check_says(const char *text, const char *part)
{
    struct err why = {0};
    options_free(&o);
    options_default(&o);
    assert_parses(text);
    assert_int_not_equal(options_check(&o, &why), 0);
    if (!strstr(why.text, part))
        fail_msg("\"%s\" lacks \"%s\"", why.text, part);
}

static void test_options_tenants_can_be_told_apart(void **state)
{
    (void)state;
    const char *sum = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef";
    char *good = mem_printf("upstream: http://h:1\ntenants: [{name: a, match: %s}, "
                            "{name: b}]\n",
                            sum);
    assert_parses(good);
    assert_int_equal(options_check(&o, &e), 0);
    free(good);
    assert_check_says("upstream: http://h:1\ntenants: [{name: a, match: key}]\n",
                      "sha256sum");
    assert_check_says("upstream: http://h:1\nisolation: shared\ntenants: [{name: a}]\n",
                      "isolation: shared");
    assert_check_says("upstream: http://h:1\ntenants: [{name: a}, {name: b}]\n",
                      "\"a\" and \"b\" are one");
    assert_check_says("upstream: http://h:1\nisolation: salt\n"
                      "tenants: [{name: a, match: x}, {name: a, match: y}]\n",
                      "there twice");
    assert_check_says("upstream: http://h:1\nisolation: salt\n"
                      "tenants: [{name: a, ttl: 1h}, {name: b, ttl: 2h, match: b}, "
                      "{name: c, ttl: 3h, match: c}, {name: d, ttl: 4h, match: d}, "
                      "{name: e, ttl: 5h, match: e}, {name: f, ttl: 6h, match: f}, "
                      "{name: g, ttl: 7h, match: g}, {name: h, ttl: 8h, match: h}]\n",
                      "more than 8 different times");
}

static void test_options_null_is_empty(void **state)
{
    (void)state;
    assert_int_equal(options_set(&o, "store.dir", "/x", &e), 0);
    assert_parses("store: {dir: ~}");
    assert_string_equal(o.store_dir, "");
    assert_parses("store:\n  dir:\n");
    assert_string_equal(o.store_dir, "");
    assert_parses("store: {dir: \"~\"}");
    assert_string_equal(o.store_dir, "~");
}

static void test_options_switches_know_what_people_write(void **state)
{
    (void)state;
    static const char *const on[] = {"on", "true", "yes"}, *const off[] = {"off", "false",
                                                                           "no"};
    for (int i = 0; i < 3; i++) {
        assert_int_equal(options_set(&o, "store.save", off[i], &e), 0);
        assert_false(o.store_save);
        assert_int_equal(options_set(&o, "store.save", on[i], &e), 0);
        assert_true(o.store_save);
    }
    assert_int_equal(options_set(&o, "store.save", "On", &e), ERR_INVALID);
}

/* ---- errors ------------------------------------------------------------------------ */

static void test_options_unknown_keys_name_line_and_nearest(void **state)
{
    (void)state;
    assert_fails("\nlisten: :1\nlisen: :2\n", "t.yaml:3:", "\"lisen\"",
                 "mean \"listen\"");
    assert_fails("store:\n  dri: /x\n", "t.yaml:2:", "mean \"store.dir\"");
    assert_fails("stor: {dir: /x}\n", "t.yaml:1:", "unknown key \"stor\"");
    assert_fails("upstreams:\n- url: http://h:1\n  nmae: x\n",
                 "t.yaml:3:", "mean \"upstreams.name\"");
    assert_fails("zzzzzzzzzzzz: 1\n", "unknown key");
    assert_fails("store: {dir: {x: y}}\n", "\"store.dir\" takes one value");
    assert_fails("<<: {listen: :1}\n", "unknown key");
}

static void test_options_duplicate_keys_are_errors(void **state)
{
    (void)state;
    assert_fails("listen: :1\nlisten: :1\n", "t.yaml:2:", "\"listen\" is given twice");
    assert_fails("store: {dir: /a, dir: /b}\n", "\"store.dir\" is given twice");
    assert_fails("store: {dir: /a}\nstore: {save: on}\n", "t.yaml:2:", "given twice");
    assert_fails("store: {dir: /a}\nstore.dir: /b\n", "t.yaml:2:", "given twice");
    assert_fails("upstreams:\n- url: http://h:1\n  url: http://h:2\n",
                 "t.yaml:3:", "twice");
    assert_fails("upstreams: []\nupstreams: []\n", "t.yaml:2:", "twice");
    assert_fails("upstream: http://h:1\nupstreams: []\n", "keep one");
}

static void test_options_wrong_types_say_what_is_right(void **state)
{
    (void)state;
    assert_fails("block_tokens: many\n", "t.yaml:1:", "\"many\" is no", "16 to 512");
    assert_fails("block_tokens: 96\n", "power of two");
    assert_fails("store: {max_bytes: 4G}\n", "size like 64MiB", "1MiB to 1024TiB");
    assert_fails("measure: {holdout: 5}\n", "share like 5%", "0% to 50%");
    assert_fails("measure: {holdout: 50.01%}\n", "out of range", "0% to 50%");
    assert_fails("measure: {holdout: 0.125%}\n", "share like 5%", "0% to 50%");
    assert_fails("timeouts:\n  head: 10\n", "t.yaml:2:", "time like 30s", "10ms to 7d");
    assert_fails("log: {level: loud}\n", "debug, info, warn, error");
    assert_fails("store: {save: maybe}\n", "on, off");
    assert_fails("workers: -1\n", "whole number");
    assert_fails("workers: 1.5\n", "whole number");
    assert_fails("workers:\n", "whole number");
    assert_fails("workers: [1]\n", "takes one value, not a list");
    assert_fails("workers: {a: 1}\n", "takes one value, not a map");
    assert_fails("store: 5\n", "\"store\" is a map of keys");
    assert_fails("store: [5]\n", "not a list");
    assert_fails("upstreams: http://h:1\n", "is a list of maps");
    assert_fails("upstreams: {url: http://h:1}\n", "write a dash");
    assert_fails("upstreams: [http://h:1]\n", "is a map with url");
    assert_fails("upstreams:\n- name: x\n", "t.yaml:2:", "without url");
    assert_fails("upstreams.url: http://h:1\n", "belongs into a list");
    assert_fails("upstreams: [{url: [x]}]\n", "takes one value");
    assert_fails("- listen\n", "is a map");
    assert_fails("listen\n", "is a map");
    assert_fails("[a]: b\n", "a key is a plain word");
    assert_fails("listen: &a :1\nadmin: {listen: *a}\n", "aliases");
    assert_fails("listen: :1\n---\nlisten: :2\n", "second document");
    assert_fails("listen: \"a\\0b:1\"\n", "NUL byte");
    assert_fails("listen: \"a\\nb:1\"\n", "control characters");
}

static void test_options_broken_yaml_names_the_line(void **state)
{
    (void)state;
    assert_fails("listen: :1\nstore: {dir: x\n", "t.yaml:3:");
    assert_fails("listen: :1\n\tstore: x\n", "t.yaml:2:");
    assert_fails("listen: \"x\n", "t.yaml:");
    assert_fails("\xff\xfe\xfd", "t.yaml:");
}

static void test_options_addresses_are_checked(void **state)
{
    (void)state;
    static const char *const good[] = {"127.0.0.1:0", ":65535", "[::1]:80",
                                       "unix:/run/i.sock", "localhost:1"};
    static const char *const bad[] = {"",    "127.0.0.1", "h:",           "h:65536",
                                      "h:x", "::1:80",    "unix:relative"};
    for (size_t i = 0; i < sizeof(good) / sizeof(good[0]); i++)
        assert_int_equal(options_set(&o, "listen", good[i], NULL), 0);
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++)
        assert_true(options_set(&o, "listen", bad[i], NULL) < 0);
    assert_string_equal(o.listen, "localhost:1");
    assert_int_equal(options_set(&o, "admin.listen", "", &e), 0);
}

static void test_options_urls_are_checked(void **state)
{
    (void)state;
    static const char *const bad[] = {
        "h:1",        "http:/",      "http://",     "http://:80", "http:///x",
        "http://a b", "http://h/?q", "http://h/#f", "ftp://h",    "http://u:p@h:1",
        "https://",   "https://:1",  "unix:x",      "unix:",      "HTTP://h:1",
        "h",          "http://h\n"};
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++)
        if (options_set(&o, "upstreams.url", bad[i], NULL) == 0)
            fail_msg("is accepted: %s", bad[i]);
    assert_int_equal(options_set(&o, "upstreams.url", "", NULL), ERR_LIMIT);
    assert_int_equal(o.n_upstreams, 0);
}

static void test_options_urls_name_upstreams(void **state)
{
    (void)state;
    static const char *const rows[][2] = {{"http://h:1/x", "h:1"},
                                          {"https://h.example/x", "h.example"},
                                          {"https://[::1]:8", "[::1]:8"},
                                          {"unix:/run/a b/llama.sock", "llama.sock"},
                                          {"unix:/run/a b", "a-b"}};
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        assert_int_equal(options_set(&o, "upstream", rows[i][0], NULL), 0);
        assert_string_equal(o.upstreams[0].name, rows[i][1]);
        assert_int_equal(options_check(&o, &e), 0);
    }
}

/* The path of a socket has 107 bytes at most. */
static void test_options_unix_paths_are_not_too_long(void **state)
{
    (void)state;
    char url[160] = "unix:/";
    memset(url + 6, 'x', 106);
    assert_int_equal(options_set(&o, "upstream", url, NULL), 0);
    assert_int_equal(options_set(&o, "listen", url, NULL), 0);
    url[6 + 106] = 'x';
    assert_int_equal(options_set(&o, "upstream", url, &e), ERR_INVALID);
    assert_non_null(strstr(e.text, "108 bytes, at most 107 fit"));
    assert_int_equal(options_set(&o, "admin.listen", url, NULL), ERR_INVALID);
}

static void test_options_modes_are_octal(void **state)
{
    (void)state;
    static const char *const bad[] = {"", "66", "0888", "1777", "rw", "06600", "-660"};
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++)
        if (options_set(&o, "listen_mode", bad[i], NULL) == 0)
            fail_msg("is accepted: %s", bad[i]);
    assert_int_equal(options_set(&o, "listen_mode", "0777", NULL), 0);
    assert_int_equal(o.listen_mode, 0777);
    assert_int_equal(options_set(&o, "listen_mode", "600", NULL), 0);
    assert_int_equal(o.listen_mode, 0600);
}

static void test_options_of_TLS_are_for_https(void **state)
{
    (void)state;
    assert_int_equal(options_set(&o, "upstream", "http://h:1", NULL), 0);
    assert_int_equal(options_set(&o, "upstreams.tls_verify", "off", NULL), 0);
    assert_int_equal(options_check(&o, &e), ERR_INVALID);
    assert_non_null(strstr(e.text, "is not https://"));
    e = (struct err){0};
    assert_int_equal(options_set(&o, "upstream", "https://h:1", NULL), 0);
    assert_true(o.upstreams[0].tls_verify);
    assert_int_equal(options_set(&o, "upstreams.tls_cert_file", "c", NULL), 0);
    assert_int_equal(options_check(&o, &e), ERR_INVALID);
    e = (struct err){0};
    assert_int_equal(options_set(&o, "upstreams.tls_key_file", "k", NULL), 0);
    assert_int_equal(options_check(&o, &e), 0);
}

static void test_options_names_go_into_metrics_and_are_plain(void **state)
{
    (void)state;
    assert_int_equal(options_set(&o, "upstreams.name", "a", &e), ERR_INVALID);
    assert_int_equal(options_set(&o, "upstream", "http://h:1", NULL), 0);
    assert_int_equal(options_set(&o, "upstreams.name", "gpu-0.b_c:1", NULL), 0);
    assert_int_equal(options_set(&o, "upstreams.name", "a b", NULL), ERR_INVALID);
    assert_int_equal(options_set(&o, "upstreams.name", "a\"", NULL), ERR_INVALID);
    assert_string_equal(o.upstreams[0].name, "gpu-0.b_c:1");
}

static void test_options_too_many_upstreams_are_refused(void **state)
{
    (void)state;
    char url[64];
    for (int i = 0; i < OPTIONS_MAX_UPSTREAMS; i++) {
        snprintf(url, sizeof(url), "http://h:%d", i);
        assert_int_equal(options_set(&o, "upstreams.url", url, &e), 0);
    }
    assert_int_equal(options_set(&o, "upstreams.url", "http://h:999", &e), ERR_LIMIT);
    assert_int_equal(o.n_upstreams, OPTIONS_MAX_UPSTREAMS);
}

static void test_options_long_texts_are_refused_at_the_limit(void **state)
{
    (void)state;
    char path[1026];
    memset(path, 'x', sizeof(path));
    path[1025] = '\0';
    assert_int_equal(options_set(&o, "store.dir", path, NULL), ERR_LIMIT);
    path[1024] = '\0';
    assert_int_equal(options_set(&o, "store.dir", path, NULL), 0);
}

static void test_options_an_error_leaves_the_value(void **state)
{
    (void)state;
    assert_int_equal(options_set(&o, "workers", "0", &e), ERR_INVALID);
    assert_int_equal(o.workers, 2);
    struct err late = {0};
    assert_true(options_parse(&o, slice_of("workers: 5\nbogus: 1\n"), "t", &late) < 0);
    assert_int_equal(o.workers, 5);
}

/* ---- limits: each number at both edges --------------------------------------------- */

/* The two ends of "MIN to MAX". */
static void split_limits(const char *limits, char low[32], char high[32])
{
    const char *to = strstr(limits, " to ");
    assert_non_null(to);
    snprintf(low, 32, "%.*s", (int)(to - limits), limits);
    snprintf(high, 32, "%s", to + 4);
}

/* `text` with its number changed by `by`; in the smallest unit where it has one. */
static char *beyond(const char *text, int by)
{
    char *end;
    const uint64_t n = strtoull(text, &end, 10);
    static const struct {
        const char *unit, *small;
        uint64_t factor;
    } units[] = {{"", "", 1},           {"ms", "ms", 1},
                 {"s", "ms", 1000},     {"m", "ms", 60000},
                 {"h", "ms", 3600000},  {"d", "ms", 86400000},
                 {"KiB", "", 1024},     {"MiB", "", 1u << 20},
                 {"GiB", "", 1u << 30}, {"TiB", "", 1ull << 40}};
    for (size_t i = 0; i < sizeof(units) / sizeof(units[0]); i++)
        if (strcmp(end, units[i].unit) == 0)
            return mem_printf("%" PRIu64 "%s", n * units[i].factor + (uint64_t)by,
                              units[i].small);
    fail_msg("unit of %s", text);
    return NULL;
}

static void test_options_every_number_is_limited_at_both_ends(void **state)
{
    (void)state;
    struct options_info info;
    int numbers = 0;
    assert_int_equal(options_set(&o, "tenants.name", "one", &e), 0);
    for (size_t i = 0; options_info(i, &info); i++) {
        if (!strstr("number power of two size time", info.type))
            continue;
        char low[32], high[32];
        split_limits(info.limits, low, high);
        assert_int_equal(options_set(&o, info.key, low, &e), 0);
        assert_int_equal(options_set(&o, info.key, high, &e), 0);
        char *over = beyond(high, 1), *under = beyond(low, -1);
        assert_int_equal(options_set(&o, info.key, over, NULL), ERR_INVALID);
        if (low[0] != '0')
            assert_int_equal(options_set(&o, info.key, under, NULL), ERR_INVALID);
        free(over);
        free(under);
        numbers++;
    }
    assert_true(numbers >= 20);
}

/* ---- whole configurations ---------------------------------------------------------- */

static void test_options_check_needs_an_upstream(void **state)
{
    (void)state;
    assert_int_equal(options_check(&o, &e), ERR_INVALID);
    assert_non_null(strstr(e.text, "--upstream URL"));
}

static void test_options_check_refuses_what_is_there_twice(void **state)
{
    (void)state;
    assert_parses("upstreams: [{url: http://a:1, name: x}, {url: http://b:1, name: x}]");
    assert_int_equal(options_check(&o, NULL), ERR_INVALID);
    assert_parses("upstreams: [{url: http://a:1, name: x}, {url: http://a:1, name: y}]");
    assert_int_equal(options_check(&o, NULL), ERR_INVALID);
    assert_parses("upstreams: [{url: http://a:1, name: x}, {url: http://b:1, name: y}]");
    assert_int_equal(options_check(&o, NULL), 0);
    assert_parses("listen: 127.0.0.1:8091");
    assert_int_equal(options_check(&o, NULL), ERR_INVALID);
    assert_parses("listen: 127.0.0.1:0\nadmin: {listen: 127.0.0.1:0}");
    assert_int_equal(options_check(&o, NULL), 0);
}

static void note_key(void *arg, const char *key)
{
    buf_printf(arg, "%s ", key);
}

static void assert_settles(const char *running_text, const char *fresh_text,
                           const char *named)
{
    struct options running, fresh;
    struct buf keys = {0};
    options_default(&running);
    options_default(&fresh);
    assert_int_equal(options_parse(&running, slice_of(running_text), "a", &e), 0);
    assert_int_equal(options_parse(&fresh, slice_of(fresh_text), "b", &e), 0);
    options_settle(&fresh, &running, note_key, &keys);
    char *got = buf_take_str(&keys);
    assert_string_equal(got, named);
    free(got);
    assert_int_equal(fresh.block_tokens, running.block_tokens);
    assert_int_equal(fresh.n_warm, running.n_warm);
    for (size_t i = 0; i < fresh.n_warm; i++)
        assert_string_equal(fresh.warm[i].file, running.warm[i].file);
    options_free(&running);
    options_free(&fresh);
}

static void test_options_settle_puts_back_what_needs_a_restart(void **state)
{
    (void)state;
    assert_settles("block_tokens: 64", "limits: {queue: 1}\ntenants: [{name: t}]", "");
    assert_settles("block_tokens: 128", "block_tokens: 64\nlisten: 127.0.0.1:1",
                   "listen block_tokens ");
    assert_settles("warm: [{file: a}, {file: b}]", "warm: [{file: a}]", "warm ");
    assert_settles("warm: [{file: a}]", "warm: [{file: b}]", "warm ");
    assert_settles("warm: [{file: a}]", "warm: [{file: a}]", "");
    assert_settles("upstreams: [{url: http://a:1, name: x}]",
                   "upstreams: [{url: http://b:1}, {url: http://a:1, name: y, driver: "
                   "openai, credentials: remove}]",
                   "upstreams.name upstreams.driver ");
}

static void test_options_print_reads_back_the_same(void **state)
{
    (void)state;
    assert_parses("upstreams: [{url: http://a:1, slot_dir: 'it\"s \\ here: #x'}, {url: "
                  "http://b:1}]\n"
                  "store: {max_bytes: 1048577, dir: \"/grün ~\"}\n"
                  "timeouts: {head: 61s, drain: 0}\n"
                  "log: {level: error, access: off}\n");
    char *before = printed(&o);
    struct options again;
    options_default(&again);
    assert_int_equal(options_parse(&again, slice_of(before), "printed", &e), 0);
    char *after = printed(&again);
    assert_string_equal(before, after);
    assert_string_equal(again.upstreams[0].slot_dir, "it\"s \\ here: #x");
    assert_int_equal(again.store_max_bytes, 1048577);
    assert_int_equal(again.timeouts_head_ms, 61000);
    assert_non_null(strstr(before, "  head: 61s\n"));
    free(before);
    free(after);
    options_free(&again);
}

/* ---- files ------------------------------------------------------------------------- */

static void test_options_load_names_the_file(void **state)
{
    (void)state;
    assert_int_equal(options_load(&o, "no/such/file.yaml", &e), ERR_IO);
    assert_non_null(strstr(e.text, "no/such/file.yaml"));
    assert_non_null(strstr(e.text, "No such file"));
    struct err dir = {0};
    assert_int_equal(options_load(&o, "/", &dir), ERR_IO);
}

static void test_options_load_refuses_huge_files(void **state)
{
    (void)state;
    char path[] = "/tmp/incipit-options-XXXXXX";
    const int fd = mkstemp(path);
    assert_true(fd >= 0);
    assert_int_equal(ftruncate(fd, (off_t)OPTIONS_MAX_FILE + 1), 0);
    close(fd);
    const int rc = options_load(&o, path, &e);
    unlink(path);
    assert_int_equal(rc, ERR_LIMIT);
}

static void test_options_full_example_holds_all_defaults(void **state)
{
    (void)state;
    if (options_load(&o, "conf/incipit.yaml", &e) != 0)
        fail_msg("%s", e.text);
    assert_int_equal(options_check(&o, &e), 0);
    struct options plain;
    options_default(&plain);
    assert_int_equal(options_set(&plain, "upstream", "http://127.0.0.1:8080", &e), 0);
    char *from_file = printed(&o), *from_table = printed(&plain);
    assert_string_equal(from_file, from_table);
    free(from_file);
    free(from_table);
    options_free(&plain);
}

static void test_options_minimal_example_is_right(void **state)
{
    (void)state;
    if (options_load(&o, "conf/minimal.yaml", &e) != 0)
        fail_msg("%s", e.text);
    assert_int_equal(options_check(&o, &e), 0);
}

/* The row of a key in the documentation is exactly what the table says. */
static void test_options_documentation_agrees_with_the_table(void **state)
{
    (void)state;
    char *docs = file_text("docs/configuration.md");
    struct options_info info;
    for (size_t i = 0; options_info(i, &info); i++) {
        char *row = mem_printf("| `%s` | %s | %s%s%s | %s | %s |\n", info.key, info.type,
                               *info.fallback ? "`" : "", info.fallback,
                               *info.fallback ? "`" : "", info.limits, info.help);
        if (!strstr(docs, row))
            fail_msg("docs/configuration.md lacks the row\n%s", row);
        free(row);
    }
    free(docs);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, start, finish)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(test_options_defaults_are_those_of_the_table),
        TEST(test_options_empty_files_change_nothing),
        TEST(test_options_nested_maps_give_dotted_keys),
        TEST(test_options_upstreams_are_a_list_in_any_order_of_keys),
        TEST(test_options_upstream_is_short_for_a_list_of_one),
        TEST(test_options_a_list_replaces_the_list_before),
        TEST(test_options_warm_is_a_list),
        TEST(test_options_check_looks_at_warm),
        TEST(test_options_tenants_are_a_list_as_well),
        TEST(test_options_tenants_can_be_told_apart),
        TEST(test_options_null_is_empty),
        TEST(test_options_switches_know_what_people_write),
        TEST(test_options_unknown_keys_name_line_and_nearest),
        TEST(test_options_duplicate_keys_are_errors),
        TEST(test_options_wrong_types_say_what_is_right),
        TEST(test_options_broken_yaml_names_the_line),
        TEST(test_options_addresses_are_checked),
        TEST(test_options_urls_are_checked),
        TEST(test_options_urls_name_upstreams),
        TEST(test_options_unix_paths_are_not_too_long),
        TEST(test_options_modes_are_octal),
        TEST(test_options_of_TLS_are_for_https),
        TEST(test_options_names_go_into_metrics_and_are_plain),
        TEST(test_options_too_many_upstreams_are_refused),
        TEST(test_options_long_texts_are_refused_at_the_limit),
        TEST(test_options_an_error_leaves_the_value),
        TEST(test_options_every_number_is_limited_at_both_ends),
        TEST(test_options_check_needs_an_upstream),
        TEST(test_options_check_refuses_what_is_there_twice),
        TEST(test_options_settle_puts_back_what_needs_a_restart),
        TEST(test_options_print_reads_back_the_same),
        TEST(test_options_load_names_the_file),
        TEST(test_options_load_refuses_huge_files),
        TEST(test_options_full_example_holds_all_defaults),
        TEST(test_options_minimal_example_is_right),
        TEST(test_options_documentation_agrees_with_the_table),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
