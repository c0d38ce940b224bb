/* SPDX-License-Identifier: MIT */
#ifndef INCIPIT_ENGINE_ENGINE_H
#define INCIPIT_ENGINE_ENGINE_H

/*
 * How an engine is spoken to. A replica is one running engine process with its address;
 * a driver knows one kind of engine. The gateway asks a replica to admit a job (one
 * client request); the driver decides when and where it may run, puts stored KV back
 * first where that pays, and says "ready". Afterwards the gateway reports how it ended,
 * and the driver learns from it.
 *
 *     replica_admit ──► (queued) ──► (restoring) ──► on_ready ──► … ──► replica_done
 *                          └──────────── replica_leave (client gone) ──────┘
 *
 * Drivers: llamacpp (llama-server: slots, save and restore), openai (any other server:
 * plain proxy that observes). A new engine is one file and one row in engine.c.
 */

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/err.h"
#include "base/list.h"
#include "wire/upstream.h"
#include "prefix/holdout.h"
#include "prefix/pieces.h"
#include "prefix/ttft.h"
#include "proto/answer.h"
#include "proto/prompt.h"
#include "store/cache.h"

enum replica_mode {
    REPLICA_DOWN,       /* does not answer */
    REPLICA_STARTING,   /* loading, or being looked at */
    REPLICA_OBSERVE,    /* proxy and observation; mode_reason says why no more */
    REPLICA_RECOVERING, /* the same, until its stored blocks have been read */
    REPLICA_STORE       /* blocks are saved and restored */
};

/* Why a router or a swapper is observed, whichever driver finds it out. */
#define ENGINE_SEVERAL_MODELS                                                            \
    "several models share this port, and slots belong to one of them: start a server, "  \
    "and a gateway, for each model"

/* Why a restore, or the planning of one, did not help: counted by these. */
#define RESTORE_FAILURES(X)                                                              \
    X(RESTORE_LOST, "block-lost")      /* a block was damaged or missing */              \
    X(RESTORE_SCRATCH, "scratch-file") /* the slot directory could not be written */     \
    X(RESTORE_SCRATCH_FULL, "scratch-full") /* … or has no room for the file */        \
    X(RESTORE_NOT_IDLE, "slot-not-idle")                                                 \
    X(RESTORE_ENGINE_SAID_NO, "engine-refused")                                          \
    X(RESTORE_COUNT, "wrong-count") /* restored another number of tokens */              \
    X(RESTORE_UNREACHABLE, "engine-unreachable")                                         \
    X(RESTORE_NOT_REUSED, "not-reused") /* said yes, and the request reused nothing */

enum restore_failure {
#define X(code, name) code,
    RESTORE_FAILURES(X)
#undef X
        RESTORE_FAILURE_KINDS
};
const char *restore_failure_name(enum restore_failure f);

/* Why a slot with something new was not saved: counted by these. */
#define SAVE_SKIPS(X)                                                                    \
    X(SAVE_OFF, "switched-off") /* store.save, or reuse since it began */                \
    X(SAVE_NOT_WORTH, "not-worth-it")                                                    \
    X(SAVE_TOO_LONG, "too-long")         /* many times store.max_stall */                \
    X(SAVE_SCRATCH_FULL, "scratch-full") /* no room in the slot directory */             \
    X(SAVE_OVERWRITTEN, "overwritten")   /* its slot was needed, or emptied, before */

enum save_skip {
#define X(code, name) code,
    SAVE_SKIPS(X)
#undef X
        SAVE_SKIP_KINDS
};
const char *save_skip_name(enum save_skip s);

struct replica_counters {
    uint64_t restores, restored_tokens, restore_us;
    uint64_t restore_failures[RESTORE_FAILURE_KINDS];
    uint64_t saves, saved_tokens, save_failures, restarts;
    uint64_t saves_skipped[SAVE_SKIP_KINDS];
    uint64_t binds_lost;    /* unpinned requests whose slot was never seen */
    uint64_t binds_foreign; /* … that got a slot with somebody else's text: sent again */
};

struct replica;
struct job;

