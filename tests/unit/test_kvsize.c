/* SPDX-License-Identifier: MIT */
#include "lab/kvsize.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cmocka_all.h"
#include "base/buf.h"
#include "base/mem.h"
#include "lab/gguf.h"
#include "proto/slotfile.h"

static struct kvsize_model m; /* large */
static const struct kvsize_given nothing;

static struct kvsize_types in(const char *k, const char *v)
{
    const struct kvsize_types t = {kvsize_type_find(k), kvsize_type_find(v)};
    assert_non_null(t.k);
    assert_non_null(t.v);
    return t;
}

static struct kvsize_types f16(void)
{
    return in("f16", "f16");
}

static void by_flags(uint32_t layers, uint32_t kv_heads, uint32_t head_dim)
{
    const struct kvsize_given g = {
        .layers = layers, .kv_heads = kv_heads, .head_dim = head_dim};
    struct err e = {0};
    if (kvsize_from_flags(&m, &g, &e) != 0)
        fail_msg("%s", e.text);
}

/* ---- arithmetic -------------------------------------------------------------------- */

static void test_gpt2_from_flags(void **state)
{
    (void)state;
    by_flags(12, 12, 64);
    assert_int_equal(kvsize_bytes(&m, f16(), 1), 36864);
    assert_int_equal(kvsize_bytes(&m, f16(), 1024), 37748736);
    assert_int_equal(kvsize_bytes(&m, in("f32", "f32"), 1), 73728);
}

static void test_four_heads_that_share_take_a_quarter(void **state)
{
    (void)state;
    by_flags(12, 12, 64);
    assert_int_equal(m.layers[0].k, 768);
    const uint64_t all = kvsize_bytes(&m, f16(), 1000);
    by_flags(12, 3, 64);
    assert_int_equal(m.layers[0].k, 192);
    assert_int_equal(kvsize_bytes(&m, f16(), 1000) * 4, all);
}

static void test_latent_rows_have_no_v(void **state)
{
    (void)state;
    const struct kvsize_given g = {.layers = 61, .latent = 576};
    assert_int_equal(kvsize_from_flags(&m, &g, NULL), 0);
    assert_int_equal(m.layers[60].k, 576);
    assert_int_equal(m.layers[60].v, 0);
    assert_int_equal(kvsize_bytes(&m, f16(), 1), 61 * 576 * 2);
}

static void test_a_window_ends_the_growth_of_its_layers(void **state)
{
    (void)state;
    struct kvsize_given g = {
        .layers = 4, .kv_heads = 1, .head_dim = 32, .window = 100, .window_layers = 3};
    assert_int_equal(kvsize_from_flags(&m, &g, NULL), 0);
    assert_int_equal(kvsize_window(&m), 100);
    assert_int_equal(kvsize_bytes(&m, f16(), 100), 4 * 128 * 100);
    assert_int_equal(kvsize_bytes(&m, f16(), 150), 4 * 128 * 100 + 128 * 50);
    assert_int_equal(kvsize_next(&m, f16(), 99), 4 * 128);
    assert_int_equal(kvsize_next(&m, f16(), 100), 128);
    g.window_layers = 0;
    assert_int_equal(kvsize_from_flags(&m, &g, NULL), 0);
    assert_int_equal(kvsize_bytes(&m, f16(), 5000), 4 * 128 * 100);
    assert_int_equal(kvsize_fit(&m, f16(), 4 * 128 * 100), KVSIZE_MAX_TOKENS);
    assert_int_equal(kvsize_fit(&m, f16(), 4 * 128 * 100 - 1), 99);
}

static void test_what_fits_is_the_longest(void **state)
{
    (void)state;
    const struct kvsize_given g = {
        .layers = 5, .kv_heads = 2, .head_dim = 32, .window = 77, .window_layers = 4};
    assert_int_equal(kvsize_from_flags(&m, &g, NULL), 0);
    for (uint64_t bytes = 0; bytes < 300000; bytes += 997) {
        const uint32_t n = kvsize_fit(&m, f16(), bytes);
        assert_true(kvsize_bytes(&m, f16(), n) <= bytes);
        assert_true(kvsize_bytes(&m, f16(), n + 1) > bytes);
    }
}

static void test_largest_sequence_of_the_largest_model_does_not_overflow(void **state)
{
    (void)state;
    by_flags(KVSIZE_MAX_LAYERS, 4096, 8192);
    const uint64_t token = kvsize_bytes(&m, in("f32", "f32"), 1);
    assert_true(token == (uint64_t)2 * 1024 * 4096 * 8192 * 4);
    assert_true(kvsize_bytes(&m, in("f32", "f32"), KVSIZE_MAX_TOKENS) ==
                token * KVSIZE_MAX_TOKENS);
    assert_true(token * KVSIZE_MAX_TOKENS / KVSIZE_MAX_TOKENS == token);
}

