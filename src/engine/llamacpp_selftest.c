/* SPDX-License-Identifier: MIT */
#include "llamacpp_probe.h"

/*
 * Can it restore? A prompt is saved, restored without its last tokens and sent again:
 *
 *     erase → prompt → save → look (worker) → erase → restore → extend
 *         → beside → again → erase
 *
 * Reuse of exactly the cut, and the answer that the whole prompt got, is the proof; the
 * opposite is believed the second time, since others may use the engine as well. That
 * answer is also what tells engines apart (llamacpp_identity.c). Then a request runs
 * beside it, on another slot: are idle slots emptied meanwhile (--cache-idle-slots)?
 *
 * Where a state cannot be cut (llamacpp_whole.c) its prompt goes on behind look (left),
 * and is compared with what goes on behind the same state, restored. It goes on with
 * token ids: a tokenizer might cut the end of a text otherwise when more follows.
 *
 * Where that is because of a sliding window, all begins again with a longer prompt until
 * that is longer than the window. Then a prompt that parts from it before its end comes
 * first (restore to part → part): an engine that cuts it there computes on with rows that
 * are not there (--swa-full).
 */

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"

#define CUT_TOKENS 8
#define MIN_TOKENS 32
#define MAX_TOKENS 4096 /* nobody cuts the prompt into so many */
#define MAX_COPIES 64   /* of the prompt: windows up to about 7,000 tokens */
#define LONGER 4        /* times as long as before */
#define LONGER_MS 20000 /* longest prompt that is tried, by the one before */

static const char probe_text[] =
    "The tide tables of a small harbour are kept by hand. Every morning somebody reads "
    "the "
    "gauge at the inner pier, writes the height and the hour into a book with a blue "
    "cover, "
    "and compares both with the printed forecast. When the two differ by more than a "
    "hand's "
    "width, a note goes to the pilots, because a ship that counts on water which is not "
    "there will sit on the bar until evening. The book is older than anyone who writes "
    "in "
    "it, and its first page says only that figures are to be written as they were seen.";

enum step {
    STEP_ERASE,
    STEP_PROMPT,
    STEP_SAVE,
    STEP_LOOK,
    STEP_LEFT,
    STEP_ERASE_AGAIN,
    STEP_RESTORE_TO_PART,
    STEP_PART,
    STEP_RESTORE,
    STEP_EXTEND,
    STEP_BESIDE,
    STEP_AGAIN,
    STEP_CLEAN,
    STEP_COUNT
};

static void go(struct probe *p, enum step step);

static bool erased(struct probe *p, int status)
{
    if (status == 501)
        llama_probe_observe(p, "the engine was started without --slot-save-path");
    else if (status != 200)
        llama_probe_observe(p, "the engine refuses to erase a slot");
    return status == 200;
}

static void on_erase(struct probe *p, int status, json_t *doc)
{
    (void)doc;
    if (erased(p, status))
        go(p, STEP_PROMPT);
}

static void on_erase_again(struct probe *p, int status, json_t *doc)
{
    (void)doc;
    if (erased(p, status))
        go(p, p->look.window ? STEP_RESTORE_TO_PART : STEP_RESTORE);
}

/* `tokens`: of it, that were computed. */
static void did_not_run(struct probe *p, int status, json_int_t tokens)
{
    char why[120];
    if (status != 200)
        snprintf(why, sizeof(why),
                 "the self-test's prompt did not run: the answer was %d", status);
    else
        snprintf(why, sizeof(why),
                 "the self-test's prompt did not run as it should: %lld of its tokens",
                 (long long)tokens);
    llama_probe_doubt(p, why);
}

static void on_prompt(struct probe *p, int status, json_t *doc)
{
    json_t *t = json_object_get(doc, "timings");
    const json_int_t n = json_integer_value(json_object_get(t, "prompt_n"));
    p->look.n_tokens = (uint32_t)n;
    p->prompt_ms = json_number_value(json_object_get(t, "prompt_ms"));
    llama_logits_read(doc, &p->logits);
    if (status != 200 || n < MIN_TOKENS || n > MAX_TOKENS * (json_int_t)p->n_copies)
        did_not_run(p, status, n);
    else
        go(p, STEP_SAVE);
}

static void on_save(struct probe *p, int status, json_t *doc)
{
    const json_int_t n = json_integer_value(json_object_get(doc, "n_saved"));
    p->look.written = (uint64_t)json_integer_value(json_object_get(doc, "n_written"));
    if (status != 200)
        llama_probe_observe(p, status == 501
                                   ? "the engine was started without --slot-save-path"
                                   : "the engine could not save a slot");
    else if (n != (json_int_t)p->look.n_tokens)
        llama_probe_doubt(p, "a saved slot does not hold exactly its prompt");
    else
        go(p, STEP_LOOK);
}

