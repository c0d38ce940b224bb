/* SPDX-License-Identifier: MIT */

/*
 * Real bodies (tests/data/bodies/README.md): which of them are readable, and what pairs
 * of them share, in whole parts and in bytes of the first part that differs.
 */

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../lib/prompt_oracle.h"
#include "base/mem.h"
#include "cmocka_all.h"
#include "prefix/chain.h"
#include "proto/prompt.h"

#define ORDER PROMPT_ORDER_SYSTEM_FIRST

/* ---- help ---------------------------------------------------------------------------- */

static struct buf read_body(const char *name)
{
    char path[256];
    struct buf b = {0};
    snprintf(path, sizeof path, "tests/data/bodies/%s.json", name);
    FILE *f = fopen(path, "rb");
    if (!f)
        fail_msg("%s: cannot open", path);
    for (;;) {
        const size_t n = fread(buf_reserve(&b, 4096), 1, 4096, f);
        if (n == 0)
            break;
        buf_commit(&b, n);
    }
    fclose(f);
    return b;
}

/* The body with `from` replaced by `to` everywhere. */
static struct buf edited(const char *name, const char *from, const char *to)
{
    struct buf b = read_body(name), out = {0};
    size_t found = 0;
    struct slice rest = buf_slice(&b);
    for (;;) {
        const char *hit = memmem(rest.ptr, rest.len, from, strlen(from));
        const size_t n = hit ? (size_t)(hit - rest.ptr) : rest.len;
        buf_append(&out, rest.ptr, n);
        if (!hit)
            break;
        buf_append_str(&out, to);
        rest = slice_make(hit + strlen(from), rest.len - n - strlen(from));
        found++;
    }
    assert_true(found > 0);
    buf_free(&b);
    return out;
}

/* Scans and records; consumes the body. */
static struct buf record(enum prompt_api api, enum prompt_order order, struct buf body)
{
    struct buf out = {0};
    struct prompt p;
    if (!prompt_scan(&p, api, buf_slice(&body)))
        fail_msg("%s at %zu", p.why, p.why_at);
    record_prompt(&p, order, &out);
    prompt_free(&p);
    buf_free(&body);
    return out;
}

/* What two recorded prompts have in common. */
struct common {
    size_t parts;      /* whole ones */
    struct slice tail; /* equal bytes of the first part that differs */
    bool same;         /* all of both */
    bool all_of_first; /* the first is the start of the second */
};

static struct common compare(const struct buf *a, const struct buf *b)
{
    struct common c = {0};
    const struct slice x = buf_slice(a), y = buf_slice(b);
    size_t at = 0, start = 0;
    for (; at < x.len && at < y.len && x.ptr[at] == y.ptr[at]; at++) {
        if (x.ptr[at] == RECORD_END) {
            c.parts++;
            start = at + 1;
        }
    }
    c.tail = slice_make(x.ptr + start, at - start);
    c.all_of_first = at == x.len;
    c.same = c.all_of_first && at == y.len;
    return c;
}

static struct common compare_bodies(enum prompt_api api, enum prompt_order order,
                                    struct buf first, struct buf second, char tail[64])
{
    struct buf a = record(api, order, first), b = record(api, order, second);
    struct common c = compare(&a, &b);
    const size_t n = c.tail.len < 63 ? c.tail.len : 63;
    if (n)
        memcpy(tail, c.tail.ptr + c.tail.len - n, n);
    tail[n] = '\0';
    buf_free(&a);
    buf_free(&b);
    return c;
}

static struct common chats(const char *first, const char *second)
{
    char tail[64];
    return compare_bodies(PROMPT_CHAT, ORDER, read_body(first), read_body(second), tail);
}

static void assert_tail(const char *tail, const char *end)
{
    const size_t n = strlen(tail), m = strlen(end);
    if (n < m || strcmp(tail + n - m, end) != 0)
        fail_msg("shared up to \"%s\", not to \"%s\"", tail, end);
}

/* ---- every file ---------------------------------------------------------------------- */

