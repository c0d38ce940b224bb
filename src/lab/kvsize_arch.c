/* SPDX-License-Identifier: MIT */
#include "kvsize_facts.h"

/*
 * The architectures whose layers are known. One table for both kinds of file: where they
 * name the same thing differently there are two rows. `period` and the traits are the
 * defaults of the published model classes, for keys that published files leave out.
 * An architecture that is not here is refused, not guessed: many look plain and are not.
 */

#include <string.h>

#define PLAIN (ARCH_MHA | ARCH_DIVIDE)

static const struct kvsize_arch archs[] = {
    /* Every head of every layer keeps everything. */
    {"apertus", RULE_ALL, 0, ARCH_DIVIDE},
    {"arcee", RULE_ALL, 0, ARCH_DIVIDE},
    {"baichuan", RULE_ALL, 0, PLAIN},
    {"bloom", RULE_ALL, 0, PLAIN},
    {"cohere", RULE_ALL, 0, PLAIN},
    {"command-r", RULE_ALL, 0, PLAIN},
    {"deepseek", RULE_ALL, 0, PLAIN},
    {"ernie4_5", RULE_ALL, 0, ARCH_DIVIDE},
    {"ernie4_5-moe", RULE_ALL, 0, ARCH_DIVIDE},
    {"ernie4_5_moe", RULE_ALL, 0, ARCH_DIVIDE},
    {"exaone", RULE_ALL, 0, PLAIN},
    {"falcon", RULE_ALL, 0, PLAIN},
    {"falcon-h1", RULE_ALL, 0, 0}, /* each layer has attention and a state */
    {"falcon_h1", RULE_ALL, 0, 0},
    {"gemma", RULE_ALL, 0, 0},
    {"glm4", RULE_ALL, 0, 0},
    {"glm4_moe", RULE_ALL, 0, 0},
    {"glm4moe", RULE_ALL, 0, 0},
    {"gpt2", RULE_ALL, 0, PLAIN},
    {"gpt_bigcode", RULE_ALL, 0, PLAIN},
    {"gpt_neox", RULE_ALL, 0, PLAIN},
    {"gptj", RULE_ALL, 0, PLAIN},
    {"gptneox", RULE_ALL, 0, PLAIN},
    {"granite", RULE_ALL, 0, PLAIN},
    {"granitemoe", RULE_ALL, 0, PLAIN},
    {"internlm2", RULE_ALL, 0, PLAIN},
    {"llama", RULE_ALL, 0, PLAIN},
    {"minicpm", RULE_ALL, 0, PLAIN},
    {"mistral3", RULE_ALL, 0, ARCH_DIVIDE},
    {"nemotron", RULE_ALL, 0, PLAIN},
    {"olmo", RULE_ALL, 0, PLAIN},
    {"olmo2", RULE_ALL, 0, PLAIN},
    {"opt", RULE_ALL, 0, PLAIN},
    {"phi", RULE_ALL, 0, PLAIN},
    {"phi2", RULE_ALL, 0, PLAIN},
    {"seed_oss", RULE_ALL, 0, 0},
    {"smollm3", RULE_ALL, 0, ARCH_DIVIDE},
    {"stablelm", RULE_ALL, 0, PLAIN},
    {"starcoder", RULE_ALL, 0, PLAIN},

    /* Windows. */
    {"cohere2", RULE_PERIOD, 4, ARCH_DIVIDE},
    {"gemma2", RULE_PERIOD, 2, 0},
    {"gemma3", RULE_PERIOD, 6, 0},
    {"gemma3_text", RULE_PERIOD, 6, 0},
    {"gemma4", RULE_LISTED, 0, 0},
    {"gpt-oss", RULE_PERIOD, 2, 0},
    {"gpt_oss", RULE_PERIOD, 2, 0},
    {"llama4", RULE_PERIOD, 4, ARCH_DIVIDE},
    {"llama4_text", RULE_PERIOD, 4, ARCH_DIVIDE},
    {"mistral", RULE_WINDOW, 0, ARCH_DIVIDE},
    {"mixtral", RULE_WINDOW, 0, ARCH_DIVIDE},
    {"olmo3", RULE_LISTED, 0, PLAIN},
    {"phi3", RULE_WINDOW, 0, PLAIN},
    {"qwen2", RULE_FROM_LAYER, 0, ARCH_DIVIDE},
    {"qwen2_moe", RULE_FROM_LAYER, 0, ARCH_DIVIDE},
    {"qwen2moe", RULE_FROM_LAYER, 0, ARCH_DIVIDE},
    {"qwen2vl", RULE_FROM_LAYER, 0, ARCH_DIVIDE},
    {"qwen3", RULE_FROM_LAYER, 0, 0},
    {"qwen3_moe", RULE_FROM_LAYER, 0, 0},
    {"qwen3_vl_moe_text", RULE_FROM_LAYER, 0, 0},
    {"qwen3_vl_text", RULE_FROM_LAYER, 0, 0},
    {"qwen3moe", RULE_FROM_LAYER, 0, 0},
    {"qwen3vl", RULE_FROM_LAYER, 0, 0},
    {"qwen3vlmoe", RULE_FROM_LAYER, 0, 0},
    {"starcoder2", RULE_WINDOW, 0, PLAIN},

    /* Attention in some layers only. */
    {"granitehybrid", RULE_LISTED, 0, ARCH_DIVIDE},
    {"granitemoehybrid", RULE_LISTED, 0, ARCH_DIVIDE},
    {"jamba", RULE_ATTN_PERIOD, 0, ARCH_DIVIDE},
    {"lfm2", RULE_LISTED, 0, ARCH_DIVIDE},
    {"lfm2_moe", RULE_LISTED, 0, ARCH_DIVIDE},
    {"lfm2moe", RULE_LISTED, 0, ARCH_DIVIDE},
    {"nemotron_h", RULE_LISTED, 0, 0},
    {"nemotron_h_moe", RULE_LISTED, 0, 0},
    {"qwen35", RULE_INTERVAL, 4, 0},
    {"qwen35moe", RULE_INTERVAL, 4, 0},
    {"qwen3_5_moe_text", RULE_INTERVAL, 4, 0},
    {"qwen3_5_text", RULE_INTERVAL, 4, 0},
    {"qwen3_next", RULE_INTERVAL, 4, 0},
    {"qwen3next", RULE_INTERVAL, 4, 0},

    /* One latent row. */
    {"deepseek2", RULE_LATENT, 0, 0},
    {"deepseek_v2", RULE_LATENT, 0, 0},
    {"deepseek_v3", RULE_LATENT, 0, 0},
    {"glm4_moe_lite", RULE_LATENT, 0, 0},
    {"kimi_k2", RULE_LATENT, 0, 0},
};

