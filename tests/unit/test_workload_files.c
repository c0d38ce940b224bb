/* SPDX-License-Identifier: MIT */
#include "load/workload.h"

#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/mem.h"
#include "cmocka_all.h"
#include "load/input.h"

/* ---- how files are made and read --------------------------------------------------- */

static struct workload *open_text(const char *text, size_t len,
                                  const struct workload_options *more, struct err *e)
{
    char path[] = "/tmp/incipit-test-XXXXXX";
    const int fd = mkstemp(path);
    assert_int_equal(write(fd, text, len), (ssize_t)len);
    close(fd);
    struct workload_options o = more ? *more : (struct workload_options){.stream = true};
    o.file = path;
    o.model = "m";
    struct workload *w = workload_new(&o, e);
    unlink(path);
    return w;
}

static struct workload *from_text(const char *text, const struct workload_options *more)
{
    struct err e = {0};
    struct workload *w = open_text(text, strlen(text), more, &e);
    if (!w)
        fail_msg("%s", e.text);
    return w;
}

static struct workload *from_file(const char *path, const struct workload_options *more)
{
    struct err e = {0};
    struct workload_options o = more ? *more : (struct workload_options){0};
    o.file = path;
    struct workload *w = workload_new(&o, &e);
    if (!w)
        fail_msg("%s", e.text);
    return w;
}

static void refuse(const char *text, const struct workload_options *more,
                   const char *part)
{
    struct err e = {0};
    assert_null(open_text(text, strlen(text), more, &e));
    assert_true(e.code < 0);
    if (!strstr(e.text, part))
        fail_msg("\"%s\" is not in \"%s\"", part, e.text);
}

static char *body_of(const struct workload *w, uint64_t i, uint32_t arm,
                     struct workload_request *rq)
{
    struct buf b = {0};
    workload_make(w, i, arm, &b, rq);
    return buf_take_str(&b);
}

static json_t *document_of(const struct workload *w, uint64_t i, uint32_t arm,
                           struct workload_request *rq)
{
    char *text = body_of(w, i, arm, rq);
    json_t *doc = json_loads(text, JSON_REJECT_DUPLICATES, NULL);
    if (!doc)
        fail_msg("no JSON: %s", text);
    free(text);
    return doc;
}

/* ---- bodies ------------------------------------------------------------------------ */

static void test_lines_are_completed_and_repeated(void **state)
{
    static const char lines[] =
        "{\"messages\":[]}\n\n"
        "{\"body\":{\"model\":\"x\",\"prompt\":\"a\",\"stream\":false}}\n"
        "{\"path\":\"/v1/messages\",\"body\":{ \"messages\":[] }}\r\n"
        "{\"path\":\"/v1/embeddings\",\"body\":{\"input\":\"a\"}}";
    static const char *const expected[] = {
        ("{\"messages\":[],\"model\":\"m\",\"stream\":true,"
         "\"stream_options\":{\"include_usage\":true}}"),
        "{\"model\":\"x\",\"prompt\":\"a\",\"stream\":false}",
        "{ \"messages\":[] ,\"model\":\"m\",\"stream\":true}",
        "{\"input\":\"a\",\"model\":\"m\"}"};
    static const char *const paths[] = {"/v1/chat/completions", "/v1/completions",
                                        "/v1/messages", "/v1/embeddings"};
    static const enum prompt_api apis[] = {PROMPT_CHAT, PROMPT_COMPLETIONS,
                                           PROMPT_MESSAGES, PROMPT_NONE};
    struct workload_request rq;
    struct workload *w = from_text(lines, NULL);
    (void)state;
    assert_int_equal(workload_pass(w), 4);
    for (uint64_t i = 0; i < 8; i++) {
        struct buf b = {0};
        workload_make(w, i, i & 1, &b, &rq);
        char *text = buf_take_str(&b);
        assert_string_equal(text, expected[i % 4]);
        assert_string_equal(rq.path, paths[i % 4]);
        assert_int_equal(rq.api, apis[i % 4]);
        free(text);
    }
    workload_free(w);
}

/* Whatever the numbers, spaces and order of keys of a body are: they are sent. */
static void test_a_body_is_sent_as_it_is_written(void **state)
{
    static const char lines[] =
        "[\n {\"prompt\" : \"\\u00e9 \\/\", \"temperature\":1.10e0, \"stream\":true,\n"
        "  \"model\":\"x\" },\n {\"body\":{},\"path\":\"/v1/completions?x=1\"}]\n";
    struct workload_request rq;
    struct workload *w =
        from_text(lines, &(struct workload_options){.max_tokens = 9, .stream = true});
    (void)state;
    assert_int_equal(workload_pass(w), 2);
    char *a = body_of(w, 0, 0, &rq);
    assert_string_equal(a, "{\"prompt\" : \"\\u00e9 \\/\", \"temperature\":1.10e0, "
                           "\"stream\":true,\n  \"model\":\"x\" ,\"max_tokens\":9}");
    free(a);
    a = body_of(w, 1, 0, &rq);
    assert_string_equal(a, "{\"model\":\"m\",\"max_tokens\":9,\"stream\":true,"
                           "\"stream_options\":{\"include_usage\":true}}");
    assert_string_equal(rq.path, "/v1/completions?x=1");
    free(a);
    workload_free(w);
}

