/* SPDX-License-Identifier: MIT */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "cmocka_all.h"
#include "proto/answer.h"

/* ---- help ---------------------------------------------------------------------------- */

static void feed(struct answer *a, const char *bytes, uint64_t now_us)
{
    answer_feed(a, slice_of(bytes), now_us);
}

/* One event with this data. */
static void event(struct answer *a, const char *data, uint64_t now_us)
{
    char *bytes = mem_printf("data: %s\n\n", data);
    feed(a, bytes, now_us);
    free(bytes);
}

static struct answer *document(enum prompt_api api, const char *json)
{
    struct answer *a = answer_new(api, false);
    feed(a, json, 1);
    answer_finish(a);
    return a;
}

/* A chat stream of these deltas, then a finish reason and [DONE]. */
static struct answer *chat_stream(const char *const *deltas, size_t n)
{
    struct answer *a = answer_new(PROMPT_CHAT, true);
    for (size_t i = 0; i < n; i++) {
        char *data = mem_printf("{\"choices\":[{\"index\":0,\"delta\":%s,"
                                "\"finish_reason\":null}]}",
                                deltas[i]);
        event(a, data, 100 * (i + 1));
        free(data);
    }
    event(a, "{\"choices\":[{\"index\":0,\"delta\":{},\"finish_reason\":\"stop\"}]}",
          9000);
    event(a, "[DONE]", 9001);
    answer_finish(a);
    return a;
}
#define CHAT_STREAM(deltas) chat_stream(deltas, sizeof(deltas) / sizeof *(deltas))

static void assert_slice(struct slice s, const char *expected)
{
    if (!slice_eq(s, slice_of(expected)))
        fail_msg("\"%.*s\", not \"%s\"", (int)s.len, s.ptr ? s.ptr : "", expected);
}

static const struct prompt_answer *text_of(struct answer *a)
{
    assert_true(answer_facts(a)->text_whole);
    const struct prompt_answer *text = answer_text(a);
    assert_non_null(text);
    return text;
}

static void assert_no_text(struct answer *a)
{
    assert_false(answer_facts(a)->text_whole);
    assert_null(answer_text(a));
}

/* ---- first content ------------------------------------------------------------------- */

static void test_answer_first_content_is_not_the_first_byte(void **state)
{
    static const char *const deltas[] = {
        "{\"role\":\"assistant\",\"content\":null}",
        "{\"role\":\"assistant\",\"content\":\"\"}",
        "{\"reasoning_content\":null}",
        "{\"content\":\"Hi\"}",
        "{\"content\":\" you\"}",
    };
    struct answer *a = CHAT_STREAM(deltas); /* K07 */
    (void)state;
    assert_int_equal(answer_facts(a)->first_content_us, 400);
    assert_int_equal(answer_facts(a)->content_events, 2);
    assert_slice(text_of(a)->content, "Hi you");
    answer_free(a);
}

static void test_answer_reasoning_and_calls_are_content_too(void **state)
{
    static const char *const thinks[] = {
        "{\"content\":\"\"}", "{\"reasoning_content\":\"hm\"}", "{\"content\":\"x\"}"};
    static const char *const calls[] = {
        "{\"role\":\"assistant\"}",
        "{\"tool_calls\":[{\"index\":0,\"id\":\"c\",\"function\":{\"name\":\"f\","
        "\"arguments\":\"\"}}]}"};
    struct answer *a = CHAT_STREAM(thinks);
    (void)state;
    assert_int_equal(answer_facts(a)->first_content_us, 200);
    answer_free(a);
    a = CHAT_STREAM(calls);
    assert_int_equal(answer_facts(a)->first_content_us, 200);
    answer_free(a);
}

static void test_answer_documents_have_no_first_content(void **state)
{
    struct answer *a =
        document(PROMPT_CHAT, "{\"choices\":[{\"message\":{\"content\":\"x\"}}]}");
    (void)state;
    assert_int_equal(answer_facts(a)->first_content_us, 0);
    answer_free(a);
}

static void test_answer_comments_are_counted_and_no_content(void **state)
{
    struct answer *a = answer_new(PROMPT_CHAT, true);
    (void)state;
    feed(a, ": ping\n\n: ping\n\n", 5);
    assert_int_equal(answer_facts(a)->comments, 2);
    assert_int_equal(answer_facts(a)->events, 0);
    assert_int_equal(answer_facts(a)->first_content_us, 0);
    answer_free(a);
}

/* ---- counts -------------------------------------------------------------------------- */