static const struct {
    const char *name;
    enum prompt_api api;
    enum prompt_bar bar;
    const char *why;
} files[] = {
    {"01-chat-openai-python-tools", PROMPT_CHAT, PROMPT_BAR_NONE, NULL},
    {"02-chat-openai-python-tools-turn2-stream-usage", PROMPT_CHAT, PROMPT_BAR_NONE,
     NULL},
    {"03-chat-stream-no-usage-requests-style", PROMPT_CHAT, PROMPT_BAR_NONE, NULL},
    {"04-chat-tools-reordered", PROMPT_CHAT, PROMPT_BAR_NONE, NULL},
    {"05-chat-openwebui-turn2", PROMPT_CHAT, PROMPT_BAR_NONE, NULL},
    {"06-chat-openwebui-turn3-clock-moved", PROMPT_CHAT, PROMPT_BAR_NONE, NULL},
    {"07-chat-openwebui-title-task", PROMPT_CHAT, PROMPT_BAR_NONE, NULL},
    {"08-messages-coding-agent-turn2", PROMPT_MESSAGES, PROMPT_BAR_NONE, NULL},
    {"09-messages-coding-agent-turn3-new-nonce", PROMPT_MESSAGES, PROMPT_BAR_NONE, NULL},
    {"10-messages-count-tokens", PROMPT_NONE, PROMPT_BAR_NONE, NULL},
    {"11-chat-cline-style", PROMPT_CHAT, PROMPT_BAR_NONE, NULL},
    {"12-chat-rag-docs-first", PROMPT_CHAT, PROMPT_BAR_NONE, NULL},
    {"13-chat-rag-docs-first-other-question", PROMPT_CHAT, PROMPT_BAR_NONE, NULL},
    {"14-chat-rag-docs-last", PROMPT_CHAT, PROMPT_BAR_NONE, NULL},
    {"15-chat-vision-image-a", PROMPT_CHAT, PROMPT_BAR_NONE, NULL},
    {"16-chat-vision-image-b-same-start", PROMPT_CHAT, PROMPT_BAR_NONE, NULL},
    {"17-chat-vision-image-first", PROMPT_CHAT, PROMPT_BAR_NONE, NULL},
    {"18-chat-vision-remote-url-audio", PROMPT_CHAT, PROMPT_BAR_NONE, NULL},
    {"19-llamacpp-completion-id-slot", PROMPT_NATIVE, PROMPT_BAR_NONE, NULL},
    {"20-llamacpp-completion-lora", PROMPT_NATIVE, PROMPT_BAR_NONE, NULL},
    {"21-llamacpp-completion-mixed-prompt", PROMPT_NATIVE, PROMPT_BAR_NO_CACHE, NULL},
    {"22-llamacpp-infill", PROMPT_NONE, PROMPT_BAR_NONE, NULL},
    {"23-vllm-chat-salt-priority", PROMPT_CHAT, PROMPT_BAR_NONE, NULL},
    {"24-completions-token-ids", PROMPT_COMPLETIONS, PROMPT_BAR_NONE, NULL},
    {"25-completions-batch-token-ids", PROMPT_COMPLETIONS, PROMPT_BAR_BATCH, NULL},
    {"26-completions-batch-text-echo", PROMPT_COMPLETIONS, PROMPT_BAR_ECHO, NULL},
    {"27-chat-structured-output", PROMPT_CHAT, PROMPT_BAR_NONE, NULL},
    {"28-chat-structured-vllm-sglang", PROMPT_CHAT, PROMPT_BAR_NONE, NULL},
    {"29-sglang-generate", PROMPT_NONE, PROMPT_BAR_NONE, NULL},
    {"30-chat-multiturn-reasoning-content", PROMPT_CHAT, PROMPT_BAR_NONE, NULL},
    {"31-chat-multiturn-reasoning-dropped", PROMPT_CHAT, PROMPT_BAR_NONE, NULL},
    {"32-chat-prefill-continue", PROMPT_CHAT, PROMPT_BAR_NONE, NULL},
    {"33-chat-developer-role-midway-system", PROMPT_CHAT, PROMPT_BAR_NONE, NULL},
    {"34-chat-same-as-33-parts-joined", PROMPT_CHAT, PROMPT_BAR_NONE, NULL},
    {"35-responses-coding-agent", PROMPT_NONE, PROMPT_BAR_NONE, NULL},
    {"36-embeddings-batch", PROMPT_NONE, PROMPT_BAR_NONE, NULL},
    {"37-rerank", PROMPT_NONE, PROMPT_BAR_NONE, NULL},
    {"38-chat-adapter-a", PROMPT_CHAT, PROMPT_BAR_NONE, NULL},
    {"39-chat-adapter-b", PROMPT_CHAT, PROMPT_BAR_NONE, NULL},
    {"40-chat-voice-assistant-clock-first", PROMPT_CHAT, PROMPT_BAR_NONE, NULL},
    {"odd-01-duplicate-keys", PROMPT_CHAT, PROMPT_BAR_UNREADABLE, "duplicate key"},
    {"odd-02-lone-surrogate", PROMPT_CHAT, PROMPT_BAR_UNREADABLE, "lone surrogate"},
    {"odd-03-nul-escape", PROMPT_CHAT, PROMPT_BAR_NONE, NULL},
    {"odd-04-nan-infinity", PROMPT_CHAT, PROMPT_BAR_UNREADABLE, "value expected"},
    {"odd-05-big-integers", PROMPT_CHAT, PROMPT_BAR_NONE, NULL},
    {"odd-06-deep-nesting", PROMPT_CHAT, PROMPT_BAR_UNREADABLE, "too deep"},
    {"odd-07-escapes", PROMPT_CHAT, PROMPT_BAR_NONE, NULL},
    {"odd-08-escapes-plain-twin", PROMPT_CHAT, PROMPT_BAR_NONE, NULL},
    {"odd-09-decomposed-not-twin", PROMPT_CHAT, PROMPT_BAR_NONE, NULL},
    {"odd-10-bom-and-trailing", PROMPT_CHAT, PROMPT_BAR_UNREADABLE, "byte-order mark"},
    {"odd-11-latin1", PROMPT_CHAT, PROMPT_BAR_UNREADABLE, "not UTF-8"},
    {"odd-12-empty-contents", PROMPT_CHAT, PROMPT_BAR_NONE, NULL},
    {"odd-13-template-markers-in-text", PROMPT_CHAT, PROMPT_BAR_NONE, NULL},
    {"odd-14-boundary-shift-a", PROMPT_CHAT, PROMPT_BAR_NONE, NULL},
    {"odd-15-boundary-shift-b", PROMPT_CHAT, PROMPT_BAR_NONE, NULL},
    {"odd-16-wrong-types", PROMPT_CHAT, PROMPT_BAR_UNREADABLE, "string expected"},
};
#define N_FILES (sizeof files / sizeof *files)

