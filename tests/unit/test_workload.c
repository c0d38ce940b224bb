/* SPDX-License-Identifier: MIT */
#include "load/workload.h"

#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "cmocka_all.h"
#include "load/arrivals.h"

static struct workload *make(const char *profile, uint64_t seed)
{
    struct err e = {0};
    const struct workload_options o = {
        .profile = profile, .model = "m\"x", .seed = seed, .stream = true};
    struct workload *w = workload_new(&o, &e);
    if (!w)
        fail_msg("%s", e.text);
    return w;
}

static json_t *body_of(const struct workload *w, uint64_t i, uint32_t arm,
                       struct workload_request *rq)
{
    struct buf b = {0};
    workload_make(w, i, arm, &b, rq);
    json_t *doc = json_loadb(buf_slice(&b).ptr, buf_len(&b), 0, NULL);
    assert_non_null(doc);
    buf_free(&b);
    return doc;
}

static const char *content(const json_t *doc, size_t message)
{
    return json_string_value(json_object_get(
        json_array_get(json_object_get(doc, "messages"), message), "content"));
}

static uint32_t n_words(const char *text)
{
    uint32_t n = *text != '\0';
    for (const char *p = text; *p; p++)
        n += *p == ' ';
    return n;
}

static uint32_t all_words(const json_t *doc)
{
    uint32_t n = 0;
    for (size_t i = 0; i < json_array_size(json_object_get(doc, "messages")); i++)
        n += n_words(content(doc, i));
    return n;
}

static char *text_of(const struct workload *w, uint64_t i, uint32_t arm)
{
    struct buf b = {0};
    struct workload_request rq;
    workload_make(w, i, arm, &b, &rq);
    return buf_take_str(&b);
}

static void test_a_seed_repeats_everything_in_any_order(void **state)
{
    static const char *const names[] = {"short", "mix", "shared,in=50", "chat,in=9",
                                        "interrupt,in=50"};
    (void)state;
    for (size_t k = 0; k < 5; k++) {
        struct workload *a = make(names[k], 7), *b = make(names[k], 7),
                        *c = make(names[k], 8);
        for (uint64_t i = 20; i-- > 0;) {
            char *x = text_of(a, 19 - i, 0), *y = text_of(b, 19 - i, 0),
                 *late = text_of(a, i, 0), *again = text_of(a, i, 0),
                 *other = text_of(c, 19 - i, 0);
            assert_string_equal(x, y);
            assert_string_equal(late, again);
            assert_string_not_equal(x, other);
            free(x), free(y), free(late), free(again), free(other);
        }
        workload_free(a), workload_free(b), workload_free(c);
    }
}

static void test_bodies_say_what_was_aimed_at(void **state)
{
    static const char *const names[] = {"short", "long-in", "long-out",
                                        "mix",   "shared",  "chat"};
    struct workload_request rq;
    (void)state;
    for (size_t k = 0; k < 6; k++) {
        struct workload *w = make(names[k], 3);
        for (uint64_t i = 0; i < 40; i++) {
            json_t *doc = body_of(w, i, 0, &rq);
            assert_string_equal(json_string_value(json_object_get(doc, "model")), "m\"x");
            assert_true(json_is_true(json_object_get(doc, "stream")));
            assert_int_equal(json_integer_value(json_object_get(doc, "max_tokens")),
                             rq.out_tokens);
            assert_int_equal(all_words(doc), rq.in_tokens);
            assert_true(rq.shared_tokens < rq.in_tokens);
            assert_string_equal(rq.path, "/v1/chat/completions");
            json_decref(doc);
        }
        workload_free(w);
    }
}

static void test_lengths_are_within_a_quarter(void **state)
{
    struct workload *w = make("short,in=100", 5);
    struct workload_request rq;
    uint32_t least = 1000, most = 0;
    (void)state;
    for (uint64_t i = 0; i < 500; i++) {
        json_decref(body_of(w, i, 0, &rq));
        least = rq.in_tokens < least ? rq.in_tokens : least;
        most = rq.in_tokens > most ? rq.in_tokens : most;
    }
    assert_int_equal(least, 75);
    assert_int_equal(most, 125);
    workload_free(w);
}

static void test_the_mix_is_six_to_two_to_two(void **state)
{
    struct workload *w = make("mix", 5);
    struct workload_request rq;
    int n[3] = {0};
    (void)state;
    for (uint64_t i = 0; i < 1000; i++) {
        struct buf b = {0};
        workload_make(w, i, 0, &b, &rq);
        n[rq.out_tokens > 32 ? 2 : rq.in_tokens > 1000]++;
        buf_free(&b);
    }
    assert_in_range(n[0], 550, 650);
    assert_in_range(n[1], 160, 240);
    assert_in_range(n[2], 160, 240);
    workload_free(w);
}