static void test_batches_of_openai_are_read(void **state)
{
    static const char lines[] =
        "\xEF\xBB\xBF{\"custom_id\":\"a\",\"method\":\"POST\",\"url\":"
        "\"/v1/chat/completions\",\"body\":{\"model\":\"x\",\"messages\":[]}}\n"
        "{\"custom_id\":\"b\",\"url\":\"\\/v1\\/embeddings\",\"body\":{\"input\":\"\"}}";
    struct workload_request rq;
    struct workload *w = from_text(lines, &(struct workload_options){.stream = false});
    (void)state;
    char *a = body_of(w, 0, 0, &rq);
    assert_string_equal(a, "{\"model\":\"x\",\"messages\":[]}");
    assert_string_equal(rq.path, "/v1/chat/completions");
    free(a);
    a = body_of(w, 1, 0, &rq);
    assert_string_equal(rq.path, "/v1/embeddings");
    free(a);
    workload_free(w);
    refuse("{\"method\":\"GET\",\"url\":\"/v1/models\",\"body\":{}}", NULL,
           "method POST");
}

/* A limit is put where there is none, under the name that the API has for it. */
static void test_limits_are_put_where_there_are_none(void **state)
{
    static const char *const lines[][2] = {
        {"{\"messages\":[],\"max_completion_tokens\":5}", NULL},
        {"{\"messages\":[],\"max_tokens\":5}", NULL},
        {"{\"messages\":[]}", "\"max_tokens\":7"},
        {"{\"body\":{\"prompt\":\"\"},\"path\":\"/completion\"}", "\"n_predict\":7"},
        {"{\"body\":{\"prompt\":\"\",\"n_predict\":5},\"path\":\"/completion\"}", NULL},
        {"{\"body\":{\"input\":\"\"},\"path\":\"/v1/embeddings\"}", NULL}};
    struct workload_request rq;
    (void)state;
    for (size_t i = 0; i < sizeof(lines) / sizeof(lines[0]); i++) {
        struct workload *w =
            from_text(lines[i][0], &(struct workload_options){.max_tokens = 7});
        char *body = body_of(w, 0, 0, &rq);
        assert_int_equal(rq.out_tokens, lines[i][1] ? 7 : 0);
        assert_true(!strstr(body, lines[i][1] ? lines[i][1] : ":7") == !lines[i][1]);
        free(body);
        workload_free(w);
    }
}

static void test_lines_that_are_no_requests_are_named(void **state)
{
    (void)state;
    refuse("{\"messages\":[]}\n{\"messages\":\n", NULL, ":2: ");
    refuse("{\"messages\":[]}\n\n\n{\"messages\":[]} {}\n", NULL, ":4: ");
    refuse("[1]\n", NULL, ":1: no JSON object");
    refuse("[{\"messages\":[]},\n\n {\"messages\":[],}]", NULL, ":3: ");
    refuse("[{\"messages\":[]},\n\n 1]", NULL, ":3: no JSON object");
    refuse("[{\"messages\":[]}\n", NULL, ":2: ");
    refuse("{\"input\":\"a\"}\n", NULL, "or a \"path\" beside it");
    refuse("{\"path\":\"v1 x\",\"body\":{}}\n", NULL, "is no path");
    refuse("{\"path\":7,\"body\":{}}\n", NULL, "the path is no text");
    refuse("{\"path\":\"/a\\r\\nX: y\",\"body\":{}}\n", NULL, "is no path");
    refuse("{\"path\":\"/a\\u0000\",\"body\":{}}\n", NULL, "is no path");
    refuse("{\"prompt\":\"\",\"prompt\":\"\"}\n", NULL, "\"prompt\" is there twice");
    refuse("{\"prompt\":\"\xff\"}\n", NULL, ":1: not UTF-8");
    refuse("\n \n", NULL, "holds no request");
    refuse("", NULL, "holds no request");
    refuse("[]", NULL, "holds no request");
    refuse("a question\n", NULL, ":1: neither JSON");
    refuse("\"a\"\n", NULL, ":1: neither JSON");
}

/* As it is, and with an escape in it. */
static void test_a_path_has_at_most_4095_bytes(void **state)
{
    static const char *const slashes[] = {"/", "\\/"};
    struct workload_request rq;
    (void)state;
    for (size_t i = 0; i < 2; i++) {
        char *good = mem_printf("{\"path\":\"%s%04094d\",\"body\":{}}", slashes[i], 0),
             *bad = mem_printf("{\"path\":\"%s%04095d\",\"body\":{}}", slashes[i], 0);
        struct workload *w = from_text(good, NULL);
        free(body_of(w, 0, 0, &rq));
        assert_int_equal(strlen(rq.path), 4095);
        refuse(bad, NULL, "is no path");
        workload_free(w);
        free(good);
        free(bad);
    }
}

static void test_an_item_has_at_most_64_mib(void **state)
{
    static const char start[] = "{\"prompt\":\"", end[] = "\"}";
    const size_t len = INPUT_MAX_ITEM + 1;
    char *text = mem_alloc(len);
    struct err e = {0};
    (void)state;
    memset(text, 'a', len);
    memcpy(text, start, strlen(start));
    memcpy(text + len - 1 - strlen(end), end, strlen(end));
    struct workload *w = open_text(text, len - 1, NULL, &e);
    assert_non_null(w);
    workload_free(w);
    memcpy(text + len - 1 - strlen(end), "aaa", 3);
    memcpy(text + len - strlen(end), end, strlen(end));
    assert_null(open_text(text, len, NULL, &e));
    assert_non_null(strstr(e.text, ":1: more than 64 MiB"));
    free(text);
}