static void test_flags_alone_have_to_be_enough(void **state)
{
    (void)state;
    static const struct {
        struct kvsize_given given;
        const char *says;
    } cases[] = {
        {{0}, "--layers"},
        {{.layers = 3}, "--kv-heads"},
        {{.layers = 3, .kv_heads = 3}, "--head-dim"},
        {{.layers = 3, .kv_heads = 3, .head_dim = 64, .window_layers = 2}, "--window"},
        {{.layers = 3, .kv_heads = 3, .head_dim = 64, .window = 9, .window_layers = 4},
         "fewer layers"},
        {{.layers = 1025, .kv_heads = 3, .head_dim = 64}, "at most 1024"},
        {{.layers = 3, .kv_heads = 4097, .head_dim = 64}, "more than 4096"},
        {{.layers = 3, .kv_heads = 3, .head_dim = 8193}, "more than 8192"},
        {{.layers = 3, .latent = 8193}, "more than 8192"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct err e = {0};
        assert_int_equal(kvsize_from_flags(&m, &cases[i].given, &e), ERR_INVALID);
        if (!strstr(e.text, cases[i].says))
            fail_msg("case %zu: %s", i, e.text);
    }
}

/* ---- types, against the bytes of real files ---------------------------------------- */

static void test_rows_of_192_values(void **state)
{
    (void)state;
    static const struct {
        const char *name;
        uint64_t bytes;
    } rows[] = {
        {"f32", 768},  {"f16", 384},  {"bf16", 384}, {"fp8", 192},  {"q8_0", 204},
        {"q5_1", 144}, {"q5_0", 132}, {"q4_1", 120}, {"q4_0", 108}, {"iq4_nl", 108},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        assert_ptr_equal(kvsize_type_at(i), kvsize_type_find(rows[i].name));
        assert_int_equal(kvsize_row(kvsize_type_at(i), 192), rows[i].bytes);
    }
    assert_null(kvsize_type_at(sizeof rows / sizeof *rows));
    assert_null(kvsize_type_find("q3_0"));
}

static void test_quantized_rows_are_whole_blocks(void **state)
{
    (void)state;
    struct err e = {0};
    by_flags(2, 1, 80);
    assert_int_equal(kvsize_check(&m, f16(), NULL), 0);
    assert_int_equal(kvsize_check(&m, in("f16", "q4_0"), &e), ERR_INVALID);
    assert_non_null(strstr(e.text, "q4_0 keeps values in blocks of 32"));
    by_flags(2, 2, 80);
    assert_int_equal(kvsize_check(&m, in("q8_0", "q4_0"), NULL), 0);
}

static char *slurp(const char *path, size_t *size)
{
    FILE *file = fopen(path, "rb");
    if (!file)
        fail_msg("%s: run the tests in the root of the project", path);
    char *bytes = mem_alloc(1 << 20);
    *size = fread(bytes, 1, 1 << 20, file);
    fclose(file);
    return bytes;
}

static void test_real_slot_files_agree(void **state)
{
    (void)state;
    static const char *const names[] = {
        "v2-f16-slot0", "v2-q8_0-slot0",      "v4-f16-slot1", "v4-q8_0-slot0",
        "v2-f16-slot1", "v2-q4_0-q8_0-slot1", "v4-f16-slot0"};
    by_flags(2, 3, 64);
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        char path[128];
        size_t size;
        snprintf(path, sizeof path, "tests/data/slotfiles/%s.bin", names[i]);
        char *bytes = slurp(path, &size);
        struct slotfile *s = mem_alloc(sizeof *s);
        assert_int_equal(slotfile_parse(s, slice_make(bytes, size), NULL), 0);
        const struct slotfile_layer *l = &s->frame.layers[0];
        const char *k = slotfile_type_name(l->k_type);
        const struct kvsize_type *k_type = kvsize_type_find(k);
        const struct kvsize_types t = {k_type,
                                       kvsize_type_find(slotfile_type_name(l->v_type))};
        assert_int_equal(s->frame.n_layers, m.n_layers);
        assert_int_equal(kvsize_row(t.k, m.layers[0].k), l->k_row);
        assert_int_equal(kvsize_row(t.v, m.layers[0].v), l->v_row);
        assert_int_equal(kvsize_bytes(&m, t, 1), s->frame.token_bytes);
        free(s);
        free(bytes);
    }
}

