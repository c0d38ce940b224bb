/* SPDX-License-Identifier: MIT */
#ifndef INCIPIT_ENGINE_LLAMACPP_INTERNAL_H
#define INCIPIT_ENGINE_LLAMACPP_INTERNAL_H

/*
 * The llama-server driver, inside. Files:
 *
 *     llamacpp.c          jobs come and go
 *     llamacpp_place.c    which slot, and what is put back
 *     llamacpp_discover.c what do other gateways know of a prompt?
 *     llamacpp_slots.c    what the engine says of its slots
 *     llamacpp_bind.c     which slot did the engine choose?
 *     llamacpp_probe.c    who is it?
 *     llamacpp_selftest.c can it restore?
 *     llamacpp_look.c     its files, for the probe
 *     llamacpp_identity.c which states belong together
 *     llamacpp_watch.c    is it still what it was?
 *     llamacpp_restore.c  blocks into a slot
 *     llamacpp_erase.c    nothing of others in a slot that the engine chooses
 *     llamacpp_save.c     which slot is saved, and when
 *     llamacpp_learn.c    a slot into blocks
 *     llamacpp_whole.c    states that cannot be cut
 *     llamacpp_scratch.c  their files in between
 *     llamacpp_rates.c    what is measured
 *
 * A slot's life:
 *
 *     IDLE ──place──► OWNED ──whole answer──► IDLE ──worth it──► SAVING ──► IDLE
 *                       └──client gone──► ZOMBIE ──GET /slots says idle──► IDLE
 *     IDLE ──somebody else's, the engine may choose it──► ERASING ──► IDLE
 *
 * Rules: never more jobs inside the engine than slots; save, restore and erase only on a
 * slot that is idle, and nothing else is sent to it before they are answered; a zombie
 * gets nothing.
 */

#include "base/trouble.h"
#include "wire/ask.h"
#include "engine/engine.h"
#include "proto/slotfile.h"

/* modelfile.c: hash of size, head, tail and samples of a model file, and of the other
 * files where it is the first of several. `memo` (may be NULL) keeps the result and the
 * files' times between calls: unchanged files are not read again. False where one cannot
 * be read. */
#define MODELFILE_MEMO 80
bool modelfile_hash(const char *path, char memo[MODELFILE_MEMO], struct hash128 *out);

#define LLAMA_MAX_SLOTS 64
#define LLAMA_NOBODY ((struct hash128){.lo = 1}) /* whose an empty slot is */
#define LLAMA_EVERYBODY ((struct hash128){.lo = 2})
#define LLAMA_ASK_MS 10000      /* small questions */
#define LLAMA_KV_MS 120000      /* of the self-test; else timeouts.slot */
#define LLAMA_HEARTBEAT_MS 2000 /* a restart is noticed at the latest after this */
#define LLAMA_ZOMBIE_MS 20      /* polling for a slot to become idle */
#define LLAMA_BIND_MS 5         /* polling for the slot that an unpinned job got */
#define LLAMA_RECOVER_MS 500    /* requests wait so long for stored blocks to be read */
#define LLAMA_RETRY_MS 500      /* an engine that is down or loading */
#define LLAMA_LATE_FILES 8      /* calls given up in a row whose files are waited for */
#define LLAMA_MAX_RETRIES 5     /* doublings of store.retry */
#define LLAMA_MAX_FAILURES 3    /* restores in a row until store mode goes off */

enum llama_phase { LLAMA_DOWN, LLAMA_PROBING, LLAMA_READY };
enum slot_state { SLOT_IDLE, SLOT_OWNED, SLOT_ZOMBIE, SLOT_SAVING, SLOT_ERASING };

/* A prompt that ran, kept until its slot has been saved. */
struct lesson {
    struct piece *v;
    size_t n, n_prompt;
    uint32_t prompt_tokens; /* by the engine */
    uint32_t total_tokens;  /* that the slot should hold: prompt + generated − 1 */
    uint32_t known_tokens;  /* of these, already in the store */
    uint32_t admitted;      /* of these, what may go there */
    struct hash128 kv_root;
    uint32_t tenant;
    bool saveable;   /* may be cut into blocks: no media, whole answer */
    bool keep;       /* is saved at once, whatever that costs */
    uint64_t number; /* of the lesson and its copies; addresses are used again */
};

