/* SPDX-License-Identifier: MIT */
#include "lab_text.h"

/*
 *     <|im_start|>system
 *     the system texts, then the tools<|im_end|>
 *     <|im_start|>user
 *     …<|im_end|>
 *     <|im_start|>assistant
 */

#include <stdio.h>
#include <stdlib.h>

const char lab_chat_template[] =
    "{% for m in messages if m.role == 'system' %}<|im_start|>system\n{{ m.content }}"
    "{% if tools %}\n\n# Tools{% for t in tools %}\n{{ t | tojson }}{% endfor %}"
    "{% endif %}<|im_end|>\n{% endfor %}"
    "{% for m in messages if m.role != 'system' %}<|im_start|>{{ m.role }}\n"
    "{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}";

bool lab_refuse(struct lab_refusal *no, int status, const char *text)
{
    *no = (struct lab_refusal){.status = status,
                               .type = status == 501   ? "not_supported_error"
                                       : status >= 500 ? "server_error"
                                       : status == 404 ? "not_found_error"
                                                       : "invalid_request_error"};
    snprintf(no->text, sizeof(no->text), "%s", text);
    return false;
}

static void put_string(struct buf *out, const json_t *s)
{
    buf_append(out, json_string_value(s), json_string_length(s));
}

static void put_json(struct buf *out, const json_t *v)
{
    char *text = json_dumps(v, JSON_COMPACT | JSON_ENCODE_ANY);
    buf_append_str(out, text ? text : "null");
    free(text);
}

static void put_call(struct buf *out, const json_t *name, const json_t *arguments)
{
    buf_append_str(out, "<tool_call>\n{\"name\": ");
    put_json(out, name);
    buf_append_str(out, ", \"arguments\": ");
    if (json_is_string(arguments)) /* OpenAI writes them as text */
        put_string(out, arguments);
    else
        put_json(out, arguments);
    buf_append_str(out, "}\n</tool_call>");
}

static bool put_content(struct buf *out, const json_t *content, struct lab_refusal *no);

static bool put_part(struct buf *out, const json_t *part, struct lab_refusal *no)
{
    const char *type = json_string_value(json_object_get(part, "type"));
    if (!type)
        return lab_refuse(no, 400, "missing content part type");
    if (strcmp(type, "text") == 0 && json_is_string(json_object_get(part, "text")))
        put_string(out, json_object_get(part, "text"));
    else if (strcmp(type, "tool_result") == 0)
        return put_content(out, json_object_get(part, "content"), no);
    else if (strcmp(type, "tool_use") == 0)
        put_call(out, json_object_get(part, "name"), json_object_get(part, "input"));
    else if (strcmp(type, "thinking") != 0)
        return lab_refuse(no, 400, "unsupported content[].type");
    return true;
}

/* A string, parts with line ends between them, or nothing. */
static bool put_content(struct buf *out, const json_t *content, struct lab_refusal *no)
{
    size_t i;
    json_t *part;
    if (json_is_string(content)) {
        put_string(out, content);
        return true;
    }
    if (content && !json_is_array(content) && !json_is_null(content))
        return lab_refuse(no, 400, "invalid 'content' type");
    json_array_foreach((json_t *)(uintptr_t)content, i, part)
    {
        if (i)
            buf_append_char(out, '\n');
        if (!put_part(out, part, no))
            return false;
    }
    return true;
}

static bool put_message(struct buf *out, const json_t *message, struct lab_refusal *no)
{
    json_t *calls = json_object_get(message, "tool_calls"), *call;
    size_t i;
    const size_t start = buf_len(out);
    if (!put_content(out, json_object_get(message, "content"), no))
        return false;
    json_array_foreach(calls, i, call)
    {
        const json_t *function = json_object_get(call, "function");
        if (buf_len(out) > start)
            buf_append_char(out, '\n');
        put_call(out, json_object_get(function, "name"),
                 json_object_get(function, "arguments"));
    }
    return true;
}

static const char *role_of(const json_t *message)
{
    const char *role = json_string_value(json_object_get(message, "role"));
    return role ? role : "";
}

static bool is_system(const json_t *message)
{
    return strcmp(role_of(message), "system") == 0 ||
           strcmp(role_of(message), "developer") == 0;
}

static void put_tools(struct buf *out, json_t *tools)
{
    size_t i;
    json_t *tool;
    if (!json_array_size(tools))
        return;
    if (buf_len(out))
        buf_append_str(out, "\n\n");
    buf_append_str(out, "# Tools\n\nYou may call these functions:\n<tools>");
    json_array_foreach(tools, i, tool)
    {
        buf_append_char(out, '\n');
        put_json(out, tool);
    }
    buf_append_str(out, "\n</tools>");
}

/* All that stands before the first other message; says how many messages that were. */
static bool put_system(struct buf *out, const json_t *body, size_t *n,
                       struct lab_refusal *no)
{
    const json_t *messages = json_object_get(body, "messages");
    if (!put_content(out, json_object_get(body, "system"), no))
        return false;
    for (*n = 0; is_system(json_array_get(messages, *n)); ++*n) {
        if (buf_len(out))
            buf_append_char(out, '\n');
        if (!put_message(out, json_array_get(messages, *n), no))
            return false;
    }
    put_tools(out, json_object_get(body, "tools"));
    return true;
}

static bool put_turns(struct buf *out, const json_t *messages, size_t from,
                      struct lab_refusal *no)
{
    for (size_t i = from; i < json_array_size(messages); i++) {
        const json_t *message = json_array_get(messages, i);
        if (!json_is_object(message))
            return lab_refuse(no, 400, "'messages' must hold objects");
        buf_printf(out, "<|im_start|>%s\n", role_of(message));
        if (!put_message(out, message, no))
            return false;
        buf_append_str(out, "<|im_end|>\n");
    }
    return true;
}

bool lab_chat_prompt(const json_t *body, struct buf *out, struct lab_refusal *no)
{
    const json_t *messages = json_object_get(body, "messages");
    struct buf system = {0};
    size_t n = 0;
    if (!messages)
        return lab_refuse(no, 400, "'messages' is required");
    if (!json_is_array(messages))
        return lab_refuse(no, 400, "Expected 'messages' to be an array");
    if (!put_system(&system, body, &n, no)) {
        buf_free(&system);
        return false;
    }
    if (buf_len(&system)) {
        buf_append_str(out, "<|im_start|>system\n");
        buf_append_slice(out, buf_slice(&system));
        buf_append_str(out, "<|im_end|>\n");
    }
    buf_free(&system);
    if (!put_turns(out, messages, n, no))
        return false;
    if (!json_is_false(json_object_get(body, "add_generation_prompt")))
        buf_append_str(out, "<|im_start|>assistant\n");
    return true;
}
