/* SPDX-License-Identifier: MIT */
#include "route/plan.h"

#include <string.h>

#include "cmocka_all.h"

#define N 4

static struct plan_slot slots[N];
static struct plan_question q;

/* Four empty slots, an unknown prompt of 1000 tokens, 1 ms a token. */
static int set_up(void **state)
{
    (void)state;
    memset(slots, 0, sizeof(slots));
    for (size_t i = 0; i < N; i++)
        slots[i].idle = true;
    q = (struct plan_question){.slots = slots,
                               .n_slots = N,
                               .pinned = -1,
                               .prompt_tokens = 1000,
                               .restore_ms_per_token = 0.02,
                               .ms_per_token = 1};
    return 0;
}

static void assert_choice(int slot, bool restore)
{
    const struct plan_choice c = plan_choose(&q);
    if (c.slot != slot || c.restore != restore)
        fail_msg("slot %d, restore %d, %.1f ms; expected slot %d, restore %d", c.slot,
                 c.restore, c.cost_ms, slot, restore);
}

/* The slot holds tokens, all stored elsewhere, of which so many are of this prompt. */
static void hold(size_t slot, uint32_t held, uint32_t resident)
{
    slots[slot].held_tokens = held;
    slots[slot].resident_tokens = resident;
}

/* ---- where nothing is known -------------------------------------------------------- */

static void test_long_cold_prompt_takes_the_highest_empty_slot(void **state)
{
    (void)state;
    assert_choice(3, false);
    slots[3].idle = false;
    assert_choice(2, false);
}

static void test_short_prompt_takes_the_lowest_empty_slot(void **state)
{
    (void)state;
    q.prompt_tokens = PLAN_LONG_TOKENS - 1;
    assert_choice(0, false);
    q.prompt_tokens = PLAN_LONG_TOKENS;
    assert_choice(3, false);
}

static void test_empty_slots_go_before_used_ones(void **state)
{
    (void)state;
    hold(0, 500, 0);
    hold(3, 500, 0);
    assert_choice(2, false);
    q.prompt_tokens = 100;
    assert_choice(1, false);
}

static void test_short_prompt_takes_the_least_recently_used_of_equals(void **state)
{
    (void)state;
    q.prompt_tokens = 100;
    for (size_t i = 0; i < N; i++) {
        hold(i, 500, 0);
        slots[i].last_used_us = 100 - i * 10;
    }
    assert_choice(3, false);
    slots[1].last_used_us = 1;
    assert_choice(1, false);
}

static void test_no_idle_slot_is_no_choice(void **state)
{
    (void)state;
    for (size_t i = 0; i < N; i++)
        slots[i].idle = false;
    assert_choice(-1, false);
    q.n_slots = 0;
    assert_choice(-1, false);
}

/* ---- what slots hold --------------------------------------------------------------- */

static void test_resident_prefix_wins(void **state)
{
    (void)state;
    hold(1, 900, 800);
    hold(2, 900, 300);
    assert_choice(1, false);
    slots[1].idle = false;
    assert_choice(2, false);
}

static void test_prompt_that_is_all_there_costs_nothing(void **state)
{
    (void)state;
    hold(2, 1200, 1200); /* more than it has: estimates */
    const struct plan_choice c = plan_choose(&q);
    assert_int_equal(c.slot, 2);
    assert_true(c.cost_ms == 0);
}

static void test_content_that_would_have_to_be_restored_is_spared_for_little(void **state)
{
    (void)state;
    hold(0, 2000, 100); /* 100 tokens of the prompt, 1900 of another one */
    q.restorable_tokens = 100;
    assert_choice(3, true);
    /* What the store does not have is reused where it is. */
    q.restorable_tokens = 0;
    assert_choice(0, false);
}

static void test_work_that_is_stored_nowhere_else_is_spared(void **state)
{
    (void)state;
    for (size_t i = 0; i < N; i++)
        hold(i, 2000, 0);
    slots[3].unsaved_tokens = 2000;
    assert_choice(2, false);
    /* A resident prefix is worth more than half of what is lost with the rest. */
    slots[3].resident_tokens = 900;
    slots[3].unsaved_tokens = 1100;
    assert_choice(3, false);
    slots[3].unsaved_tokens = 2100;
    assert_choice(2, false);
}

/* ---- the store --------------------------------------------------------------------- */

static void test_restore_where_it_is_faster_than_to_compute(void **state)
{
    (void)state;
    q.restorable_tokens = 640;
    assert_choice(0, true); /* what is left is short */
    q.restore_ms_per_token = 2;
    assert_choice(3, false);
}

