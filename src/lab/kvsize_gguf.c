/* SPDX-License-Identifier: MIT */
#include "kvsize_facts.h"

/*
 * Facts from the metadata of a GGUF file: numbers under "ARCH.name". Some are lists with
 * one number per layer: KV heads (0: the layer has no attention), and whether a layer has
 * the window.
 */

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/mem.h"
#include "lab/gguf.h"

static const struct gguf_pair *find(const struct gguf *g, const struct kvsize_model *m,
                                    const char *name)
{
    char key[128];
    snprintf(key, sizeof(key), "%s.%s", m->arch, name);
    return gguf_find(g, key);
}

static int bad(const char *name, struct err *e)
{
    return err_set(e, ERR_FORMAT, "%s is not what it should be", name);
}

static bool number(const struct gguf_pair *p, uint64_t i, uint32_t *out)
{
    uint64_t n;
    if (!gguf_number(p, i, &n) || n > INT32_MAX)
        return false;
    *out = (uint32_t)n;
    return true;
}

static int list_kv_heads(struct kvsize_facts *f, const struct gguf_pair *p)
{
    if (p->n == 0 || p->n > KVSIZE_MAX_LAYERS)
        return -1;
    f->n_kv_heads = (uint32_t)p->n;
    for (uint32_t i = 0; i < f->n_kv_heads; i++)
        if (!number(p, i, &f->kv_heads[i]))
            return -1;
    return 0;
}

static int list_windows(struct kvsize_facts *f, const struct gguf_pair *p)
{
    if (p->n == 0 || p->n > KVSIZE_MAX_LAYERS)
        return -1;
    f->n_kinds = (uint32_t)p->n;
    for (uint32_t i = 0; i < f->n_kinds; i++) {
        uint32_t window;
        if (!number(p, i, &window))
            return -1;
        f->kinds[i] = window ? KIND_WINDOW : KIND_FULL;
    }
    return 0;
}

/* A list of query heads: which one is asked for the head size does not matter. */
static int list_heads(struct kvsize_facts *f, const struct gguf_pair *p)
{
    for (uint64_t i = 0; i < p->n; i++) {
        uint32_t heads;
        if (!number(p, i, &heads))
            return -1;
        if (heads)
            kvsize_facts_put(f, FACT_HEADS, heads);
    }
    return 0;
}

static int put(struct kvsize_facts *f, enum kvsize_fact fact, const struct gguf_pair *p)
{
    if (p->type == GGUF_ARRAY) {
        switch ((int)fact) {
        case FACT_KV_HEADS:
            return list_kv_heads(f, p);
        case FACT_PERIOD:
            return list_windows(f, p);
        case FACT_HEADS:
            return list_heads(f, p);
        default:
            return -1;
        }
    }
    uint32_t value;
    if (!number(p, 0, &value))
        return -1;
    kvsize_facts_put(f, fact, value);
    return 0;
}

static int read_facts(struct kvsize_facts *f, struct kvsize_model *m,
                      const struct gguf *g, struct err *e)
{
    const struct gguf_pair *p = gguf_find(g, "general.architecture");
    if (!p || p->type != GGUF_STRING)
        return err_set(e, ERR_NOT_FOUND, "general.architecture is missing");
    const int rc = kvsize_facts_arch(f, m, p->bytes, e);
    if (rc)
        return rc;
    p = gguf_find(g, "general.name");
    if (p && p->type == GGUF_STRING)
        kvsize_facts_text(m->name, sizeof(m->name), p->bytes);
    for (int i = 0; i < FACTS; i++) {
        const char *name = kvsize_fact_names[i].gguf;
        p = name ? find(g, m, name) : NULL;
        if (p && put(f, (enum kvsize_fact)i, p) != 0)
            return bad(name, e);
    }
    /* Files without this name are from before llama.cpp kept latent rows. */
    f->expanded = f->arch->rule == RULE_LATENT && !find(g, m, "attention.key_length_mla");
    return 0;
}

int kvsize_from_gguf(struct kvsize_model *m, struct slice bytes, uint64_t file_size,
                     const struct kvsize_given *given, struct err *e)
{
    struct gguf g;
    *m = (struct kvsize_model){0};
    int rc = gguf_read(&g, bytes, file_size, e);
    if (rc)
        return rc;
    struct kvsize_facts *f = mem_zalloc(sizeof(*f));
    f->is_gguf = true;
    rc = read_facts(f, m, &g, e);
    if (rc == 0)
        rc = kvsize_facts_build(f, given, m, e);
    free(f);
    gguf_free(&g);
    return rc;
}