struct llama_slot {
    int id;
    enum slot_state state;
    struct job *job;      /* while OWNED; NULL when the owner is a dead job's restore */
    struct lesson *holds; /* what its content is, by text; NULL: unknown or empty */
    bool unsaved;         /* holds more than the store has, worth a look when idle */
    uint32_t tokens;      /* that it holds; 0 unknown or empty */
    uint32_t prefill;     /* tokens that its job has to prefill, estimate; 0: is done */
    uint64_t prefill_us;  /* when it began with that */
    double stalled_ms;    /* that it has waited for saves until then */
    uint64_t last_used_us;
    struct hash128 adapters; /* that its last job brought along; none: the engine's own */
    struct hash128 whose;    /* llama_whose() of what it holds, or LLAMA_NOBODY; none: not
                                known */

    /* as the engine told last */
    int64_t task, task_before; /* id_task, -1 none */
    bool processing;
    bool stranger; /* its task changed, and not because of a job that was placed here */

    bool doubtful;    /* what it holds after this job is not known: a call was not
                        answered, or another task came in between */
    unsigned unseen;  /* tasks of jobs that were placed here and not seen yet */
    bool begun;       /* that job has got content */
    bool busy_twice;  /* idle for all we know, but processing when we looked last */
    bool asked;       /* GET /slots was sent since its job came, got content, or went */
    unsigned n_looks; /* that it said idle of a zombie */
};

/*
 * An unpinned job: which slot will the engine give it? From the moment it is placed until
 * that is known nothing else is, and nothing is saved, or the engine might give it a slot
 * that is being prepared for another (llamacpp_bind.c).
 */
struct binding {
    bool active;
    struct job *job; /* NULL once it has ended */
    bool sent;       /* before, stored blocks are put back for it */
    bool asked;      /* GET /slots was sent after it */
    bool ended, broken, refused;
    bool cold;    /* it was told to reuse nothing */
    bool guarded; /* nothing could be told, and tenants are kept apart */
    struct hash128 adapters, whose;
    uint32_t prefill; /* as of a slot */
    uint64_t sent_us;
    struct lesson *lesson; /* of an ended one */
    unsigned polls;
};

/* Bytes saved or restored, and how long that took; the latest counts most. */
struct rate {
    double bytes, ms;
};

/* Bytes of whole states: of the self-test's, and what a token more comes to. */
struct whole_size {
    double bytes, tokens, token_bytes;
};

typedef void (*slots_cb)(void *arg, bool answered);

/* A file that the engine may write after its call was given up. */
struct scratch_late {
    char *path;
    uint64_t until_us;
};

struct slots_waiter {
    slots_cb cb;
    void *arg;
};

struct llama {
    struct replica *r;
    enum llama_phase phase;
    struct llama_slot slots[LLAMA_MAX_SLOTS];
    size_t n_slots;
    uint32_t n_ctx; /* of one slot */
    struct list queue;
    unsigned discovering;  /* jobs in it that wait for what others know */
    struct job *exclusive; /* a job with several answers has all slots */
    struct binding binding;
    bool suspect, suspect_asked; /* a connection was lost; GET /slots was sent since */
    uint64_t n_lessons;
    uint64_t n_forgets; /* a save that began before the last one teaches nothing */

    struct list watches;            /* questions whether it is still what it was */
    struct hash128 props, adapters; /* what it said of itself when it was looked at */
    bool has_adapters;

    struct ask *asking; /* GET /slots under way */
    struct slots_waiter waiters[LLAMA_MAX_SLOTS + 2];
    size_t n_waiters, n_served; /* the first n_served wait for the call under way */
    struct loop_timer poll;
    bool pumping;
    bool looking; /* a job waits for the tasks of others to be seen */

