/* SPDX-License-Identifier: MIT */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../lib/prompt_oracle.h"
#include "base/mem.h"
#include "cmocka_all.h"
#include "proto/prompt.h"

/* ---- help ---------------------------------------------------------------------------- */

static struct prompt scan(enum prompt_api api, const char *body)
{
    struct prompt p;
    prompt_scan(&p, api, slice_of(body));
    return p;
}

static void assert_readable(const struct prompt *p)
{
    if (p->bar == PROMPT_BAR_UNREADABLE)
        fail_msg("%s at %zu", p->why, p->why_at);
}

/* What is emitted, printable: ` for 0xFF, each part as <kind bytes>. */
static char *printable(struct buf *b)
{
    static const char kinds[] = "RTMPX"; /* root, tools, message, picture, text */
    struct buf out = {0};
    for (size_t i = b->start; i < b->end; i++) {
        const char c = b->data[i];
        if (c == RECORD_BEGIN) {
            buf_append_char(&out, '<');
            buf_append_char(&out, kinds[b->data[++i] - '0']);
        } else {
            buf_append_char(&out, c == RECORD_END ? '>' : c == '\xFF' ? '`' : c);
        }
    }
    buf_free(b);
    return buf_take_str(&out);
}

static char *emitted(enum prompt_api api, enum prompt_order order, const char *body)
{
    struct buf b = {0};
    struct prompt p = scan(api, body);
    assert_readable(&p);
    record_prompt(&p, order, &b);
    prompt_free(&p);
    return printable(&b);
}

static void assert_emits(enum prompt_api api, enum prompt_order order, const char *body,
                         const char *expected)
{
    char *got = emitted(api, order, body);
    assert_string_equal(got, expected);
    free(got);
}

static void assert_chat(const char *body, const char *expected)
{
    assert_emits(PROMPT_CHAT, PROMPT_ORDER_SYSTEM_FIRST, body, expected);
}

/* What a single message becomes. */
static void assert_message(enum prompt_api api, const char *message, const char *expected)
{
    char *body = mem_printf("{\"messages\":[%s]}", message);
    char *got = emitted(api, PROMPT_ORDER_SYSTEM_FIRST, body);
    char *behind_root = strchr(got, '>') + 1;
    assert_string_equal(behind_root, expected);
    free(got);
    free(body);
}

static void assert_unreadable(enum prompt_api api, const char *body, const char *why)
{
    struct prompt p = scan(api, body);
    assert_int_equal(p.bar, PROMPT_BAR_UNREADABLE);
    assert_string_equal(p.why, why);
    assert_true(p.why_at <= strlen(body));
    prompt_free(&p);
}

static void assert_bar(enum prompt_api api, const char *body, enum prompt_bar bar)
{
    struct prompt p = scan(api, body);
    assert_readable(&p);
    assert_int_equal(p.bar, bar);
    prompt_free(&p);
}

/* ---- facts --------------------------------------------------------------------------- */

static void test_prompt_scan_reads_the_facts_of_a_chat(void **state)
{
    struct prompt p =
        scan(PROMPT_CHAT, "{\"model\":\"a\\/b\",\"stream\":true,"
                          "\"stream_options\":{\"include_usage\":true},\"id_slot\":3,"
                          "\"cache_prompt\":true,\"n\":2,\"max_tokens\":64,"
                          "\"messages\":[{\"role\":\"user\",\"content\":\"x\"},{}]}");
    (void)state;
    assert_readable(&p);
    assert_true(slice_eq(p.model, SLICE_LIT("a\\/b")));
    assert_true(p.stream && p.include_usage && p.has_id_slot && p.has_cache_prompt);
    assert_false(p.has_lora || p.has_media);
    assert_int_equal(p.id_slot, 3);
    assert_int_equal(p.n, 2);
    assert_int_equal(p.max_tokens, 64);
    assert_int_equal(p.n_messages, 2);
    assert_int_equal(p.n_prompts, 1);
    prompt_free(&p);
}

static void test_prompt_scan_knows_what_is_absent(void **state)
{
    struct prompt p = scan(PROMPT_CHAT, "{\"messages\":[],\"stream\":null,\"n\":null,"
                                        "\"id_slot\":null,\"max_tokens\":null,"
                                        "\"stream_options\":null,\"model\":null}");
    (void)state;
    assert_readable(&p);
    assert_false(p.stream || p.include_usage || p.has_id_slot || p.has_cache_prompt);
    assert_null(p.model.ptr);
    assert_int_equal(p.n, 1);
    assert_int_equal(p.max_tokens, -1);
    prompt_free(&p);
}

static void test_prompt_scan_says_where_a_field_can_be_put_in(void **state)
{
    struct prompt p = scan(PROMPT_CHAT, " \n{ \"messages\":[]}");
    (void)state;
    assert_int_equal(p.splice_at, 3);
    assert_true(p.splice_comma);
    prompt_free(&p);
    p = scan(PROMPT_NONE, "{ \n}");
    assert_readable(&p);
    assert_int_equal(p.splice_at, 1);
    assert_false(p.splice_comma);
    prompt_free(&p);
}