/* `n` times `line` between `start` and `end`. */
static char *repeated(const char *start, const char *line, size_t n, const char *end)
{
    struct buf out = {0};
    buf_append_str(&out, start);
    for (size_t i = 0; i < n; i++)
        buf_append_str(&out, line);
    buf_append_str(&out, end);
    return buf_take_str(&out);
}

static void test_a_million_requests_and_no_more(void **state)
{
    static const struct {
        const char *start, *line, *end, *part;
    } files[] = {
        {"", "{\"prompt\":0}\n", "", ":1000001: more than 1000000 requests"},
        {"", "{\"timestamp\":0,\"input_length\":1,\"output_length\":1}\n", "",
         ":1000001: more than 1000000 requests"},
        {"{\"conversations\":[",
         "{\"from\":\"human\",\"value\":\"\"},{\"from\":\"gpt\",\"value\":\"\"},",
         "{\"from\":\"gpt\",\"value\":\"\"}]}", ":1: more than 1000000 requests"}};
    (void)state;
    for (size_t i = 0; i < sizeof(files) / sizeof(files[0]); i++) {
        char *good = repeated(files[i].start, files[i].line, 1000000, files[i].end),
             *bad = repeated(files[i].start, files[i].line, 1000001, files[i].end);
        struct workload *w = from_text(good, NULL);
        assert_int_equal(workload_pass(w), 1000000);
        workload_free(w);
        refuse(bad, NULL, files[i].part);
        free(good);
        free(bad);
    }
}

/* ---- where bytes come from --------------------------------------------------------- */

static void test_a_file_that_cannot_be_read_is_named(void **state)
{
    struct err e = {0};
    const struct workload_options o = {.file = "/nowhere/x.jsonl"};
    (void)state;
    assert_null(workload_new(&o, &e));
    assert_string_equal(e.text, "/nowhere/x.jsonl: No such file or directory");
    e = (struct err){0};
    const struct workload_options folder = {.file = "/tmp"};
    assert_null(workload_new(&folder, &e));
    assert_non_null(strstr(e.text, "/tmp: "));
}

static void test_a_pipe_will_do(void **state)
{
    static const char line[] = "{\"prompt\":\"a\"}\n";
    char path[32];
    int fds[2];
    struct err e = {0};
    (void)state;
    assert_int_equal(pipe(fds), 0);
    snprintf(path, sizeof(path), "/dev/fd/%d", fds[0]);
    assert_int_equal(write(fds[1], line, strlen(line)), strlen(line));
    close(fds[1]);
    const struct workload_options o = {.file = path};
    struct workload *w = workload_new(&o, &e);
    close(fds[0]);
    assert_non_null(w);
    assert_int_equal(workload_pass(w), 1);
    workload_free(w);
}

/* What is said of a pipe that holds so many blank lines. */
static void read_blank(size_t n, const char *part)
{
    static char blank[65536];
    char path[32];
    int fds[2];
    struct err e = {0};
    memset(blank, '\n', sizeof(blank));
    assert_int_equal(pipe(fds), 0);
    const pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        for (size_t part_len; n > 0; n -= part_len) {
            part_len = n < sizeof(blank) ? n : sizeof(blank);
            const ssize_t done = write(fds[1], blank, part_len);
            part_len = done > 0 ? (size_t)done : n;
        }
        _exit(0);
    }
    close(fds[1]);
    snprintf(path, sizeof(path), "/dev/fd/%d", fds[0]);
    const struct workload_options o = {.file = path};
    assert_null(workload_new(&o, &e));
    if (!strstr(e.text, part))
        fail_msg("\"%s\" is not in \"%s\"", part, e.text);
    close(fds[0]);
    waitpid(child, NULL, 0);
}

static void test_a_pipe_has_at_most_256_mib(void **state)
{
    (void)state;
    read_blank(INPUT_MAX_PIPE, "holds no request");
    read_blank(INPUT_MAX_PIPE + 1, "more than 256 MiB from a pipe; use a file");
}

static void test_names_tell_files_apart(void **state)
{
    struct workload *a = from_text("{\"prompt\":\"a\"}", NULL),
                    *b = from_text("{\"prompt\":\"b\"}", NULL),
                    *c = from_text("{\"prompt\":\"a\"}", NULL);
    (void)state;
    assert_memory_equal(workload_name(a), "bodies,requests=1,sum=", 22);
    assert_string_equal(workload_name(a), workload_name(c));
    assert_string_not_equal(workload_name(a), workload_name(b));
    workload_free(a), workload_free(b), workload_free(c);
}

/* ---- conversations ----------------------------------------------------------------- */

/* "role:content|role:content" of a request. */
static char *history_of(const struct workload *w, uint64_t i, struct workload_request *rq)
{
    struct buf out = {0};
    json_t *doc = document_of(w, i, 0, rq), *message;
    size_t k;
    json_array_foreach(json_object_get(doc, "messages"), k, message)
    {
        const char *text = json_string_value(json_object_get(message, "content"));
        buf_printf(&out, "%s%s:%s", k ? "|" : "",
                   json_string_value(json_object_get(message, "role")),
                   text ? text : "-");
    }
    assert_int_equal(json_integer_value(json_object_get(doc, "max_tokens")),
                     rq->out_tokens);
    json_decref(doc);
    return buf_take_str(&out);
}

