/* SPDX-License-Identifier: MIT */
#include "kvsize_facts.h"

/*
 * Facts from a Hugging Face config.json. Models that also see pictures keep what belongs
 * to the language model in "text_config". null stands for absent. Four forms of a list of
 * layers are known: names ("layer_types"), letters ("hybrid_override_pattern"), numbers
 * of the layers with attention ("full_attn_idxs"), and rules (kvsize_arch.c).
 */

#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"

static const struct {
    const char *name;
    enum kvsize_kind kind;
} kinds[] = {
    {"full_attention", KIND_FULL},
    {"attention", KIND_FULL},
    {"sliding_attention", KIND_WINDOW},
    {"chunked_attention", KIND_WINDOW},
    {"linear_attention", KIND_NONE},
    {"mamba", KIND_NONE},
    {"conv", KIND_NONE},
    {"moe", KIND_NONE},
    {"mlp", KIND_NONE},
};

static int put_kind(struct kvsize_facts *f, size_t i, const char *name, struct err *e)
{
    for (size_t k = 0; name && k < sizeof(kinds) / sizeof(kinds[0]); k++)
        if (strcmp(kinds[k].name, name) == 0) {
            f->kinds[i] = kinds[k].kind;
            return 0;
        }
    char text[48] = "";
    if (name)
        kvsize_facts_text(text, sizeof(text), slice_of(name));
    return err_set(
        e, ERR_UNSUPPORTED,
        "layer_types: a layer of kind \"%s\" is not known here: leave the file "
        "away and give --layers, --kv-heads and --head-dim",
        text);
}

static int too_many(struct err *e)
{
    return err_set(e, ERR_INVALID, "a list of more than %d layers", KVSIZE_MAX_LAYERS);
}

static int list_names(struct kvsize_facts *f, const json_t *list, struct err *e)
{
    const size_t n = json_array_size(list);
    if (n > KVSIZE_MAX_LAYERS)
        return too_many(e);
    f->n_kinds = (uint32_t)n;
    int rc = 0;
    for (size_t i = 0; rc == 0 && i < n; i++)
        rc = put_kind(f, i, json_string_value(json_array_get(list, i)), e);
    return rc;
}

/* Nemotron-H: M a Mamba layer, - and E feed-forward ones, * attention. */
static int list_letters(struct kvsize_facts *f, const char *letters, struct err *e)
{
    const size_t n = strlen(letters);
    if (n > KVSIZE_MAX_LAYERS)
        return too_many(e);
    if (strspn(letters, "M-E*") != n)
        return err_set(e, ERR_UNSUPPORTED,
                       "hybrid_override_pattern has a letter that is "
                       "not known here");
    f->n_kinds = (uint32_t)n;
    for (size_t i = 0; i < n; i++)
        f->kinds[i] = letters[i] == '*' ? KIND_FULL : KIND_NONE;
    return 0;
}

/* Needs the number of layers, so it comes behind the numbers. */
static int list_indices(struct kvsize_facts *f, const json_t *list, struct err *e)
{
    const uint32_t layers = f->known[FACT_LAYERS] ? f->value[FACT_LAYERS] : 0;
    if (layers > KVSIZE_MAX_LAYERS)
        return too_many(e);
    f->n_kinds = layers;
    for (uint32_t i = 0; i < layers; i++)
        f->kinds[i] = KIND_NONE;
    for (size_t i = 0; i < json_array_size(list); i++) {
        const json_int_t at = json_integer_value(json_array_get(list, i));
        if (at < 0 || at >= (json_int_t)layers)
            return err_set(e, ERR_FORMAT,
                           "full_attn_idxs names a layer that is not there");
        f->kinds[at] = KIND_FULL;
    }
    return 0;
}

static int read_lists(struct kvsize_facts *f, const json_t *config, struct err *e)
{
    const json_t *list = json_object_get(config, "layer_types");
    if (!json_is_array(list))
        list = json_object_get(config, "layers_block_type");
    if (json_is_array(list))
        return list_names(f, list, e);
    const char *letters =
        json_string_value(json_object_get(config, "hybrid_override_pattern"));
    if (letters)
        return list_letters(f, letters, e);
    list = json_object_get(config, "full_attn_idxs");
    return json_is_array(list) ? list_indices(f, list, e) : 0;
}

static int read_number(struct kvsize_facts *f, enum kvsize_fact fact,
                       const json_t *config, struct err *e)
{
    const char *const *names = kvsize_fact_names[fact].config;
    for (int i = 0; i < 4 && names[i]; i++) {
        const json_t *value = json_object_get(config, names[i]);
        if (!value || json_is_null(value))
            continue;
        const json_int_t n = json_integer_value(value);
        if (!json_is_integer(value) || n < 0 || n > INT32_MAX)
            return err_set(e, ERR_FORMAT, "%s is no number that it could be", names[i]);
        kvsize_facts_put(f, fact, (uint32_t)n);
        return 0;
    }
    return 0;
}

/* Falcon and BigCode say "multi_query" for one KV head; later Falcons only mean it where
 * they do not have the "new architecture". */
static void read_switches(struct kvsize_facts *f, const json_t *config)
{
    if (json_is_false(json_object_get(config, "use_sliding_window")))
        f->known[FACT_WINDOW] = false;
    if (json_is_true(json_object_get(config, "multi_query")) &&
        !json_is_true(json_object_get(config, "new_decoder_architecture")))
        kvsize_facts_put(f, FACT_KV_HEADS, 1);
}

static int read_facts(struct kvsize_facts *f, struct kvsize_model *m, const json_t *root,
                      struct err *e)
{
    const json_t *text = json_object_get(root, "text_config");
    const json_t *config = json_is_object(text) ? text : root;
    const char *type = json_string_value(json_object_get(config, "model_type"));
    const char *name = json_string_value(json_object_get(root, "_name_or_path"));
    if (!type)
        return err_set(e, ERR_NOT_FOUND,
                       "model_type is missing: is this the config.json of a model?");
    int rc = kvsize_facts_arch(f, m, slice_of(type), e);
    if (name)
        kvsize_facts_text(m->name, sizeof(m->name), slice_of(name));
    for (int i = 0; rc == 0 && i < FACTS; i++)
        rc = read_number(f, (enum kvsize_fact)i, config, e);
    if (rc)
        return rc;
    read_switches(f, config);
    return read_lists(f, config, e);
}

int kvsize_from_config(struct kvsize_model *m, struct slice json,
                       const struct kvsize_given *given, struct err *e)
{
    json_error_t where;
    *m = (struct kvsize_model){0};
    json_t *root = json_loadb(json.ptr, json.len, JSON_REJECT_DUPLICATES, &where);
    if (!root)
        return err_set(e, ERR_FORMAT, "no JSON: line %d: %s", where.line, where.text);
    struct kvsize_facts *f = mem_zalloc(sizeof(*f));
    int rc = json_is_object(root)
                 ? read_facts(f, m, root, e)
                 : err_set(e, ERR_FORMAT, "this JSON is no object, so no config.json");
    if (rc == 0)
        rc = kvsize_facts_build(f, given, m, e);
    free(f);
    json_decref(root);
    return rc;
}