/* ---- published models -------------------------------------------------------------- */

/* The table of docs/kvsize.md, in f16. */
static const struct {
    const char *file;
    uint64_t token, behind; /* bytes of the first token, and of one behind the window */
    uint32_t window, context;
    uint64_t context_bytes;
} published[] = {
    {"gpt2", 36864, 36864, 0, 1024, 37748736},
    {"smollm2-135m", 23040, 23040, 0, 8192, 188743680},
    {"llama-3.1-8b", 131072, 131072, 0, 131072, 17179869184},
    {"llama-3.3-70b", 327680, 327680, 0, 131072, 42949672960},
    {"qwen2.5-32b", 262144, 262144, 0, 131072, 34359738368},
    {"qwen3-8b", 147456, 147456, 0, 40960, 6039797760},
    {"mistral-7b-v0.1", 131072, 0, 4096, 32768, 536870912},
    {"gemma-2-9b", 344064, 172032, 4096, 8192, 2113929216},
    {"gemma-3-27b-it", 507904, 81920, 1024, 0, 0},
    {"gpt-oss-20b", 49152, 24576, 128, 131072, 3224371200},
    {"deepseek-v3", 70272, 70272, 0, 163840, 11513364480},
    {"qwen3-next-80b-a3b", 24576, 24576, 0, 262144, 6442450944},
    {"qwen3.5-397b-a17b", 30720, 30720, 0, 262144, 8053063680},
    {"jamba-v0.1", 16384, 16384, 0, 262144, 4294967296},
    {"nemotron-3-nano-4b", 16384, 16384, 0, 262144, 4294967296},
};

static void test_published_models(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof published / sizeof *published; i++) {
        char path[128];
        struct err e = {0};
        snprintf(path, sizeof path, "tests/data/kvsize/%s.json", published[i].file);
        if (kvsize_from_file(&m, path, &nothing, &e) != 0)
            fail_msg("%s", e.text);
        const uint32_t window = kvsize_window(&m);
        if (kvsize_next(&m, f16(), 0) != published[i].token ||
            kvsize_next(&m, f16(), window) != published[i].behind ||
            window != published[i].window || m.context != published[i].context ||
            kvsize_bytes(&m, f16(), m.context) != published[i].context_bytes)
            fail_msg("%s: %llu, %llu behind %u; %llu for %u", published[i].file,
                     (unsigned long long)kvsize_next(&m, f16(), 0),
                     (unsigned long long)kvsize_next(&m, f16(), window), window,
                     (unsigned long long)kvsize_bytes(&m, f16(), m.context), m.context);
    }
}

static void test_a_key_that_a_published_config_leaves_out_can_be_given(void **state)
{
    (void)state;
    struct err e = {0};
    struct kvsize_given g = {0};
    const char *path = "tests/data/kvsize/gemma-3-4b-it.json";
    assert_int_equal(kvsize_from_file(&m, path, &g, &e), ERR_NOT_FOUND);
    assert_non_null(strstr(e.text, "num_key_value_heads is missing: give --kv-heads"));
    g.kv_heads = 4;
    e = (struct err){0};
    assert_int_equal(kvsize_from_file(&m, path, &g, &e), ERR_NOT_FOUND);
    assert_non_null(strstr(e.text, "head_dim is missing: give --head-dim"));
    g.head_dim = 256;
    assert_int_equal(kvsize_from_file(&m, path, &g, NULL), 0);
    assert_int_equal(m.n_layers, 34);
    assert_int_equal(kvsize_next(&m, f16(), 0), 34 * 4096);
    assert_int_equal(kvsize_next(&m, f16(), 1024), 5 * 4096);
}

/* ---- config.json ------------------------------------------------------------------- */

static int config(const char *json, struct err *e)
{
    return kvsize_from_config(&m, slice_of(json), &nothing, e);
}

/* Ends the common part of a configuration: 12 layers, 16 values in each of 4 KV heads. */
#define TWELVE "\"num_hidden_layers\": 12, \"num_key_value_heads\": 4, \"head_dim\": 16}"

static uint32_t count_windows(void)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < m.n_layers; i++)
        n += m.layers[i].window != 0;
    return n;
}

static uint32_t count_attention(void)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < m.n_layers; i++)
        n += m.layers[i].k != 0;
    return n;
}

