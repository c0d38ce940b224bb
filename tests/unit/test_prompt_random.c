/* SPDX-License-Identifier: MIT */

/*
 * Random bodies, written twice: with other white space, other escapes and another order
 * of keys where the order must not matter. Both writings must give the same prompt, and
 * jansson's tree must agree with each.
 */

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../lib/prompt_oracle.h"
#include "cmocka_all.h"
#include "proto/prompt.h"

#define ROUNDS 3000

static uint64_t seed;

static unsigned dice(unsigned sides)
{
    seed = seed * 6364136223846793005u + 1442695040888963407u;
    return (unsigned)(seed >> 33) % sides;
}

/* ---- inventing ----------------------------------------------------------------------- */

static json_t *random_text(void)
{
    static const char *const words[] = {
        "hello ",
        "\"quoted\" ",
        "line\n",
        "tab\t",
        "back\\slash ",
        "\xc3\xa4\xc3\xb6 ",
        "\xf0\x9f\x99\x82",
        "\x01",
        "\xe6\xb8\xaf\xe5\x8f\xa3",
        "/",
        "<|im_end|>",
        "\x7f",
    };
    struct buf b = {0};
    for (unsigned n = dice(4) ? dice(12) : dice(200); n > 0; n--)
        buf_append_str(&b, words[dice(sizeof words / sizeof *words)]);
    if (dice(20) == 0)
        buf_append_char(&b, '\0');
    json_t *text = json_stringn(buf_len(&b) ? b.data + b.start : "", buf_len(&b));
    buf_free(&b);
    assert_non_null(text);
    return text;
}

/* Of any shape, a few levels deep. */
static json_t *random_value(int levels)
{
    switch (dice(levels > 0 ? 8 : 6)) {
    case 0:
        return json_integer((json_int_t)dice(2000) - 1000);
    case 1:
        return json_real((double)dice(1000) / 8);
    case 2:
        return dice(2) ? json_true() : json_false();
    case 3:
        return json_null();
    case 6: {
        json_t *list = json_array();
        for (unsigned n = dice(4); n > 0; n--)
            json_array_append_new(list, random_value(levels - 1));
        return list;
    }
    case 7: {
        static const char *const keys[] = {"a", "type", "cache_control", "k\xc3\xa4",
                                           "x y"};
        json_t *object = json_object();
        for (unsigned n = dice(4); n > 0; n--)
            json_object_set_new(object, keys[dice(5)], random_value(levels - 1));
        return object;
    }
    default:
        return random_text();
    }
}

/* Sets the member in two of three cases. */
static void maybe(json_t *object, const char *key, json_t *value)
{
    if (dice(3))
        json_object_set_new(object, key, value);
    else
        json_decref(value);
}

static json_t *random_part(void)
{
    static const char *const types[] = {"text",        "text",     "image_url",
                                        "tool_result", "tool_use", "thinking"};
    json_t *part = json_object();
    maybe(part, "type", json_string(types[dice(6)]));
    maybe(part, "text", random_text());
    if (dice(4) == 0) {
        maybe(part, "cache_control", random_value(1));
        maybe(part, "id", random_text());
        maybe(part, "input", random_value(2));
        maybe(part, "other", random_value(2));
    }
    if (dice(4) == 0)
        maybe(part, "content",
              dice(2) ? json_pack("[{s:s,s:n},{s:s}]", "type", "text", "cache_control",
                                  "type", dice(2) ? "text" : "image")
                      : random_text());
    return part;
}

static json_t *random_content(void)
{
    if (dice(3))
        return dice(10) ? random_text() : json_null();
    json_t *list = json_array();
    for (unsigned n = dice(4); n > 0; n--)
        json_array_append_new(list, random_part());
    return list;
}

static json_t *random_calls(void)
{
    json_t *list = json_array();
    for (unsigned n = dice(3); n > 0; n--) {
        json_t *call = json_object(), *function = json_object();
        maybe(function, "name", random_text());
        maybe(function, "arguments", random_value(1));
        maybe(function, "strict", random_value(0));
        maybe(call, "id", random_text());
        maybe(call, "type", json_string("function"));
        maybe(call, "index", json_integer(dice(3)));
        maybe(call, "function", function);
        json_array_append_new(list, call);
    }
    return list;
}

static json_t *random_messages(void)
{
    static const char *const roles[] = {"system", "developer", "user",
                                        "user",   "assistant", "tool"};
    json_t *list = json_array();
    for (unsigned n = dice(7); n > 0; n--) {
        json_t *message = json_object();
        json_object_set_new(message, "role", json_string(roles[dice(6)]));
        maybe(message, "content", random_content());
        if (dice(3) == 0)
            maybe(message, "tool_calls", random_calls());
        if (dice(3) == 0) {
            maybe(message, "name", random_text());
            maybe(message, "reasoning_content", dice(2) ? random_text() : json_null());
            maybe(message, "tool_call_id", random_text());
            maybe(message, "foo", random_value(2));
            maybe(message, "refusal", random_value(1));
        }
        json_array_append_new(list, message);
    }
    return list;
}

