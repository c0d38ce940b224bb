/* SPDX-License-Identifier: MIT */
#include "base/list.h"

#include <string.h>

#include "cmocka_all.h"

struct item {
    char name;
    struct list link;
};

static void assert_order(const struct list *head, const char *want)
{
    char got[32];
    size_t n = 0;
    LIST_EACH (it, head)
        got[n++] = LIST_ENTRY(it, struct item, link)->name;
    got[n] = '\0';
    assert_string_equal(got, want);
    n = 0;
    for (struct list *it = head->prev; it != head; it = it->prev)
        got[n++] = LIST_ENTRY(it, struct item, link)->name;
    assert_int_equal(n, strlen(want));
    for (size_t i = 0; i < n; i++)
        assert_int_equal(got[i], want[n - 1 - i]);
}

static void test_list_keeps_the_order_of_pushes(void **state)
{
    (void)state;
    struct list head;
    struct item a = {.name = 'a'}, b = {.name = 'b'}, c = {.name = 'c'};
    list_init(&head);
    assert_true(list_empty(&head));
    list_push_back(&head, &a.link);
    list_push_back(&head, &b.link);
    list_push_front(&head, &c.link);
    assert_false(list_empty(&head));
    assert_order(&head, "cab");
}

static void test_list_insert_after_any_link(void **state)
{
    (void)state;
    struct list head;
    struct item a = {.name = 'a'}, b = {.name = 'b'}, c = {.name = 'c'};
    list_init(&head);
    list_push_back(&head, &a.link);
    list_push_back(&head, &c.link);
    list_insert_after(&a.link, &b.link);
    assert_order(&head, "abc");
}

static void test_list_del_may_be_called_twice(void **state)
{
    (void)state;
    struct list head;
    struct item a = {.name = 'a'}, b = {.name = 'b'};
    list_init(&head);
    list_push_back(&head, &a.link);
    list_push_back(&head, &b.link);
    list_del(&a.link);
    list_del(&a.link);
    assert_order(&head, "b");
    assert_true(list_empty(&a.link));
    list_push_back(&head, &a.link);
    assert_order(&head, "ba");
}

static void test_list_each_safe_survives_removal(void **state)
{
    (void)state;
    struct list head;
    struct item items[5];
    list_init(&head);
    for (int i = 0; i < 5; i++) {
        items[i].name = (char)('a' + i);
        list_push_back(&head, &items[i].link);
    }
    LIST_EACH_SAFE (it, next, &head)
        if ((LIST_ENTRY(it, struct item, link)->name - 'a') % 2 == 0)
            list_del(it);
    assert_order(&head, "bd");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_list_keeps_the_order_of_pushes),
        cmocka_unit_test(test_list_insert_after_any_link),
        cmocka_unit_test(test_list_del_may_be_called_twice),
        cmocka_unit_test(test_list_each_safe_survives_removal),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