static void run_look(void *arg)
{
    struct probe *p = arg;
    llama_look(&p->look);
}

/* Its window holds all of the prompt: nothing shows what it is good for. */
static void longer(struct probe *p)
{
    char why[160];
    const uint32_t tokens = LONGER * p->look.n_tokens;
    if (p->n_copies < MAX_COPIES && LONGER * p->prompt_ms < LONGER_MS &&
        tokens < p->l->n_ctx / 2) {
        p->n_copies *= LONGER;
        go(p, STEP_ERASE);
        return;
    }
    snprintf(
        why, sizeof(why),
        "the model has a sliding window longer than what could be tried (%u tokens): "
        "states cannot be cut, and nothing shows whether they can be put back",
        p->look.n_tokens);
    llama_probe_observe(p, why);
}

static void on_looked(void *arg)
{
    struct probe *p = arg;
    if (!llama_probe_worked(p))
        return;
    if (p->look.err.code)
        llama_probe_observe(p, p->look.err.text);
    else if (p->look.window >= p->look.n_tokens)
        longer(p);
    else
        go(p, p->look.whole ? STEP_LEFT : STEP_ERASE_AGAIN);
}

/* A whole state is of use behind all of it: its prompt goes on. */
static void on_left(struct probe *p, int status, json_t *doc)
{
    llama_logits_read(doc, &p->left);
    if (status != 200)
        did_not_run(p, status, 0);
    else
        go(p, STEP_ERASE_AGAIN);
}

/* Tokens that are restored. */
static uint32_t restored(const struct probe *p)
{
    return p->look.whole ? p->look.n_tokens : p->look.n_tokens - CUT_TOKENS;
}

static bool put_back(struct probe *p, int status, json_t *doc)
{
    const json_int_t n = json_integer_value(json_object_get(doc, "n_restored"));
    const bool all = status == 200 && n == (json_int_t)restored(p);
    if (!all)
        llama_probe_observe(p, "the self-test's slot file was not restored");
    return all;
}

static void on_restore(struct probe *p, int status, json_t *doc)
{
    if (put_back(p, status, doc))
        go(p, STEP_EXTEND);
}

static void on_restore_to_part(struct probe *p, int status, json_t *doc)
{
    if (put_back(p, status, doc))
        go(p, STEP_PART);
}

/* Tokens of the prompt that the engine found in its slot, by its own count. */
static json_int_t reused(json_t *doc)
{
    json_t *timings = json_object_get(doc, "timings");
    return json_integer_value(json_object_get(timings, "cache_n"));
}

/* The window's rows end where the state does: nothing can go on before that, but for what
 * the engine keeps itself (context checkpoints, which lie elsewhere). */
static void on_part(struct probe *p, int status, json_t *doc)
{
    const json_int_t n = reused(doc);
    if (status != 200)
        did_not_run(p, status, 0);
    else if (n == (json_int_t)p->look.n_tokens - CUT_TOKENS)
        llama_probe_observe(
            p, "restored slots are cut inside of the sliding window, which gives "
               "wrong answers: start the engine without --swa-full");
    else
        go(p, STEP_RESTORE);
}

/* Both were computed by the same process, in batches of another shape; that alone moves
 * models of noise by more than what tells two engines apart. */
static bool same_answer(const struct llama_logits *before, json_t *doc)
{
    struct llama_logits now;
    llama_logits_read(doc, &now);
    return !before->n || llama_logits_agree(before, &now, LLAMA_ANSWER_TOLERANCE);
}

static void on_extend(struct probe *p, int status, json_t *doc)
{
    char why[160];
    const json_int_t n = reused(doc);
    const uint32_t wanted = restored(p);
    if (status != 200 || n != (json_int_t)wanted) {
        snprintf(why, sizeof(why), "restored slots are not reused (%lld of %u tokens)",
                 (long long)n, wanted);
        llama_probe_doubt(p, why);
    } else if (!same_answer(p->look.whole ? &p->left : &p->logits, doc)) {
        llama_probe_doubt(p, "restored slots are reused and give other answers");
    } else {
        p->l->empties_idle = false;
        go(p, p->l->n_slots > 1 ? STEP_BESIDE : STEP_CLEAN);
    }
}

static int beside(const struct probe *p)
{
    return (p->slot + 1) % (int)p->l->n_slots;
}