static void test_prompt_reads_every_body_or_says_why_not(void **state)
{
    (void)state;
    for (size_t i = 0; i < N_FILES; i++) {
        struct buf body = read_body(files[i].name);
        struct prompt p;
        const bool readable = prompt_scan(&p, files[i].api, buf_slice(&body));
        if (p.bar != files[i].bar || readable != (files[i].why == NULL))
            fail_msg("%s: bar %d, %s", files[i].name, (int)p.bar, p.why ? p.why : "");
        if (p.why)
            assert_string_equal(p.why, files[i].why);
        prompt_free(&p);
        buf_free(&body);
    }
}

static void test_prompt_agrees_with_jansson_on_every_body(void **state)
{
    (void)state;
    for (size_t i = 0; i < N_FILES; i++) {
        struct buf body = read_body(files[i].name);
        for (int api = 0; api < 5; api++) {
            for (int order = 0; order < 3; order++) {
                const char *differs = oracle_check(
                    (enum prompt_api)api, (enum prompt_order)order, buf_slice(&body));
                if (differs)
                    fail_msg("%s as API %d: %s", files[i].name, api, differs);
            }
        }
        buf_free(&body);
    }
}

/* Every cut of every body is unreadable, and nothing worse. */
static void test_prompt_survives_every_truncation(void **state)
{
    (void)state;
    for (size_t i = 0; i < N_FILES; i++) {
        struct buf body = read_body(files[i].name);
        size_t len = buf_len(&body);
        while (len > 0 && strchr("\r\n ", body.data[body.start + len - 1]))
            len--;
        for (size_t cut = 0; cut < len; cut += 1 + len / 300) {
            char *exact = mem_dup(body.data + body.start, cut);
            struct prompt p;
            assert_false(prompt_scan(&p, files[i].api, slice_make(exact, cut)));
            prompt_free(&p);
            free(exact);
        }
        buf_free(&body);
    }
}

