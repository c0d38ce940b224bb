/* SPDX-License-Identifier: MIT */
#include "lab_server.h"

/*
 * POST /slots/{id}?action=save|restore|erase. The action waits until its slot is idle and
 * no task takes it, and is done even where its client has left by then.
 */

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/mem.h"
#include "base/units.h"
#include "proto/slotfile.h"

/* Rows go to the file as they are in memory. */
_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "slot files are little-endian");

#define TYPE_F32 0

/* Behind the rows where it behaves like a recurrent model: one cell for all tokens, as
 * llama-server writes it, and a word in the place of its state. */
struct state {
    uint32_t cells, position, sequences, state;
};

struct slot_action {
    struct list link;
    struct lab_action action;
    struct lab_server *s;
    struct front_request *rq; /* NULL: the client has left */
    int64_t id;               /* as asked for */
    char *path, *name;
    void (*run)(struct slot_action *a, struct lab_slot *slot);
    uint64_t start_us;
};

static void free_action(struct slot_action *a)
{
    list_del(&a->link);
    free(a->path);
    free(a->name);
    free(a);
}

void lab_slot_actions_end(struct lab_server *s)
{
    while (!list_empty(&s->actions))
        free_action(LIST_ENTRY(s->actions.next, struct slot_action, link));
}

static void answer(struct slot_action *a, json_t *doc)
{
    if (a->rq)
        lab_answer_json(a->rq, 200, doc);
    else
        json_decref(doc);
}

static void refuse(struct slot_action *a, int status, const char *text)
{
    struct lab_refusal no;
    lab_refuse(&no, status, text);
    if (a->rq)
        lab_answer_refusal(a->rq, &no);
}

static double elapsed_ms(const struct slot_action *a)
{
    return (double)(loop_now_us(a->s->loop) - a->start_us) / 1e3;
}

/* ---- the format -------------------------------------------------------------------- */

static struct slotfile_frame *frame_of(const struct lab_server *s)
{
    const struct lab_shape m = lab_model_shape(s->engine.model);
    struct slotfile_frame *f = mem_zalloc(sizeof(*f));
    f->version = s->o->state_version;
    f->packed_tokens = true;
    f->streams = s->engine.n_slots;
    f->n_layers = m.layers;
    for (uint32_t i = 0; i < m.layers; i++) {
        const uint64_t row = m.width * sizeof(float);
        f->layers[i] = (struct slotfile_layer){
            .k_type = TYPE_F32, .v_type = TYPE_F32, .k_row = row, .v_row = row};
        f->token_bytes += 2 * row;
    }
    return f;
}

/* The rows of a slot, as slotfile_compose() wants them. */
static unsigned char *rows_of(const struct lab_slot *slot, struct lab_shape m)
{
    const uint32_t n = lab_cache_len(slot->cache);
    const size_t bytes = (size_t)n * m.width * sizeof(float);
    unsigned char *rows = mem_alloc(2 * m.layers * bytes), *to = rows;
    for (uint32_t i = 0; n && i < m.layers; i++, to += bytes)
        memcpy(to, lab_cache_k(slot->cache, i, 0), bytes);
    for (uint32_t i = 0; n && i < m.layers; i++, to += bytes)
        memcpy(to, lab_cache_v(slot->cache, i, 0), bytes);
    return rows;
}

static unsigned char *file_of(const struct lab_server *s, const struct lab_slot *slot,
                              size_t *size)
{
    const uint32_t n = lab_cache_len(slot->cache);
    struct slotfile_frame *f = frame_of(s);
    unsigned char *rows = rows_of(slot, lab_model_shape(s->engine.model));
    const struct slotfile_part all = {rows, n, n};
    *size = (size_t)slotfile_size(f, n);
    unsigned char *bytes = mem_alloc(*size);
    slotfile_compose(f, (uint32_t)slot->id, slot->tokens, n, &all, 1, bytes);
    free(rows);
    free(f);
    if (n && lab_server_does(s, LAB_RECURRENT)) {
        const struct state state = {1, n - 1, 0, n};
        bytes = mem_realloc(bytes, *size + sizeof(state));
        memcpy(bytes + *size, &state, sizeof(state));
        *size += sizeof(state);
    }
    return bytes;
}

/* The rows of a file that has all that this engine wants. */
static struct slice rows_in(const struct lab_server *s, struct slice bytes)
{
    const bool recurrent = lab_server_does(s, LAB_RECURRENT);
    return recurrent && bytes.len > sizeof(struct state)
               ? slice_make(bytes.ptr, bytes.len - sizeof(struct state))
               : bytes;
}