static void test_answer_knows_nothing_at_first(void **state)
{
    struct answer *a = answer_new(PROMPT_CHAT, true);
    const struct answer_facts *f = answer_facts(a);
    (void)state;
    answer_finish(a);
    assert_int_equal(f->prompt_tokens, -1);
    assert_int_equal(f->cached_tokens, -1);
    assert_int_equal(f->cache_n, -1);
    assert_int_equal(f->prompt_n, -1);
    assert_int_equal(f->predicted_n, -1);
    assert_int_equal(f->id_slot, -1);
    assert_true(f->prompt_ms < 0);
    assert_false(f->terminal || f->error || f->implausible);
    assert_no_text(a);
    answer_free(a);
}

static void test_answer_reads_on_behind_the_finish_reason(void **state)
{
    struct answer *a = answer_new(PROMPT_CHAT, true);
    const struct answer_facts *f = answer_facts(a);
    (void)state;
    /* K06: first without detail, then in a chunk without choices. */
    event(a,
          "{\"choices\":[{\"index\":0,\"delta\":{\"content\":\"x\"},"
          "\"finish_reason\":\"stop\"}],\"usage\":{\"prompt_tokens\":100,"
          "\"completion_tokens\":1}}",
          1);
    assert_int_equal(f->prompt_tokens, 100);
    assert_int_equal(f->cached_tokens, -1);
    assert_int_equal(f->predicted_n, 1);
    event(a,
          "{\"choices\":[],\"usage\":{\"prompt_tokens\":101,\"completion_tokens\":7,"
          "\"prompt_tokens_details\":{\"cached_tokens\":64}}}",
          2);
    event(a, "{\"choices\":[],\"usage\":null}", 2);
    event(a,
          "{\"choices\":[],\"usage\":{\"prompt_tokens\":101,"
          "\"prompt_tokens_details\":null}}",
          2);
    assert_int_equal(f->prompt_tokens, 101);
    assert_int_equal(f->cached_tokens, 64);
    assert_int_equal(f->predicted_n, 7);
    answer_free(a);
}

static void test_answer_timings_of_llama_server(void **state)
{
    struct answer *a = answer_new(PROMPT_CHAT, true);
    const struct answer_facts *f = answer_facts(a);
    (void)state;
    event(
        a,
        "{\"choices\":[],\"timings\":{\"cache_n\":1000,\"prompt_n\":4,\"prompt_ms\":12.5,"
        "\"predicted_n\":30,\"predicted_ms\":1}}",
        1);
    assert_int_equal(f->cache_n, 1000);
    assert_int_equal(f->prompt_n, 4);
    assert_int_equal(f->predicted_n, 30);
    assert_int_equal(f->prompt_tokens, 1004);
    assert_int_equal(f->cached_tokens, 1000);
    assert_true(f->prompt_ms == 12.5);
    answer_free(a);
}

static void test_answer_tokens_cached_is_no_reuse(void **state)
{
    struct answer *a =
        document(PROMPT_NATIVE, "{\"content\":\"x\",\"id_slot\":1,\"stop\":true,"
                                "\"tokens_cached\":84,\"tokens_evaluated\":21}");
    const struct answer_facts *f = answer_facts(a);
    (void)state;
    assert_int_equal(f->prompt_tokens, 21);
    assert_int_equal(f->cached_tokens, -1);
    assert_int_equal(f->id_slot, 1);
    assert_true(f->terminal);
    assert_slice(text_of(a)->content, "x");
    answer_free(a);
}

static void test_answer_messages_usage_is_a_sum(void **state)
{
    struct answer *a = answer_new(PROMPT_MESSAGES, true);
    const struct answer_facts *f = answer_facts(a);
    (void)state;
    event(a,
          "{\"type\":\"message_start\",\"message\":{\"content\":[],\"usage\":{"
          "\"input_tokens\":10,\"cache_read_input_tokens\":200,"
          "\"cache_creation_input_tokens\":30,\"output_tokens\":1}}}",
          1);
    event(a,
          "{\"type\":\"message_delta\",\"delta\":{\"stop_reason\":\"end_turn\"},"
          "\"usage\":{\"output_tokens\":55}}",
          2);
    assert_int_equal(f->prompt_tokens, 240);
    assert_int_equal(f->cached_tokens, 200);
    assert_int_equal(f->predicted_n, 55);
    answer_free(a);
}