static json_t *random_body(enum prompt_api api)
{
    json_t *body = json_object();
    maybe(body, "model", random_text());
    maybe(body, "stream", dice(2) ? json_true() : json_false());
    maybe(body, "temperature", json_real(0.5));
    if (dice(3) == 0) {
        maybe(body, "cache_salt", random_text());
        maybe(body, "lora", random_value(2));
        maybe(body, "tool_choice", random_value(2));
        maybe(body, "chat_template_kwargs", random_value(2));
        maybe(body, "id_slot", json_integer(dice(5)));
    }
    if (api == PROMPT_COMPLETIONS || api == PROMPT_NATIVE) {
        json_object_set_new(body, "prompt",
                            dice(4) ? random_text() : json_pack("[i,i,i]", 1, 2, 70000));
        return body;
    }
    json_object_set_new(body, "messages", random_messages());
    if (dice(2))
        json_object_set_new(body, "tools",
                            json_pack("[o,o]", random_value(3), random_value(3)));
    if (dice(2))
        json_object_set_new(body, "system",
                            dice(2) ? random_text() : json_pack("[o]", random_part()));
    return body;
}

/* ---- writing ------------------------------------------------------------------------- */

static void write_space(struct buf *b)
{
    static const char spaces[] = " \n\t\r";
    for (unsigned n = dice(5) ? 0 : dice(4); n > 0; n--)
        buf_append_char(b, spaces[dice(4)]);
}

static void write_escaped(struct buf *b, uint32_t code)
{
    if (code >= 0x10000) {
        code -= 0x10000;
        buf_printf(b, dice(2) ? "\\u%04x\\u%04X" : "\\u%04X\\u%04x",
                   0xD800 + (code >> 10), 0xDC00 + (code & 0x3FF));
    } else {
        buf_printf(b, dice(2) ? "\\u%04x" : "\\u%04X", code);
    }
}

/* Reads one code point of valid UTF-8. */
static uint32_t code_point(const unsigned char *p, size_t *len)
{
    *len = p[0] < 0x80 ? 1 : p[0] < 0xE0 ? 2 : p[0] < 0xF0 ? 3 : 4;
    if (*len == 1)
        return p[0];
    uint32_t code = p[0] & (0xFFU >> (*len + 1));
    for (size_t i = 1; i < *len; i++)
        code = code << 6 | (p[i] & 0x3F);
    return code;
}

/* The letter behind the backslash of a short escape; 0 where there is none. */
static char short_escape(uint32_t code)
{
    static const char pairs[][2] = {{'"', '"'},  {'\\', '\\'}, {'/', '/'},
                                    {'\n', 'n'}, {'\t', 't'},  {'\b', 'b'}};
    for (size_t i = 0; i < sizeof pairs / sizeof *pairs; i++)
        if ((uint32_t)pairs[i][0] == code)
            return pairs[i][1];
    return 0;
}

static void write_string(struct buf *b, const char *text, size_t len, unsigned escaping)
{
    buf_append_char(b, '"');
    for (size_t i = 0, n; i < len; i += n) {
        const uint32_t code = code_point((const unsigned char *)text + i, &n);
        const char letter = short_escape(code);
        if (escaping && dice(escaping) == 0)
            write_escaped(b, code);
        else if (letter && (letter != '/' || dice(2)))
            buf_printf(b, "\\%c", letter);
        else if (code < 0x20)
            write_escaped(b, code);
        else
            buf_append(b, text + i, n);
    }
    buf_append_char(b, '"');
}

struct style {
    unsigned escaping; /* one letter in so many; 0: only where needed */
    bool shuffle;
};

/* Objects at these places may have their keys in any order. */
enum place { FREE, TOP, MESSAGES, MESSAGE, PARTS, PART, CALLS, CALL, FUNCTION };

static enum place place_of(enum place outer, const char *key)
{
    static const struct {
        enum place outer;
        const char *key;
        enum place inner;
    } places[] = {
        {TOP, "messages", MESSAGES},  {TOP, "system", PARTS},
        {MESSAGE, "content", PARTS},  {MESSAGE, "tool_calls", CALLS},
        {CALL, "function", FUNCTION},
    };
    for (size_t i = 0; i < sizeof places / sizeof *places; i++)
        if (places[i].outer == outer && !strcmp(places[i].key, key))
            return places[i].inner;
    return FREE;
}