/* One kind of engine. `state` is the driver's own, made by open. */
struct engine_driver {
    const char *name;
    void *(*open)(struct replica *r);
    void (*close)(void *state); /* no jobs are left */
    void (*admit)(void *state, struct job *job);
    void (*leave)(void *state, struct job *job);
    void (*done)(void *state, struct job *job);
    void (*first_content)(void *state, struct job *job); /* its prefill is over */
    unsigned (*busy)(void *state); /* restores and saves under way; NULL: none ever */
    void (*drain)(void *state);    /* nothing more will come; NULL: all the same to it */
    void (*forget)(void *state,
                   const struct cache_forget *what); /* NULL: knows nothing */
    void (*describe)(void *state, json_t *into);     /* for the admin pages */
};

struct replica_options {
    const char *name, *url, *driver; /* driver: "auto" or a name */
    const char *slot_dir;      /* of llama-server's --slot-save-path; NULL: find it */
    const char *authorization; /* complete header line for own calls, or "" */
    struct upstream_options upstream;
    uint64_t queue_ms;
    unsigned queue_max;
    bool save;
    bool
        second_sight; /* of a prompt only the start that one before it shared is stored */
    uint32_t min_tokens;   /* shorter prompts are not stored */
    uint64_t max_stall_ms; /* longest save that may make others wait */
    bool save_first;       /* a request may wait for the save of what it overwrites */
    uint64_t retry_ms;     /* until an engine that could not restore is tried again */
    uint64_t slot_ms;      /* for the engine to save, restore or erase a slot */
    bool observe;          /* pass everything on unchanged, whatever the engine can do */
    double holdout; /* share of requests that run cold to measure the others; 0 none */
};

/* The file system that slot files pass through; all 0 where it is not known. */
struct replica_scratch {
    uint64_t size, free; /* bytes, when looked at last */
    uint64_t wanted;     /* for a full slot of each and one more */
};

struct replica {
    char *name;
    struct loop *loop;
    struct workers *workers;
    struct cache *cache;
    struct upstream *up;
    struct replica_options o;
    char *slot_dir, *authorization;

    const struct engine_driver *driver; /* NULL while it is being found out */
    void *state;
    enum replica_mode mode;
    char mode_reason[256];
    enum prompt_order order; /* where its template puts the tools */
    struct hash128 seed;     /* of prompt pieces: names the model; none: not known yet */
    unsigned in_flight;      /* jobs admitted and not done */
    unsigned queued;
    struct ttft_model ttft;
    struct holdout *holdout;
    double ms_per_token;    /* of prefill; learned */
    double bytes_per_token; /* of prompt text; learned */
    struct replica_counters n;
    struct replica_scratch scratch;
    void (*on_mode)(void *arg, struct replica *r);  /* mode changed; may be NULL */
    void (*on_saved)(void *arg, struct replica *r); /* a save ended, well or not; same */
    void *arg;
};

/* Makes a replica and starts to look at its engine in the background. */
struct replica *replica_new(struct loop *l, struct workers *w, struct cache *c,
                            const struct replica_options *o, struct err *e);
void replica_free(struct replica *r); /* no jobs are left */

/* Other times, limits, rules of saving and key from now on. Who it is stays (name, URL,
 * driver, slot directory, observe, hold-out), whatever `o` says of it. */
void replica_set_options(struct replica *r, const struct replica_options *o);

/* What the driver planned for a job, filled in before on_ready. */
struct plan {
    int slot;           /* where it runs; -1: the engine chooses */
    bool splice_slot;   /* "id_slot" has to be put into the body */
    bool guarded;       /* its slot may hold somebody else's text, and nothing can be put
                           in: no good answer goes on before JOB_BOUND */
    bool fresh;         /* … and "cache_prompt":false: its slot holds somebody else's */
    bool drawn;         /* it takes part in the experiment … */
    bool held_out;      /* … and runs cold: "cache_prompt":false has to be put in */
    bool restored;      /* stored blocks were put back for it */
    bool contested;     /* another may have come to its slot first: what it reused tells
                           nothing of that */
    uint32_t available; /* prompt tokens that an earlier prompt shared (estimate) */
    uint32_t promised;  /* of these, what the slot will have: low estimate */
    uint32_t held;      /* tokens that the slot holds at the start, 0 unknown */
    uint32_t overlap;   /* other prefills that ran when it was sent */
    bool behind_others; /* it was queued for a slot, and not just until a save ended */
    size_t known_pieces;  /* leading pieces that the index knew at the time; 0 where the
                            slot has more of the prompt */
    uint64_t known_bytes; /* text from its start that an earlier prompt had as well */
    const char *miss;     /* why not more: "first-sight", "evicted", … or NULL */
};

