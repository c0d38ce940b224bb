/* SPDX-License-Identifier: MIT */
#include "load/input.h"

#include <fcntl.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/draw.h"
#include "base/mem.h"

#define TABLE_START "TIMESTAMP,"

struct input {
    char *path;
    struct slice text; /* the whole file */
    struct slice body; /* without a byte-order mark */
    bool mapped;
    enum input_format format;

    size_t at;      /* of `body`: up to here it has been handed out (lines) */
    uint64_t line;  /* of the last item */
    size_t line_at; /* where that line was counted to */
    bool array;
    struct jlex j; /* of an array */
};

/* ---- the bytes --------------------------------------------------------------------- */

static int read_pipe(struct input *in, int fd, struct err *e)
{
    struct buf all = {0};
    ssize_t n;
    while ((n = read(fd, buf_reserve(&all, 65536), 65536)) > 0) {
        buf_commit(&all, (size_t)n);
        if (buf_len(&all) > INPUT_MAX_PIPE) {
            buf_free(&all);
            return err_set(e, ERR_LIMIT, "%s: more than %zu MiB from a pipe; use a file",
                           in->path, INPUT_MAX_PIPE >> 20);
        }
    }
    const int rc = n < 0 ? err_errno(e, "%s", in->path) : 0;
    in->text.len = buf_len(&all);
    in->text.ptr = buf_take_str(&all);
    return rc;
}

static int map_file(struct input *in, int fd, size_t size, struct err *e)
{
    if (size == 0)
        return 0;
    void *map = mmap(NULL, size, PROT_READ, MAP_PRIVATE, fd, 0);
    if (map == MAP_FAILED)
        return err_errno(e, "%s", in->path);
    madvise(map, size, MADV_SEQUENTIAL);
    in->text = slice_make(map, size);
    in->mapped = true;
    return 0;
}

static int take_bytes(struct input *in, struct err *e)
{
    struct stat st;
    const int fd = open(in->path, O_RDONLY | O_CLOEXEC);
    if (fd < 0 || fstat(fd, &st) != 0) {
        const int rc = err_errno(e, "%s", in->path);
        if (fd >= 0)
            close(fd);
        return rc;
    }
    const int rc = S_ISREG(st.st_mode) ? map_file(in, fd, (size_t)st.st_size, e)
                                       : read_pipe(in, fd, e);
    close(fd);
    return rc;
}

void input_free(struct input *in)
{
    if (!in)
        return;
    char *bytes = (char *)(uintptr_t)in->text.ptr;
    if (in->mapped)
        munmap(bytes, in->text.len);
    else
        free(bytes);
    free(in->path);
    free(in);
}

uint32_t input_sum(const struct input *in)
{
    uint64_t h = in->text.len, part;
    for (size_t at = 0; at < in->text.len; at += sizeof(part)) {
        const size_t left = in->text.len - at;
        part = 0;
        memcpy(&part, in->text.ptr + at, left < sizeof(part) ? left : sizeof(part));
        h ^= part;
        h = draw_next(&h);
    }
    return (uint32_t)(h >> 32);
}

/* ---- items ------------------------------------------------------------------------- */

static bool is_space(char c)
{
    return c == ' ' || c == '\t' || c == '\r' || c == '\n';
}

static struct slice trim(struct slice s)
{
    while (s.len && is_space(s.ptr[0]))
        s.ptr++, s.len--;
    while (s.len && is_space(s.ptr[s.len - 1]))
        s.len--;
    return s;
}

/* Counts lines up to place `to` of the body. */
static void count_lines(struct input *in, size_t to)
{
    const char *end = in->body.ptr + to;
    for (const char *p = in->body.ptr + in->line_at;
         (p = memchr(p, '\n', (size_t)(end - p))) != NULL; p++)
        in->line++;
    in->line_at = to;
}

static int next_line(struct input *in, struct slice *item)
{
    while (in->at < in->body.len) {
        const struct slice rest =
            slice_make(in->body.ptr + in->at, in->body.len - in->at);
        const char *end = memchr(rest.ptr, '\n', rest.len);
        const size_t len = end ? (size_t)(end - rest.ptr) : rest.len;
        *item = trim(slice_make(rest.ptr, len));
        count_lines(in, in->at);
        in->at += len + (end != NULL);
        if (item->len)
            return 1;
    }
    return 0;
}

static int next_of_array(struct input *in, struct slice *item, struct err *e)
{
    struct jlex_token t;
    enum jlex_type type = jlex_next(&in->j, &t);
    if (type == JLEX_ARRAY_END)
        type = jlex_next(&in->j, &t);
    count_lines(in, in->j.why ? in->j.why_at : t.start);
    if (type == JLEX_END)
        return 0;
    if (type != JLEX_ERROR && type != JLEX_OBJECT)
        return err_set(e, ERR_FORMAT, "no JSON object");
    if (type == JLEX_ERROR || !jlex_skip(&in->j, &t)) {
        count_lines(in, in->j.why_at);
        return err_set(e, ERR_FORMAT, "%s", in->j.why);
    }
    *item = slice_make(in->body.ptr + t.start, t.end - t.start);
    return 1;
}