/* ---- facts of single files ----------------------------------------------------------- */

static void test_prompt_facts_of_the_bodies(void **state)
{
    struct prompt p;
    (void)state;
    struct buf b = read_body("19-llamacpp-completion-id-slot");
    assert_true(prompt_scan(&p, PROMPT_NATIVE, buf_slice(&b)));
    assert_true(p.has_id_slot && p.id_slot == 2 && p.has_cache_prompt && p.stream);
    assert_int_equal(p.max_tokens, 256);
    assert_false(p.has_lora);
    prompt_free(&p);
    buf_free(&b);
    b = read_body("20-llamacpp-completion-lora");
    assert_true(prompt_scan(&p, PROMPT_NATIVE, buf_slice(&b)));
    assert_true(p.has_lora);
    prompt_free(&p);
    buf_free(&b);
    b = read_body("02-chat-openai-python-tools-turn2-stream-usage");
    assert_true(prompt_scan(&p, PROMPT_CHAT, buf_slice(&b)));
    assert_true(p.stream && p.include_usage);
    assert_int_equal(p.n_messages, 5);
    prompt_free(&p);
    buf_free(&b);
    b = read_body("03-chat-stream-no-usage-requests-style");
    assert_true(prompt_scan(&p, PROMPT_CHAT, buf_slice(&b)));
    assert_true(p.stream && !p.include_usage);
    prompt_free(&p);
    buf_free(&b);
    b = read_body("18-chat-vision-remote-url-audio");
    assert_true(prompt_scan(&p, PROMPT_CHAT, buf_slice(&b)));
    assert_true(p.has_media);
    prompt_free(&p);
    buf_free(&b);
}

static void test_prompt_ids_of_24_and_25(void **state)
{
    struct buf one = read_body("24-completions-token-ids");
    struct buf three = read_body("25-completions-batch-token-ids");
    struct prompt p;
    (void)state;
    assert_true(prompt_scan(&p, PROMPT_COMPLETIONS, buf_slice(&one)));
    assert_int_equal(p.n_ids, 303);
    assert_int_equal(p.ids[0], 151644);
    assert_int_equal(p.n_prompts, 1);
    prompt_free(&p);
    assert_true(prompt_scan(&p, PROMPT_COMPLETIONS, buf_slice(&three)));
    assert_int_equal(p.n_prompts, 3);
    assert_non_null(p.ids);
    assert_int_equal(p.id_ends[0], 303);
    assert_int_equal(p.id_ends[1], 505);
    assert_int_equal(p.id_ends[2], p.n_ids);
    prompt_free(&p);
    buf_free(&one);
    buf_free(&three);
}

/* Full blocks of 64 that a prompt of ids shares with the blocks of another. */
static size_t shared_blocks(const struct hash128 *chain, size_t n, const uint32_t *ids,
                            size_t n_ids, const struct chain_key *key)
{
    struct hash128 mine[64];
    const size_t n_mine = chain_blocks(key, (struct hash128){1, 1}, ids, n_ids, 64, mine);
    size_t same = 0;
    while (same < n && same < n_mine && hash128_eq(chain[same], mine[same]))
        same++;
    return same;
}