    bool store_on; /* the self-test passed and it did not fail since */
    struct slotfile_frame *frame;
    bool whole;      /* states cannot be cut: they are kept and put back whole */
    uint32_t window; /* … where they are longer than this; 0: recurrent, of any length */
    struct whole_size whole_size;
    struct hash128 fingerprint;
    struct hash128 seen_whose; /* of the first job; none: there was none yet */
    bool mixed;        /* others came since: the engine's own cache may hold theirs */
    bool overwrites;   /* it does not erase slots */
    bool empties_idle; /* idle slots are emptied when a request begins on another one */
    unsigned failures_in_row;
    struct loop_timer retry; /* in observe mode: the self-test may pass by now */
    unsigned retries;
    struct trouble saving;
    unsigned ops; /* restores and saves under way */
    struct rate save_rate, restore_rate;
    double batch_tokens; /* that calls wait for beside a prefill */
    double gap_ms;       /* between requests */
    double shared;       /* of prompts, with earlier ones */
    uint64_t arrived_us; /* the last request */
    uint64_t active_us;  /* … and when anything came or ended last */
    bool draining;
    struct loop_timer save_later; /* a save waits until it has been quiet for longer */
    struct scratch_late late[LLAMA_LATE_FILES];

    struct probe *probe;
    struct probe *recovering; /* one that only waits for stored blocks, beside requests */
    char build[64], model[256];
};

/* llamacpp_place.c */
void llama_pump(struct llama *l);
void llama_dequeue(struct llama *l, struct job *job); /* it is placed, or has left */
void llama_job_ready(struct llama *l, struct job *job);
bool llama_can_pin(const struct job *job);
bool llama_pins(const struct llama *l, const struct job *job);
bool llama_only_save_ahead(const struct llama *l, const struct job *job);
bool llama_is_current(const struct llama *l, const struct job *job);
struct hash128 llama_whose(const struct job *job);
bool llama_is_foreign(const struct llama *l, const struct llama_slot *s,
                      const struct job *job);
struct hash128 llama_kv_root(const struct llama *l, const struct job *job);
void llama_forget(struct llama *l, struct llama_slot *s);
void llama_holds(struct llama *l, struct llama_slot *s, struct lesson *what,
                 uint32_t tokens);
void lesson_free(struct lesson *ls);
struct lesson *lesson_new(struct llama *l, const struct job *job);
uint32_t llama_storable(const struct lesson *ls);
uint32_t llama_stored_tokens(struct llama *l, const struct lesson *ls);

/* llamacpp_discover.c: asks once for each job. True while the answer is awaited. */
bool llama_discovering(struct llama *l, struct job *job);
void llama_discover_left(struct llama *l, struct job *job);

/* llamacpp.c */
void llama_learn_text(struct llama *l, const struct lesson *ls);
void llama_discovered(struct llama *l, struct job *job); /* it may be placed now */
void llama_settle(struct llama *l, struct llama_slot *s, struct lesson *ls);
void llama_make_zombie(struct llama *l, struct llama_slot *s);
/* It was sent in vain: it is the first to be placed again. */
void llama_requeue(struct llama *l, struct job *job);
void llama_lost(struct llama *l); /* forgets what its process held */
void llama_down(struct llama *l, const char *why);
void llama_release_queue(struct llama *l);
void llama_retry_later(struct llama *l); /* it cannot restore now */

/* llamacpp_bind.c */
#define LLAMA_MAX_AGAIN 3
/* False where the tasks of others have to be seen first; then somebody looks. */
bool llama_may_bind(struct llama *l, const struct job *job);
/* It is sent now. Of `how`: cold, adapters, whose, prefill. Sets plan.guarded where the
 * engine may choose what others have left, and cannot be told anything. */
void llama_bind(struct llama *l, struct job *job, const struct binding *how);
void llama_bind_look(struct llama *l); /* GET /slots was answered */
void llama_unbind(struct llama *l);
/* It holds rows of two, or will behind its job: they are of no use to anybody. */
void llama_taint(struct llama *l, struct llama_slot *s);

/* llamacpp_slots.c */
void llama_forget_stranger(struct llama *l, struct llama_slot *s);
void llama_ask_slots(struct llama *l, slots_cb cb, void *arg);
void llama_poll(struct llama *l); /* (re)arms the timer as needed */
/* Reads what GET /slots said. False where that is not a list of our slots. */
bool llama_read_slots(struct llama *l, json_t *doc);
void llama_on_poll(void *arg);

