/* SPDX-License-Identifier: MIT */
#include "base/html.h"

#include <stdlib.h>

#include "cmocka_all.h"

static void expect(const char *text, const char *page)
{
    struct buf out = {0};
    html_text(slice_of(text), &out);
    char *got = buf_take_str(&out);
    assert_string_equal(got, page);
    free(got);
}

static void test_text_cannot_become_markup(void **state)
{
    (void)state;
    expect("", "");
    expect("a b\n\tc", "a b\n\tc");
    expect("<script>x</script>", "&lt;script&gt;x&lt;/script&gt;");
    expect("\" onload='x' &lt;", "&quot; onload=&#39;x&#39; &amp;lt;");
}

static void test_letters_stay_and_what_is_no_character_is_replaced(void **state)
{
    (void)state;
    expect("p\xC3\xA9 \xE2\x82\xAC \xF0\x9F\x98\x80",
           "p\xC3\xA9 \xE2\x82\xAC \xF0\x9F\x98\x80");
    expect("\x01\x1B[0m\x7F", "\xEF\xBF\xBD\xEF\xBF\xBD[0m\xEF\xBF\xBD");
    expect("\xC0\xBC", "\xEF\xBF\xBD\xEF\xBF\xBD");                 /* "<" in two bytes */
    expect("\xED\xA0\x80", "\xEF\xBF\xBD\xEF\xBF\xBD\xEF\xBF\xBD"); /* a surrogate */
    expect("\xE2\x82", "\xEF\xBF\xBD\xEF\xBF\xBD");
    expect("\xE2<b", "\xEF\xBF\xBD&lt;b");
    expect("\xF4\x90\x80\x80", "\xEF\xBF\xBD\xEF\xBF\xBD\xEF\xBF\xBD\xEF\xBF\xBD");
}

static void test_a_cut_is_between_characters(void **state)
{
    (void)state;
    static const struct {
        size_t most;
        const char *page;
    } cuts[] = {{0, "\xE2\x80\xA6"},
                {1, "a\xE2\x80\xA6"},
                {2, "a\xE2\x80\xA6"},
                {3, "a\xE2\x80\xA6"},
                {4, "a\xE2\x82\xAC\xE2\x80\xA6"}};
    for (size_t i = 0; i < sizeof(cuts) / sizeof(cuts[0]); i++) {
        struct buf out = {0};
        html_text_cut(SLICE_LIT("a\xE2\x82\xAC<c"), cuts[i].most, &out);
        char *got = buf_take_str(&out);
        assert_string_equal(got, cuts[i].page);
        free(got);
    }
    struct buf out = {0};
    html_text_cut(SLICE_LIT("a<"), 2, &out);
    char *got = buf_take_str(&out);
    assert_string_equal(got, "a&lt;");
    free(got);
}

static void test_json_cannot_end_its_script(void **state)
{
    (void)state;
    struct buf out = {0};
    html_json(SLICE_LIT("{\"a\":\"</script>\"}"), &out);
    char *got = buf_take_str(&out);
    assert_string_equal(got, "{\"a\":\"\\u003c/script>\"}");
    free(got);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_text_cannot_become_markup),
        cmocka_unit_test(test_letters_stay_and_what_is_no_character_is_replaced),
        cmocka_unit_test(test_a_cut_is_between_characters),
        cmocka_unit_test(test_json_cannot_end_its_script),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