static void test_prompt_scan_finds_keys_that_are_written_with_escapes(void **state)
{
    (void)state;
    assert_chat("{\"m\\u006fdel\":\"x\",\"mess\\u0061ges\":[{\"r\\u006fle\":\"user\"}]}",
                "<R`Ac`kmodel`sx><M`R`suser>");
    assert_unreadable(PROMPT_CHAT,
                      "{\"model\":\"x\",\"m\\u006fdel\":\"y\",\"messages\":[]}",
                      "duplicate key");
}

static void test_prompt_scan_reads_a_key_with_escapes_of_256_bytes(void **state)
{
    char *good = mem_printf("{\"\\u0078%0255d\":1,\"messages\":[]}", 0),
         *bad = mem_printf("{\"\\u0078%0256d\":1,\"messages\":[]}", 0),
         *plain = mem_printf("{\"%01000d\":1,\"messages\":[]}", 0);
    (void)state;
    assert_chat(good, "<R`Ac>");
    assert_chat(plain, "<R`Ac>");
    assert_unreadable(PROMPT_CHAT, bad, "key too long");
    free(good);
    free(bad);
    free(plain);
}

static void test_prompt_scan_refuses_a_key_twice_where_it_matters(void **state)
{
    static const char *const bodies[] = {
        "{\"messages\":[],\"messages\":[]}",
        "{\"messages\":[],\"foo\":1,\"foo\":1}",
        "{\"messages\":[{\"role\":\"a\",\"role\":\"b\"}]}",
        "{\"messages\":[{\"x\":1,\"x\":2}]}",
        "{\"messages\":[{\"content\":[{\"type\":\"text\",\"text\":\"a\",\"text\":\"b\"}]}"
        "]}",
        "{\"messages\":[{\"tool_calls\":[{\"id\":\"a\",\"id\":\"b\"}]}]}",
        "{\"messages\":[{\"tool_calls\":[{\"function\":{\"name\":\"\",\"name\":\"\"}}]}]"
        "}",
        "{\"messages\":[],\"stream_options\":{\"a\":1,\"a\":1}}",
    };
    (void)state;
    for (size_t i = 0; i < sizeof bodies / sizeof *bodies; i++)
        assert_unreadable(PROMPT_CHAT, bodies[i], "duplicate key");
    /* A schema may do as it likes: both are in what is emitted. */
    assert_chat("{\"messages\":[],\"tools\":[{\"a\":1,\"a\":2}]}",
                "<R`Ac><T`[`{`ka`n1`ka`n2`}`]>");
}

static void test_prompt_scan_refuses_wrong_types(void **state)
{
    static const char *const members[] = {
        "\"model\":[\"x\"]",   "\"stream\":\"true\"", "\"stream_options\":[]",
        "\"tools\":{\"0\":1}", "\"cache_salt\":42",   "\"id_slot\":\"1\"",
        "\"id_slot\":1.0",     "\"id_slot\":1e30",    "\"n\":\"2\"",
        "\"cache_prompt\":0",  "\"echo\":1",          "\"max_tokens\":\"9\"",
    };
    static const char *const messages[] = {
        "\"hi\"",
        "[\"hi\"]",
        "[{\"role\":1}]",
        "[{\"role\":null}]",
        "[{\"content\":{}}]",
        "[{\"content\":[\"x\"]}]",
        "[{\"content\":[{\"type\":1}]}]",
        "[{\"content\":[{\"type\":\"text\",\"text\":null}]}]",
        "[{\"tool_calls\":{}}]",
        "[{\"tool_calls\":[1]}]",
        "[{\"tool_calls\":[{\"function\":\"f\"}]}]",
        "[{\"reasoning_content\":[]}]",
    };
    (void)state;
    for (size_t i = 0; i < sizeof members / sizeof *members; i++) {
        char *body = mem_printf("{\"messages\":[],%s}", members[i]);
        struct prompt p = scan(PROMPT_CHAT, body);
        assert_int_equal(p.bar, PROMPT_BAR_UNREADABLE);
        assert_non_null(strstr(p.why, "expected"));
        prompt_free(&p);
        free(body);
    }
    for (size_t i = 0; i < sizeof messages / sizeof *messages; i++) {
        char *body = mem_printf("{\"messages\":%s}", messages[i]);
        struct prompt p = scan(PROMPT_CHAT, body);
        assert_int_equal(p.bar, PROMPT_BAR_UNREADABLE);
        assert_non_null(strstr(p.why, "expected"));
        prompt_free(&p);
        free(body);
    }
}