/* llamacpp_watch.c: asks the engine whether it is still what the probe saw: model, build
 * and adapters may change behind one port and with plausible slots. `answered` is false
 * where it is not (everything known of its slots is forgotten then, and the probe runs
 * again), and where it does not say. The callback may be NULL. */
void llama_watch(struct llama *l, slots_cb cb, void *arg);
void llama_watch_stop(struct llama *l); /* no callbacks follow */
struct hash128 llama_props_digest(json_t *doc);
struct hash128 llama_adapters_digest(json_t *doc);

/* llamacpp_identity.c: the likeliest next tokens behind the self-test's prompt. */
#define LLAMA_LOGITS 32         /* asked for, and kept in the note */
#define LLAMA_LOGITS_COMPARED 8 /* of these, compared: each must be among the other's */
#define LLAMA_LOGITS_TOLERANCE 0.15 /* of their logarithms (docs/store.md: measured) */
#define LLAMA_ANSWER_TOLERANCE 1.0  /* of a restored slot: wrong rows say other things */

struct llama_logits {
    size_t n;
    struct {
        long long token;
        double logprob;
    } v[LLAMA_LOGITS];
};

/* Out of the answer of /completion; false where it has too few of them. */
bool llama_logits_read(json_t *answer, struct llama_logits *out);
bool llama_logits_agree(const struct llama_logits *a, const struct llama_logits *b,
                        double tolerance);

/* Fingerprint of an engine with this identity and these answers (n 0: not known); keeps
 * a note in the store. */
struct hash128 llama_fingerprint(struct store *s, struct slice identity,
                                 const struct llama_logits *seen);

/* Lets gateways that share a store compare them before they share anything. */
void llama_vouch(struct store *s, struct hash128 fingerprint,
                 const struct llama_logits *seen);

/* llamacpp_look.c: what the probe has to find out in files, on a worker. Texts and
 * buffers are the probe's. */
struct llama_look {
    const char *saved_path, *cut_path; /* what the engine wrote, what to write */
    const char *model_path;            /* "" unknown */
    const char *const *adapter_paths;
    size_t n_adapters;
    uint64_t written; /* bytes, by the engine */
    uint32_t n_tokens, cut_tokens;
    char model_memo[MODELFILE_MEMO]; /* in and out */

    struct slotfile_frame *frame;
    bool whole;        /* it cannot be cut, but might be put back as it is */
    uint32_t window;   /* of a whole one: cells of its window; 0: has none */
    struct buf ids;    /* of a whole one: its tokens, "1,2,3" … */
    struct buf more;   /* … what may follow them, ",4,5" … */
    struct buf parted; /* … and a prompt that parts from it before its end */
    struct buf layout; /* canonical bytes of it */
    struct hash128 rows, model, adapters;
    bool model_read; /* and all adapters */
    struct err err;
};
void llama_look(struct llama_look *look);

/* llamacpp_probe.c: ends in llama_probed() or llama_down() */
void llama_probe_start(struct llama *l);
void llama_probe_again(struct llama *l); /* nothing runs; its mode stays meanwhile */
void llama_probe_stop(struct llama *l);
void llama_probe_lost(struct llama *l); /* what it has found is of no use any more */
void llama_probed(struct llama *l);
void llama_restarted(struct llama *l, const char *why);

/* llamacpp_restore.c: ends in llama_job_ready(), or frees the slot if the job left */
struct restore_wish {
    const struct tree_mark *at;
    size_t n_pieces; /* of the prompt, that the slot will hold */
    uint32_t tokens, resident;
};
void llama_restore(struct llama *l, struct llama_slot *s, struct job *job,
                   const struct restore_wish *wish);
void llama_restore_left(struct llama *l, struct job *job);
void llama_restore_failed(struct llama *l, enum restore_failure why, const char *text);

/* llamacpp_erase.c: true where the job has to wait until that is done */
bool llama_erase_foreign(struct llama *l, struct job *job);