enum job_phase {
    JOB_QUEUED,
    JOB_RESTORING,
    JOB_READY, /* to be sent now */
    JOB_BOUND, /* guarded: it took nothing of others, its answer may go on */
    JOB_AGAIN  /* guarded: it did. Its call is to be dropped, READY comes once more */
};

enum job_outcome {
    JOB_COMPLETE, /* the answer was whole, with a 2xx status */
    JOB_REFUSED,  /* the engine answered with an error: nothing ran */
    JOB_BROKEN    /* cut short by either side after it was sent */
};

/* One request, seen from its replica. Owned by the gateway, which keeps it unchanged
 * from admit until leave or done. */
struct job {
    /* set by the gateway */
    const struct prompt *prompt;
    bool generates;        /* it will occupy a slot; false: passes through */
    bool cacheable;        /* prompt readable and not barred */
    bool packed;           /* its body cannot be changed on the way */
    bool background;       /* goes behind all that clients wait for, for as long as that
                              takes, and does not count as waiting */
    bool keep;             /* saved as soon as it has run, whatever that costs */
    struct hash128 seed;   /* replica.seed when the pieces were made */
    struct slice kv_root;  /* tenant and prompt_kv_root() of it; the body may be gone by
                              done() */
    uint32_t tenant;       /* as cache_root() has it */
    struct hash128 whose;  /* tenant and salts; none: nothing keeps it apart */
    struct pieces *pieces; /* of the prompt; at done(), of prompt and answer */
    const struct pieces *public; /* of its start, as of those who show nothing, to find
                                    public pins; NULL: it shares none */
    size_t n_prompt_pieces;
    uint64_t text_bytes; /* of the prompt, estimate for sizes */
    /* Both may come from inside replica_admit(). After on_failed the job is out. */
    void (*on_phase)(struct job *job, enum job_phase phase);
    void (*on_failed)(struct job *job, int status,
                      const char *why); /* queue full, late */

    /* set by the gateway before done() */
    enum job_outcome outcome;
    const struct answer_facts *facts; /* NULL: nothing is known */
    uint64_t ttft_us;                 /* 0 unknown */

    /* set by the driver */
    struct plan plan;
    bool sent; /* on_ready was given */

    /* the driver's own */
    struct list link;
    struct loop_timer deadline;
    void *engine;  /* the driver while it waits, its slot afterwards */
    void *restore; /* the restore that runs for it */
    struct cache_discovery *discovery; /* others are being asked about its prompt */
    bool asked;                        /* they were, or are */
    bool provisional;                  /* in the queue until they have answered */
    uint64_t since_us;
    int wants_slot;   /* pinned by the client; -1: any */
    bool wants_all;   /* several answers: every slot */
    bool saved_first; /* it has waited for a save of what it overwrites */
    unsigned n_again; /* it got a slot with somebody else's text so often */
};

/* The gateway's calls; they go to the driver, or wait while the engine is looked at. */
void replica_admit(struct replica *r, struct job *job);
void replica_leave(struct replica *r, struct job *job); /* before or after it was sent */
void replica_done(struct replica *r, struct job *job);
void replica_first_content(struct replica *r, struct job *job); /* prefill is over */

/* Forgets what is known of the slots that hold such text; cache_forget() does the rest.
 * */
void replica_forget(struct replica *r, const struct cache_forget *what);

/* Restores and saves under way: a graceful stop waits for them. */
unsigned replica_busy(const struct replica *r);
/* A graceful stop has begun: what is worth saving need not wait for quiet. */
void replica_drain(struct replica *r);

/* For drivers. */
void replica_set_mode(struct replica *r, enum replica_mode mode, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));

extern const struct engine_driver engine_llamacpp;
extern const struct engine_driver engine_openai;

#endif