static void test_prompt_scan_refuses_a_body_without_prompt(void **state)
{
    (void)state;
    assert_unreadable(PROMPT_CHAT, "{\"prompt\":\"x\"}", "no prompt");
    assert_unreadable(PROMPT_COMPLETIONS, "{\"messages\":[]}", "no prompt");
    assert_unreadable(PROMPT_CHAT, "[]", "object expected");
    assert_unreadable(PROMPT_CHAT, "", "value expected");
}

static void test_prompt_scan_bounds_what_it_notes(void **state)
{
    struct buf b = {0};
    (void)state;
    buf_append_str(&b, "{\"messages\":[{}");
    for (int i = 0; i < PROMPT_MAX_SPANS; i++)
        buf_append_str(&b, ",{}");
    buf_append_str(&b, "]}");
    buf_append_char(&b, '\0');
    assert_unreadable(PROMPT_CHAT, b.data + b.start, "too many fields");
    buf_clear(&b);
    buf_append_str(&b, "{\"messages\":[{\"k\":0");
    for (int i = 0; i < 200; i++)
        buf_printf(&b, ",\"k%d\":0", i);
    buf_append_str(&b, "}]}");
    buf_append_char(&b, '\0');
    assert_unreadable(PROMPT_CHAT, b.data + b.start, "too many keys");
    buf_free(&b);
}

/* ---- bars ---------------------------------------------------------------------------- */

static void test_prompt_bars_what_must_not_use_the_cache(void **state)
{
    (void)state;
    assert_bar(PROMPT_CHAT, "{\"messages\":[],\"cache_prompt\":false}",
               PROMPT_BAR_NO_CACHE);
    assert_bar(PROMPT_COMPLETIONS, "{\"prompt\":\"a\",\"echo\":true}", PROMPT_BAR_ECHO);
    assert_bar(PROMPT_COMPLETIONS, "{\"prompt\":\"a\",\"echo\":false}", PROMPT_BAR_NONE);
    assert_bar(PROMPT_CHAT, "{\"messages\":[],\"prompt_logprobs\":0}", PROMPT_BAR_ECHO);
    assert_bar(PROMPT_CHAT, "{\"messages\":[],\"prompt_logprobs\":null}",
               PROMPT_BAR_NONE);
    assert_bar(PROMPT_CHAT, "{\"messages\":[],\"max_tokens\":0}", PROMPT_BAR_NONE);
    assert_bar(PROMPT_NATIVE, "{\"prompt\":\"a\",\"n_predict\":0}", PROMPT_BAR_NONE);
}

static void test_prompt_tells_batches_from_single_prompts(void **state)
{
    static const struct {
        const char *prompt;
        enum prompt_bar bar;
        size_t n_prompts, n_ids;
    } cases[] = {
        {"\"a\"", PROMPT_BAR_NONE, 1, 0},
        {"[\"a\"]", PROMPT_BAR_NONE, 1, 0},
        {"[\"a\",\"b\"]", PROMPT_BAR_BATCH, 2, 0},
        {"[\"a\",\"\"]", PROMPT_BAR_BATCH, 2, 0},
        {"[1,2,3]", PROMPT_BAR_NONE, 1, 3},
        {"[[1,2,3]]", PROMPT_BAR_NONE, 1, 3},
        {"[[1],[2],[3]]", PROMPT_BAR_BATCH, 3, 3},
        {"[[1],\"a\"]", PROMPT_BAR_BATCH, 2, 0},
        {"[1,\"a\"]", PROMPT_BAR_MIXED, 1, 0},
        {"[\"a\",1]", PROMPT_BAR_MIXED, 1, 0},
        {"[1,\"a\",2,\"b\"]", PROMPT_BAR_MIXED, 1, 0},
        {"[[1,\"a\"]]", PROMPT_BAR_MIXED, 1, 0},
        {"{\"prompt_string\":\"a\"}", PROMPT_BAR_NONE, 1, 0},
        {"[{\"prompt_string\":\"a\"},\"b\"]", PROMPT_BAR_BATCH, 2, 0},
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char *body = mem_printf("{\"prompt\":%s}", cases[i].prompt);
        struct prompt p = scan(PROMPT_NATIVE, body);
        assert_readable(&p);
        assert_int_equal(p.bar, cases[i].bar);
        assert_int_equal(p.n_prompts, cases[i].n_prompts);
        assert_int_equal(p.n_ids, cases[i].n_ids);
        assert_int_equal(p.ids != NULL, cases[i].n_ids > 0);
        prompt_free(&p);
        free(body);
    }
}

/* `n` times `item` in a list. */
static void prompt_of(struct buf *b, const char *item, int n)
{
    buf_append_str(b, "{\"prompt\":[");
    for (int i = 0; i < n; i++)
        buf_printf(b, "%s%s", i ? "," : "", item);
    buf_append_str(b, "]}");
    buf_append_char(b, '\0');
}