/* llamacpp_save.c */
void llama_save_kept(struct llama *l); /* the first that has to be, if any */
void llama_save_best(struct llama *l); /* if any is to be saved now */
bool llama_save_first(struct llama *l, struct llama_slot *s, struct job *job);
void llama_skip_save(struct llama *l, struct llama_slot *s, enum save_skip why);
void llama_stalled(struct llama *l, double ms);
void llama_emptied(struct llama *l, const struct llama_slot *but);

/* llamacpp_learn.c */
void llama_save(struct llama *l, struct llama_slot *s);

/* llamacpp_whole.c: a state is one block at the root, named by the text before its end */
#define LLAMA_WHOLE_SLACK 8 /* tokens that an engine may compute again behind one */
struct hash128 llama_whole_name(const struct llama *l, struct hash128 kv_root,
                                const struct piece *end, uint32_t *words);
/* The longest stored state that a text begins with: its tokens, 0 for none. Sets the mark
 * (clear) and the number of its pieces. */
uint32_t llama_whole_find(struct llama *l, const struct lesson *text,
                          struct tree_mark *at, size_t *n_pieces);
void llama_whole_drop(struct llama *l, const struct job *job); /* the one just put back */
bool llama_whole_ends(const struct job *job);
/* Whether a state of so many tokens is of use: no engine goes on behind one that its
 * window holds all of (docs/slot-file.md). */
bool llama_whole_long(const struct llama *l, uint32_t tokens);
/* Bytes in a file of so many tokens, whole or not. */
uint64_t llama_state_bytes(const struct llama *l, uint32_t tokens);
void llama_whole_learn_size(struct llama *l, uint64_t bytes, uint32_t tokens);

/* llamacpp_scratch.c: path of a scratch file in the slot directory; `name` gets its bare
 * name. */
char *llama_scratch(struct llama *l, char name[64]);
/* Writes a new one (0600). 0 or an errno. For workers. */
int llama_scratch_write(const char *path, const unsigned char *bytes, size_t size);
/* Removes those that a gateway which is gone has left there. */
void llama_scratch_clean(const char *dir);
/* Looks at the file system: is it large enough for all slots? Says so where not. */
void llama_scratch_look(struct llama *l);
/* Is there room for a file of so many bytes now? */
bool llama_scratch_room(struct llama *l, uint64_t bytes);
/* The engine may still write this file: it is removed when it is there. Takes `path`. */
void llama_scratch_late(struct llama *l, char *path);
void llama_scratch_late_look(struct llama *l);
void llama_scratch_late_free(struct llama *l);

/* llamacpp_rates.c */
struct call_times {
    uint64_t bytes;
    double all_ms;  /* with our own work */
    double call_ms; /* until the engine's answer */
    double own_ms;  /* that it says it needed; 0 unknown */
    bool beside;    /* others prefilled */
};
void llama_rates_init(struct llama *l);
void llama_learn_call(struct llama *l, struct rate *r, const struct call_times *t);
/* Restores were thought too slow once more: as long as none is made nothing would show
 * that they no longer are. */
void llama_doubt_restores(struct llama *l);
/* So with saves; what a restore takes is part of what one is worth. */
void llama_doubt_saves(struct llama *l);
void llama_learn_arrival(struct llama *l);
void llama_learn_shared(struct llama *l, uint32_t available, uint32_t prompt_tokens);
/* Where so many are put back. */
double llama_restore_ms_per_token(const struct llama *l, uint32_t tokens);
double llama_reuse(const struct llama *l); /* of new tokens, the share that comes again */
uint32_t llama_prefill_left(const struct llama *l, const struct llama_slot *s);
double llama_prefill_ms(const struct llama *l, const struct llama_slot *but);

/* procfind.c: what can be seen of the process that listens on this loopback port. Its
 * --slot-save-path, in `out`; false where it cannot be seen. */
bool procfind_slot_dir(const struct addr *at, char *out, size_t size);
/* Appends all of its options that begin with one of `names` (NULL ends them), and their
 * values, a NUL behind each. */
void procfind_options(const struct addr *at, const char *const *names, struct buf *out);

#endif