static void test_kinds_of_the_mix_are_told(void **state)
{
    struct workload *w = make("mix", 4);
    struct workload_request rq;
    (void)state;
    for (uint64_t i = 0; i < 50; i++) {
        json_decref(body_of(w, i, 0, &rq));
        assert_int_equal(rq.kind, rq.in_tokens > 1000    ? KIND_LONG_IN
                                  : rq.out_tokens == 512 ? KIND_LONG_OUT
                                                         : KIND_SHORT);
        assert_true(workload_moment(w, i) <= 0);
    }
    workload_free(w);
    w = make("short", 4);
    json_decref(body_of(w, 0, 0, &rq));
    assert_int_equal(rq.kind, KIND_NONE);
    assert_false(workload_meets(w));
    workload_free(w);
}

/* Every second one before the first token, the others behind it; no two at one moment. */
static void test_short_ones_meet_long_ones_at_moments_that_are_drawn(void **state)
{
    static const enum kind kinds[] = {KIND_SHORT_ALONE, KIND_LONG_ALONE, KIND_LONG_MET,
                                      KIND_SHORT_IN_PREFILL};
    struct workload *w = make("interrupt,in=400,out=70,ask=8,reply=3,meetings=10", 4);
    struct workload_request rq;
    double before = 0;
    (void)state;
    assert_true(workload_meets(w));
    assert_int_equal(workload_pass(w), 40);
    for (uint64_t i = 0; i < 40; i++) {
        const double moment = workload_moment(w, i);
        const bool is_long = i % 4 == 1 || i % 4 == 2;
        json_decref(body_of(w, i, 0, &rq));
        assert_int_equal(rq.kind, kinds[i % 4]);
        assert_in_range(rq.in_tokens, is_long ? 300 : 6, is_long ? 500 : 10);
        assert_int_equal(rq.out_tokens, is_long ? 70 : 3);
        if (i % 4 < 3) {
            assert_true(moment <= 0);
            continue;
        }
        assert_true(moment > (double)(i / 4 % 2) && moment <= (double)(i / 4 % 2) + 1);
        assert_true(fabs(moment - before) > 0);
        before = moment;
    }
    workload_free(w);
}

static void test_prompts_alone_start_differently(void **state)
{
    struct workload *w = make("short", 5);
    struct workload_request a, b;
    (void)state;
    for (uint64_t i = 0; i < 50; i++) {
        json_t *x = body_of(w, i, 0, &a), *y = body_of(w, i + 1, 0, &b);
        assert_memory_not_equal(content(x, 0), content(y, 0), 24);
        assert_true(a.group == WORKLOAD_ALONE && a.shared_tokens == 0);
        json_decref(x), json_decref(y);
    }
    workload_free(w);
}

/* Each document once a round, the question of the round; then other documents. */
static void test_documents_are_asked_in_rounds(void **state)
{
    struct workload *w = make("shared,documents=5,questions=3,in=40,ask=6", 11);
    struct workload_request rq;
    char *document[10] = {NULL};
    uint64_t first[5], other_order = 0;
    (void)state;
    assert_int_equal(workload_pass(w), 15);
    for (uint64_t i = 0; i < 30; i++) {
        json_t *doc = body_of(w, i, 0, &rq);
        assert_int_equal(rq.turn, i / 5 % 3);
        assert_int_equal(rq.group / 5, i / 15);
        if (rq.turn == 0) {
            assert_null(document[rq.group]);
            document[rq.group] = mem_strdup(content(doc, 0));
            first[i % 5] = rq.group;
            assert_int_equal(rq.shared_tokens, 0);
        } else {
            assert_string_equal(document[rq.group], content(doc, 0));
            assert_int_equal(rq.shared_tokens, n_words(content(doc, 0)));
            other_order += first[i % 5] != rq.group;
        }
        json_decref(doc);
    }
    assert_true(other_order > 5);
    for (size_t i = 0; i < 10; i++)
        for (size_t j = 0; j < i; j++)
            assert_string_not_equal(document[i], document[j]);
    for (size_t i = 0; i < 10; i++)
        free(document[i]);
    workload_free(w);
}

static void test_a_turn_repeats_the_one_before(void **state)
{
    struct workload *w = make("chat,chats=1,turns=4,in=20,ask=8,out=5", 2);
    struct workload_request rq;
    uint32_t before = 0;
    json_t *last = NULL;
    (void)state;
    for (uint64_t i = 0; i < 4; i++) {
        json_t *doc = body_of(w, i, 0, &rq);
        assert_int_equal(json_array_size(json_object_get(doc, "messages")), 2 + 2 * i);
        assert_int_equal(rq.shared_tokens, before);
        for (size_t m = 0; last && m < 2 * i; m++)
            assert_string_equal(content(doc, m), content(last, m));
        before = rq.in_tokens;
        json_decref(last);
        last = doc;
    }
    json_decref(last);
    json_decref(body_of(w, 4, 0, &rq));
    assert_int_equal(rq.group, 1);
    workload_free(w);
}

