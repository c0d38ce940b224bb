/* SPDX-License-Identifier: MIT */
#include "gateway/routes.h"

#include "cmocka_all.h"

static struct route find(const char *method, const char *target)
{
    return routes_find(slice_of(method), slice_of(target));
}

static void generates(const char *target, enum prompt_api api)
{
    const struct route r = find("POST", target);
    if (!r.generates || r.api != api || r.refused || r.bad_path)
        fail_msg("POST %s: generates %d, api %d", target, r.generates, (int)r.api);
}

static void passes(const char *method, const char *target)
{
    const struct route r = find(method, target);
    if (r.generates || r.api != PROMPT_NONE || r.refused || r.bad_path)
        fail_msg("%s %s does not just pass", method, target);
}

static void refuses(const char *method, const char *target)
{
    if (!find(method, target).refused)
        fail_msg("%s %s is not refused", method, target);
}

static void is_bad(const char *target)
{
    if (!find("GET", target).bad_path)
        fail_msg("%s is taken", target);
}

static void test_generating_paths_know_how_their_bodies_are_read(void **state)
{
    (void)state;
    generates("/v1/chat/completions", PROMPT_CHAT);
    generates("/chat/completions", PROMPT_CHAT);
    generates("/v1/completions", PROMPT_COMPLETIONS);
    generates("/completion", PROMPT_NATIVE);
    generates("/completions", PROMPT_NATIVE);
    generates("/v1/messages", PROMPT_MESSAGES);
    generates("/v1/responses", PROMPT_NONE);
    generates("/v1/embeddings", PROMPT_NONE);
    generates("/infill", PROMPT_NONE);
}

static void test_a_path_may_be_written_in_many_ways(void **state)
{
    (void)state;
    generates("/v1/chat/completions?a=b", PROMPT_CHAT);
    generates("//v1//chat/./completions/", PROMPT_CHAT);
    generates("/v1/ch%61t/completions", PROMPT_CHAT);
    generates("/v1;x=1/chat/completions;y", PROMPT_CHAT);
    generates("http://host:1/v1/chat/completions", PROMPT_CHAT);
}

static void test_only_post_generates(void **state)
{
    (void)state;
    passes("GET", "/v1/chat/completions");
    passes("HEAD", "/completion");
    passes("OPTIONS", "/v1/messages");
    passes("post", "/completion");
}

static void test_what_is_not_known_passes(void **state)
{
    (void)state;
    passes("GET", "/");
    passes("GET", "/health");
    passes("GET", "/v1/models");
    passes("POST", "/v1/messages/count_tokens");
    passes("POST", "/tokenize");
    passes("POST", "/v1/chat/completions/more");
    passes("POST", "/v1/Chat/Completions");
    passes("OPTIONS", "*");
    passes("GET", "/slotsaving");
    passes("GET", "/x/slots");
    passes("GET", "/?/slots");
}

static void test_the_engines_own_controls_are_refused(void **state)
{
    (void)state;
    refuses("GET", "/slots");
    refuses("POST", "/slots/0?action=erase");
    refuses("GET", "/slots?fail_on_no_slot=1");
    refuses("GET", "//slots");
    refuses("GET", "/./slots/");
    refuses("GET", "/%73lots");
    refuses("GET", "/slots%2F0");
    refuses("GET", "/slots;x/0");
    refuses("GET", "http://host/slots");
    refuses("GET", "https://host/slots");
    refuses("DELETE", "/lora-adapters");
    refuses("GET", "/metrics");
    refuses("POST", "/props");
}

static void test_reading_props_is_harmless(void **state)
{
    (void)state;
    passes("GET", "/props");
}

static void test_paths_that_engines_read_differently_are_bad(void **state)
{
    (void)state;
    is_bad("/a/../slots");
    is_bad("/a/%2e%2e/slots");
    is_bad("/a\\b");
    is_bad("/%zz");
    is_bad("/%");
    is_bad("slots");
    is_bad("");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_generating_paths_know_how_their_bodies_are_read),
        cmocka_unit_test(test_a_path_may_be_written_in_many_ways),
        cmocka_unit_test(test_only_post_generates),
        cmocka_unit_test(test_what_is_not_known_passes),
        cmocka_unit_test(test_the_engines_own_controls_are_refused),
        cmocka_unit_test(test_reading_props_is_harmless),
        cmocka_unit_test(test_paths_that_engines_read_differently_are_bad),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