static void test_prompt_scan_bounds_ids_and_their_lists(void **state)
{
    static const struct {
        const char *item;
        int most;
        const char *why;
    } cases[] = {{"1", PROMPT_MAX_IDS, "too many token ids"},
                 {"[1]", PROMPT_MAX_SPANS, "too many prompts"}};
    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct buf b = {0};
        prompt_of(&b, cases[i].item, cases[i].most);
        struct prompt p = scan(PROMPT_COMPLETIONS, b.data);
        assert_null(p.why);
        assert_int_equal(p.n_ids, cases[i].most);
        assert_in_range(prompt_held(&p), 4 * p.n_ids, 12 * p.n_ids + 4096);
        prompt_free(&p);
        buf_clear(&b);
        prompt_of(&b, cases[i].item, cases[i].most + 1);
        assert_unreadable(PROMPT_COMPLETIONS, b.data, cases[i].why);
        buf_free(&b);
    }
}

static void test_prompt_ids_are_32_bits_and_whole(void **state)
{
    struct prompt p = scan(PROMPT_COMPLETIONS, "{\"prompt\":[0,4294967295]}");
    (void)state;
    assert_readable(&p);
    assert_int_equal(p.ids[0], 0);
    assert_int_equal(p.ids[1], UINT32_MAX);
    prompt_free(&p);
    assert_unreadable(PROMPT_COMPLETIONS, "{\"prompt\":[4294967296]}",
                      "token id expected");
    assert_unreadable(PROMPT_COMPLETIONS, "{\"prompt\":[-1]}", "token id expected");
    assert_unreadable(PROMPT_COMPLETIONS, "{\"prompt\":[1.0]}", "token id expected");
    assert_unreadable(PROMPT_COMPLETIONS, "{\"prompt\":[]}", "empty prompt");
    assert_unreadable(PROMPT_COMPLETIONS, "{\"prompt\":[[]]}", "empty prompt");
    assert_unreadable(PROMPT_COMPLETIONS, "{\"prompt\":null}", "prompt expected");
    assert_unreadable(PROMPT_COMPLETIONS, "{\"prompt\":[1,[2]]}", "ids beside lists");
}

/* ---- what is emitted ----------------------------------------------------------------- */

static void test_prompt_emit_root_has_options_in_fixed_order(void **state)
{
    (void)state;
    assert_chat("{\"messages\":[],\"tool_choice\":\"auto\",\"temperature\":1,\"seed\":2,"
                "\"cache_salt\":\"s\",\"model\":\"m\",\"user\":\"u\",\"metadata\":{},"
                "\"lora\":[{\"id\":0,\"scale\":1.0}],\"reasoning_effort\":null}",
                "<R`Ac`kmodel`sm`kcache_salt`ss`klora`[`{`kid`n0`kscale`n1.0`}`]"
                "`ktool_choice`sauto>");
}

static void test_prompt_emit_keeps_salt_and_adapter_apart(void **state)
{
    char *salt = emitted(PROMPT_CHAT, PROMPT_ORDER_SYSTEM_FIRST,
                         "{\"messages\":[],\"cache_salt\":\"X\"}");
    char *lora = emitted(PROMPT_CHAT, PROMPT_ORDER_SYSTEM_FIRST,
                         "{\"messages\":[],\"lora_path\":\"X\"}");
    (void)state;
    assert_string_not_equal(salt, lora); /* K34 */
    free(salt);
    free(lora);
}

static void test_prompt_emit_tells_apis_apart(void **state)
{
    (void)state;
    assert_emits(PROMPT_COMPLETIONS, PROMPT_ORDER_SYSTEM_FIRST, "{\"prompt\":\"a\\nb\"}",
                 "<R`At><Xa\nb>");
    assert_emits(PROMPT_NATIVE, PROMPT_ORDER_SYSTEM_FIRST, "{\"prompt\":[\"ab\"]}",
                 "<R`An><Xab>");
    assert_emits(PROMPT_NATIVE, PROMPT_ORDER_SYSTEM_FIRST, "{\"prompt\":[1,2]}",
                 "<R`An>");
    assert_emits(PROMPT_MESSAGES, PROMPT_ORDER_SYSTEM_FIRST, "{\"messages\":[]}",
                 "<R`Am>");
}

static void test_prompt_emit_message_fields_in_fixed_order(void **state)
{
    (void)state;
    assert_message(PROMPT_CHAT,
                   "{\"zeta\":[1,true],\"tool_call_id\":\"t\",\"content\":\"c\","
                   "\"reasoning_content\":\"h\",\"name\":\"n\",\"role\":\"tool\","
                   "\"alpha\":{\"b\":null}}",
                   "<M`R`stool`N`sn`C`sc`H`sh`I`st`kzeta`[`n1`t`]`kalpha`{`kb`z`}>");
}

