/* SPDX-License-Identifier: MIT */
#include "io/addr.h"

#include <netinet/in.h>
#include <stdio.h>
#include <string.h>
#include <sys/un.h>

#include "cmocka_all.h"

static struct addr resolved(const char *text)
{
    struct addr a;
    struct err e = {0};
    if (addr_resolve(&a, text, &e) != 0)
        fail_msg("%s", e.text);
    return a;
}

static void assert_refused(const char *text, int code, const char *why)
{
    struct addr a;
    struct err e = {0};
    assert_int_equal(addr_resolve(&a, text, &e), code);
    assert_int_equal(e.code, code);
    if (!strstr(e.text, why))
        fail_msg("\"%s\" does not say \"%s\"", e.text, why);
    assert_int_equal(addr_resolve(&a, text, NULL), code);
}

static void test_addr_resolve_writes_numbers(void **state)
{
    (void)state;
    static const char *const same[] = {"127.0.0.1:8080", "0.0.0.0:1",
                                       "[::1]:65535",    "[::]:9090",
                                       "10.1.2.3:0",     "unix:/run/x.sock"};
    for (size_t i = 0; i < sizeof(same) / sizeof(same[0]); i++)
        assert_string_equal(resolved(same[i]).text, same[i]);
    assert_string_equal(resolved(":80").text, "0.0.0.0:80");
    assert_string_equal(resolved("[0:0:0:0:0:0:0:1]:80").text, "[::1]:80");
}

static void test_addr_resolve_prefers_ipv4_for_a_name(void **state)
{
    (void)state;
    const struct addr a = resolved("localhost:1234");
    assert_string_equal(a.text, "127.0.0.1:1234");
    assert_int_equal(a.sa.ss_family, AF_INET);
    assert_int_equal(a.len, sizeof(struct sockaddr_in));
}

static void test_addr_resolve_takes_only_plain_decimal_ports(void **state)
{
    (void)state;
    static const char *const bad[] = {"h:",      "h:http",       "h: 80",     "h:80 ",
                                      "h:+80",   "h:-1",         "h:0x50",    "h:080",
                                      "h:00",    "h:65536",      "h:99999",   "h:123456",
                                      "h:8o",    "[::1]:",       "h:8080/v1", ":",
                                      "[::1]:x", "h:4294967376", "h:1e3"};
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++)
        assert_refused(bad[i], ERR_INVALID, "the port is a number from 0 to 65535");
}

static void test_addr_resolve_refuses_other_forms(void **state)
{
    (void)state;
    static const char *const bad[] = {"",      "host",    "::1",     "::1:80", "[]:80",
                                      "[::1]", "[::1:80", "[::1]80", "a:b:80"};
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++)
        assert_refused(bad[i], ERR_INVALID, "write HOST:PORT");
    char text[400];
    memset(text, 'h', sizeof(text));
    memcpy(text + 390, ":80", 4);
    assert_refused(text, ERR_INVALID, "write HOST:PORT");
}

static void test_addr_resolve_says_which_name_is_unknown(void **state)
{
    (void)state;
    assert_refused("[not-v6]:80", ERR_NOT_FOUND, "[not-v6]:80");
    assert_refused("[localhost]:80", ERR_NOT_FOUND, "[localhost]:80");
    assert_refused("[127.0.0.1]:80", ERR_NOT_FOUND, "[127.0.0.1]:80");
}

static void test_addr_resolve_limits_the_path_of_a_unix_socket(void **state)
{
    (void)state;
    const size_t max = sizeof(((struct sockaddr_un *)0)->sun_path) - 1;
    char text[256];
    memset(text, 'p', sizeof(text));
    memcpy(text, "unix:/", 6);
    text[5 + max] = '\0';
    assert_string_equal(resolved(text).text, text);
    text[5 + max] = 'p';
    text[5 + max + 1] = '\0';
    assert_refused(text, ERR_INVALID, "108 bytes, at most 107 fit");
    assert_refused("unix:", ERR_INVALID, "the path is missing");
}

static void test_addr_is_loopback_for_this_machine_alone(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        bool loopback;
    } cases[] = {{"127.0.0.1:1", true},
                 {"127.255.255.254:1", true},
                 {"128.0.0.1:1", false},
                 {"10.0.0.127:1", false},
                 {"0.0.0.0:1", false},
                 {"[::1]:1", true},
                 {"[::]:1", false},
                 {"[::2]:1", false},
                 {"[::ffff:127.0.0.1]:1", true},
                 {"[::ffff:10.0.0.1]:1", false},
                 {"[fe80::1]:1", false},
                 {"unix:/x", true}};
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        const struct addr a = resolved(cases[i].text);
        if (addr_is_loopback(&a) != cases[i].loopback)
            fail_msg("%s", cases[i].text);
    }
}

static void test_addr_port_is_that_of_the_address(void **state)
{
    (void)state;
    const struct addr v4 = resolved("127.0.0.1:65535"), v6 = resolved("[::1]:258"),
                      none = resolved("unix:/x");
    assert_int_equal(addr_port(&v4), 65535);
    assert_int_equal(addr_port(&v6), 258);
    assert_int_equal(addr_port(&none), 0);
}

static void test_addr_from_sockaddr_takes_a_peer_without_a_name(void **state)
{
    (void)state;
    struct addr a;
    const struct sockaddr_un un = {.sun_family = AF_UNIX};
    addr_from_sockaddr(&a, (const struct sockaddr *)&un, sizeof(sa_family_t));
    assert_string_equal(a.text, "unix:");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_addr_resolve_writes_numbers),
        cmocka_unit_test(test_addr_resolve_prefers_ipv4_for_a_name),
        cmocka_unit_test(test_addr_resolve_takes_only_plain_decimal_ports),
        cmocka_unit_test(test_addr_resolve_refuses_other_forms),
        cmocka_unit_test(test_addr_resolve_says_which_name_is_unknown),
        cmocka_unit_test(test_addr_resolve_limits_the_path_of_a_unix_socket),
        cmocka_unit_test(test_addr_is_loopback_for_this_machine_alone),
        cmocka_unit_test(test_addr_port_is_that_of_the_address),
        cmocka_unit_test(test_addr_from_sockaddr_takes_a_peer_without_a_name),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