static void test_answer_responses_stream(void **state)
{
    (void)state;
    struct answer *a = answer_new(PROMPT_NONE, true);
    event(a, "{\"type\":\"response.created\",\"response\":{\"usage\":null}}", 1);
    event(a, "{\"type\":\"response.output_item.added\",\"item\":{\"content\":[]}}", 2);
    assert_int_equal(answer_facts(a)->first_content_us, 0);
    event(a, "{\"type\":\"response.output_text.delta\",\"delta\":\"Hi\"}", 3);
    event(a, "{\"type\":\"response.output_text.delta\",\"delta\":\"!\"}", 4);
    assert_false(answer_facts(a)->last);
    event(a,
          "{\"type\":\"response.completed\",\"response\":{\"error\":null,\"usage\":{"
          "\"input_tokens\":50,\"input_tokens_details\":{\"cached_tokens\":40},"
          "\"output_tokens\":2}}}",
          5);
    answer_finish(a);
    const struct answer_facts *f = answer_facts(a);
    assert_int_equal(f->first_content_us, 3);
    assert_int_equal(f->content_events, 2);
    assert_int_equal(f->prompt_tokens, 50); /* here the cached ones are among them */
    assert_int_equal(f->cached_tokens, 40);
    assert_int_equal(f->predicted_n, 2);
    assert_true(f->terminal && f->last && !f->error);
    assert_no_text(a);
    answer_free(a);
}

static void test_answer_of_sglang(void **state)
{
    (void)state;
    struct answer *a = answer_new(PROMPT_NONE, true);
    event(a, "{\"text\":\"\",\"meta_info\":{\"finish_reason\":null}}", 1);
    event(a,
          "{\"text\":\" a\",\"meta_info\":{\"prompt_tokens\":9,\"cached_tokens\":4,"
          "\"completion_tokens\":1,\"finish_reason\":null}}",
          2);
    assert_false(answer_facts(a)->terminal);
    event(a,
          "{\"text\":\" a b\",\"meta_info\":{\"prompt_tokens\":9,\"cached_tokens\":4,"
          "\"completion_tokens\":2,\"finish_reason\":{\"type\":\"length\"}}}",
          3);
    const struct answer_facts *f = answer_facts(a);
    assert_int_equal(f->first_content_us, 2);
    assert_int_equal(f->prompt_tokens, 9);
    assert_int_equal(f->cached_tokens, 4);
    assert_int_equal(f->predicted_n, 2);
    assert_true(f->terminal);
    assert_no_text(a);
    answer_free(a);
}

static void read_other(const char *document, int64_t prompt, int64_t cached, int64_t made)
{
    struct answer *a = answer_new(PROMPT_NONE, false);
    feed(a, document, 1);
    answer_finish(a);
    assert_int_equal(answer_facts(a)->prompt_tokens, prompt);
    assert_int_equal(answer_facts(a)->cached_tokens, cached);
    assert_int_equal(answer_facts(a)->predicted_n, made);
    assert_true(answer_facts(a)->terminal);
    assert_no_text(a);
    answer_free(a);
}

static void test_answer_documents_of_other_APIs(void **state)
{
    (void)state;
    read_other("{\"data\":[{\"embedding\":[0.5,1e-3]}],\"usage\":{\"prompt_tokens\":7,"
               "\"total_tokens\":7}}",
               7, -1, -1);
    read_other("{\"results\":[{\"index\":0,\"relevance_score\":0.1}],\"usage\":{"
               "\"total_tokens\":7}}",
               -1, -1, -1);
    read_other("{\"content\":\"x\",\"stop\":true,\"timings\":{\"cache_n\":30,"
               "\"prompt_n\":2,\"predicted_n\":5}}",
               32, 30, 5);
    read_other("[{\"embedding\":[1]}]", -1, -1, -1); /* no object at all */
}

static void test_answer_counts_that_cannot_be(void **state)
{
    static const struct {
        const char *usage;
        int64_t prompt, cached;
        bool implausible;
    } cases[] = {
        /* K49 */
        {"\"prompt_tokens\":10,\"prompt_tokens_details\":{\"cached_tokens\":10}", 10, 10,
         false},
        {"\"prompt_tokens\":10,\"prompt_tokens_details\":{\"cached_tokens\":11}", 10, 10,
         true},
        {"\"prompt_tokens\":10,\"prompt_tokens_details\":{\"cached_tokens\":-7680}", 10,
         -1, true},
        {"\"prompt_tokens\":10,\"prompt_tokens_details\":{\"cached_tokens\":\"5\"}", 10,
         -1, true},
        {"\"prompt_tokens\":9223372036854775808", -1, -1, true},
        {"\"prompt_tokens\":1e30", -1, -1, true},
        {"\"prompt_tokens\":-5", -1, -1, true},
        {"\"prompt_tokens\":1.5", -1, -1, true},
        {"\"prompt_tokens\":[1,{\"a\":2}]", -1, -1, true},
        {"\"prompt_tokens\":12.0", 12, -1, false},
        {"\"prompt_tokens\":null", -1, -1, false},
        {"\"prompt_tokens\":0", 0, -1, false},
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char *json = mem_printf("{\"choices\":[],\"usage\":{%s}}", cases[i].usage);
        struct answer *a = document(PROMPT_CHAT, json);
        const struct answer_facts *f = answer_facts(a);
        assert_int_equal(f->prompt_tokens, cases[i].prompt);
        assert_int_equal(f->cached_tokens, cases[i].cached);
        assert_int_equal(f->implausible, cases[i].implausible);
        answer_free(a);
        free(json);
    }
}