static void test_prompt_emit_leaves_out_what_no_template_prints(void **state)
{
    (void)state;
    assert_message(PROMPT_CHAT,
                   "{\"role\":\"assistant\",\"content\":\"c\",\"refusal\":\"r\","
                   "\"annotations\":[1],\"audio\":null,\"name\":null,\"tool_calls\":[],"
                   "\"reasoning_content\":null,\"cache_control\":{\"type\":\"e\"}}",
                   "<M`R`sassistant`C`sc>");
}

static void test_prompt_emit_keeps_four_kinds_of_nothing_apart(void **state)
{
    (void)state;
    assert_message(PROMPT_CHAT, "{\"role\":\"user\",\"content\":\"\"}",
                   "<M`R`suser`C`s>");
    assert_message(PROMPT_CHAT, "{\"role\":\"user\",\"content\":[]}",
                   "<M`R`suser`C`[`]>");
    assert_message(PROMPT_CHAT, "{\"role\":\"user\",\"content\":null}",
                   "<M`R`suser`C`z>");
    assert_message(PROMPT_CHAT, "{\"role\":\"user\"}", "<M`R`suser>");
}

static void test_prompt_emit_structures_tool_calls(void **state)
{
    static const char call[] = "`(`i`sc1`y`sfunction`<`N`sf`a`s{}`>`)";
    static const char *const contents[] = {"", "\"content\":null,", "\"content\":\"\","};
    char *expected = mem_printf("<M`R`sassistant%s>", call);
    (void)state;
    for (size_t i = 0; i < 3; i++) {
        char *message = mem_printf(
            "{%s\"tool_calls\":[{\"function\":{\"arguments\":\"{}\",\"name\":\"f\"},"
            "\"type\":\"function\",\"id\":\"c1\"}],\"role\":\"assistant\"}",
            contents[i]);
        assert_message(PROMPT_CHAT, message, expected);
        free(message);
    }
    free(expected);
    assert_message(
        PROMPT_CHAT,
        "{\"tool_calls\":[{\"index\":0,\"function\":{\"x\":1}}],\"content\":\"c\"}",
        "<M`C`sc`(`<`kx`n1`>`kindex`n0`)>");
}

static void test_prompt_emit_parts_are_not_joined(void **state)
{
    (void)state;
    assert_message(PROMPT_CHAT,
                   "{\"role\":\"user\",\"content\":[{\"text\":\"a\",\"type\":\"text\"},"
                   "{\"type\":\"text\",\"text\":\"b\",\"cache_control\":{}}]}",
                   "<M`R`suser`C`[`P`stext`T`sa`P`stext`T`sb`]>");
    assert_message(PROMPT_MESSAGES, "{\"role\":\"user\",\"content\":\"a\"}",
                   "<M`R`suser`C`[`P`stext`T`sa`]>");
    assert_message(PROMPT_MESSAGES,
                   "{\"role\":\"user\",\"content\":[{\"type\":\"text\",\"text\":\"a\"}]}",
                   "<M`R`suser`C`[`P`stext`T`sa`]>");
}

static void test_prompt_emit_media_interrupt_the_message(void **state)
{
    struct prompt p;
    (void)state;
    assert_message(
        PROMPT_CHAT,
        "{\"content\":[{\"type\":\"text\",\"text\":\"a\"},"
        "{\"image_url\":{\"url\":\"u\",\"detail\":\"high\"},\"type\":\"image_url\"},"
        "{\"type\":\"text\",\"text\":\"b\"}],\"role\":\"user\"}",
        "<M`R`suser`C`[`P`stext`T`sa>"
        "<P`P`simage_url`kimage_url`{`kurl`su`kdetail`shigh`}>"
        "<M`P`stext`T`sb`]>");
    p = scan(PROMPT_CHAT, "{\"messages\":[{\"content\":[{\"text\":\"what am I?\"}]}]}");
    assert_true(p.has_media);
    prompt_free(&p);
    p = scan(PROMPT_NATIVE,
             "{\"prompt\":{\"prompt_string\":\"x\",\"multimodal_data\":[]}}");
    assert_true(p.has_media);
    prompt_free(&p);
}

static void test_prompt_emit_result_with_a_picture_is_a_medium(void **state)
{
    static const char form[] =
        "{\"content\":[{\"type\":\"tool_result\",\"tool_use_id\":\"t\","
        "\"content\":[{\"type\":\"text\",\"text\":\"x\","
        "\"cache_control\":{}}%s],\"is_error\":false}]}";
    char *plain = mem_printf(form, "");
    char *picture = mem_printf(form, ",{\"type\":\"image\"}");
    (void)state;
    assert_message(PROMPT_MESSAGES, plain,
                   "<M`C`[`P`stool_result`w`st`c`[`{`ktype`stext`ktext`sx`}`]`e`f`]>");
    assert_message(PROMPT_MESSAGES, picture,
                   "<M`C`[><P`P`stool_result`w`st`c`[`{`ktype`stext`ktext`sx`}"
                   "`{`ktype`simage`}`]`e`f><M`]>");
    free(plain);
    free(picture);
}