static void on_beside(struct probe *p, int status, json_t *doc)
{
    (void)doc;
    p->l->slots[beside(p)].whose = status == 200 ? LLAMA_NOBODY : (struct hash128){0, 0};
    if (status == 200)
        go(p, STEP_AGAIN);
    else
        llama_probe_doubt(p, "the self-test's second prompt did not run");
}

static void on_again(struct probe *p, int status, json_t *doc)
{
    const json_int_t n = reused(doc);
    p->l->empties_idle = status == 200 && n < (json_int_t)p->look.n_tokens / 2;
    go(p, STEP_CLEAN);
}

static void on_clean(struct probe *p, int status, json_t *doc)
{
    (void)doc;
    if (status == 200)
        p->l->slots[p->slot].whose = LLAMA_NOBODY;
    llama_probe_tested(p);
}

/* ---- the table --------------------------------------------------------------------- */

/* Bodies of one word are what make_body() knows. */
static const struct probe_step steps[STEP_COUNT] = {
    [STEP_ERASE] = {"/slots/%d?action=erase", "{}", on_erase},
    [STEP_PROMPT] = {"/completion", "prompt", on_prompt},
    [STEP_SAVE] = {"/slots/%d?action=save", "save", on_save},
    [STEP_LEFT] = {"/completion", "prompt", on_left},
    [STEP_ERASE_AGAIN] = {"/slots/%d?action=erase", "{}", on_erase_again},
    [STEP_RESTORE_TO_PART] = {"/slots/%d?action=restore", "restore", on_restore_to_part},
    [STEP_PART] = {"/completion", "part", on_part},
    [STEP_RESTORE] = {"/slots/%d?action=restore", "restore", on_restore},
    [STEP_EXTEND] = {"/completion", "prompt", on_extend},
    [STEP_BESIDE] = {"/completion", "beside", on_beside},
    [STEP_AGAIN] = {"/completion", "prompt", on_again},
    [STEP_CLEAN] = {"/slots/%d?action=erase", "{}", on_clean},
};

/* Ids where it is to go on behind all that is in the slot. */
static char *prompt_body(const struct probe *p)
{
    struct buf b = {0};
    buf_printf(&b,
               "{\"id_slot\":%d,\"n_predict\":0,\"cache_prompt\":true,"
               "\"n_probs\":%d,\"prompt\":",
               p->slot, LLAMA_LOGITS);
    buf_append_char(&b, p->n_more ? '[' : '"');
    for (unsigned i = 0; !p->n_more && i < p->n_copies; i++)
        buf_append_str(&b, probe_text);
    if (p->n_more)
        buf_append_slice(&b, buf_slice(&p->look.ids));
    for (unsigned i = 0; i < p->n_more; i++)
        buf_append_slice(&b, buf_slice(&p->look.more));
    buf_append_str(&b, p->n_more ? "]}" : "\"}");
    return buf_take_str(&b);
}

static char *make_body(const struct probe *p, const char *kind)
{
    const struct slice parted = buf_slice(&p->look.parted);
    if (strcmp(kind, "save") == 0)
        return mem_printf("{\"filename\":\"%s\"}", p->saved_name);
    if (strcmp(kind, "restore") == 0)
        return mem_printf("{\"filename\":\"%s\"}",
                          p->look.whole && !p->look.window ? p->saved_name : p->cut_name);
    if (strcmp(kind, "prompt") == 0)
        return prompt_body(p);
    if (strcmp(kind, "part") == 0)
        return mem_printf("{\"id_slot\":%d,\"n_predict\":0,\"cache_prompt\":true,"
                          "\"prompt\":[%.*s]}",
                          p->slot, (int)parted.len, parted.ptr);
    if (strcmp(kind, "beside") == 0)
        return mem_printf("{\"id_slot\":%d,\"n_predict\":0,\"prompt\":\"beside it\"}",
                          beside(p));
    return mem_strdup(kind);
}

static void go(struct probe *p, enum step step)
{
    if (step == STEP_LOOK) {
        p->working = true;
        workers_submit(p->l->r->workers, run_look, on_looked, p);
        return;
    }
    if (step == STEP_PROMPT)
        p->l->slots[p->slot].unseen = 1; /* ours, when its task is seen */
    if (step == STEP_LEFT || (step == STEP_AGAIN && p->look.whole))
        p->n_more++; /* what went before is all in the slot */
    char *body = make_body(p, steps[step].body);
    llama_probe_ask(p, &steps[step], body);
    free(body);
}

void llama_selftest(struct probe *p)
{
    p->look.saved_path = p->saved_path;
    p->look.cut_path = p->cut_path;
    p->look.cut_tokens = CUT_TOKENS;
    p->n_copies = 1;
    p->n_more = 0;
    go(p, STEP_ERASE);
}