int input_next(struct input *in, struct slice *item, struct err *e)
{
    const int rc = in->array ? next_of_array(in, item, e) : next_line(in, item);
    if (rc < 0)
        return input_blame(in, e);
    if (rc > 0 && item->len > INPUT_MAX_ITEM) {
        err_set(e, ERR_LIMIT, "more than %zu MiB", INPUT_MAX_ITEM >> 20);
        return input_blame(in, e);
    }
    return rc;
}

int input_blame(const struct input *in, struct err *e)
{
    return err_wrap(e, "%s:%" PRIu64, in->path, in->line);
}

/* ---- members ----------------------------------------------------------------------- */

static int not_json(const struct jlex *j, struct err *e)
{
    return err_set(e, ERR_FORMAT, "%s at byte %zu", j->why, j->why_at + 1);
}

/* Which of the names this key is; n: none. */
static size_t name_at(const struct jlex *j, const struct jlex_token *key,
                      const char *const *names, size_t n)
{
    char tmp[64];
    const struct slice name = jlex_text(j, key, tmp, sizeof(tmp));
    size_t i = 0;
    while (i < n && !(name.ptr && slice_eq(name, slice_of(names[i]))))
        i++;
    return i;
}

int input_members(struct slice object, const char *const *names, size_t n,
                  struct input_value *values, struct err *e)
{
    struct jlex j;
    struct jlex_token key, value;
    for (size_t i = 0; i < n; i++)
        values[i] = (struct input_value){.type = JLEX_END};
    jlex_init(&j, object);
    const enum jlex_type first = jlex_next(&j, &key);
    if (first != JLEX_OBJECT)
        return first == JLEX_ERROR ? not_json(&j, e)
                                   : err_set(e, ERR_FORMAT, "no JSON object");
    while (jlex_next(&j, &key) == JLEX_KEY) {
        const size_t i = name_at(&j, &key, names, n);
        if (i < n && values[i].type != JLEX_END)
            return err_set(e, ERR_FORMAT, "\"%s\" is there twice", names[i]);
        const enum jlex_type type = jlex_next(&j, &value);
        if (type == JLEX_ERROR || !jlex_skip(&j, &value))
            return not_json(&j, e);
        if (i < n)
            values[i] = (struct input_value){
                type, slice_make(object.ptr + value.start, value.end - value.start)};
    }
    return !j.why && jlex_next(&j, &key) == JLEX_END ? 0 : not_json(&j, e);
}

/* ---- what it is -------------------------------------------------------------------- */

/* The list's last message is an answer. */
static bool ends_with_answer(struct slice list)
{
    static const char *const names[] = {"role"};
    struct jlex j;
    struct jlex_token t;
    struct input_value role = {.type = JLEX_END};
    jlex_init(&j, list);
    if (jlex_next(&j, &t) != JLEX_ARRAY)
        return false;
    while (jlex_next(&j, &t) == JLEX_OBJECT && jlex_skip(&j, &t))
        if (input_members(slice_make(list.ptr + t.start, t.end - t.start), names, 1,
                          &role, NULL))
            return false;
    return role.type == JLEX_STRING && slice_eq(role.text, SLICE_LIT("\"assistant\""));
}

static enum input_format format_of(struct slice item)
{
    static const char *const names[] = {"hash_ids", "input_length", "conversations",
                                        "messages"};
    const struct slice start = SLICE_LIT(TABLE_START);
    struct input_value v[4];
    struct err e = {0};
    if (item.len >= start.len && slice_eq_nocase(slice_make(item.ptr, start.len), start))
        return INPUT_TABLE;
    if (input_members(item, names, 4, v, &e))
        return INPUT_BODIES; /* whose reader says what is wrong */
    if (v[0].type == JLEX_ARRAY || v[1].type == JLEX_NUMBER)
        return INPUT_TRACE;
    return v[2].type == JLEX_ARRAY || ends_with_answer(v[3].text) ? INPUT_TALKS
                                                                  : INPUT_BODIES;
}

/* To the first item. */
static void rewind_to_start(struct input *in)
{
    const struct slice bom = SLICE_LIT("\xEF\xBB\xBF");
    struct jlex_token t;
    in->body = in->text;
    if (slice_starts(in->body, bom))
        in->body = slice_make(in->text.ptr + bom.len, in->text.len - bom.len);
    in->at = in->line_at = 0;
    in->line = 1;
    const struct slice inside = trim(in->body);
    in->array = inside.len && inside.ptr[0] == '[';
    if (in->array) {
        jlex_init(&in->j, in->body);
        jlex_next(&in->j, &t);
    }
}

static int recognise(struct input *in, struct err *e)
{
    struct slice first = {0};
    rewind_to_start(in);
    const int rc = input_next(in, &first, e);
    if (rc < 0)
        return rc;
    if (rc == 0)
        return err_set(e, ERR_INVALID, "%s holds no request", in->path);
    in->format = format_of(first);
    if (in->format != INPUT_TABLE && first.ptr[0] != '{') {
        err_set(e, ERR_FORMAT,
                "neither JSON (objects, one a line or in an array) nor a table that "
                "starts with " TABLE_START);
        return input_blame(in, e);
    }
    rewind_to_start(in);
    return 0;
}

struct input *input_open(const char *path, struct err *e)
{
    struct input *in = mem_zalloc(sizeof(*in));
    in->path = mem_strdup(path);
    if (take_bytes(in, e) == 0 && recognise(in, e) == 0)
        return in;
    input_free(in);
    return NULL;
}

enum input_format input_format(const struct input *in)
{
    return in->format;
}
