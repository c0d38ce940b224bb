/* SPDX-License-Identifier: MIT */
#include "kvsize_facts.h"

/*
 * From what a file says to layers. First what the person gave is put over it, then the
 * numbers that all layers need are made sure of, then each layer gets its kind: from the
 * file's list where there is one, from the rule of the architecture else.
 */

#include <assert.h>
#include <string.h>

#define MAX_HEADS 4096
#define MAX_DIM 8192 /* with MAX_HEADS: sums of a whole sequence stay below 2^63 */

static bool has(const struct kvsize_facts *f, enum kvsize_fact fact)
{
    return f->known[fact] && f->value[fact] > 0;
}

void kvsize_facts_put(struct kvsize_facts *f, enum kvsize_fact fact, uint32_t value)
{
    f->known[fact] = true;
    f->value[fact] = value;
}

void kvsize_facts_text(char *to, size_t size, struct slice from)
{
    size_t n = 0;
    for (; n < from.len && n + 1 < size; n++) {
        const unsigned char c = (unsigned char)from.ptr[n];
        to[n] = c < 0x20 || c > 0x7e ? '?' : (char)c;
    }
    to[n] = '\0';
}

int kvsize_facts_arch(struct kvsize_facts *f, struct kvsize_model *m, struct slice name,
                      struct err *e)
{
    kvsize_facts_text(m->arch, sizeof(m->arch), name);
    f->arch = kvsize_arch_find(m->arch);
    if (f->arch)
        return 0;
    return err_set(e, ERR_UNSUPPORTED,
                   "the architecture \"%s\" is not known here: leave the file away and "
                   "give --layers, --kv-heads and --head-dim (or --latent), counting "
                   "layers with attention",
                   m->arch);
}

/* "num_key_value_heads is missing: give --kv-heads". */
static int missing(const struct kvsize_facts *f, enum kvsize_fact fact, struct err *e)
{
    const struct kvsize_fact_name *n = &kvsize_fact_names[fact];
    const char *key = f->is_gguf ? n->gguf : n->config[0];
    if (!*f->arch->name)
        return err_set(e, ERR_INVALID, "%s is missing", n->flag ? n->flag : key);
    return err_set(
        e, ERR_NOT_FOUND, "%s is missing: give %s%s", key ? key : n->config[0],
        n->flag ? n->flag : "--layers, --kv-heads and --head-dim without the file",
        fact == FACT_LATENT || fact == FACT_ROPE ? " (kv_lora_rank + qk_rope_head_dim)"
                                                 : "");
}

static const struct kvsize_arch by_flags = {"", RULE_WINDOW, 0, 0};
static const struct kvsize_arch by_flags_latent = {"", RULE_LATENT, 0, 0};

static int overlay(struct kvsize_facts *f, const struct kvsize_given *g, struct err *e)
{
    if (g->layers)
        kvsize_facts_put(f, FACT_LAYERS, g->layers);
    if (g->kv_heads) {
        kvsize_facts_put(f, FACT_KV_HEADS, g->kv_heads);
        f->n_kv_heads = 0;
    }
    if (g->head_dim) {
        kvsize_facts_put(f, FACT_HEAD_DIM, g->head_dim);
        f->known[FACT_VALUE_DIM] = f->known[FACT_HEAD_DIM_WINDOW] =
            f->known[FACT_VALUE_DIM_WINDOW] = false;
    }
    if (g->latent) {
        kvsize_facts_put(f, FACT_LATENT, g->latent);
        kvsize_facts_put(f, FACT_ROPE, 0);
        f->expanded = false;
    }
    if (g->window)
        kvsize_facts_put(f, FACT_WINDOW, g->window);
    if (g->window_layers == 0)
        return 0;
    if (g->window_layers > f->value[FACT_LAYERS] || f->n_kv_heads)
        return err_set(e, ERR_INVALID, "--window-layers: %s",
                       f->n_kv_heads ? "this file says itself which layers have a window"
                                     : "there are fewer layers than that");
    f->n_kinds = f->value[FACT_LAYERS];
    for (uint32_t i = 0; i < f->n_kinds && i < KVSIZE_MAX_LAYERS; i++)
        f->kinds[i] = i < g->window_layers ? KIND_WINDOW : KIND_FULL;
    return 0;
}