static void expect_histories(const char *text, const char *const *histories, size_t n)
{
    struct workload *w = from_text(text, NULL);
    struct workload_request rq;
    assert_int_equal(workload_pass(w), n);
    for (size_t i = 0; i < 2 * n; i++) {
        char *history = history_of(w, i, &rq);
        assert_string_equal(history, histories[i % n]);
        assert_int_equal(rq.group, 0);
        assert_int_equal(rq.turn, i % n);
        assert_string_equal(rq.path, "/v1/chat/completions");
        free(history);
    }
    workload_free(w);
}

static void test_each_answer_of_a_conversation_is_a_request(void **state)
{
    static const char *const want[] = {
        "system:S|user:a\"b", "system:S|user:a\"b|assistant:B|user:c",
        "system:S|user:a\"b|assistant:B|user:c|assistant:D|user:e"};
    (void)state;
    expect_histories(
        "[{\"id\":\"x\",\"conversations\":[{\"from\":\"system\",\"value\":\"S\"},"
        "{\"from\":\"human\",\"value\":\"a\\\"b\"},{\"from\":\"gpt\",\"value\":\"B\"},"
        "{\"value\":\"c\",\"from\":\"human\",\"k\":1},{\"from\":\"gpt\",\"value\":\"D\"},"
        "{\"from\":\"human\",\"value\":\"e\"}]}]",
        want, 3);
    expect_histories("{\"messages\":[{\"role\":\"system\",\"content\":\"S\"},"
                     "{\"role\":\"user\",\"content\":\"a\\\"b\"},"
                     "{\"role\":\"assistant\",\"content\":\"B\"},"
                     "{\"role\":\"user\",\"content\":\"c\"},"
                     "{\"role\":\"assistant\",\"content\":\"D\"},"
                     "{\"role\":\"user\",\"content\":\"e\"},"
                     "{\"role\":\"assistant\",\"content\":\"F\"}]}",
                     want, 3);
}

static void test_odd_orders_of_a_conversation(void **state)
{
    static const char *const piece[] = {"user:a|user:b",
                                        "user:a|user:b|assistant:C|assistant:D|user:e"};
    static const char *const tools[] = {"user:a", "user:a|assistant:-|tool:1"};
    static const char *const greeting[] = {"assistant:hi|user:a"};
    (void)state;
    expect_histories(
        "{\"conversations\":[{\"from\":\"gpt\",\"value\":\"of before\"},"
        "{\"from\":\"human\",\"value\":\"a\"},{\"from\":\"human\",\"value\":\"b\"},"
        "{\"from\":\"gpt\",\"value\":\"C\"},{\"from\":\"gpt\",\"value\":\"D\"},"
        "{\"from\":\"human\",\"value\":\"e\"}]}",
        piece, 2);
    expect_histories("{\"messages\":[{\"role\":\"user\",\"content\":\"a\"},"
                     "{\"role\":\"assistant\",\"content\":null,\"tool_calls\":[]},"
                     "{\"role\":\"tool\",\"content\":\"1\"},"
                     "{\"role\":\"assistant\",\"content\":\"b\"}]}",
                     tools, 2);
    expect_histories("{\"messages\":[{\"role\":\"assistant\",\"content\":\"hi\"},"
                     "{\"role\":\"user\",\"content\":\"a\"},"
                     "{\"role\":\"assistant\",\"content\":\"b\"}]}",
                     greeting, 1);
}

static void test_an_answer_s_limit_is_its_length(void **state)
{
    static const char text[] = "{\"conversations\":[{\"from\":\"human\",\"value\":\"a\"},"
                               "{\"from\":\"gpt\",\"value\":\"12345678901234567890\"},{"
                               "\"from\":\"human\",\"value\":\"c\"}]}";
    struct workload_request rq;
    struct workload *w = from_text(text, NULL),
                    *capped =
                        from_text(text, &(struct workload_options){.max_tokens = 4});
    (void)state;
    free(history_of(w, 0, &rq));
    assert_int_equal(rq.out_tokens, 6); /* 22 bytes with its quotes */
    free(history_of(w, 1, &rq));
    assert_int_equal(rq.out_tokens, 256); /* the file has no answer */
    free(history_of(capped, 1, &rq));
    assert_int_equal(rq.out_tokens, 4);
    assert_non_null(strstr(workload_name(capped), ",max-tokens=4"));
    workload_free(w), workload_free(capped);
}

static void test_tools_go_with_the_messages(void **state)
{
    struct workload_request rq;
    struct workload *w = from_text("{\"tools\":[{\"type\":\"function\"}],\"messages\":[{"
                                   "\"role\":\"user\",\"content\":\"a\"},"
                                   "{\"role\":\"assistant\",\"content\":\"b\"}]}",
                                   NULL);
    json_t *doc = document_of(w, 0, 0, &rq);
    (void)state;
    assert_int_equal(json_array_size(json_object_get(doc, "tools")), 1);
    assert_int_equal(json_array_size(json_object_get(doc, "messages")), 1);
    json_decref(doc);
    workload_free(w);
}