static void test_resident_prefix_goes_before_an_equal_restore(void **state)
{
    (void)state;
    q.restorable_tokens = 640;
    hold(2, 700, 640);
    assert_choice(2, false);
    hold(2, 700, 639);
    assert_choice(2, false); /* one token is not worth 13 ms */
    hold(2, 700, 300);
    q.n_slots = 3;
    slots[0].idle = slots[1].idle = false;
    assert_choice(2, true);
}

static void test_restore_with_a_long_rest_takes_the_highest_slot(void **state)
{
    (void)state;
    q.prompt_tokens = 5000;
    q.restorable_tokens = 640;
    assert_choice(3, true);
}

static void test_restore_goes_where_nothing_is_lost(void **state)
{
    (void)state;
    q.restorable_tokens = 960;
    for (size_t i = 0; i < N; i++) {
        hold(i, 3000, 0);
        slots[i].unsaved_tokens = i == 2 ? 0 : 3000;
    }
    assert_choice(2, true);
}

/* ---- neighbours -------------------------------------------------------------------- */

static void test_prefill_in_a_lower_slot_is_avoided(void **state)
{
    (void)state;
    q.prompt_tokens = 20;
    slots[1].idle = false;
    slots[1].prefill_tokens = 4000;
    assert_choice(0, false); /* waits for a share of it, 2 and 3 for all */
    hold(3, 20, 0);
    hold(0, 9000, 0);
    slots[0].unsaved_tokens = 7000; /* costs more than to wait */
    assert_choice(2, false);
}

static void test_neighbours_weigh_against_a_resident_prefix(void **state)
{
    (void)state;
    hold(3, 1000, 900);
    slots[2].idle = false;
    slots[2].prefill_tokens = 100;
    assert_choice(3, false);
    slots[2].prefill_tokens = 100000; /* everywhere long, but longest behind it */
    assert_choice(1, false);
}

/* ---- pinned ------------------------------------------------------------------------ */

static void test_pinned_prompt_gets_its_slot_or_none(void **state)
{
    (void)state;
    hold(1, 1000, 1000);
    q.pinned = 2;
    assert_choice(2, false);
    slots[2].unsaved_tokens = 100000;
    assert_choice(2, false);
    slots[2].idle = false;
    assert_choice(-1, false);
}

static void test_pinned_prompt_is_restored_into_its_slot(void **state)
{
    (void)state;
    q.pinned = 0;
    q.restorable_tokens = 640;
    assert_choice(0, true);
}

/* ---- strange figures --------------------------------------------------------------- */

static void test_largest_counts_do_not_overflow(void **state)
{
    (void)state;
    q.prompt_tokens = UINT32_MAX;
    q.restorable_tokens = UINT32_MAX;
    for (size_t i = 0; i < N; i++)
        slots[i] = (struct plan_slot){.idle = i == 1,
                                      .resident_tokens = 0,
                                      .held_tokens = UINT32_MAX,
                                      .unsaved_tokens = UINT32_MAX,
                                      .prefill_tokens = UINT32_MAX,
                                      .last_used_us = UINT64_MAX};
    const struct plan_choice c = plan_choose(&q);
    assert_int_equal(c.slot, 1);
    assert_true(c.restore);
    assert_true(c.cost_ms > 4e9);
}

static void test_nothing_at_all_is_a_prompt_as_well(void **state)
{
    (void)state;
    q.prompt_tokens = 0;
    q.ms_per_token = 0;
    assert_choice(0, false);
}

/* ---- restores beside others -------------------------------------------------------- */

static void test_restore_beside_a_prefill_misses_a_batch(void **state)
{
    (void)state;
    q.restorable_tokens = 960;
    slots[1].idle = false;
    slots[1].prefill_tokens = 5000;
    q.batch_tokens = 512;
    assert_choice(0, true); /* 512 ms are less than 960 */
    q.batch_tokens = 2048;
    assert_choice(0, false);
    slots[1].prefill_tokens = 500; /* the last of it */
    assert_choice(0, true);
}

static void test_restore_pays_by_what_it_adds(void **state)
{
    (void)state;
    q.restore_ms_per_token = 0.25;
    q.batch_tokens = 2048;
    assert_true(plan_restore_pays(640, 0, 0, &q));
    assert_true(plan_restore_pays(640, 479, 0, &q));
    assert_false(plan_restore_pays(640, 480, 0, &q)); /* 160 ms for 160 tokens */
    assert_false(plan_restore_pays(640, 640, 0, &q));
    assert_false(plan_restore_pays(0, 0, 0, &q));
    assert_true(plan_restore_pays(640, 0, 479, &q));
    assert_false(plan_restore_pays(640, 0, 480, &q));
    assert_true(plan_restore_pays(4096, 0, 1e9, &q)); /* a batch at most */
}