static void test_prompt_emit_blocks_of_the_messages_api(void **state)
{
    (void)state;
    assert_message(
        PROMPT_MESSAGES,
        "{\"role\":\"assistant\",\"content\":["
        "{\"type\":\"thinking\",\"thinking\":\"h\",\"signature\":\"xyz\"},"
        "{\"type\":\"tool_use\",\"input\":{\"b\":1,\"a\":\"2\"},\"name\":\"n\","
        "\"id\":\"i\",\"cache_control\":{}}]}",
        "<M`R`sassistant`C`[`P`sthinking`H`sh`P`stool_use`i`si`N`sn"
        "`u`{`kb`n1`ka`s2`}`]>");
    assert_emits(
        PROMPT_MESSAGES, PROMPT_ORDER_SYSTEM_FIRST,
        "{\"messages\":[],\"system\":[{\"type\":\"text\",\"text\":\"a\"},"
        "{\"type\":\"text\",\"text\":\"b\",\"cache_control\":{}}]}",
        "<R`Am><M`R`ssystem`C`[`P`stext`T`sa`]><M`R`ssystem`C`[`P`stext`T`sb`]>");
    assert_emits(PROMPT_MESSAGES, PROMPT_ORDER_SYSTEM_FIRST,
                 "{\"messages\":[],\"system\":\"a\"}",
                 "<R`Am><M`R`ssystem`C`[`P`stext`T`sa`]>");
}

static void test_prompt_emit_cache_marks_are_dropped_only_where_they_are_marks(
    void **state)
{
    (void)state;
    assert_chat("{\"messages\":[],\"tools\":[{\"cache_control\":{\"type\":\"e\"},"
                "\"parameters\":{\"cache_control\":{\"type\":\"string\"}}}]}",
                "<R`Ac><T`[`{`kparameters`{`kcache_control`{`ktype`sstring`}`}`}`]>");
}

static void test_prompt_emit_follows_the_order_of_the_template(void **state)
{
    static const char body[] =
        "{\"messages\":[{\"role\":\"system\",\"content\":\"1\"},{\"role\":\"developer\","
        "\"content\":\"2\"},{\"role\":\"user\",\"content\":\"3\"},{\"role\":\"system\","
        "\"content\":\"4\"},{\"role\":\"us\\u0065r\",\"content\":\"5\"},"
        "{\"role\":\"assistant\",\"content\":\"6\"}],\"tools\":[]}";
    static const char *const expected[] = {"12T3456", "T123456", "1234T56"};
    (void)state;
    for (int order = 0; order < 3; order++) {
        char *got = emitted(PROMPT_CHAT, (enum prompt_order)order, body), seen[16];
        size_t n = 0;
        for (const char *c = got; *c; c++)
            if ((*c >= '1' && *c <= '6') || (*c == 'T' && c[-1] == '<'))
                seen[n++] = *c;
        seen[n] = '\0';
        assert_string_equal(seen, expected[order]);
        free(got);
    }
    assert_emits(PROMPT_MESSAGES, PROMPT_ORDER_TOOLS_FIRST,
                 "{\"system\":\"s\",\"messages\":[],\"tools\":[]}",
                 "<R`Am><T`[`]><M`R`ssystem`C`[`P`stext`T`ss`]>");
}

static void test_prompt_emit_keeps_nul_and_long_texts_whole(void **state)
{
    struct buf body = {0}, got = {0}, want = {0};
    (void)state;
    buf_append_str(&body, "{\"prompt\":\"a\\u0000b");
    buf_append(&want,
               "\xFE"
               "4a\0b",
               5);
    for (int i = 0; i < 3000; i++) {
        buf_append_str(&body, i % 7 ? "0123456789" : "\\n\\u00e4\\ud83d\\ude42");
        buf_append_str(&want, i % 7 ? "0123456789" : "\n\xc3\xa4\xf0\x9f\x99\x82");
    }
    buf_append_str(&body, "\"}");
    buf_append_char(&want, RECORD_END);
    struct prompt p;
    assert_true(prompt_scan(&p, PROMPT_NATIVE, buf_slice(&body)));
    record_prompt(&p, PROMPT_ORDER_SYSTEM_FIRST, &got);
    struct slice text = buf_slice(&got);
    const char *behind_root = memchr(text.ptr, RECORD_END, text.len);
    text.len -= (size_t)(behind_root + 1 - text.ptr);
    text.ptr = behind_root + 1;
    assert_true(slice_eq(text, buf_slice(&want)));
    prompt_free(&p);
    buf_free(&body);
    buf_free(&got);
    buf_free(&want);
}

/* ---- root of the KV ------------------------------------------------------------------ */