static int check_layers(struct kvsize_facts *f, struct err *e)
{
    if (!has(f, FACT_LAYERS))
        return missing(f, FACT_LAYERS, e);
    const uint32_t layers = f->value[FACT_LAYERS];
    if (layers > KVSIZE_MAX_LAYERS)
        return err_set(e, ERR_INVALID, "%u layers; at most %d are counted", layers,
                       KVSIZE_MAX_LAYERS);
    if (f->n_kinds && f->n_kinds != layers)
        return err_set(e, ERR_MISMATCH, "kinds of %u layers are listed, of %u",
                       f->n_kinds, layers);
    if (f->n_kv_heads && f->n_kv_heads != layers)
        return err_set(e, ERR_MISMATCH, "KV heads of %u layers are listed, of %u",
                       f->n_kv_heads, layers);
    if (has(f, FACT_NEXTN) && f->value[FACT_NEXTN] >= layers)
        return err_set(e, ERR_FORMAT, "no layers are left besides nextn_predict_layers");
    return 0;
}

static int latent_rows(struct kvsize_facts *f, struct err *e)
{
    if (!has(f, FACT_LATENT))
        return missing(f, FACT_LATENT, e);
    if (!f->known[FACT_ROPE])
        return missing(f, FACT_ROPE, e);
    if (f->value[FACT_LATENT] > MAX_DIM || f->value[FACT_ROPE] > MAX_DIM)
        return err_set(e, ERR_INVALID, "a latent row of more than %d values", MAX_DIM);
    return 0;
}

/* Head size and number of KV heads, from what the architecture allows to conclude. */
static int head_rows(struct kvsize_facts *f, struct err *e)
{
    const uint32_t heads = f->known[FACT_HEADS] ? f->value[FACT_HEADS] : 0;
    const bool divide = f->is_gguf || (f->arch->traits & ARCH_DIVIDE);
    if (!has(f, FACT_HEAD_DIM) && divide && heads && has(f, FACT_HIDDEN) &&
        f->value[FACT_HIDDEN] % heads == 0)
        kvsize_facts_put(f, FACT_HEAD_DIM, f->value[FACT_HIDDEN] / heads);
    if (!has(f, FACT_KV_HEADS) && heads && (f->is_gguf || (f->arch->traits & ARCH_MHA)))
        kvsize_facts_put(f, FACT_KV_HEADS, heads);

    if (!f->n_kv_heads && !has(f, FACT_KV_HEADS))
        return missing(f, FACT_KV_HEADS, e);
    if (!has(f, FACT_HEAD_DIM))
        return missing(f, FACT_HEAD_DIM, e);
    if (f->known[FACT_KV_HEADS] && f->value[FACT_KV_HEADS] > MAX_HEADS)
        return err_set(e, ERR_INVALID, "more than %d KV heads", MAX_HEADS);
    for (uint32_t i = 0; i < f->n_kv_heads; i++)
        if (f->kv_heads[i] > MAX_HEADS)
            return err_set(e, ERR_INVALID, "more than %d KV heads", MAX_HEADS);
    for (int d = FACT_HEAD_DIM; d <= FACT_VALUE_DIM_WINDOW; d++)
        if (f->known[d] && f->value[d] > MAX_DIM)
            return err_set(e, ERR_INVALID, "heads of more than %d values", MAX_DIM);
    return 0;
}

/* A window that the rule of the architecture knows nothing of may mean anything. */
static int check_rule(struct kvsize_facts *f, enum kvsize_rule rule, struct err *e)
{
    if (f->n_kinds)
        return 0;
    if (rule == RULE_ALL && has(f, FACT_WINDOW))
        return err_set(
            e, ERR_UNSUPPORTED,
            "a sliding window is not known of \"%s\": give --window-layers (how "
            "many layers have it)",
            f->arch->name);
    if (rule == RULE_LISTED && !f->n_kv_heads)
        return err_set(
            e, ERR_NOT_FOUND,
            "%s is missing, the list of the layers: leave the file away and give "
            "--layers (those with attention), --kv-heads and --head-dim",
            f->is_gguf ? "attention.head_count_kv" : "layer_types");
    if (rule == RULE_PERIOD && !has(f, FACT_WINDOW))
        return missing(f, FACT_WINDOW, e);
    if (rule == RULE_FROM_LAYER && has(f, FACT_WINDOW) && !f->known[FACT_FROM_LAYER])
        return missing(f, FACT_FROM_LAYER, e);
    if (rule == RULE_ATTN_PERIOD && !f->n_kv_heads) {
        if (!has(f, FACT_ATTN_PERIOD))
            return missing(f, FACT_ATTN_PERIOD, e);
        if (!f->known[FACT_ATTN_OFFSET])
            return missing(f, FACT_ATTN_OFFSET, e);
    }
    return 0;
}

static uint32_t period(const struct kvsize_facts *f, enum kvsize_fact fact)
{
    return has(f, fact) ? f->value[fact] : f->arch->period;
}

