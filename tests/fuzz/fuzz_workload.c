/* SPDX-License-Identifier: MIT */

/*
 * Files of requests for the bench: bodies, batches of OpenAI, conversations, traces and
 * tables. What is taken gives requests that are whole JSON objects, the same each time.
 * The first byte chooses the options.
 */

#include <assert.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "json_reading.h"
#include "load/input.h"
#include "load/workload.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#define PAGE 4096
#define MAX_MADE 4 /* requests */

static void require(bool holds)
{
    if (!holds)
        abort();
}

/* Puts the input into a file, its end at the end of a page: what reads on is seen. Blank
 * lines before it are passed over. */
static const char *put_file(const uint8_t *data, size_t size)
{
    static int fd = -1;
    static char path[32], blank[PAGE];
    const size_t before = size ? (PAGE - size % PAGE) % PAGE : 0;
    if (fd < 0) {
        fd = memfd_create("input", MFD_CLOEXEC);
        snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
        memset(blank, '\n', sizeof(blank));
    }
    const bool marked = size >= 3 && memcmp(data, "\xEF\xBB\xBF", 3) == 0;
    const size_t start = marked ? 0 : before;
    require(fd >= 0 && ftruncate(fd, (off_t)(start + size)) == 0);
    require(pwrite(fd, blank, start, 0) == (ssize_t)start);
    require(pwrite(fd, data, size, (off_t)start) == (ssize_t)size);
    return path;
}

static bool is_trace(const char *path)
{
    struct err e = {0};
    struct input *in = input_open(path, &e);
    const enum input_format f = in ? input_format(in) : INPUT_BODIES;
    require((in == NULL) == (e.code != 0) && (in != NULL || e.text[0] != '\0'));
    input_free(in);
    return f == INPUT_TRACE || f == INPUT_TABLE;
}

static void make_request(const struct workload *w, uint64_t i)
{
    struct workload_request rq, same;
    struct buf body = {0}, again = {0};
    workload_make(w, i, 0, &body, &rq);
    workload_make(w, i, 0, &again, &same);
    require(rq.path[0] == '/' && is_object(buf_slice(&body)));
    require(slice_eq(buf_slice(&body), buf_slice(&again)));
    require(rq.in_tokens <= WORKLOAD_MAX_TOKENS && rq.shared_tokens <= rq.in_tokens);
    buf_free(&body);
    buf_free(&again);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct err e = {0};
    if (size == 0)
        return 0;
    const char *path = put_file(data + 1, size - 1);
    const struct workload_options o = {
        .file = path,
        .stream = data[0] & 1,
        .logprobs = data[0] & 2,
        .fixed = data[0] & 2,
        .max_tokens = data[0] & 4 ? 16 : 0,
        .scale = is_trace(path) ? WORKLOAD_MIN_SCALE : 0, /* or texts are megabytes */
    };
    struct workload *w = workload_new(&o, &e);
    require((w == NULL) == (e.code != 0) && (w != NULL || e.text[0] != '\0'));
    if (!w)
        return 0;
    const uint64_t pass = workload_pass(w);
    require(pass > 0);
    for (uint64_t i = 0; i < pass && i < MAX_MADE; i++)
        make_request(w, i);
    make_request(w, pass - 1);
    make_request(w, pass);
    for (uint64_t i = 1; workload_timed(w) && i <= pass && i < 1000; i++)
        require(workload_due_us(w, i) >= workload_due_us(w, i - 1));
    workload_free(w);
    return 0;
}