/* `n` conversations; number k has 1 + k % 3 turns. */
static char *many_talks(unsigned n)
{
    struct buf out = {0};
    for (unsigned k = 0; k < n; k++) {
        buf_append_str(&out, "{\"conversations\":[");
        for (unsigned turn = 0; turn <= k % 3; turn++)
            buf_printf(&out,
                       "%s{\"from\":\"human\",\"value\":\"%u.%u\"},"
                       "{\"from\":\"gpt\",\"value\":\"x\"}",
                       turn ? "," : "", k, turn);
        buf_append_str(&out, "]}\n");
    }
    return buf_take_str(&out);
}

static void test_conversations_take_turns_as_the_seed_says(void **state)
{
    enum { N = 30, TURNS = 60 };
    char *text = many_talks(N);
    struct workload_request rq[2];
    struct workload *w = from_text(text,
                                   &(struct workload_options){.seed = 1, .at_once = 4}),
                    *other = from_text(
                        text, &(struct workload_options){.seed = 2, .at_once = 4});
    uint32_t turns[N] = {0};
    unsigned open = 0, most = 0, begun = 0, different = 0;
    (void)state;
    assert_int_equal(workload_pass(w), TURNS);
    for (uint64_t i = 0; i < TURNS; i++) {
        free(body_of(w, i, 0, &rq[0]));
        free(body_of(other, i, 0, &rq[1]));
        assert_true(rq[0].group < N);
        assert_int_equal(rq[0].turn, turns[rq[0].group]++);
        open += rq[0].turn == 0;
        begun += rq[0].turn == 0;
        most = open > most ? open : most;
        open -= turns[rq[0].group] == 1 + rq[0].group % 3;
        different += rq[0].group != rq[1].group;
        assert_true(rq[0].group < begun + 3); /* they come as the file has them */
    }
    assert_int_equal(open, 0);
    assert_int_equal(most, 4);
    assert_true(different > TURNS / 3);
    workload_free(w), workload_free(other);
    free(text);
}

static void test_what_is_no_conversation_is_named(void **state)
{
    static const char good[] =
        "{\"conversations\":[{\"from\":\"human\",\"value\":\"a\"}]}\n";
    static const struct {
        const char *line, *part;
    } bad[] = {{"{\"conversations\":7}", ":2: a conversation has a list"},
               {"{\"prompt\":\"a\"}", ":2: a conversation has a list"},
               {"{\"conversations\":[7]}", ":2: a message is no JSON object"},
               {"{\"conversations\":[{\"from\":\"narrator\",\"value\":\"\"}]}",
                ":2: \"from\" of a message is \"narrator\": known are human, gpt"},
               {"{\"conversations\":[{\"value\":\"\"}]}", "is no text: known are human"},
               {"{\"conversations\":[{\"from\":\"human\",\"value\":[]}]}",
                "\"value\" of a message"},
               {"{\"messages\":[{\"role\":\"human\",\"content\":\"\"}]}",
                "known are system, developer"}};
    (void)state;
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        char *text = mem_printf("%s%s\n", good, bad[i].line);
        refuse(text, NULL, bad[i].part);
        free(text);
    }
    refuse("{\"conversations\":[]}", NULL,
           "no conversation of the file holds a question");
    struct workload *w =
        from_text("{\"conversations\":[]}\n"
                  "{\"conversations\":[{\"from\":\"gpt\",\"value\":\"\"}]}\n"
                  "{\"conversations\":[{\"from\":\"human\",\"value\":\"a\"}]}\n",
                  NULL);
    assert_string_equal(workload_note(w),
                        "2 of 3 conversations hold no question and were left out");
    workload_free(w);
}

/* ---- traces ------------------------------------------------------------------------ */

#define SAMPLE "tests/data/traces/mooncake_sample.jsonl"

static char *text_of(const struct workload *w, uint64_t i, uint32_t arm,
                     struct workload_request *rq)
{
    json_t *doc = document_of(w, i, arm, rq);
    char *text = mem_strdup(json_string_value(
        json_object_get(json_array_get(json_object_get(doc, "messages"), 0), "content")));
    assert_int_equal(json_integer_value(json_object_get(doc, "max_tokens")),
                     rq->out_tokens);
    json_decref(doc);
    return text;
}

/* Words that two texts have in common at their start; of a text with itself: all. */
static uint32_t common_words(const char *a, const char *b)
{
    uint32_t n = 0;
    for (; *a && *b; n++) {
        const size_t la = strcspn(a, " "), lb = strcspn(b, " ");
        if (la != lb || memcmp(a, b, la) != 0)
            break;
        a += la + (a[la] == ' ');
        b += lb + (b[lb] == ' ');
    }
    return n;
}

/* A line of the sample, read by somebody else. */
struct line {
    json_int_t ids[400];
    size_t n;
    uint32_t in, out;
    uint64_t ms;
};