/* ---- saving ------------------------------------------------------------------------ */

/* 100 kB a token and 100 MB/s: a millisecond for each token that is written. Half of what
 * is new comes again, and nothing has happened for an hour. */
static struct plan_save save_of(uint32_t new_tokens, uint32_t all_tokens)
{
    return (struct plan_save){.new_tokens = new_tokens,
                              .all_tokens = all_tokens,
                              .block_tokens = 64,
                              .token_bytes = 100000,
                              .ms_per_token = 2,
                              .reuse = 0.5,
                              .save_bytes_per_ms = 1e5,
                              .gap_ms = 1000,
                              .quiet_ms = 3600e3,
                              .max_stall_ms = 250};
}

static void assert_when(struct plan_save s, enum plan_when when)
{
    const struct plan_save_choice c = plan_save(&s);
    if (c.when != when)
        fail_msg("%d instead of %d: worth %.1f ms, in %.1f ms", c.when, when, c.value_ms,
                 c.later_ms);
}

static double later(struct plan_save s)
{
    const struct plan_save_choice c = plan_save(&s);
    assert_int_equal(c.when, PLAN_SAVE_LATER);
    return c.later_ms;
}

static void test_less_than_a_block_is_not_saved(void **state)
{
    (void)state;
    assert_when(save_of(63, 63), PLAN_SAVE_NOT_WORTH);
    assert_when(save_of(64, 64), PLAN_SAVE_NOW);
}

static void test_value_is_what_a_restore_would_spare(void **state)
{
    (void)state;
    struct plan_save s = save_of(200, 200);
    assert_true(plan_save(&s).value_ms == 200);
    s.restore_ms_per_token = 1;
    assert_true(plan_save(&s).value_ms == 100);
    s.reuse = 0.1;
    assert_true(plan_save(&s).value_ms == 20);
    s.restore_ms_per_token = 2;
    assert_when(s, PLAN_SAVE_NOT_WORTH);
}

static void test_save_that_others_would_stand_still_for_is_weighed(void **state)
{
    (void)state;
    struct plan_save s = save_of(200, 199);
    s.busy_slots = 1;
    assert_when(s, PLAN_SAVE_NOW);
    s.all_tokens = 200;
    assert_when(s, PLAN_SAVE_LATER);
    assert_true(later(s) == 0); /* when they are done */
    s.all_tokens = 66;
    s.busy_slots = 3;
    assert_when(s, PLAN_SAVE_NOW);
    s.all_tokens = 67;
    assert_when(s, PLAN_SAVE_LATER);
}

static void test_save_before_overwriting_makes_all_wait(void **state)
{
    (void)state;
    struct plan_save s = save_of(200, 199); /* worth 200 ms, takes 199 */
    assert_int_equal(plan_save_first(&s, 1).when, PLAN_SAVE_NOW);
    assert_int_equal(plan_save_first(&s, 2).when, PLAN_SAVE_NOT_WORTH);
    s.all_tokens = 99;
    assert_int_equal(plan_save_first(&s, 2).when, PLAN_SAVE_NOW);
    s.busy_slots = 1;
    assert_int_equal(plan_save_first(&s, 2).when, PLAN_SAVE_NOT_WORTH);
    s = save_of(2000, 250); /* the cap */
    assert_int_equal(plan_save_first(&s, 1).when, PLAN_SAVE_NOW);
    s.stalled_ms = 1;
    assert_int_equal(plan_save_first(&s, 1).when, PLAN_SAVE_NOT_WORTH);
    s = save_of(2000, 251);
    assert_int_equal(plan_save_first(&s, 1).when, PLAN_SAVE_NOT_WORTH);
    s = save_of(s.block_tokens - 1, 1);
    assert_int_equal(plan_save_first(&s, 1).when, PLAN_SAVE_NOT_WORTH);
}

static void test_arrivals_speak_against_a_save_until_it_is_quiet(void **state)
{
    (void)state;
    struct plan_save s = save_of(100, 200); /* 200 ms for 100 ms, at 200² / (2 · gap) */
    s.quiet_ms = 0;
    s.gap_ms = 201;
    assert_when(s, PLAN_SAVE_NOW);
    s.gap_ms = 199;
    assert_true(later(s) == 201);
    s.quiet_ms = 150;
    assert_true(later(s) == 51);
    s.quiet_ms = 201;
    assert_when(s, PLAN_SAVE_NOW);
}