static void test_pair_24_25_three_look_ups(void **state)
{
    struct buf one = read_body("24-completions-token-ids");
    struct buf three = read_body("25-completions-batch-token-ids");
    struct prompt p, batch;
    struct chain_key key;
    struct hash128 chain[64];
    (void)state;
    chain_key_init(&key, (const unsigned char *)"a key of thirty-two bytes, fixed");
    assert_true(prompt_scan(&p, PROMPT_COMPLETIONS, buf_slice(&one)));
    assert_true(prompt_scan(&batch, PROMPT_COMPLETIONS, buf_slice(&three)));
    const size_t n =
        chain_blocks(&key, (struct hash128){1, 1}, p.ids, p.n_ids, 64, chain);
    static const size_t expected[] = {303 / 64, 200 / 64, 0};
    for (size_t i = 0, start = 0; i < 3; start = batch.id_ends[i++])
        assert_int_equal(
            shared_blocks(chain, n, batch.ids + start, batch.id_ends[i] - start, &key),
            expected[i]);
    prompt_free(&p);
    prompt_free(&batch);
    buf_free(&one);
    buf_free(&three);
}

/* ---- pairs --------------------------------------------------------------------------- */

static void test_pair_01_03_whole_prompt(void **state)
{
    (void)state;
    assert_true(
        chats("01-chat-openai-python-tools", "03-chat-stream-no-usage-requests-style")
            .same);
}

static void test_pair_01_02_all_of_the_first_turn(void **state)
{
    (void)state;
    const struct common c = chats("01-chat-openai-python-tools",
                                  "02-chat-openai-python-tools-turn2-stream-usage");
    assert_true(c.all_of_first);
    assert_int_equal(c.parts, 4); /* root, system, tools, question */
}

static void test_pair_01_04_tools_in_another_order(void **state)
{
    char tail[64];
    (void)state;
    assert_int_equal(
        chats("01-chat-openai-python-tools", "04-chat-tools-reordered").parts,
        2); /* root, system */
    assert_int_equal(compare_bodies(PROMPT_CHAT, PROMPT_ORDER_TOOLS_FIRST,
                                    read_body("01-chat-openai-python-tools"),
                                    read_body("04-chat-tools-reordered"), tail)
                         .parts,
                     1); /* root */
}

static void test_pair_01_23_nothing_across_salts(void **state)
{
    (void)state;
    assert_int_equal(
        chats("01-chat-openai-python-tools", "23-vllm-chat-salt-priority").parts, 0);
}

static void test_pair_05_06_up_to_the_clock(void **state)
{
    char tail[64];
    (void)state;
    const struct common c =
        compare_bodies(PROMPT_CHAT, ORDER, read_body("05-chat-openwebui-turn2"),
                       read_body("06-chat-openwebui-turn3-clock-moved"), tail);
    assert_int_equal(c.parts, 1);
    assert_tail(tail, "Heute ist 2026-10-02 14:0");
}

static void test_pair_40_with_another_second_up_to_the_clock(void **state)
{
    char tail[64];
    const char *name = "40-chat-voice-assistant-clock-first";
    (void)state;
    const struct common c = compare_bodies(PROMPT_CHAT, ORDER, read_body(name),
                                           edited(name, "20:37:19", "20:37:33"), tail);
    assert_int_equal(c.parts, 1);
    assert_tail(tail, "Current time is 20:37:");
}

static void test_pair_05_07_side_request_shares_nothing(void **state)
{
    (void)state;
    const struct common c =
        chats("05-chat-openwebui-turn2", "07-chat-openwebui-title-task");
    assert_int_equal(c.parts, 1); /* the same model, and no text */
    assert_true(c.tail.len < 10);
}

static void test_pair_08_09_ends_in_the_nonce(void **state)
{
    char tail[64];
    (void)state;
    for (int order = 0; order < 3; order++) {
        const struct common c =
            compare_bodies(PROMPT_MESSAGES, (enum prompt_order)order,
                           read_body("08-messages-coding-agent-turn2"),
                           read_body("09-messages-coding-agent-turn3-new-nonce"), tail);
        assert_int_equal(c.parts, order == PROMPT_ORDER_TOOLS_FIRST ? 2 : 1);
        assert_tail(tail, "x-anthropic-billing-header: cc_version=9.9.1.");
    }
}