static void test_layer_kinds_of_configs(void **state)
{
    (void)state;
    static const struct {
        const char *json;
        uint32_t attention, windows;
    } cases[] = {
        {"{\"model_type\": \"llama\", " TWELVE, 12, 0},
        {"{\"model_type\": \"mistral\", \"sliding_window\": 9, " TWELVE, 12, 12},
        {"{\"model_type\": \"mistral\", \"sliding_window\": null, " TWELVE, 12, 0},
        {"{\"model_type\": \"gemma2\", \"sliding_window\": 9, " TWELVE, 12, 6},
        {"{\"model_type\": \"cohere2\", \"sliding_window\": 9, " TWELVE, 12, 9},
        {"{\"model_type\": \"gemma3\", \"sliding_window\": 9, " TWELVE, 12, 10},
        {"{\"model_type\": \"gemma3\", \"sliding_window\": 9, "
         "\"sliding_window_pattern\": 4, " TWELVE,
         12, 9},
        {"{\"model_type\": \"llama4_text\", \"attention_chunk_size\": 9, " TWELVE, 12, 9},
        {"{\"model_type\": \"qwen2\", \"sliding_window\": 9, \"max_window_layers\": 8, "
         "\"use_sliding_window\": false, " TWELVE,
         12, 0},
        {"{\"model_type\": \"qwen2\", \"sliding_window\": 9, \"max_window_layers\": 8, "
         "\"use_sliding_window\": true, " TWELVE,
         12, 4},
        {"{\"model_type\": \"qwen3_next\", \"full_attention_interval\": 6, " TWELVE, 2,
         0},
        {"{\"model_type\": \"lfm2\", \"full_attn_idxs\": [2, 5, 11], " TWELVE, 3, 0},
        {"{\"model_type\": \"jamba\", \"attn_layer_period\": 5, "
         "\"attn_layer_offset\": 1, " TWELVE,
         3, 0},
        {"{\"model_type\": \"nemotron_h\", \"hybrid_override_pattern\": "
         "\"M-M*-E*M--MM\"," TWELVE,
         2, 0},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct err e = {0};
        if (config(cases[i].json, &e) != 0)
            fail_msg("case %zu: %s", i, e.text);
        if (count_attention() != cases[i].attention ||
            count_windows() != cases[i].windows)
            fail_msg("case %zu: %u with attention, %u with a window", i,
                     count_attention(), count_windows());
    }
}

static void test_one_kv_head_for_all_queries(void **state)
{
    (void)state;
    assert_int_equal(config("{\"model_type\": \"falcon\", \"num_hidden_layers\": 32, "
                            "\"num_attention_heads\": 71, \"hidden_size\": 4544, "
                            "\"multi_query\": true}",
                            NULL),
                     0);
    assert_int_equal(m.layers[0].k, 64);
    assert_int_equal(config("{\"model_type\": \"falcon\", \"num_hidden_layers\": 60, "
                            "\"num_attention_heads\": 128, \"hidden_size\": 8192, "
                            "\"multi_query\": true, \"new_decoder_architecture\": true, "
                            "\"num_kv_heads\": 8}",
                            NULL),
                     0);
    assert_int_equal(m.layers[0].k, 512);
}