static size_t read_sample(struct line *lines, size_t most)
{
    char *text = NULL;
    size_t size = 0, n = 0;
    FILE *f = fopen(SAMPLE, "r");
    assert_non_null(f);
    for (; n < most && getline(&text, &size, f) > 0; n++) {
        json_t *doc = json_loads(text, 0, NULL);
        const json_t *ids = json_object_get(doc, "hash_ids");
        struct line *l = &lines[n];
        assert_in_range(l->n = json_array_size(ids), 1, 400);
        for (size_t k = 0; k < l->n; k++)
            l->ids[k] = json_integer_value(json_array_get(ids, k));
        l->in = (uint32_t)json_integer_value(json_object_get(doc, "input_length"));
        l->out = (uint32_t)json_integer_value(json_object_get(doc, "output_length"));
        l->ms = (uint64_t)json_integer_value(json_object_get(doc, "timestamp"));
        json_decref(doc);
    }
    fclose(f);
    free(text);
    return n;
}

/*
 * Each pair of requests has the text of their common ids in common and nothing more than
 * the first words of a number; `block` words an id, the last block what is left.
 */
static void check_sharing(double scale, uint32_t block)
{
    static struct line lines[64];
    const size_t n = read_sample(lines, 64);
    struct workload *w =
        from_file(SAMPLE, &(struct workload_options){.scale = scale, .seed = 9});
    struct workload_request rq;
    char *text[64];
    unsigned shared = 0;
    assert_int_equal(n, 41);
    assert_int_equal(workload_pass(w), n);
    for (size_t i = 0; i < n; i++) {
        text[i] = text_of(w, i, 0, &rq);
        assert_int_equal(common_words(text[i], text[i]), rq.in_tokens);
        const uint32_t full = (uint32_t)lines[i].n - 1;
        const double last = round((lines[i].in - 512.0 * full) * scale);
        assert_int_equal(rq.in_tokens - block * full, last < 1 ? 1 : (uint32_t)last);
        uint32_t best = 0;
        for (size_t j = 0; j < i; j++) {
            size_t k = 0;
            while (k < lines[i].n && k < lines[j].n && lines[i].ids[k] == lines[j].ids[k])
                k++;
            const uint32_t words = common_words(text[i], text[j]);
            if (words / block != k || words % block > 2)
                fail_msg("%zu and %zu: %u words, %zu ids", i, j, words, k);
            shared += k > 0;
            best = k * block > best ? (uint32_t)k * block : best;
        }
        assert_int_equal(rq.shared_tokens, best);
    }
    assert_true(shared > 100);
    for (size_t i = 0; i < n; i++)
        free(text[i]);
    workload_free(w);
}

static void test_requests_of_a_trace_share_their_common_blocks(void **state)
{
    (void)state;
    check_sharing(1, 512);
    check_sharing(1.0 / 8, 64);
    check_sharing(1.0 / 64, 8);
}

/* Blocks that are as short as the numbers of their ids. */
static void test_no_two_blocks_have_equal_texts(void **state)
{
    static const unsigned ids[] = {0,   1,   127,   128,   129,   255,
                                   256, 257, 16383, 16384, 16385, 2000000};
    enum { N = sizeof(ids) / sizeof(ids[0]) };
    struct buf lines = {0};
    struct workload_request rq;
    char *text[N];
    (void)state;
    for (size_t i = 0; i < N; i++)
        buf_printf(&lines,
                   "{\"timestamp\":0,\"input_length\":512,\"output_length\":1,"
                   "\"hash_ids\":[%u]}\n",
                   ids[i]);
    char *file = buf_take_str(&lines);
    struct workload *w =
        from_text(file, &(struct workload_options){.scale = 3.0 / 512, .seed = 1});
    for (size_t i = 0; i < N; i++) {
        text[i] = text_of(w, i, 0, &rq);
        assert_int_equal(rq.in_tokens, 3);
        for (size_t j = 0; j < i; j++)
            assert_string_not_equal(text[i], text[j]);
    }
    for (size_t i = 0; i < N; i++)
        free(text[i]);
    workload_free(w);
    free(file);
}

/* The converted public traces: each hit of an unlimited cache is a shared block, and the
 * rates are those that two other programs give. tests/data/traces/README.md */
static char *converted(const char *path)
{
    struct buf out = {0};
    char *line = NULL;
    size_t size = 0;
    FILE *f = fopen(path, "r");
    assert_non_null(f);
    while (getline(&line, &size, f) > 0) {
        size_t n = 0;
        buf_append_str(&out, "{\"timestamp\":1,\"output_length\":1,\"hash_ids\":[");
        for (char *p = line; *p && *p != '\n';) {
            unsigned long first = strtoul(p, &p, 10), last = first;
            if (*p == '-')
                last = strtoul(p + 1, &p, 10);
            for (; first <= last; first++)
                buf_printf(&out, "%s%lu", n++ ? "," : "", first);
            p += *p == ',';
        }
        buf_printf(&out, "],\"input_length\":%zu}\n", n * 512);
    }
    fclose(f);
    free(line);
    return buf_take_str(&out);
}