/* What of a file does not fit this engine; NULL: all fits. */
static const char *misfit(const struct lab_server *s, const struct slotfile *f)
{
    struct slotfile_frame *mine = frame_of(s);
    const bool same = slotfile_same_layout(mine, &f->frame);
    free(mine);
    if (f->frame.version != s->o->state_version ||
        f->frame.streams != s->engine.n_slots || !same)
        return "No available space in KV cache or invalid slot save file";
    if (f->n_tokens > s->engine.context)
        return "Restored prompt does not fit in the slot context";
    for (uint32_t i = 0; i < f->n_tokens; i++)
        if (slotfile_token(f, i) >= LAB_VOCAB)
            return "Invalid tokens in slot save file";
    return NULL;
}

static void fill(struct lab_slot *slot, const struct slotfile *f)
{
    for (uint32_t i = 0; i < f->n_tokens; i++)
        slot->tokens[i] = slotfile_token(f, i);
    for (uint32_t i = 0; f->n_tokens && i < f->frame.n_layers; i++) {
        memcpy(lab_cache_k(slot->cache, i, 0), f->k[i].ptr, f->k[i].len);
        memcpy(lab_cache_v(slot->cache, i, 0), f->v[i].ptr, f->v[i].len);
    }
    lab_cache_set_len(slot->cache, f->n_tokens);
}

/* ---- save -------------------------------------------------------------------------- */

static bool write_all(const char *path, const unsigned char *bytes, size_t size)
{
    const int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    size_t done = 0;
    while (fd >= 0 && done < size) {
        const ssize_t n = write(fd, bytes + done, size - done);
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            break;
        done += (size_t)n;
    }
    return fd >= 0 && close(fd) == 0 && done == size;
}

static void save(struct slot_action *a, struct lab_slot *slot)
{
    size_t size;
    unsigned char *bytes = file_of(a->s, slot, &size);
    if (write_all(a->path, bytes, size))
        answer(a, json_pack("{s:I, s:s, s:I, s:I, s:{s:f}}", "id_slot", (json_int_t)a->id,
                            "filename", a->name, "n_saved",
                            (json_int_t)lab_cache_len(slot->cache), "n_written",
                            (json_int_t)size, "timings", "save_ms", elapsed_ms(a)));
    else
        refuse(a, 500, "Unable to save slot");
    free(bytes);
}

/* ---- restore ----------------------------------------------------------------------- */

/* Empty where the file cannot be read; at most as much as a full slot can take. */
static struct buf read_all(const char *path, uint64_t most)
{
    struct buf b = {0};
    struct stat st;
    const int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd >= 0 && fstat(fd, &st) == 0 && st.st_size > 0 &&
        (uint64_t)st.st_size <= most) {
        size_t left = (size_t)st.st_size;
        ssize_t n = 1;
        while (left && n > 0) {
            n = read(fd, buf_reserve(&b, left), left);
            if (n < 0 && errno == EINTR)
                continue;
            buf_commit(&b, n > 0 ? (size_t)n : 0);
            left -= n > 0 ? (size_t)n : 0;
        }
    }
    if (fd >= 0)
        close(fd);
    return b;
}

static void answer_restored(struct slot_action *a, uint32_t n, size_t bytes)
{
    answer(a, json_pack("{s:I, s:s, s:I, s:I, s:{s:f}}", "id_slot", (json_int_t)a->id,
                        "filename", a->name, "n_restored", (json_int_t)n, "n_read",
                        (json_int_t)bytes, "timings", "restore_ms", elapsed_ms(a)));
}

static void restore(struct slot_action *a, struct lab_slot *slot)
{
    struct slotfile_frame *frame = frame_of(a->s);
    struct buf bytes =
        read_all(a->path, slotfile_size(frame, (size_t)a->s->engine.context + 1) +
                              sizeof(struct state));
    struct slotfile *f = mem_alloc(sizeof(*f));
    const char *why = "No available space in KV cache or invalid slot save file";
    if (slotfile_parse(f, rows_in(a->s, buf_slice(&bytes)), NULL) == 0)
        why = misfit(a->s, f);
    if (!lab_server_does(a->s, LAB_RESTORE_LIES))
        lab_cache_cut(slot->cache, 0);
    if (why) {
        char text[160];
        snprintf(text, sizeof(text), "Unable to restore slot: %s", why);
        refuse(a, 400, text);
    } else {
        if (!lab_server_does(a->s, LAB_RESTORE_LIES))
            fill(slot, f);
        slot->spoilt = lab_server_does(a->s, LAB_NO_REUSE);
        answer_restored(a, f->n_tokens, buf_len(&bytes));
    }
    free(f);
    free(frame);
    buf_free(&bytes);
}