static void test_configs_that_say_too_little_or_nonsense(void **state)
{
    (void)state;
    static const struct {
        const char *json;
        int rc;
        const char *says;
    } cases[] = {
        {"", ERR_FORMAT, "no JSON"},
        {"[1]", ERR_FORMAT, "no object"},
        {"{\"num_hidden_layers\": 1}", ERR_NOT_FOUND, "model_type is missing"},
        {"{\"model_type\": \"mamba\", " TWELVE, ERR_UNSUPPORTED,
         "\"mamba\" is not known"},
        {"{\"model_type\": \"llama\"}", ERR_NOT_FOUND,
         "num_hidden_layers is missing: give --layers"},
        {"{\"model_type\": \"llama\", \"num_hidden_layers\": 2}", ERR_NOT_FOUND,
         "num_key_value_heads is missing: give --kv-heads"},
        {"{\"model_type\": \"llama\", \"num_hidden_layers\": 2, "
         "\"num_attention_heads\": 3, \"hidden_size\": 100}",
         ERR_NOT_FOUND, "head_dim is missing: give --head-dim"},
        {"{\"model_type\": \"llama\", \"num_hidden_layers\": -2}", ERR_FORMAT,
         "num_hidden_layers"},
        {"{\"model_type\": \"llama\", \"num_hidden_layers\": \"2\"}", ERR_FORMAT,
         "num_hidden_layers"},
        {"{\"model_type\": \"gemma2\", " TWELVE, ERR_NOT_FOUND,
         "sliding_window is missing: give --window"},
        {"{\"model_type\": \"llama\", \"sliding_window\": 9, " TWELVE, ERR_UNSUPPORTED,
         "give --window-layers"},
        {"{\"model_type\": \"deepseek_v3\", \"kv_lora_rank\": 512, " TWELVE,
         ERR_NOT_FOUND, "qk_rope_head_dim is missing: give --latent"},
        {"{\"model_type\": \"deepseek_v3\", " TWELVE, ERR_NOT_FOUND,
         "kv_lora_rank is missing: give --latent"},
        {"{\"model_type\": \"lfm2\", " TWELVE, ERR_NOT_FOUND, "layer_types is missing"},
        {"{\"model_type\": \"jamba\", " TWELVE, ERR_NOT_FOUND, "attn_layer_period"},
        {"{\"model_type\": \"qwen3\", \"layer_types\": [\"full_attention\"], " TWELVE,
         ERR_MISMATCH, "kinds of 1 layers are listed, of 12"},
        {"{\"model_type\": \"qwen3\", \"layer_types\": [\"odd\"], " TWELVE,
         ERR_UNSUPPORTED, "\"odd\" is not known"},
        {"{\"model_type\": \"nemotron_h\", \"hybrid_override_pattern\": \"M*X\", " TWELVE,
         ERR_UNSUPPORTED, "a letter"},
        {"{\"model_type\": \"lfm2\", \"full_attn_idxs\": [12], " TWELVE, ERR_FORMAT,
         "full_attn_idxs"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct err e = {0};
        const int rc = config(cases[i].json, &e);
        if (rc != cases[i].rc || !strstr(e.text, cases[i].says))
            fail_msg("case %zu: %s: %s", i, err_name(rc), e.text);
    }
}

static void test_names_are_made_printable(void **state)
{
    (void)state;
    assert_int_equal(config("{\"model_type\": \"llama\", "
                            "\"_name_or_path\": \"a\\u001b[1m\\u00e9\", " TWELVE,
                            NULL),
                     0);
    assert_string_equal(m.name, "a?[1m??");
}

/* ---- GGUF -------------------------------------------------------------------------- */

static void put(struct buf *b, uint64_t n, int width)
{
    for (int i = 0; i < width; i++)
        buf_append_char(b, (char)(n >> (8 * i)));
}

static void put_text(struct buf *b, const char *s)
{
    put(b, strlen(s), 8);
    buf_append_str(b, s);
}

static void put_key(struct buf *b, const char *key, enum gguf_type type)
{
    put_text(b, key);
    put(b, type, 4);
}

static void put_u32(struct buf *b, const char *key, uint32_t n)
{
    put_key(b, key, GGUF_U32);
    put(b, n, 4);
}

static void put_string(struct buf *b, const char *key, const char *value)
{
    put_key(b, key, GGUF_STRING);
    put_text(b, value);
}

static void put_list(struct buf *b, const char *key, enum gguf_type item,
                     const char *text)
{
    put_key(b, key, GGUF_ARRAY);
    put(b, item, 4);
    put(b, strlen(text), 8);
    for (; *text; text++)
        put(b, (uint64_t)(*text - '0'), item == GGUF_BOOL ? 1 : 4);
}

static struct buf head(uint64_t pairs, const char *arch)
{
    struct buf b = {0};
    buf_append_str(&b, "GGUF");
    put(&b, 3, 4);
    put(&b, 0, 8);
    put(&b, pairs, 8);
    put_string(&b, "general.architecture", arch);
    return b;
}

static int read_and_free(struct buf *b, struct err *e)
{
    /* Exactly as many bytes as there are, for the sanitizer to see one more. */
    char *bytes = mem_dup(buf_slice(b).ptr, buf_len(b));
    const size_t n = buf_len(b);
    buf_free(b);
    const int rc = kvsize_from_gguf(&m, slice_make(bytes, n), n, &nothing, e);
    free(bytes);
    return rc;
}

static void expect_fine(struct buf *b)
{
    struct err e = {0};
    if (read_and_free(b, &e) != 0)
        fail_msg("%s", e.text);
}

static void test_gguf_of_a_plain_model(void **state)
{
    (void)state;
    struct buf b = head(7, "llama");
    put_string(&b, "general.name", "SmolLM2");
    put_u32(&b, "llama.block_count", 30);
    put_u32(&b, "llama.context_length", 8192);
    put_u32(&b, "llama.embedding_length", 576);
    put_u32(&b, "llama.attention.head_count", 9);
    put_u32(&b, "llama.attention.head_count_kv", 3);
    expect_fine(&b);
    assert_string_equal(m.name, "SmolLM2");
    assert_string_equal(m.arch, "llama");
    assert_int_equal(m.context, 8192);
    assert_int_equal(kvsize_bytes(&m, f16(), 1), 23040);
}

static void test_gguf_without_kv_heads_has_as_many_as_heads(void **state)
{
    (void)state;
    struct buf b = head(4, "gpt2");
    put_u32(&b, "gpt2.block_count", 12);
    put_u32(&b, "gpt2.embedding_length", 768);
    put_u32(&b, "gpt2.attention.head_count", 12);
    expect_fine(&b);
    assert_int_equal(kvsize_bytes(&m, f16(), 1), 36864);
}

static void test_gguf_lists_by_layer(void **state)
{
    (void)state;
    struct buf b = head(4, "granitehybrid");
    put_u32(&b, "granitehybrid.block_count", 8);
    put_u32(&b, "granitehybrid.attention.key_length", 64);
    put_list(&b, "granitehybrid.attention.head_count_kv", GGUF_I32, "00040400");
    expect_fine(&b);
    assert_int_equal(count_attention(), 2);
    assert_int_equal(m.layers[3].k, 256);

    b = head(9, "gemma4");
    put_u32(&b, "gemma4.block_count", 6);
    put_u32(&b, "gemma4.attention.sliding_window", 512);
    put_list(&b, "gemma4.attention.sliding_window_pattern", GGUF_BOOL, "110110");
    put_u32(&b, "gemma4.attention.key_length", 512);
    put_u32(&b, "gemma4.attention.key_length_swa", 256);
    put_u32(&b, "gemma4.attention.value_length_swa", 256);
    put_u32(&b, "gemma4.attention.head_count_kv", 2);
    put_u32(&b, "gemma4.attention.shared_kv_layers", 2);
    expect_fine(&b);
    assert_int_equal(count_attention(), 4);
    assert_int_equal(count_windows(), 3);
    assert_int_equal(m.layers[0].k, 512);
    assert_int_equal(m.layers[2].k, 1024);
}

static void test_gguf_of_hybrid_and_window_models_follows_the_rule(void **state)
{
    (void)state;
    struct buf b = head(4, "qwen3next");
    put_u32(&b, "qwen3next.block_count", 48);
    put_u32(&b, "qwen3next.attention.key_length", 256);
    put_u32(&b, "qwen3next.attention.head_count_kv", 2);
    expect_fine(&b);
    assert_int_equal(kvsize_bytes(&m, f16(), 1), 24576);

    b = head(5, "gemma3");
    put_u32(&b, "gemma3.block_count", 62);
    put_u32(&b, "gemma3.attention.key_length", 128);
    put_u32(&b, "gemma3.attention.head_count_kv", 16);
    put_u32(&b, "gemma3.attention.sliding_window", 1024);
    expect_fine(&b);
    assert_int_equal(count_windows(), 52);

    /* llama.cpp keeps all tokens of a model whose layers all have a window. */
    b = head(5, "phi3");
    put_u32(&b, "phi3.block_count", 32);
    put_u32(&b, "phi3.attention.key_length", 96);
    put_u32(&b, "phi3.attention.head_count_kv", 32);
    put_u32(&b, "phi3.attention.sliding_window", 2047);
    expect_fine(&b);
    assert_int_equal(count_windows(), 0);
}

static void test_gguf_of_latent_models_before_and_after(void **state)
{
    (void)state;
    struct buf b = head(7, "deepseek2");
    put_u32(&b, "deepseek2.block_count", 61);
    put_u32(&b, "deepseek2.attention.kv_lora_rank", 512);
    put_u32(&b, "deepseek2.rope.dimension_count", 64);
    put_u32(&b, "deepseek2.attention.head_count_kv", 1);
    put_u32(&b, "deepseek2.attention.key_length", 576);
    put_u32(&b, "deepseek2.attention.key_length_mla", 192);
    expect_fine(&b);
    assert_int_equal(kvsize_bytes(&m, f16(), 1), 70272);

    b = head(7, "deepseek2");
    put_u32(&b, "deepseek2.block_count", 27);
    put_u32(&b, "deepseek2.attention.kv_lora_rank", 512);
    put_u32(&b, "deepseek2.rope.dimension_count", 64);
    put_u32(&b, "deepseek2.attention.head_count_kv", 16);
    put_u32(&b, "deepseek2.attention.key_length", 192);
    put_u32(&b, "deepseek2.attention.value_length", 128);
    expect_fine(&b);
    assert_int_equal(kvsize_bytes(&m, f16(), 1), 27 * 16 * (192 + 128) * 2);
}

static void test_gguf_layers_that_guess_further_tokens_do_not_count(void **state)
{
    (void)state;
    struct buf b = head(5, "glm4moe");
    put_u32(&b, "glm4moe.block_count", 47);
    put_u32(&b, "glm4moe.nextn_predict_layers", 1);
    put_u32(&b, "glm4moe.attention.key_length", 128);
    put_u32(&b, "glm4moe.attention.head_count_kv", 8);
    expect_fine(&b);
    assert_int_equal(m.n_layers, 46);
}

static void test_gguf_that_says_too_little(void **state)
{
    (void)state;
    struct err e = {0};
    struct buf b = head(2, "llama");
    put_u32(&b, "llama.block_count", 30);
    assert_int_equal(read_and_free(&b, &e), ERR_NOT_FOUND);
    assert_non_null(
        strstr(e.text, "attention.head_count_kv is missing: give --kv-heads"));

    e = (struct err){0};
    b = head(1, "rwkv7");
    assert_int_equal(read_and_free(&b, &e), ERR_UNSUPPORTED);
    assert_non_null(strstr(e.text, "\"rwkv7\" is not known here"));

    e = (struct err){0};
    b = head(2, "llama");
    put_string(&b, "llama.block_count", "30");
    assert_int_equal(read_and_free(&b, &e), ERR_FORMAT);
    assert_non_null(strstr(e.text, "block_count"));

    e = (struct err){0};
    b = head(3, "granitehybrid");
    put_u32(&b, "granitehybrid.block_count", 3);
    put_list(&b, "granitehybrid.attention.head_count_kv", GGUF_U32, "40");
    assert_int_equal(read_and_free(&b, &e), ERR_MISMATCH);
    assert_non_null(strstr(e.text, "KV heads of 2 layers are listed, of 3"));
}

static void test_gguf_damage_is_found(void **state)
{
    (void)state;
    static const struct {
        size_t at;
        int width;
        uint64_t value;
        int rc;
        const char *says;
    } cases[] = {
        {0, 1, 'X', ERR_FORMAT, "no GGUF"},
        {4, 4, 1, ERR_UNSUPPORTED, "version 1"},
        {4, 4, 3 << 24, ERR_UNSUPPORTED, "other byte order"},
        {8, 8, 1000, ERR_FORMAT, "too small for its tensors"},
        {8, 8, UINT64_MAX, ERR_FORMAT, "too small for its tensors"},
        {16, 8, 3, ERR_FORMAT, "ends inside"},
        {16, 8, 4096, ERR_FORMAT, "too small for its values"},
        {16, 8, 1u << 20, ERR_FORMAT, "at most 4096"},
        {24, 8, UINT64_MAX, ERR_FORMAT, "ends inside"},
        {52, 4, 13, ERR_FORMAT, "unknown type 13"},
        {52, 4, GGUF_ARRAY, ERR_FORMAT, "too small for"},
        {56, 8, 1u << 30, ERR_FORMAT, "ends inside"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct err e = {0};
        struct buf b = head(2, "llama");
        put_u32(&b, "llama.block_count", 30);
        for (int j = 0; j < cases[i].width; j++)
            b.data[b.start + cases[i].at + (size_t)j] = (char)(cases[i].value >> (8 * j));
        const int rc = read_and_free(&b, &e);
        if (rc != cases[i].rc || !strstr(e.text, cases[i].says))
            fail_msg("case %zu: %s: %s", i, err_name(rc), e.text);
    }
}

static void test_gguf_lists_are_checked_against_the_file(void **state)
{
    (void)state;
    static const enum gguf_type items[] = {GGUF_U8, GGUF_U64, GGUF_STRING};
    for (size_t i = 0; i < 3; i++) {
        struct err e = {0};
        struct buf b = head(2, "llama");
        put_key(&b, "words", GGUF_ARRAY);
        put(&b, items[i], 4);
        put(&b, UINT64_MAX / 4, 8);
        assert_int_equal(read_and_free(&b, &e), ERR_FORMAT);
        assert_non_null(strstr(e.text, "too small for"));
    }
    struct err e = {0};
    struct buf b = head(2, "llama");
    put_key(&b, "lists", GGUF_ARRAY);
    put(&b, GGUF_ARRAY, 4);
    put(&b, 0, 8);
    assert_int_equal(read_and_free(&b, &e), ERR_UNSUPPORTED);
}

static void test_gguf_names_are_there_once(void **state)
{
    (void)state;
    struct err e = {0};
    struct buf b = head(3, "llama");
    put_u32(&b, "llama.block_count", 30);
    put_u32(&b, "llama.block_count", 31);
    assert_int_equal(read_and_free(&b, &e), ERR_FORMAT);
    assert_non_null(strstr(e.text, "twice"));
}

static void test_gguf_asks_for_more_of_a_file_that_is_longer(void **state)
{
    (void)state;
    struct buf b = head(2, "llama");
    put_u32(&b, "llama.block_count", 30);
    for (size_t n = 0; n < buf_len(&b); n++) {
        struct gguf g;
        const struct slice part = slice_make(buf_slice(&b).ptr, n);
        const int rc = gguf_read(&g, part, buf_len(&b), NULL);
        assert_int_equal(rc, n < 4 ? ERR_FORMAT : ERR_LIMIT);
        assert_int_equal(gguf_read(&g, part, n, NULL), ERR_FORMAT);
    }
    struct gguf g;
    uint64_t n;
    assert_int_equal(gguf_read(&g, buf_slice(&b), buf_len(&b), NULL), 0);
    assert_true(gguf_number(gguf_find(&g, "llama.block_count"), 0, &n));
    assert_int_equal(n, 30);
    assert_false(gguf_number(gguf_find(&g, "general.architecture"), 0, &n));
    assert_null(gguf_find(&g, "llama.block"));
    gguf_free(&g);
    buf_free(&b);
}

static void test_gguf_numbers_below_zero_are_none(void **state)
{
    (void)state;
    struct buf b = head(3, "llama");
    put_key(&b, "minus", GGUF_I16);
    put(&b, 0xffff, 2);
    put_key(&b, "plus", GGUF_I16);
    put(&b, 0x7fff, 2);
    struct gguf g;
    uint64_t n;
    assert_int_equal(gguf_read(&g, buf_slice(&b), buf_len(&b), NULL), 0);
    assert_false(gguf_number(gguf_find(&g, "minus"), 0, &n));
    assert_true(gguf_number(gguf_find(&g, "plus"), 0, &n));
    assert_int_equal(n, 0x7fff);
    gguf_free(&g);
    buf_free(&b);
}

static void test_files_that_are_none(void **state)
{
    (void)state;
    static const char *const paths[] = {"tests/data/kvsize",
                                        "tests/data/kvsize/none.json",
                                        "tests/data/slotfiles/v2-empty.bin"};
    for (size_t i = 0; i < 3; i++) {
        struct err e = {0};
        assert_true(kvsize_from_file(&m, paths[i], &nothing, &e) < 0);
        assert_non_null(strstr(e.text, paths[i]));
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_gpt2_from_flags),
        cmocka_unit_test(test_four_heads_that_share_take_a_quarter),
        cmocka_unit_test(test_latent_rows_have_no_v),
        cmocka_unit_test(test_a_window_ends_the_growth_of_its_layers),
        cmocka_unit_test(test_what_fits_is_the_longest),
        cmocka_unit_test(test_largest_sequence_of_the_largest_model_does_not_overflow),
        cmocka_unit_test(test_flags_alone_have_to_be_enough),
        cmocka_unit_test(test_rows_of_192_values),
        cmocka_unit_test(test_quantized_rows_are_whole_blocks),
        cmocka_unit_test(test_real_slot_files_agree),
        cmocka_unit_test(test_published_models),
        cmocka_unit_test(test_a_key_that_a_published_config_leaves_out_can_be_given),
        cmocka_unit_test(test_layer_kinds_of_configs),
        cmocka_unit_test(test_one_kv_head_for_all_queries),
        cmocka_unit_test(test_configs_that_say_too_little_or_nonsense),
        cmocka_unit_test(test_names_are_made_printable),
        cmocka_unit_test(test_gguf_of_a_plain_model),
        cmocka_unit_test(test_gguf_without_kv_heads_has_as_many_as_heads),
        cmocka_unit_test(test_gguf_lists_by_layer),
        cmocka_unit_test(test_gguf_of_hybrid_and_window_models_follows_the_rule),
        cmocka_unit_test(test_gguf_of_latent_models_before_and_after),
        cmocka_unit_test(test_gguf_layers_that_guess_further_tokens_do_not_count),
        cmocka_unit_test(test_gguf_that_says_too_little),
        cmocka_unit_test(test_gguf_damage_is_found),
        cmocka_unit_test(test_gguf_lists_are_checked_against_the_file),
        cmocka_unit_test(test_gguf_names_are_there_once),
        cmocka_unit_test(test_gguf_asks_for_more_of_a_file_that_is_longer),
        cmocka_unit_test(test_gguf_numbers_below_zero_are_none),
        cmocka_unit_test(test_files_that_are_none),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