static void test_what_is_shared_is_what_an_unlimited_cache_hits(void **state)
{
    static const struct {
        const char *path, *rate;
        uint64_t requests, blocks;
    } traces[] = {
        {"tests/data/traces/mooncake_conversation.txt", "0.3664", 12031, 288500},
        {"tests/data/traces/mooncake_synthetic.txt", "0.6396", 3993, 121877}};
    (void)state;
    for (size_t t = 0; t < 2; t++) {
        char *text = converted(traces[t].path), rate[16];
        struct workload *w =
            from_text(text, &(struct workload_options){.scale = 1.0 / 128});
        struct workload_request rq;
        struct buf body = {0};
        uint64_t shared = 0, all = 0;
        assert_int_equal(workload_pass(w), traces[t].requests);
        for (uint64_t i = 0; i < traces[t].requests; i++) {
            workload_make(w, i, 0, &body, &rq);
            shared += rq.shared_tokens;
            all += rq.in_tokens;
        }
        assert_int_equal(all, 4 * traces[t].blocks);
        snprintf(rate, sizeof(rate), "%.4f", (double)shared / (double)all);
        assert_string_equal(rate, traces[t].rate);
        buf_free(&body);
        workload_free(w);
        free(text);
    }
}

static void test_times_and_lengths_are_the_trace_s(void **state)
{
    static struct line lines[64];
    const size_t n = read_sample(lines, 64);
    struct workload *w =
        from_file(SAMPLE, &(struct workload_options){.scale = 0.25, .max_tokens = 100});
    struct workload_request rq;
    uint64_t last = 0;
    (void)state;
    assert_true(workload_timed(w));
    for (size_t i = 0; i < n; i++) {
        free(text_of(w, i, 0, &rq));
        const uint32_t out = (lines[i].out + 2) / 4;
        assert_int_equal(rq.out_tokens, out > 100 ? 100 : out < 1 ? 1 : out);
        last = workload_due_us(w, i);
        assert_int_equal(last, (lines[i].ms - lines[0].ms) * 1000);
    }
    assert_int_equal(workload_due_us(w, n), last + last / (n - 1));
    assert_int_equal(workload_due_us(w, n + 1) - workload_due_us(w, n),
                     workload_due_us(w, 1));
    workload_free(w);
}

static void test_passes_and_arms_of_a_trace_share_nothing(void **state)
{
    struct workload *w = from_file(SAMPLE, &(struct workload_options){.seed = 3});
    struct workload_request rq[3];
    char *text[3] = {text_of(w, 5, 0, &rq[0]), text_of(w, 5, 1, &rq[1]),
                     text_of(w, 5 + workload_pass(w), 0, &rq[2])};
    (void)state;
    for (size_t i = 1; i < 3; i++) {
        assert_memory_equal(&rq[0], &rq[i], sizeof(rq[0]));
        assert_true(common_words(text[0], text[i]) < 8);
    }
    for (size_t i = 0; i < 3; i++)
        free(text[i]);
    workload_free(w);
}

static void test_the_size_of_a_block_follows_from_the_lengths(void **state)
{
    static const struct {
        const char *lines, *name;
    } traces[] = {
        {"{\"timestamp\":0,\"input_length\":40,\"output_length\":1,\"hash_ids\":[1,2,3]}",
         "trace,requests=1,block=16,"},
        {"{\"timestamp\":0,\"input_length\":500,\"output_length\":1,\"hash_ids\":[1]}",
         "trace,requests=1,block=512,"},
        {"{\"timestamp\":0,\"input_length\":600,\"output_length\":1,\"hash_ids\":[1]}",
         "trace,requests=1,block=1024,"},
        {"{\"timestamp\":0,\"input_length\":300,\"output_length\":1,\"hash_ids\":[1,2,3]"
         "}",
         "trace,requests=1,block=128,"},
        {"{\"timestamp\":0,\"input_length\":300,\"output_length\":1,\"hash_ids\":[1,2,3]}"
         "\n"
         "{\"timestamp\":0,\"input_length\":100,\"output_length\":1,\"hash_ids\":[1]}\n"
         "{\"timestamp\":0,\"input_length\":101,\"output_length\":1,\"hash_ids\":[1,2]}",
         "trace,requests=3,block=100,"},
        {"{\"timestamp\":0,\"input_length\":300,\"output_length\":1}",
         "trace,requests=1,scale=1,"}};
    (void)state;
    for (size_t i = 0; i < sizeof(traces) / sizeof(traces[0]); i++) {
        struct workload *w = from_text(traces[i].lines, NULL);
        assert_memory_equal(workload_name(w), traces[i].name, strlen(traces[i].name));
        workload_free(w);
    }
}

static void test_a_table_has_times_and_lengths(void **state)
{
    struct workload *w = from_file("tests/data/traces/azure_sample.csv", NULL);
    struct workload_request a, b;
    (void)state;
    assert_int_equal(workload_pass(w), 23);
    assert_int_equal(workload_due_us(w, 0), 0);
    assert_int_equal(workload_due_us(w, 1), 52000);
    char *x = text_of(w, 0, 0, &a), *y = text_of(w, 1, 0, &b);
    assert_int_equal(a.in_tokens, 4808);
    assert_int_equal(a.out_tokens, 10);
    assert_int_equal(common_words(x, x), 4808);
    assert_int_equal(b.in_tokens, 3180);
    assert_int_equal(b.shared_tokens, 0);
    assert_true(common_words(x, y) < 2);
    workload_free(w);
    free(x), free(y);
    w = from_text("Timestamp,ContextTokens,GeneratedTokens\n1.5,7,3\n"
                  "61,1000000,3\n",
                  NULL);
    assert_int_equal(workload_due_us(w, 1), 59500000);
    workload_free(w);
    w = from_text("TIMESTAMP,ContextTokens,GeneratedTokens\n"
                  "2024-05-10 23:59:59.5+00:00,7,3\n2024-05-11T00:00:01Z,7,3\n",
                  NULL);
    assert_int_equal(workload_due_us(w, 1), 1500000);
    workload_free(w);
}