static void test_arms_differ_in_words_only(void **state)
{
    struct workload *w = make("shared,in=30", 4);
    struct workload_request a, b;
    (void)state;
    for (uint64_t i = 0; i < 32; i++) {
        json_t *x = body_of(w, i, 0, &a), *y = body_of(w, i, 1, &b);
        assert_memory_equal(&a, &b, sizeof(a));
        assert_string_not_equal(content(x, 0), content(y, 0));
        assert_int_equal(n_words(content(x, 0)), n_words(content(y, 0)));
        json_decref(x), json_decref(y);
    }
    workload_free(w);
}

static void refuse(const char *profile, const char *part)
{
    struct err e = {0};
    const struct workload_options o = {.profile = profile};
    assert_null(workload_new(&o, &e));
    if (!strstr(e.text, part))
        fail_msg("\"%s\" is not in \"%s\"", part, e.text);
}

static void test_profiles_that_are_none_are_refused(void **state)
{
    (void)state;
    refuse("shrt", "did you mean \"short\"?");
    refuse("short,documents=3", "profile short has no \"documents\"");
    refuse("mix,in=3", "profile mix has no \"in\"");
    refuse("short,in", "from 1 to 1000000");
    refuse("short,in=0", "from 1 to 1000000");
    refuse("short,in=1000001", "from 1 to 1000000");
    refuse("chat,chats=10001", "from 1 to 10000");
    struct workload *w = make("short,in=1000000,out=7", 1);
    assert_string_equal(workload_name(w), "short,in=1000000,out=7");
    assert_int_equal(workload_pass(w), 100);
    workload_free(w);
}

/* ---- arrivals ---------------------------------------------------------------------- */

/* Counts within a window of a Poisson process have a variance as large as their mean. */
static void test_poisson_counts_vary_as_they_should(void **state)
{
    enum { WINDOWS = 2000 };
    struct arrivals a;
    double n[WINDOWS] = {0}, mean = 0, variance = 0;
    uint64_t at, last = 0;
    (void)state;
    arrivals_init(&a, 50, true, 42);
    assert_int_equal(arrivals_next(&a), 0);
    while ((at = arrivals_next(&a)) < WINDOWS * UINT64_C(100000)) {
        assert_true(at >= last);
        n[at / 100000]++;
        last = at;
    }
    for (size_t i = 0; i < WINDOWS; i++)
        mean += n[i] / WINDOWS;
    for (size_t i = 0; i < WINDOWS; i++)
        variance += (n[i] - mean) * (n[i] - mean) / (WINDOWS - 1);
    assert_true(fabs(mean - 5) < 0.2);     /* four standard errors */
    assert_true(fabs(variance - 5) < 0.7); /* the same */
}

static void test_arrivals_are_the_seed_s(void **state)
{
    struct arrivals a, b, c;
    int equal = 0;
    (void)state;
    arrivals_init(&a, 10, true, 1);
    arrivals_init(&b, 10, true, 1);
    arrivals_init(&c, 10, true, 2);
    for (int i = 0; i < 100; i++) {
        const uint64_t at = arrivals_next(&a);
        assert_int_equal(at, arrivals_next(&b));
        equal += at == arrivals_next(&c);
    }
    assert_int_equal(equal, 1);
}

static void test_constant_arrivals_do_not_drift(void **state)
{
    struct arrivals a;
    (void)state;
    arrivals_init(&a, 3, false, 1);
    for (uint64_t i = 0; i < 30000; i++)
        assert_in_range(arrivals_next(&a), i * 1000000 / 3 - (i > 0),
                        i * 1000000 / 3 + 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_seed_repeats_everything_in_any_order),
        cmocka_unit_test(test_bodies_say_what_was_aimed_at),
        cmocka_unit_test(test_lengths_are_within_a_quarter),
        cmocka_unit_test(test_the_mix_is_six_to_two_to_two),
        cmocka_unit_test(test_kinds_of_the_mix_are_told),
        cmocka_unit_test(test_short_ones_meet_long_ones_at_moments_that_are_drawn),
        cmocka_unit_test(test_prompts_alone_start_differently),
        cmocka_unit_test(test_documents_are_asked_in_rounds),
        cmocka_unit_test(test_a_turn_repeats_the_one_before),
        cmocka_unit_test(test_arms_differ_in_words_only),
        cmocka_unit_test(test_profiles_that_are_none_are_refused),
        cmocka_unit_test(test_poisson_counts_vary_as_they_should),
        cmocka_unit_test(test_arrivals_are_the_seed_s),
        cmocka_unit_test(test_constant_arrivals_do_not_drift),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