static void test_save_above_the_cap_needs_as_long_a_quiet(void **state)
{
    (void)state;
    struct plan_save s = save_of(250, 250);
    s.quiet_ms = 0;
    assert_when(s, PLAN_SAVE_NOW);
    s = save_of(2000, 251);
    s.quiet_ms = 0;
    assert_true(later(s) == 252);
    s.quiet_ms = 250;
    assert_true(later(s) == 2);
    s.quiet_ms = 251;
    assert_when(s, PLAN_SAVE_NOW);
    s.busy_slots = 1; /* though it is worth far more */
    assert_true(later(s) == 0);
}

static void test_save_many_times_the_cap_is_never_made(void **state)
{
    (void)state;
    assert_when(save_of(5000, 5000), PLAN_SAVE_NOW); /* 20 times */
    assert_when(save_of(5000, 5001), PLAN_SAVE_TOO_LONG);
}

static void test_save_whose_quiet_never_comes_is_given_up(void **state)
{
    (void)state;
    struct plan_save s = save_of(64, 4000);
    s.ms_per_token = 4000.0 * 4000 / (2 * PLAN_PATIENCE * 32);
    assert_when(s, PLAN_SAVE_NOW);
    s.ms_per_token *= 0.999;
    assert_when(s, PLAN_SAVE_NOT_WORTH);
}

static void test_save_beside_a_prefill_stalls_for_its_batch_too(void **state)
{
    (void)state;
    struct plan_save s = save_of(1000, 100);
    s.busy_slots = 1;
    s.prefill_ms = 150;
    assert_when(s, PLAN_SAVE_NOW);
    s.prefill_ms = 151;
    assert_true(later(s) == 152);
}

static void test_first_token_waits_no_longer_for_several_saves(void **state)
{
    (void)state;
    struct plan_save s = save_of(1000, 100);
    s.busy_slots = 1;
    s.prefill_ms = 50;
    s.stalled_ms = 100;
    assert_when(s, PLAN_SAVE_NOW);
    s.stalled_ms = 101;
    assert_true(later(s) == 51);
}

static void test_slot_of_no_bytes_is_no_trouble(void **state)
{
    (void)state;
    struct plan_save s = save_of(64, 64);
    s.token_bytes = 0;
    s.gap_ms = s.quiet_ms = 0;
    assert_when(s, PLAN_SAVE_NOW);
}

#define TEST(name) cmocka_unit_test_setup(test_##name, set_up)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(long_cold_prompt_takes_the_highest_empty_slot),
        TEST(short_prompt_takes_the_lowest_empty_slot),
        TEST(empty_slots_go_before_used_ones),
        TEST(short_prompt_takes_the_least_recently_used_of_equals),
        TEST(no_idle_slot_is_no_choice),
        TEST(resident_prefix_wins),
        TEST(prompt_that_is_all_there_costs_nothing),
        TEST(content_that_would_have_to_be_restored_is_spared_for_little),
        TEST(work_that_is_stored_nowhere_else_is_spared),
        TEST(restore_where_it_is_faster_than_to_compute),
        TEST(resident_prefix_goes_before_an_equal_restore),
        TEST(restore_with_a_long_rest_takes_the_highest_slot),
        TEST(restore_goes_where_nothing_is_lost),
        TEST(prefill_in_a_lower_slot_is_avoided),
        TEST(neighbours_weigh_against_a_resident_prefix),
        TEST(pinned_prompt_gets_its_slot_or_none),
        TEST(pinned_prompt_is_restored_into_its_slot),
        TEST(largest_counts_do_not_overflow),
        TEST(nothing_at_all_is_a_prompt_as_well),
        TEST(restore_beside_a_prefill_misses_a_batch),
        TEST(restore_pays_by_what_it_adds),
        TEST(less_than_a_block_is_not_saved),
        TEST(value_is_what_a_restore_would_spare),
        TEST(save_that_others_would_stand_still_for_is_weighed),
        TEST(save_before_overwriting_makes_all_wait),
        TEST(arrivals_speak_against_a_save_until_it_is_quiet),
        TEST(save_above_the_cap_needs_as_long_a_quiet),
        TEST(save_many_times_the_cap_is_never_made),
        TEST(save_whose_quiet_never_comes_is_given_up),
        TEST(save_beside_a_prefill_stalls_for_its_batch_too),
        TEST(first_token_waits_no_longer_for_several_saves),
        TEST(slot_of_no_bytes_is_no_trouble),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