static void test_what_is_no_trace_is_named(void **state)
{
#define LINE(t, in, ids)                                                                 \
    "{\"timestamp\":" t ",\"input_length\":" in ",\"output_length\":1,\"hash_ids\":" ids \
    "}\n"
    static const struct {
        const char *line, *part;
    } bad[] = {
        {"{\"timestamp\":9,\"input_length\":1}", ":2: output_length is missing"},
        {LINE("\"9\"", "1", "[]"), ":2: timestamp is missing or no number"},
        {LINE("9", "-1", "[]"), ":2: input_length is a number from 0 to 1000000"},
        {LINE("9", "1.5", "[]"), ":2: input_length is a number from 0 to"},
        {LINE("9", "1000001", "[]"), ":2: input_length is a number from 0 to"},
        {LINE("4", "1", "[]"), ":2: it comes earlier than the one before"},
        {LINE("-4", "1", "[]"), ":2: the time is none"},
        {LINE("9", "1", "7"), ":2: hash_ids is no list"},
        {LINE("9", "1", "[-1]"), ":2: an id in hash_ids is no number"},
        {LINE("9", "1", "[\"a\"]"), ":2: an id in hash_ids is no number"},
        {LINE("9", "1025", "[1]"), ":2: 1 ids for 1025 tokens: no size of a block"},
        {LINE("9", "1024", "[1,2,3]"), ":2: 3 ids for 1024 tokens: no size"}};
    static const char good[] = LINE("5", "1024", "[8,9]");
    (void)state;
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        char *text = mem_printf("%s%s\n", good, bad[i].line);
        refuse(text, NULL, bad[i].part);
        free(text);
    }
    refuse("TIMESTAMP,Tokens\n1,2\n", NULL, ":1: the columns of a table are");
    refuse("TIMESTAMP,ContextTokens,GeneratedTokens\n1,2\n", NULL,
           ":2: no line TIMESTAMP");
    refuse("TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16,2,3\n", NULL,
           ":2: no line");
    refuse("TIMESTAMP,ContextTokens,GeneratedTokens\n1,2x,3\n", NULL,
           ":2: no line TIMESTAMP");
    refuse("TIMESTAMP,ContextTokens,GeneratedTokens\n", NULL, "holds no request");
}

static void test_a_scale_has_its_bounds(void **state)
{
    static const char million[] = LINE("0", "1000000", "[1,2]"),
                      small[] = LINE("0", "300", "[1,16380,3]");
    struct workload_request rq;
    (void)state;
    struct workload *w = from_text(million, &(struct workload_options){.scale = 1});
    free(body_of(w, 0, 0, &rq));
    assert_int_equal(rq.in_tokens, 1000000);
    workload_free(w);
    refuse(million, &(struct workload_options){.scale = 1.001},
           "a text of more than 1000000");
    /* 16,380 + 2 requests are told apart by two words, blocks of 128 tokens × 1/64. */
    w = from_text(small, &(struct workload_options){.scale = 1.0 / 64});
    workload_free(w);
    refuse(small, &(struct workload_options){.scale = 1.0 / 128},
           "blocks of 1 tokens are too short to tell their ids apart, which takes 2");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_lines_are_completed_and_repeated),
        cmocka_unit_test(test_a_body_is_sent_as_it_is_written),
        cmocka_unit_test(test_batches_of_openai_are_read),
        cmocka_unit_test(test_limits_are_put_where_there_are_none),
        cmocka_unit_test(test_lines_that_are_no_requests_are_named),
        cmocka_unit_test(test_a_path_has_at_most_4095_bytes),
        cmocka_unit_test(test_an_item_has_at_most_64_mib),
        cmocka_unit_test(test_a_million_requests_and_no_more),
        cmocka_unit_test(test_a_file_that_cannot_be_read_is_named),
        cmocka_unit_test(test_a_pipe_will_do),
        cmocka_unit_test(test_a_pipe_has_at_most_256_mib),
        cmocka_unit_test(test_names_tell_files_apart),
        cmocka_unit_test(test_each_answer_of_a_conversation_is_a_request),
        cmocka_unit_test(test_odd_orders_of_a_conversation),
        cmocka_unit_test(test_an_answer_s_limit_is_its_length),
        cmocka_unit_test(test_tools_go_with_the_messages),
        cmocka_unit_test(test_conversations_take_turns_as_the_seed_says),
        cmocka_unit_test(test_what_is_no_conversation_is_named),
        cmocka_unit_test(test_requests_of_a_trace_share_their_common_blocks),
        cmocka_unit_test(test_no_two_blocks_have_equal_texts),
        cmocka_unit_test(test_what_is_shared_is_what_an_unlimited_cache_hits),
        cmocka_unit_test(test_times_and_lengths_are_the_trace_s),
        cmocka_unit_test(test_passes_and_arms_of_a_trace_share_nothing),
        cmocka_unit_test(test_the_size_of_a_block_follows_from_the_lengths),
        cmocka_unit_test(test_a_table_has_times_and_lengths),
        cmocka_unit_test(test_what_is_no_trace_is_named),
        cmocka_unit_test(test_a_scale_has_its_bounds),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