static enum kvsize_kind by_rule(const struct kvsize_facts *f, enum kvsize_rule rule,
                                uint32_t i)
{
    const bool window = has(f, FACT_WINDOW);
    switch (rule) {
    case RULE_ALL:
    case RULE_LATENT:
    case RULE_LISTED:
        return KIND_FULL;
    case RULE_WINDOW: /* llama.cpp, whose files these are, keeps all of them */
        return window && !f->is_gguf ? KIND_WINDOW : KIND_FULL;
    case RULE_PERIOD:
        return (i + 1) % period(f, FACT_PERIOD) ? KIND_WINDOW : KIND_FULL;
    case RULE_FROM_LAYER:
        return window && i >= f->value[FACT_FROM_LAYER] ? KIND_WINDOW : KIND_FULL;
    case RULE_INTERVAL:
        return (i + 1) % period(f, FACT_INTERVAL) ? KIND_NONE : KIND_FULL;
    case RULE_ATTN_PERIOD:
        if (f->n_kv_heads)
            return KIND_FULL;
        return i % f->value[FACT_ATTN_PERIOD] == f->value[FACT_ATTN_OFFSET] ? KIND_FULL
                                                                            : KIND_NONE;
    }
    assert(false);
    return KIND_FULL;
}

static enum kvsize_kind kind_of(const struct kvsize_facts *f, enum kvsize_rule rule,
                                uint32_t layers, uint32_t i)
{
    if (has(f, FACT_SHARED) && (uint64_t)i + f->value[FACT_SHARED] >= layers)
        return KIND_NONE;
    if (f->n_kv_heads && f->kv_heads[i] == 0)
        return KIND_NONE;
    return f->n_kinds ? f->kinds[i] : by_rule(f, rule, i);
}

/* The first of two facts that is there. */
static uint32_t either(const struct kvsize_facts *f, enum kvsize_fact a,
                       enum kvsize_fact b)
{
    return has(f, a) ? f->value[a] : f->value[b];
}

static struct kvsize_layer make_layer(const struct kvsize_facts *f, bool latent,
                                      enum kvsize_kind kind, uint32_t i)
{
    if (kind == KIND_NONE)
        return (struct kvsize_layer){0};
    struct kvsize_layer l = {.window = kind == KIND_WINDOW ? f->value[FACT_WINDOW] : 0};
    if (latent) {
        l.k = f->value[FACT_LATENT] + f->value[FACT_ROPE];
        return l;
    }
    const uint32_t heads = f->n_kv_heads ? f->kv_heads[i] : f->value[FACT_KV_HEADS];
    uint32_t k = f->value[FACT_HEAD_DIM], v = either(f, FACT_VALUE_DIM, FACT_HEAD_DIM);
    if (kind == KIND_WINDOW && has(f, FACT_HEAD_DIM_WINDOW)) {
        k = f->value[FACT_HEAD_DIM_WINDOW];
        v = either(f, FACT_VALUE_DIM_WINDOW, FACT_HEAD_DIM_WINDOW);
    }
    l.k = heads * k;
    l.v = heads * v;
    return l;
}

int kvsize_facts_build(struct kvsize_facts *f, const struct kvsize_given *given,
                       struct kvsize_model *m, struct err *e)
{
    if (!f->arch)
        f->arch = given->latent ? &by_flags_latent : &by_flags;
    if (has(f, FACT_CHUNK) && !has(f, FACT_WINDOW))
        kvsize_facts_put(f, FACT_WINDOW, f->value[FACT_CHUNK]);
    const bool latent = given->latent || (f->arch->rule == RULE_LATENT && !f->expanded);
    const enum kvsize_rule rule = f->expanded ? RULE_ALL : f->arch->rule;
    int rc = overlay(f, given, e);
    if (rc == 0)
        rc = check_layers(f, e);
    if (rc == 0)
        rc = latent ? latent_rows(f, e) : head_rows(f, e);
    if (rc == 0)
        rc = check_rule(f, rule, e);
    if (rc)
        return rc;

    m->n_layers = f->value[FACT_LAYERS];
    if (has(f, FACT_NEXTN))
        m->n_layers -= f->value[FACT_NEXTN];
    for (uint32_t i = 0; i < m->n_layers; i++) {
        const enum kvsize_kind kind = kind_of(f, rule, m->n_layers, i);
        if (kind == KIND_WINDOW && !has(f, FACT_WINDOW))
            return missing(f, FACT_WINDOW, e);
        m->layers[i] = make_layer(f, latent, kind, i);
    }
    if (has(f, FACT_CONTEXT))
        m->context = f->value[FACT_CONTEXT];
    return 0;
}