const struct kvsize_arch *kvsize_arch_find(const char *name)
{
    for (size_t i = 0; i < sizeof(archs) / sizeof(archs[0]); i++)
        if (strcmp(archs[i].name, name) == 0)
            return &archs[i];
    return NULL;
}

const struct kvsize_fact_name kvsize_fact_names[FACTS] = {
    [FACT_LAYERS] = {"--layers",
                     "block_count",
                     {"num_hidden_layers", "n_layer", "n_layers", "num_layers"}},
    [FACT_HEADS] = {NULL,
                    "attention.head_count",
                    {"num_attention_heads", "n_head", "n_heads"}},
    [FACT_KV_HEADS] = {"--kv-heads",
                       "attention.head_count_kv",
                       {"num_key_value_heads", "num_kv_heads", "n_head_kv"}},
    [FACT_HEAD_DIM] = {"--head-dim",
                       "attention.key_length",
                       {"head_dim", "attention_head_dim"}},
    [FACT_VALUE_DIM] = {NULL, "attention.value_length", {NULL}},
    [FACT_HEAD_DIM_WINDOW] = {NULL, "attention.key_length_swa", {NULL}},
    [FACT_VALUE_DIM_WINDOW] = {NULL, "attention.value_length_swa", {NULL}},
    [FACT_HIDDEN] = {NULL, "embedding_length", {"hidden_size", "n_embd", "d_model"}},
    [FACT_LATENT] = {"--latent", "attention.kv_lora_rank", {"kv_lora_rank"}},
    [FACT_ROPE] = {"--latent", "rope.dimension_count", {"qk_rope_head_dim"}},
    [FACT_WINDOW] = {"--window", "attention.sliding_window", {"sliding_window"}},
    [FACT_CHUNK] = {"--window", NULL, {"attention_chunk_size"}},
    [FACT_PERIOD] = {"--window-layers",
                     "attention.sliding_window_pattern",
                     {"sliding_window_pattern", "_sliding_window_pattern"}},
    [FACT_INTERVAL] = {NULL, "full_attention_interval", {"full_attention_interval"}},
    [FACT_ATTN_PERIOD] = {NULL, NULL, {"attn_layer_period"}},
    [FACT_ATTN_OFFSET] = {NULL, NULL, {"attn_layer_offset"}},
    [FACT_FROM_LAYER] = {"--window-layers", NULL, {"max_window_layers"}},
    [FACT_SHARED] = {NULL, "attention.shared_kv_layers", {NULL}},
    [FACT_NEXTN] = {NULL, "nextn_predict_layers", {NULL}},
    [FACT_CONTEXT] = {"--context",
                      "context_length",
                      {"max_position_embeddings", "n_positions", "n_ctx"}},
};