static void test_pair_08_09_with_one_nonce_shares_all(void **state)
{
    char tail[64];
    (void)state;
    const struct common c = compare_bodies(
        PROMPT_MESSAGES, ORDER, read_body("08-messages-coding-agent-turn2"),
        edited("09-messages-coding-agent-turn3-new-nonce",
               "9.9.1.71f; cc_entrypoint=cli; cch=71fea;",
               "9.9.1.fa6; cc_entrypoint=cli; cch=fa690;"),
        tail);
    assert_true(c.all_of_first);
    assert_int_equal(c.parts, 1 + 3 + 1 + 3); /* root, system, tools, messages */
}

static void test_pair_12_13_whole_system_message(void **state)
{
    (void)state;
    assert_int_equal(
        chats("12-chat-rag-docs-first", "13-chat-rag-docs-first-other-question").parts,
        2);
}

static void test_pair_12_14_not_the_documents(void **state)
{
    char tail[64];
    (void)state;
    const struct common c =
        compare_bodies(PROMPT_CHAT, ORDER, read_body("12-chat-rag-docs-first"),
                       read_body("14-chat-rag-docs-last"), tail);
    assert_int_equal(c.parts, 1);
    assert_tail(tail, "Answer only from the documents ");
}

static void test_pair_15_16_up_to_the_picture(void **state)
{
    (void)state;
    const struct common c =
        chats("15-chat-vision-image-a", "16-chat-vision-image-b-same-start");
    assert_int_equal(c.parts, 3); /* root, system, the user's text; not the picture */
}

static void test_pair_15_17_system_message_only(void **state)
{
    (void)state;
    assert_int_equal(chats("15-chat-vision-image-a", "17-chat-vision-image-first").parts,
                     2);
}

static void test_pair_19_20_nothing_across_adapters(void **state)
{
    char tail[64];
    (void)state;
    assert_int_equal(compare_bodies(PROMPT_NATIVE, ORDER,
                                    read_body("19-llamacpp-completion-id-slot"),
                                    read_body("20-llamacpp-completion-lora"), tail)
                         .parts,
                     0);
}

static void test_pair_38_39_nothing_across_models(void **state)
{
    (void)state;
    assert_int_equal(chats("38-chat-adapter-a", "39-chat-adapter-b").parts, 0);
}

static void test_pair_30_31_up_to_the_first_answer(void **state)
{
    char tail[64];
    (void)state;
    /* As they are, the template's arguments differ, and so does everything. */
    assert_int_equal(chats("30-chat-multiturn-reasoning-content",
                           "31-chat-multiturn-reasoning-dropped")
                         .parts,
                     0);
    const struct common c =
        compare_bodies(PROMPT_CHAT, ORDER,
                       edited("30-chat-multiturn-reasoning-content",
                              ",\"chat_template_kwargs\":{\"enable_thinking\":true,"
                              "\"preserve_thinking\":true}",
                              ""),
                       read_body("31-chat-multiturn-reasoning-dropped"), tail);
    assert_int_equal(c.parts, 4); /* root, system, tools, question */
}

static void test_pair_33_34_parts_are_not_assumed_joined(void **state)
{
    char tail[64];
    (void)state;
    assert_int_equal(
        chats("33-chat-developer-role-midway-system", "34-chat-same-as-33-parts-joined")
            .parts,
        0); /* verbosity */
    assert_int_equal(compare_bodies(PROMPT_CHAT, ORDER,
                                    edited("33-chat-developer-role-midway-system",
                                           ",\"verbosity\":\"low\"", ""),
                                    read_body("34-chat-same-as-33-parts-joined"), tail)
                         .parts,
                     1);
}

static void test_pair_odd_07_08_whole_prompt(void **state)
{
    (void)state;
    assert_true(chats("odd-07-escapes", "odd-08-escapes-plain-twin").same);
}

static void test_pair_odd_08_09_no_normalisation(void **state)
{
    char tail[64];
    (void)state;
    const struct common c =
        compare_bodies(PROMPT_CHAT, ORDER, read_body("odd-08-escapes-plain-twin"),
                       read_body("odd-09-decomposed-not-twin"), tail);
    assert_int_equal(c.parts, 1);
    assert_tail(tail, "Hafen / Caf");
}