static char *kv_root(const char *body)
{
    struct buf b = {0};
    struct prompt p = scan(PROMPT_CHAT, body);
    prompt_kv_root(&p, &b);
    prompt_free(&p);
    return printable(&b);
}

static void test_prompt_kv_root_is_salt_and_adapters_alone(void **state)
{
    static const struct {
        const char *members, *root;
    } cases[] = {
        {"\"model\":\"m\",\"chat_template\":\"t\"", ""},
        {"\"cache_salt\":null,\"lora\":null", ""},
        {"\"lora\":[ 1 ],\"model\":\"m\",\"cache_salt\":\"\\u0073\"",
         "`kcache_salt`ss`klora`[`n1`]"},
        {"\"lora_path\":\"p\"", "`klora_path`sp"},
        {"\"cache_salt\":42", ""}, /* unreadable */
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char *body = mem_printf("{\"messages\":[],%s}", cases[i].members);
        char *root = kv_root(body);
        assert_string_equal(root, cases[i].root);
        free(root);
        free(body);
    }
}

/* ---- answers ------------------------------------------------------------------------- */

static char *answer(enum prompt_api api, const struct prompt_answer *a)
{
    struct buf b = {0};
    const struct prompt_sink sink = record_sink(&b);
    prompt_emit_answer(api, a, &sink);
    return printable(&b);
}

/* The answer must be emitted like this assistant message of the next turn. */
static void assert_quoted(enum prompt_api api, const struct prompt_answer *a,
                          const char *message)
{
    char *expected = answer(api, a);
    assert_message(api, message, expected);
    free(expected);
}

static void test_prompt_emit_answer_equals_the_next_turns_message(void **state)
{
    static const struct prompt_tool_call calls[] = {
        {{"c1", 2}, {"f", 1}, {"{\"x\": 1}", 8}},
        {{"c2", 2}, {"g", 1}, {"", 0}},
    };
    const struct slice none = {NULL, 0};
    const struct prompt_answer text = {SLICE_LIT("Hi\n\"you\""), none, NULL, 0};
    const struct prompt_answer empty = {SLICE_LIT(""), none, NULL, 0};
    const struct prompt_answer null = {none, none, NULL, 0};
    const struct prompt_answer thought = {SLICE_LIT("a"), SLICE_LIT("hm"), NULL, 0};
    const struct prompt_answer called = {none, none, calls, 2};
    (void)state;
    assert_quoted(PROMPT_CHAT, &text,
                  "{\"role\":\"assistant\",\"content\":\"Hi\\n\\\"you\\\"\"}");
    assert_quoted(PROMPT_CHAT, &empty, "{\"role\":\"assistant\",\"content\":\"\"}");
    assert_quoted(PROMPT_CHAT, &null, "{\"role\":\"assistant\",\"content\":null}");
    assert_quoted(
        PROMPT_CHAT, &thought,
        "{\"role\":\"assistant\",\"reasoning_content\":\"hm\",\"content\":\"a\"}");
    static const char *const contents[] = {"", "\"content\":null,", "\"content\":\"\","};
    for (size_t i = 0; i < 3; i++) {
        char *message = mem_printf(
            "{\"role\":\"assistant\",%s\"tool_calls\":["
            "{\"id\":\"c1\",\"type\":\"function\",\"function\":{\"name\":\"f\","
            "\"arguments\":\"{\\\"x\\\": 1}\"}},"
            "{\"id\":\"c2\",\"type\":\"function\",\"function\":{\"name\":\"g\","
            "\"arguments\":\"\"}}]}",
            contents[i]);
        assert_quoted(PROMPT_CHAT, &called, message);
        free(message);
    }
}

static void test_prompt_emit_answer_equals_the_next_turns_blocks(void **state)
{
    static const struct prompt_tool_call calls[] = {
        {{"i", 1}, {"n", 1}, {"{\"x\": [1, \"\\u00e4\"]}", 20}},
        {{"j", 1}, {"m", 1}, {"", 0}},
    };
    const struct prompt_answer a = {SLICE_LIT("a"), SLICE_LIT("hm"), calls, 2};
    const struct prompt_answer text = {SLICE_LIT("a"), {NULL, 0}, NULL, 0};
    (void)state;
    assert_quoted(PROMPT_MESSAGES, &a,
                  "{\"role\":\"assistant\",\"content\":["
                  "{\"type\":\"thinking\",\"thinking\":\"hm\",\"signature\":\"s\"},"
                  "{\"type\":\"text\",\"text\":\"a\"},"
                  "{\"type\":\"tool_use\",\"id\":\"i\",\"name\":\"n\","
                  "\"input\":{\"x\":[1,\"\xc3\xa4\"]}},"
                  "{\"type\":\"tool_use\",\"id\":\"j\",\"name\":\"m\",\"input\":{}}]}");
    assert_quoted(PROMPT_MESSAGES, &text, "{\"role\":\"assistant\",\"content\":\"a\"}");
}

