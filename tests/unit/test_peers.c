/* SPDX-License-Identifier: MIT */
#include "wire/peers.h"

#include <stdio.h>

#include "cmocka_all.h"

static struct addr at(const char *text)
{
    struct addr a;
    struct err e = {0};
    if (addr_resolve(&a, text, &e) != 0)
        fail_msg("%s", e.text);
    return a;
}

static struct peers_client *enter(struct peers *p, const char *text, unsigned max,
                                  bool *full)
{
    const struct addr a = at(text);
    return peers_enter(p, &a, max, full);
}

static void test_limit_is_of_each_client(void **state)
{
    (void)state;
    struct peers *p = peers_new();
    bool full;
    struct peers_client *a = enter(p, "192.0.2.1:1", 2, &full);
    assert_non_null(a);
    assert_ptr_equal(enter(p, "192.0.2.1:2", 2, &full), a); /* the port says nothing */
    assert_false(full);
    assert_null(enter(p, "192.0.2.1:3", 2, &full));
    assert_true(full);
    struct peers_client *b = enter(p, "192.0.2.2:1", 2, &full);
    assert_non_null(b);
    assert_false(full);
    peers_leave(p, a);
    assert_ptr_equal(enter(p, "192.0.2.1:4", 2, &full), a);
    peers_leave(p, a);
    peers_leave(p, a);
    peers_leave(p, b);
    peers_free(p); /* asserts that none is left */
}

static void test_client_of_IPv6_is_a_64(void **state)
{
    (void)state;
    struct peers *p = peers_new();
    bool full;
    struct peers_client *a = enter(p, "[2001:db8:0:1::1]:1", 1, &full);
    assert_non_null(a);
    assert_null(enter(p, "[2001:db8:0:1:ffff:ffff:ffff:ffff]:1", 1, &full));
    assert_true(full);
    struct peers_client *b = enter(p, "[2001:db8:0:2::1]:1", 1, &full);
    assert_non_null(b);
    peers_leave(p, a);
    peers_leave(p, b);
    peers_free(p);
}

static void test_mapped_address_is_that_of_IPv4(void **state)
{
    (void)state;
    struct peers *p = peers_new();
    bool full;
    struct peers_client *a = enter(p, "[::ffff:192.0.2.1]:1", 1, &full);
    assert_non_null(a);
    assert_null(enter(p, "192.0.2.1:1", 1, &full));
    assert_true(full);
    struct peers_client *b = enter(p, "[::ffff:192.0.2.2]:1", 1, &full);
    assert_non_null(b);
    peers_leave(p, a);
    peers_leave(p, b);
    peers_free(p);
}

static void test_unix_sockets_are_not_counted(void **state)
{
    (void)state;
    struct peers *p = peers_new();
    bool full = true;
    assert_null(enter(p, "unix:/x", 1, &full));
    assert_false(full);
    peers_leave(p, NULL);
    peers_free(p);
}

static void test_any_number_of_clients(void **state)
{
    (void)state;
    enum { N = 2000 };
    static struct peers_client *all[N];
    struct peers *p = peers_new();
    bool full;
    for (unsigned i = 0; i < N; i++) {
        char text[64];
        snprintf(text, sizeof(text), "10.0.%u.%u:1", i / 250, i % 250);
        all[i] = enter(p, text, 1, &full);
        assert_non_null(all[i]);
    }
    for (unsigned i = 0; i < N; i++)
        peers_leave(p, all[i * 7 % N]);
    peers_free(p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_limit_is_of_each_client),
        cmocka_unit_test(test_client_of_IPv6_is_a_64),
        cmocka_unit_test(test_mapped_address_is_that_of_IPv4),
        cmocka_unit_test(test_unix_sockets_are_not_counted),
        cmocka_unit_test(test_any_number_of_clients),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