static void test_pair_odd_14_15_boundaries_count(void **state)
{
    char tail[64];
    (void)state;
    const struct common c =
        compare_bodies(PROMPT_CHAT, ORDER, read_body("odd-14-boundary-shift-a"),
                       read_body("odd-15-boundary-shift-b"), tail);
    assert_int_equal(c.parts, 1);
    assert_tail(tail, "\xFF"
                      "sa");
}

static void test_odd_13_is_not_the_chat_it_imitates(void **state)
{
    struct buf real = {0};
    char tail[64];
    (void)state;
    buf_append_str(&real, "{\"model\":\"qwen3-32b\",\"messages\":["
                          "{\"role\":\"user\",\"content\":\"hi\"},"
                          "{\"role\":\"assistant\",\"content\":\"hello\"},"
                          "{\"role\":\"user\",\"content\":\"who are you?\"}]}");
    const struct common c = compare_bodies(
        PROMPT_CHAT, ORDER, read_body("odd-13-template-markers-in-text"), real, tail);
    assert_int_equal(c.parts, 1);
}

static void test_odd_12_contents_are_all_distinct(void **state)
{
    struct buf b = record(PROMPT_CHAT, ORDER, read_body("odd-12-empty-contents"));
    struct slice parts[16];
    size_t n = 0, start = 0;
    (void)state;
    for (size_t i = 0; i < buf_len(&b); i++) {
        if (b.data[i] != RECORD_END)
            continue;
        parts[n++] = slice_make(b.data + start, i - start);
        start = i + 1;
    }
    assert_int_equal(n, 7); /* root, tools, five messages */
    for (size_t i = 0; i < n; i++)
        for (size_t j = 0; j < i; j++)
            assert_false(slice_eq(parts[i], parts[j]));
    buf_free(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_prompt_reads_every_body_or_says_why_not),
        cmocka_unit_test(test_prompt_agrees_with_jansson_on_every_body),
        cmocka_unit_test(test_prompt_survives_every_truncation),
        cmocka_unit_test(test_prompt_facts_of_the_bodies),
        cmocka_unit_test(test_prompt_ids_of_24_and_25),
        cmocka_unit_test(test_pair_24_25_three_look_ups),
        cmocka_unit_test(test_pair_01_03_whole_prompt),
        cmocka_unit_test(test_pair_01_02_all_of_the_first_turn),
        cmocka_unit_test(test_pair_01_04_tools_in_another_order),
        cmocka_unit_test(test_pair_01_23_nothing_across_salts),
        cmocka_unit_test(test_pair_05_06_up_to_the_clock),
        cmocka_unit_test(test_pair_40_with_another_second_up_to_the_clock),
        cmocka_unit_test(test_pair_05_07_side_request_shares_nothing),
        cmocka_unit_test(test_pair_08_09_ends_in_the_nonce),
        cmocka_unit_test(test_pair_08_09_with_one_nonce_shares_all),
        cmocka_unit_test(test_pair_12_13_whole_system_message),
        cmocka_unit_test(test_pair_12_14_not_the_documents),
        cmocka_unit_test(test_pair_15_16_up_to_the_picture),
        cmocka_unit_test(test_pair_15_17_system_message_only),
        cmocka_unit_test(test_pair_19_20_nothing_across_adapters),
        cmocka_unit_test(test_pair_38_39_nothing_across_models),
        cmocka_unit_test(test_pair_30_31_up_to_the_first_answer),
        cmocka_unit_test(test_pair_33_34_parts_are_not_assumed_joined),
        cmocka_unit_test(test_pair_odd_07_08_whole_prompt),
        cmocka_unit_test(test_pair_odd_08_09_no_normalisation),
        cmocka_unit_test(test_pair_odd_14_15_boundaries_count),
        cmocka_unit_test(test_odd_13_is_not_the_chat_it_imitates),
        cmocka_unit_test(test_odd_12_contents_are_all_distinct),
    };
    return cmocka_run_group_tests_name("prompt_pairs", tests, NULL, NULL);
}