static void test_prompt_emit_answer_continues_a_text_prompt(void **state)
{
    const struct prompt_answer a = {SLICE_LIT("more"), {NULL, 0}, NULL, 0};
    char *got = answer(PROMPT_NATIVE, &a);
    (void)state;
    assert_string_equal(got, "<Xmore>");
    free(got);
}

static void test_prompt_emit_answer_survives_arguments_that_are_no_json(void **state)
{
    static const struct prompt_tool_call call = {{"i", 1}, {"n", 1}, {"{\"x\":", 5}};
    const struct prompt_answer a = {{NULL, 0}, {NULL, 0}, &call, 1};
    char *got = answer(PROMPT_MESSAGES, &a);
    (void)state;
    assert_string_equal(got, "<M`R`sassistant`C`[`P`stool_use`i`si`N`sn`u`s{\"x\":`]>");
    free(got);
}

/* ---- unescape ------------------------------------------------------------------------ */

static void test_prompt_unescape_decodes_or_refuses(void **state)
{
    struct buf b = {0};
    (void)state;
    assert_true(prompt_unescape(SLICE_LIT("a\\\"\\u00e4\\ud83d\\ude42"), &b));
    assert_true(slice_eq(buf_slice(&b), SLICE_LIT("a\"\xc3\xa4\xf0\x9f\x99\x82")));
    assert_true(prompt_unescape(SLICE_LIT(""), &b));
    assert_false(prompt_unescape(SLICE_LIT("a\"b"), &b));
    assert_false(prompt_unescape(SLICE_LIT("a\\"), &b));
    assert_false(prompt_unescape(SLICE_LIT("\\ud83d"), &b));
    assert_false(prompt_unescape(SLICE_LIT("\n"), &b));
    assert_false(prompt_unescape(SLICE_LIT("\xff"), &b));
    buf_free(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_prompt_scan_reads_the_facts_of_a_chat),
        cmocka_unit_test(test_prompt_scan_knows_what_is_absent),
        cmocka_unit_test(test_prompt_scan_says_where_a_field_can_be_put_in),
        cmocka_unit_test(test_prompt_scan_finds_keys_that_are_written_with_escapes),
        cmocka_unit_test(test_prompt_scan_reads_a_key_with_escapes_of_256_bytes),
        cmocka_unit_test(test_prompt_scan_refuses_a_key_twice_where_it_matters),
        cmocka_unit_test(test_prompt_scan_refuses_wrong_types),
        cmocka_unit_test(test_prompt_scan_refuses_a_body_without_prompt),
        cmocka_unit_test(test_prompt_scan_bounds_what_it_notes),
        cmocka_unit_test(test_prompt_bars_what_must_not_use_the_cache),
        cmocka_unit_test(test_prompt_tells_batches_from_single_prompts),
        cmocka_unit_test(test_prompt_scan_bounds_ids_and_their_lists),
        cmocka_unit_test(test_prompt_ids_are_32_bits_and_whole),
        cmocka_unit_test(test_prompt_emit_root_has_options_in_fixed_order),
        cmocka_unit_test(test_prompt_emit_keeps_salt_and_adapter_apart),
        cmocka_unit_test(test_prompt_emit_tells_apis_apart),
        cmocka_unit_test(test_prompt_emit_message_fields_in_fixed_order),
        cmocka_unit_test(test_prompt_emit_leaves_out_what_no_template_prints),
        cmocka_unit_test(test_prompt_emit_keeps_four_kinds_of_nothing_apart),
        cmocka_unit_test(test_prompt_emit_structures_tool_calls),
        cmocka_unit_test(test_prompt_emit_parts_are_not_joined),
        cmocka_unit_test(test_prompt_emit_media_interrupt_the_message),
        cmocka_unit_test(test_prompt_emit_result_with_a_picture_is_a_medium),
        cmocka_unit_test(test_prompt_emit_blocks_of_the_messages_api),
        cmocka_unit_test(
            test_prompt_emit_cache_marks_are_dropped_only_where_they_are_marks),
        cmocka_unit_test(test_prompt_emit_follows_the_order_of_the_template),
        cmocka_unit_test(test_prompt_emit_keeps_nul_and_long_texts_whole),
        cmocka_unit_test(test_prompt_kv_root_is_salt_and_adapters_alone),
        cmocka_unit_test(test_prompt_emit_answer_equals_the_next_turns_message),
        cmocka_unit_test(test_prompt_emit_answer_equals_the_next_turns_blocks),
        cmocka_unit_test(test_prompt_emit_answer_continues_a_text_prompt),
        cmocka_unit_test(test_prompt_emit_answer_survives_arguments_that_are_no_json),
        cmocka_unit_test(test_prompt_unescape_decodes_or_refuses),
    };
    return cmocka_run_group_tests_name("prompt", tests, NULL, NULL);
}
