/* SPDX-License-Identifier: MIT */
#ifndef INCIPIT_LAB_KVSIZE_FACTS_H
#define INCIPIT_LAB_KVSIZE_FACTS_H

/*
 * What a model file says that matters here, whichever kind of file it is. The two readers
 * (kvsize_gguf.c, kvsize_config.c) fill it in, kvsize_facts.c makes layers of it.
 */

#include "lab/kvsize.h"

enum kvsize_fact {
    FACT_LAYERS,
    FACT_HEADS,
    FACT_KV_HEADS,
    FACT_HEAD_DIM,
    FACT_VALUE_DIM,
    FACT_HEAD_DIM_WINDOW,  /* of layers with a window, where they differ */
    FACT_VALUE_DIM_WINDOW, /* likewise */
    FACT_HIDDEN,
    FACT_LATENT,
    FACT_ROPE,
    FACT_WINDOW,
    FACT_CHUNK,       /* attention within chunks: a window for our purpose */
    FACT_PERIOD,      /* one layer of so many has no window */
    FACT_INTERVAL,    /* one layer of so many has attention at all */
    FACT_ATTN_PERIOD, /* Jamba's way to say that … */
    FACT_ATTN_OFFSET, /* … and which one it is */
    FACT_FROM_LAYER,  /* layers from this one on have a window */
    FACT_SHARED,      /* so many layers at the end use the rows of others */
    FACT_NEXTN,       /* layers that only guess further tokens, counted with the others */
    FACT_CONTEXT,
    FACTS
};

/* How a fact is called. */
struct kvsize_fact_name {
    const char *flag;      /* of the command line, or NULL */
    const char *gguf;      /* behind "ARCH."; NULL: not there */
    const char *config[4]; /* in config.json, the usual name first */
};

extern const struct kvsize_fact_name kvsize_fact_names[FACTS];

/* Which layers have what, where the file has no list of it. */
enum kvsize_rule {
    RULE_ALL,        /* all alike, over the whole context */
    RULE_WINDOW,     /* all with the window, where there is one */
    RULE_PERIOD,     /* the last of each period over the whole context, else the window */
    RULE_FROM_LAYER, /* from a layer on, the window */
    RULE_INTERVAL,   /* the last of each period with attention, the others without */
    RULE_ATTN_PERIOD,
    RULE_LATENT, /* all alike, one latent row */
    RULE_LISTED  /* only a list will do */
};

enum {
    ARCH_MHA = 1,    /* no number of KV heads: as many as heads */
    ARCH_DIVIDE = 2, /* no head size: hidden size over heads */
};

struct kvsize_arch {
    const char *name; /* `model_type` of a config.json, `general.architecture` of GGUF */
    enum kvsize_rule rule;
    uint32_t period; /* where the file does not say it */
    unsigned traits;
};

const struct kvsize_arch *kvsize_arch_find(const char *name);

enum kvsize_kind { KIND_FULL, KIND_WINDOW, KIND_NONE };

struct kvsize_facts {
    const struct kvsize_arch *arch;
    bool is_gguf;
    bool expanded; /* latent rows are kept expanded, as K and V of each head */
    bool known[FACTS];
    uint32_t value[FACTS];
    uint32_t n_kinds; /* 0: the file has no list */
    enum kvsize_kind kinds[KVSIZE_MAX_LAYERS];
    uint32_t n_kv_heads; /* 0: one number for all */
    uint32_t kv_heads[KVSIZE_MAX_LAYERS];
};

void kvsize_facts_put(struct kvsize_facts *f, enum kvsize_fact fact, uint32_t value);

/* The architecture's row; ERR_UNSUPPORTED with advice. */
int kvsize_facts_arch(struct kvsize_facts *f, struct kvsize_model *m, struct slice name,
                      struct err *e);

/* Makes the layers, with what the person gave put over what the file says. */
int kvsize_facts_build(struct kvsize_facts *f, const struct kvsize_given *given,
                       struct kvsize_model *m, struct err *e);

/* Copies text from a file so that it can be printed. */
void kvsize_facts_text(char *to, size_t size, struct slice from);

#endif