static void erase(struct slot_action *a, struct lab_slot *slot)
{
    const json_int_t n = lab_cache_len(slot->cache);
    lab_cache_cut(slot->cache, 0);
    slot->spoilt = false;
    answer(a, json_pack("{s:I, s:I}", "id_slot", (json_int_t)a->id, "n_erased", n));
}

/* ---- the request ------------------------------------------------------------------- */

/* No way out of the directory, and what other systems can name as well. */
static bool is_file_name(const char *name)
{
    const size_t len = strlen(name);
    for (size_t i = 0; i < len; i++)
        if ((unsigned char)name[i] < ' ' || strchr("/\\:*?\"<>|", name[i]))
            return false;
    return len > 0 && len < 256 && name[0] != ' ' && name[len - 1] != ' ' &&
           name[len - 1] != '.' && !strstr(name, "..");
}

static const struct {
    struct slice query;
    void (*run)(struct slot_action *a, struct lab_slot *slot);
} kinds[] = {{{"?action=save", 12}, save},
             {{"?action=restore", 15}, restore},
             {{"?action=erase", 13}, erase}};

/* "{id}?action=…" */
static bool read_route(struct slot_action *a, struct slice rest, struct lab_refusal *no)
{
    uint64_t id;
    const char *end = memchr(rest.ptr, '?', rest.len);
    const size_t digits = end ? (size_t)(end - rest.ptr) : rest.len;
    char *text = mem_dup(rest.ptr, digits);
    const bool fine = units_parse_count(text, &id) && id <= INT32_MAX;
    free(text);
    if (!fine)
        return lab_refuse(no, 400, "Invalid slot ID");
    a->id = (int64_t)id;
    const struct slice query = slice_make(rest.ptr + digits, rest.len - digits);
    for (size_t i = 0; i < sizeof(kinds) / sizeof(kinds[0]); i++)
        if (slice_eq(query, kinds[i].query))
            a->run = kinds[i].run;
    return a->run || lab_refuse(no, 400, "Invalid action");
}

static bool read_name(struct slot_action *a, const json_t *body, struct lab_refusal *no)
{
    const json_t *v = json_object_get(body, "filename");
    if (!json_is_string(v))
        return lab_refuse(no, 500, "key 'filename' not found");
    if (!is_file_name(json_string_value(v)) ||
        strlen(json_string_value(v)) != json_string_length(v))
        return lab_refuse(no, 400, "Invalid filename");
    a->name = mem_strdup(json_string_value(v));
    a->path = mem_printf("%s/%s", a->s->o->slot_save_path, a->name);
    return true;
}

/* False after the request was refused. */
static bool read_request(struct slot_action *a, struct slice rest)
{
    struct lab_refusal no;
    json_t *body = NULL;
    bool fine = read_route(a, rest, &no);
    if (fine && a->run != erase) {
        body = lab_body_json(a->rq);
        if (!body)
            return false;
        fine = read_name(a, body, &no);
    }
    json_decref(body);
    if (!fine)
        lab_answer_refusal(a->rq, &no);
    return fine;
}

static void on_idle(void *arg, struct lab_slot *slot)
{
    struct slot_action *a = arg;
    a->start_us = loop_now_us(a->s->loop);
    a->run(a, slot);
    free_action(a);
}

static void on_gone(void *arg)
{
    struct slot_action *a = arg;
    a->rq = NULL;
}

static void on_drained(void *arg)
{
    (void)arg;
}

void lab_on_slot_action(struct lab_server *s, struct front_request *rq, struct slice rest)
{
    static const struct front_events events = {on_gone, on_drained};
    struct lab_refusal no;
    if (!s->o->slot_save_path) {
        lab_refuse(&no, 501,
                   "This server does not support slots action. Start it with "
                   "`--slot-save-path`");
        lab_answer_refusal(rq, &no);
        return;
    }
    struct slot_action *a = mem_zalloc(sizeof(*a));
    a->s = s;
    a->rq = rq;
    list_push_back(&s->actions, &a->link);
    if (!read_request(a, rest)) {
        free_action(a);
        return;
    }
    front_set_events(rq, &events, a);
    a->action = (struct lab_action){
        .slot = lab_engine_slot(&s->engine, a->id), .run = on_idle, .arg = a};
    lab_engine_act(&s->engine, &a->action);
}