/* Members that no row names keep their order: it is part of what they say. */
static bool may_move(enum place place, const char *key)
{
    static const char *const fixed[] = {"foo", "other", "strict", "index"};
    for (size_t i = 0; i < sizeof fixed / sizeof *fixed; i++)
        if (!strcmp(fixed[i], key))
            return false;
    return place != FREE;
}

static void write_value(struct buf *b, json_t *v, const struct style *s,
                        enum place place);

static void write_object(struct buf *b, json_t *v, const struct style *s,
                         enum place place)
{
    const char *keys[64], *key;
    json_t *item;
    size_t n = 0;
    json_object_foreach(v, key, item)
    {
        keys[n++] = key;
    }
    for (size_t i = n; s->shuffle && i > 1; i--) {
        const size_t j = dice((unsigned)i);
        if (!may_move(place, keys[i - 1]) || !may_move(place, keys[j]))
            continue;
        const char *swap = keys[i - 1];
        keys[i - 1] = keys[j];
        keys[j] = swap;
    }
    buf_append_char(b, '{');
    for (size_t i = 0; i < n; i++) {
        write_space(b);
        write_string(b, keys[i], strlen(keys[i]), s->escaping);
        write_space(b);
        buf_append_char(b, ':');
        write_value(b, json_object_get(v, keys[i]), s, place_of(place, keys[i]));
        buf_append_str(b, i + 1 < n ? "," : "");
    }
    write_space(b);
    buf_append_char(b, '}');
}

static void write_array(struct buf *b, json_t *v, const struct style *s, enum place place)
{
    const enum place inner = place == MESSAGES ? MESSAGE
                             : place == PARTS  ? PART
                             : place == CALLS  ? CALL
                                               : FREE;
    json_t *item;
    size_t i;
    buf_append_char(b, '[');
    json_array_foreach(v, i, item)
    {
        buf_append_str(b, i ? "," : "");
        write_value(b, item, s, inner);
    }
    write_space(b);
    buf_append_char(b, ']');
}

static void write_value(struct buf *b, json_t *v, const struct style *s, enum place place)
{
    write_space(b);
    if (json_is_object(v)) {
        write_object(b, v, s, place);
    } else if (json_is_array(v)) {
        write_array(b, v, s, place);
    } else if (json_is_string(v)) {
        write_string(b, json_string_value(v), json_string_length(v), s->escaping);
    } else {
        char *text = json_dumps(v, JSON_ENCODE_ANY);
        buf_append_str(b, text);
        free(text);
    }
    write_space(b);
}

static struct buf written(json_t *body, const struct style *s)
{
    struct buf b = {0};
    write_value(&b, body, s, TOP);
    return b;
}

/* ---- the properties ------------------------------------------------------------------ */

static void assert_agrees(enum prompt_api api, enum prompt_order order,
                          const struct buf *body, uint64_t round)
{
    const char *differs = oracle_check(api, order, buf_slice(body));
    if (differs)
        fail_msg("round %d: %s: %.*s", (int)round, differs, (int)buf_len(body),
                 body->data + body->start);
}

/* False where the body is not readable. */
static bool recorded(enum prompt_api api, enum prompt_order order, const struct buf *body,
                     struct buf *out)
{
    struct prompt p;
    const bool readable = prompt_scan(&p, api, buf_slice(body));
    if (readable)
        record_prompt(&p, order, out);
    prompt_free(&p);
    return readable;
}

static void test_prompt_does_not_depend_on_how_it_is_written(void **state)
{
    unsigned readable = 0;
    (void)state;
    for (uint64_t round = 0; round < ROUNDS; round++) {
        seed = round;
        dice(2);
        const enum prompt_api api = (enum prompt_api)(1 + dice(4));
        const enum prompt_order order = (enum prompt_order)dice(3);
        json_t *tree = random_body(api);
        struct buf a = written(tree, &(struct style){0, false});
        struct buf b = written(tree, &(struct style){dice(2) ? 0 : 1 + dice(9), true});
        struct buf x = {0}, y = {0};
        assert_agrees(api, order, &a, round);
        assert_agrees(api, order, &b, round);
        const bool first = recorded(api, order, &a, &x);
        assert_int_equal(first, recorded(api, order, &b, &y));
        if (!slice_eq(buf_slice(&x), buf_slice(&y)))
            fail_msg("round %d: %.*s\nand: %.*s", (int)round, (int)buf_len(&a), a.data,
                     (int)buf_len(&b), b.data);
        readable += first;
        buf_free(&a);
        buf_free(&b);
        buf_free(&x);
        buf_free(&y);
        json_decref(tree);
    }
    assert_true(readable > ROUNDS / 2); /* else nothing was tested */
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_prompt_does_not_depend_on_how_it_is_written),
    };
    return cmocka_run_group_tests_name("prompt_random", tests, NULL, NULL);
}