static void test_answer_prompt_ms_that_cannot_be(void **state)
{
    struct answer *a = document(PROMPT_CHAT, "{\"timings\":{\"prompt_ms\":-1.5}}");
    (void)state;
    assert_true(answer_facts(a)->implausible && answer_facts(a)->prompt_ms < 0);
    answer_free(a);
    a = document(PROMPT_CHAT, "{\"timings\":{\"prompt_ms\":\"1\"}}");
    assert_true(answer_facts(a)->implausible && answer_facts(a)->prompt_ms < 0);
    answer_free(a);
}

/* ---- endings ------------------------------------------------------------------------- */

static void test_answer_without_an_ending_is_not_whole(void **state)
{
    struct answer *a = answer_new(PROMPT_CHAT, true);
    (void)state;
    event(a, "{\"choices\":[{\"index\":0,\"delta\":{\"content\":\"half an ans\"}}]}", 1);
    answer_finish(a); /* K12 */
    assert_false(answer_facts(a)->terminal);
    assert_no_text(a);
    answer_free(a);
}

static void test_answer_last_event_is_not_the_finish_reason(void **state)
{
    static const struct {
        enum prompt_api api;
        const char *before, *last;
    } v[] = {
        {PROMPT_CHAT, "{\"choices\":[{\"index\":0,\"finish_reason\":\"stop\"}]}",
         "[DONE]"},
        {PROMPT_NATIVE, "{\"content\":\"a\",\"stop\":false}", "{\"stop\":true}"},
        {PROMPT_MESSAGES,
         "{\"type\":\"message_delta\",\"delta\":{\"stop_reason\":\"end_turn\"}}",
         "{\"type\":\"message_stop\"}"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof v / sizeof *v; i++) {
        struct answer *a = answer_new(v[i].api, true);
        event(a, v[i].before, 1);
        assert_false(answer_facts(a)->last);
        event(a, v[i].last, 2);
        assert_true(answer_facts(a)->last);
        answer_free(a);
    }
}

static void test_answer_done_alone_ends_a_stream(void **state)
{
    struct answer *a = answer_new(PROMPT_COMPLETIONS, true);
    (void)state;
    event(a, "{\"choices\":[{\"index\":0,\"text\":\"all\",\"finish_reason\":null}]}", 1);
    event(a, "[DONE]", 2);
    answer_finish(a);
    assert_true(answer_facts(a)->terminal);
    assert_slice(text_of(a)->content, "all");
    answer_free(a);
}

static void test_answer_errors_are_seen(void **state)
{
    struct answer *a =
        document(PROMPT_CHAT, "{\"error\":{\"code\":400,\"message\":\"no\"}}");
    (void)state;
    assert_true(answer_facts(a)->error);
    assert_no_text(a);
    answer_free(a);
    a = answer_new(PROMPT_MESSAGES, true);
    feed(a,
         "event: error\ndata: "
         "{\"type\":\"error\",\"error\":{\"type\":\"overloaded_error\"}}"
         "\n\n",
         1);
    assert_true(answer_facts(a)->error);
    answer_free(a);
    a = document(PROMPT_CHAT, "{\"error\":null,\"choices\":[]}");
    assert_false(answer_facts(a)->error);
    answer_free(a);
}

static void test_answer_what_is_no_json_is_not_known(void **state)
{
    struct answer *a = document(PROMPT_CHAT, "<html>502</html>");
    (void)state;
    assert_false(answer_facts(a)->error || answer_facts(a)->terminal);
    assert_no_text(a);
    answer_free(a);
    a = document(PROMPT_CHAT, "{\"choices\":[{\"message\":{\"content\":\"x\"}}]");
    assert_no_text(a);
    answer_free(a);
    a = document(PROMPT_NATIVE, "[{\"content\":\"a\",\"stop\":true}]");
    assert_no_text(a);
    answer_free(a);
}

/* ---- text ---------------------------------------------------------------------------- */

static void test_answer_text_of_documents(void **state)
{
    struct answer *a = document(
        PROMPT_CHAT,
        "{\"choices\":[{\"index\":0,\"message\":{\"role\":\"assistant\",\"refusal\":null,"
        "\"content\":\"caf\\u00e9\",\"reasoning_content\":\"hm\",\"tool_calls\":[]},"
        "\"finish_reason\":\"stop\"}]}");
    (void)state;
    assert_slice(text_of(a)->content, "caf\xc3\xa9");
    assert_slice(text_of(a)->reasoning, "hm");
    assert_int_equal(text_of(a)->n_calls, 0);
    answer_free(a);
    a = document(PROMPT_COMPLETIONS, "{\"choices\":[{\"text\":\"x\",\"index\":0}]}");
    assert_slice(text_of(a)->content, "x");
    answer_free(a);
    a = document(PROMPT_CHAT, "{\"choices\":[{\"message\":{\"content\":\"\"}}]}");
    assert_non_null(text_of(a)->content.ptr);
    assert_null(text_of(a)->reasoning.ptr);
    answer_free(a);
}

static void test_answer_takes_reasoning_once_under_either_name(void **state)
{
    static const char *const both[] = {
        "{\"reasoning\":\"h\",\"reasoning_content\":\"h\"}",
        "{\"reasoning_content\":\"m\",\"reasoning\":\"m\"}", "{\"content\":\"x\"}"};
    static const char *const other[] = {"{\"reasoning\":\"hm\"}", "{\"content\":\"x\"}"};
    struct answer *a = CHAT_STREAM(both);
    (void)state;
    assert_slice(text_of(a)->reasoning, "hm");
    answer_free(a);
    a = CHAT_STREAM(other);
    assert_slice(text_of(a)->reasoning, "hm");
    answer_free(a);
}

static void test_answer_calls_of_documents(void **state)
{
    struct answer *a =
        document(PROMPT_CHAT,
                 "{\"choices\":[{\"message\":{\"content\":null,\"tool_calls\":["
                 "{\"id\":\"a\",\"type\":\"function\",\"function\":{\"name\":\"f\","
                 "\"arguments\":\"{\\\"x\\\":1}\"}},"
                 "{\"function\":{\"arguments\":\"\",\"name\":\"g\"},\"id\":\"b\"}]}}]}");
    (void)state;
    const struct prompt_answer *text = text_of(a);
    assert_null(text->content.ptr);
    assert_int_equal(text->n_calls, 2);
    assert_slice(text->calls[0].id, "a");
    assert_slice(text->calls[0].name, "f");
    assert_slice(text->calls[0].arguments, "{\"x\":1}");
    assert_slice(text->calls[1].id, "b");
    assert_slice(text->calls[1].name, "g");
    answer_free(a);
}

static void test_answer_puts_fragments_of_calls_together(void **state)
{
    static const char *const deltas[] = {
        "{\"content\":null,\"role\":\"assistant\"}",
        "{\"tool_calls\":[{\"index\":0,\"id\":\"a\",\"type\":\"function\","
        "\"function\":{\"name\":\"f\",\"arguments\":\"\"}}]}",
        "{\"tool_calls\":[{\"index\":0,\"function\":{\"arguments\":\"{\\\"x\\\"\"}}]}",
        "{\"tool_calls\":[{\"function\":{\"arguments\":\":1}\"},\"index\":0},"
        "{\"index\":1,\"id\":\"b\",\"function\":{\"name\":\"g\"}}]}",
        "{\"tool_calls\":[{\"index\":1,\"id\":null,\"function\":{\"arguments\":\"{}\"}}]"
        "}",
    };
    static const char *const no_index[] = {
        "{\"tool_calls\":[{\"id\":\"a\",\"function\":{\"name\":\"f\"}}]}",
        "{\"tool_calls\":[{\"function\":{\"arguments\":\"{}\"}}]}",
        "{\"tool_calls\":[{\"id\":\"b\",\"function\":{\"name\":\"g\"}}]}",
    };
    struct answer *a = CHAT_STREAM(deltas);
    (void)state;
    const struct prompt_answer *text = text_of(a);
    assert_int_equal(text->n_calls, 2);
    assert_slice(text->calls[0].arguments, "{\"x\":1}");
    assert_slice(text->calls[1].id, "b");
    assert_slice(text->calls[1].name, "g");
    assert_slice(text->calls[1].arguments, "{}");
    answer_free(a);
    a = CHAT_STREAM(no_index);
    assert_int_equal(text_of(a)->n_calls, 2);
    assert_slice(text_of(a)->calls[0].arguments, "{}");
    answer_free(a);
}

static void test_answer_blocks_of_a_messages_stream(void **state)
{
    static const char *const events[] = {
        "{\"type\":\"message_start\",\"message\":{\"usage\":{\"input_tokens\":3}}}",
        "{\"type\":\"ping\"}",
        "{\"type\":\"content_block_start\",\"index\":0,\"content_block\":"
        "{\"type\":\"thinking\",\"thinking\":\"\"}}",
        "{\"type\":\"content_block_delta\",\"index\":0,\"delta\":"
        "{\"type\":\"thinking_delta\",\"thinking\":\"hm\"}}",
        "{\"type\":\"content_block_delta\",\"index\":0,\"delta\":"
        "{\"type\":\"signature_delta\",\"signature\":\"s\"}}",
        "{\"type\":\"content_block_stop\",\"index\":0}",
        "{\"type\":\"content_block_start\",\"index\":1,\"content_block\":"
        "{\"type\":\"text\",\"text\":\"\"}}",
        "{\"type\":\"content_block_delta\",\"index\":1,\"delta\":"
        "{\"type\":\"text_delta\",\"text\":\"I look.\"}}",
        "{\"type\":\"content_block_start\",\"index\":2,\"content_block\":"
        "{\"type\":\"tool_use\",\"id\":\"t1\",\"name\":\"Read\",\"input\":{}}}",
        "{\"type\":\"content_block_delta\",\"index\":2,\"delta\":"
        "{\"type\":\"input_json_delta\",\"partial_json\":\"{\\\"path\\\":\"}}",
        "{\"type\":\"content_block_delta\",\"index\":2,\"delta\":"
        "{\"type\":\"input_json_delta\",\"partial_json\":\"\\\"a\\\"}\"}}",
        "{\"type\":\"message_delta\",\"delta\":{\"stop_reason\":\"tool_use\"}}",
        "{\"type\":\"message_stop\"}",
    };
    struct answer *a = answer_new(PROMPT_MESSAGES, true);
    (void)state;
    for (size_t i = 0; i < sizeof events / sizeof *events; i++)
        event(a, events[i], i + 1);
    answer_finish(a);
    assert_int_equal(answer_facts(a)->first_content_us, 4);
    assert_slice(text_of(a)->reasoning, "hm");
    assert_slice(text_of(a)->content, "I look.");
    assert_int_equal(text_of(a)->n_calls, 1);
    assert_slice(text_of(a)->calls[0].id, "t1");
    assert_slice(text_of(a)->calls[0].name, "Read");
    assert_slice(text_of(a)->calls[0].arguments, "{\"path\":\"a\"}");
    answer_free(a);
}

static void test_answer_blocks_of_a_messages_document(void **state)
{
    struct answer *a = document(
        PROMPT_MESSAGES,
        "{\"type\":\"message\",\"content\":[{\"type\":\"text\",\"text\":\"a\"},"
        "{\"type\":\"tool_use\",\"id\":\"t\",\"name\":\"n\",\"input\":{\"k\":[1, 2]}}],"
        "\"stop_reason\":\"tool_use\",\"usage\":{\"input_tokens\":5,\"output_tokens\":6}"
        "}");
    (void)state;
    assert_slice(text_of(a)->content, "a");
    assert_slice(text_of(a)->calls[0].arguments, "{\"k\":[1, 2]}");
    assert_int_equal(answer_facts(a)->prompt_tokens, 5);
    answer_free(a);
}

static void test_answer_blocks_in_an_order_that_cannot_be_quoted(void **state)
{
    static const char *const contents[] = {
        "{\"type\":\"text\",\"text\":\"a\"},{\"type\":\"text\",\"text\":\"b\"}",
        "{\"type\":\"text\",\"text\":\"a\"},{\"type\":\"thinking\",\"thinking\":\"b\"}",
        "{\"type\":\"tool_use\",\"input\":{}},{\"type\":\"text\",\"text\":\"b\"}",
        "{\"type\":\"server_tool_use\",\"id\":\"t\"}",
    };
    (void)state;
    for (size_t i = 0; i < sizeof contents / sizeof *contents; i++) {
        char *json = mem_printf("{\"content\":[%s],\"stop_reason\":\"x\"}", contents[i]);
        struct answer *a = document(PROMPT_MESSAGES, json);
        assert_true(answer_facts(a)->terminal);
        assert_no_text(a);
        answer_free(a);
        free(json);
    }
}

static void test_answer_of_several_choices_has_no_one_text(void **state)
{
    struct answer *a = answer_new(PROMPT_CHAT, true);
    (void)state;
    event(a, "{\"choices\":[{\"delta\":{\"content\":\"a\"},\"index\":0}]}", 1);
    event(a, "{\"choices\":[{\"delta\":{\"content\":\"b\"},\"index\":1}]}", 2);
    event(a, "{\"choices\":[{\"index\":0,\"delta\":{},\"finish_reason\":\"stop\"}]}", 3);
    event(a, "[DONE]", 4);
    answer_finish(a);
    assert_true(answer_facts(a)->terminal);
    assert_int_equal(answer_facts(a)->first_content_us, 1);
    assert_no_text(a);
    answer_free(a);
}

static void test_answer_keeps_no_more_than_its_limit(void **state)
{
    const size_t len = 512 << 10;
    char *much = mem_alloc(len + 1);
    struct answer *a = answer_new(PROMPT_CHAT, true);
    (void)state;
    memset(much, 'x', len);
    much[len] = '\0';
    char *data =
        mem_printf("{\"choices\":[{\"index\":0,\"delta\":{\"content\":\"%s\"}}]}", much);
    for (size_t kept = 0; kept <= ANSWER_MAX_TEXT; kept += len)
        event(a, data, 1);
    event(a, "[DONE]", 2);
    answer_finish(a);
    assert_true(answer_facts(a)->terminal);
    assert_no_text(a);
    answer_free(a);
    free(data);
    free(much);
}

static void test_answer_does_not_depend_on_how_bytes_are_cut(void **state)
{
    static const char stream[] =
        "data: {\"choices\":[{\"index\":0,\"delta\":{\"content\":\"\xe6\xb8\xaf "
        "\\u00e4\"}}]}"
        "\r\n\r\ndata:{\"choices\":[{\"index\":0,\"delta\":{\"content\":\"!\"},"
        "\"finish_reason\":\"stop\"}]}\n\ndata: {\"choices\":[],\"usage\":{"
        "\"prompt_tokens\":9,\"prompt_tokens_details\":{\"cached_tokens\":8}}}\n\n"
        "data: [DONE]\n\n";
    (void)state;
    for (size_t step = 1; step < sizeof stream; step++) { /* K01, K02, K03 */
        struct answer *a = answer_new(PROMPT_CHAT, true);
        for (size_t at = 0; at < sizeof stream - 1; at += step) {
            const size_t left = sizeof stream - 1 - at;
            answer_feed(a, slice_make(stream + at, left < step ? left : step), at + 1);
        }
        answer_finish(a);
        assert_slice(text_of(a)->content, "\xe6\xb8\xaf \xc3\xa4!");
        assert_int_equal(answer_facts(a)->cached_tokens, 8);
        assert_int_equal(answer_facts(a)->events, 4);
        answer_free(a);
    }
}

/* ---- units ---------------------------------------------------------------------------- */

static void assert_units(const struct answer *a, const char *expected, bool tokens)
{
    char got[200] = "";
    struct slice text;
    size_t n;
    bool told;
    const struct answer_unit *u = answer_units(a, &n, &text, &told);
    for (size_t i = 0; i < n; i++) {
        const size_t from = i ? u[i - 1].end : 0, at = strlen(got);
        snprintf(got + at, sizeof(got) - at, "%.*s/", (int)(u[i].end - from),
                 text.ptr + from);
    }
    assert_string_equal(got, expected);
    assert_int_equal(told, tokens);
}

#define CHOICE(delta, more) "{\"choices\":[{\"index\":0,\"delta\":" delta more "}]}"

static void test_answer_units_are_events(void **state)
{
    struct answer *a = answer_new(PROMPT_CHAT, true);
    (void)state;
    answer_note_units(a);
    event(a, CHOICE("{\"role\":\"assistant\"}", ""), 1);
    event(a, CHOICE("{\"reasoning_content\":\"hm\"}", ""), 2);
    event(a, CHOICE("{\"content\":\"a b\"}", ""), 3);
    event(a, CHOICE("{\"content\":\"\\u00e9\"}", ""), 4);
    event(a,
          CHOICE("{\"tool_calls\":[{\"index\":0,\"id\":\"i\",\"function\":"
                 "{\"name\":\"f\",\"arguments\":\"{\"}}]}",
                 ""),
          5);
    event(
        a,
        CHOICE("{\"tool_calls\":[{\"index\":0,\"function\":{\"arguments\":\"}\"}}]}", ""),
        6);
    event(a,
          CHOICE("{\"tool_calls\":[{\"index\":1,\"id\":\"j\",\"function\":"
                 "{\"name\":\"g\",\"arguments\":\"[]\"}}]}",
                 ""),
          7);
    assert_units(a, "", false); /* not whole yet */
    event(a, CHOICE("{}", ",\"finish_reason\":\"stop\""), 8);
    assert_units(a, "hm/a b/\xc3\xa9/{/}/[]/", false);
    answer_free(a);
}

static void test_answer_units_are_tokens_where_they_are_told(void **state)
{
    struct answer *a = answer_new(PROMPT_CHAT, true);
    struct slice text;
    size_t n;
    bool tokens;
    (void)state;
    answer_note_units(a);
    event(a,
          CHOICE("{\"content\":\"ab\"}",
                 ",\"logprobs\":{\"content\":[{\"token\":\"a\",\"logprob\":-0.5,"
                 "\"top_logprobs\":[{\"token\":\"x\",\"logprob\":-9}]},"
                 "{\"token\":\"b\",\"logprob\":-1}]}"),
          1);
    event(a,
          CHOICE("{\"content\":\"c\"}",
                 ",\"logprobs\":{\"content\":[{\"token\":\"c\",\"logprob\":null}]}"),
          2);
    event(a, CHOICE("{}", ",\"logprobs\":null,\"finish_reason\":\"stop\""), 3);
    assert_units(a, "a/b/c/", true);
    const struct answer_unit *u = answer_units(a, &n, &text, &tokens);
    assert_true(u[0].logprob == -0.5f && u[1].logprob == -1 && isnan(u[2].logprob));
    answer_free(a);
}

static void test_answer_units_are_noted_on_request_only(void **state)
{
    static const char *const deltas[] = {"{\"content\":\"a\"}"};
    struct answer *a = CHAT_STREAM(deltas);
    (void)state;
    assert_units(a, "", false);
    answer_free(a);
    a = answer_new(PROMPT_CHAT, false);
    answer_note_units(a);
    feed(a,
         "{\"choices\":[{\"index\":0,\"message\":{\"content\":\"ab\"},\"logprobs\":"
         "{\"content\":[{\"token\":\"ab\",\"logprob\":-2}]}}]}",
         1);
    answer_finish(a);
    assert_units(a, "ab/", true);
    answer_free(a);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_answer_first_content_is_not_the_first_byte),
        cmocka_unit_test(test_answer_reasoning_and_calls_are_content_too),
        cmocka_unit_test(test_answer_documents_have_no_first_content),
        cmocka_unit_test(test_answer_comments_are_counted_and_no_content),
        cmocka_unit_test(test_answer_knows_nothing_at_first),
        cmocka_unit_test(test_answer_reads_on_behind_the_finish_reason),
        cmocka_unit_test(test_answer_timings_of_llama_server),
        cmocka_unit_test(test_answer_tokens_cached_is_no_reuse),
        cmocka_unit_test(test_answer_messages_usage_is_a_sum),
        cmocka_unit_test(test_answer_documents_of_other_APIs),
        cmocka_unit_test(test_answer_of_sglang),
        cmocka_unit_test(test_answer_responses_stream),
        cmocka_unit_test(test_answer_counts_that_cannot_be),
        cmocka_unit_test(test_answer_prompt_ms_that_cannot_be),
        cmocka_unit_test(test_answer_without_an_ending_is_not_whole),
        cmocka_unit_test(test_answer_last_event_is_not_the_finish_reason),
        cmocka_unit_test(test_answer_done_alone_ends_a_stream),
        cmocka_unit_test(test_answer_errors_are_seen),
        cmocka_unit_test(test_answer_what_is_no_json_is_not_known),
        cmocka_unit_test(test_answer_text_of_documents),
        cmocka_unit_test(test_answer_takes_reasoning_once_under_either_name),
        cmocka_unit_test(test_answer_calls_of_documents),
        cmocka_unit_test(test_answer_puts_fragments_of_calls_together),
        cmocka_unit_test(test_answer_blocks_of_a_messages_stream),
        cmocka_unit_test(test_answer_blocks_of_a_messages_document),
        cmocka_unit_test(test_answer_blocks_in_an_order_that_cannot_be_quoted),
        cmocka_unit_test(test_answer_of_several_choices_has_no_one_text),
        cmocka_unit_test(test_answer_keeps_no_more_than_its_limit),
        cmocka_unit_test(test_answer_does_not_depend_on_how_bytes_are_cut),
        cmocka_unit_test(test_answer_units_are_events),
        cmocka_unit_test(test_answer_units_are_tokens_where_they_are_told),
        cmocka_unit_test(test_answer_units_are_noted_on_request_only),
    };
    return cmocka_run_group_tests_name("answer", tests, NULL, NULL);
}
