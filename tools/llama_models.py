# SPDX-License-Identifier: MIT
"""Small models for tests, out of one real one: run inside the environment of llama_server.py.

    python tools/llama_models.py FULL FOLDER

"tiny" is the first two layers of FULL, "other" the same shape with the weights of the next two.
The rest have random weights (always the same ones), small layers and the tokenizer of FULL; each
stands for a kind of state that slots hold:

    swa        gemma3: five layers look back 64 tokens only, one looks back to the start
    hybrid     lfm2: two layers with attention, two with a short convolution
    recurrent  mamba2: no attention at all

"adapter" and "adapter2" are LoRA files for tiny.
"""

import os
import sys

import gguf
import numpy as np

TINY_LAYERS = 2
EMBD, HEAD, FFN = 64, 32, 128


def copy_key(writer, key, field, value=None):
    value, kind = field.contents() if value is None else value, field.types[0]
    if kind == gguf.GGUFValueType.ARRAY:
        writer.add_key_value(key, value, kind, sub_type=field.types[-1])
    else:
        writer.add_key_value(key, value, kind)


def finish(writer):
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def cut(full, path, first):
    """Two layers of FULL, from `first` on where the shapes allow it."""
    w = gguf.GGUFWriter(path, "llama")
    for key, field in full.fields.items():
        if not key.startswith("GGUF.") and key != "general.architecture":
            copy_key(w, key, field, TINY_LAYERS if key == "llama.block_count" else None)
    tensors = {t.name: t for t in full.tensors}
    for t in full.tensors:
        parts = t.name.split(".")
        source = t
        if parts[0] == "blk":
            if int(parts[1]) >= TINY_LAYERS:
                continue
            name = ".".join(["blk", str(int(parts[1]) + first), *parts[2:]])
            if tensors[name].tensor_type == t.tensor_type:
                source = tensors[name]
        w.add_tensor(t.name, source.data, raw_dtype=source.tensor_type)
    finish(w)


class Random:
    """A model of random weights."""

    def __init__(self, full, path, arch, layers):
        self.w = gguf.GGUFWriter(path, arch)
        self.dice = np.random.default_rng(1)
        self.vocab = len(full.fields["tokenizer.ggml.tokens"].data)
        for key, field in full.fields.items():
            if key.startswith("tokenizer."):
                copy_key(self.w, key, field)
        self.w.add_block_count(layers)
        self.w.add_context_length(8192)
        self.w.add_embedding_length(EMBD)
        self.w.add_vocab_size(self.vocab)
        self.w.add_layer_norm_rms_eps(1e-5)
        self.matrix("token_embd.weight", EMBD, self.vocab)

    def matrix(self, name, n_in, n_out):
        m = self.dice.standard_normal((n_out, n_in)) * n_in ** -0.5
        self.w.add_tensor(name, m.astype(np.float16))

    def vector(self, name, values):
        self.w.add_tensor(name, np.asarray(values, dtype=np.float32))

    def norm(self, name, n=EMBD):
        self.vector(name, np.ones(n))

    def attention(self, layer, heads=2):
        self.matrix(f"blk.{layer}.attn_q.weight", EMBD, heads * HEAD)
        self.matrix(f"blk.{layer}.attn_k.weight", EMBD, HEAD)
        self.matrix(f"blk.{layer}.attn_v.weight", EMBD, HEAD)
        self.matrix(f"blk.{layer}.attn_output.weight", heads * HEAD, EMBD)
        self.norm(f"blk.{layer}.attn_q_norm.weight", HEAD)
        self.norm(f"blk.{layer}.attn_k_norm.weight", HEAD)

    def feed_forward(self, layer):
        self.norm(f"blk.{layer}.ffn_norm.weight")
        self.matrix(f"blk.{layer}.ffn_gate.weight", EMBD, FFN)
        self.matrix(f"blk.{layer}.ffn_up.weight", EMBD, FFN)
        self.matrix(f"blk.{layer}.ffn_down.weight", FFN, EMBD)


def sliding_window(full, path):
    layers = 6
    m = Random(full, path, "gemma3", layers)
    m.w.add_head_count(2)
    m.w.add_head_count_kv(1)
    m.w.add_key_length(HEAD)
    m.w.add_value_length(HEAD)
    m.w.add_feed_forward_length(FFN)
    m.w.add_sliding_window(64)
    m.w.add_rope_freq_base(1e6)
    for i in range(layers):
        m.norm(f"blk.{i}.attn_norm.weight")
        m.attention(i)
        m.norm(f"blk.{i}.post_attention_norm.weight")
        m.feed_forward(i)
        m.norm(f"blk.{i}.post_ffw_norm.weight")
    m.norm("output_norm.weight")
    finish(m.w)


def hybrid(full, path):
    layers, width = 4, 3
    m = Random(full, path, "lfm2", layers)
    m.w.add_head_count(2)
    m.w.add_head_count_kv([0, 1, 0, 1])
    m.w.add_feed_forward_length(FFN)
    m.w.add_shortconv_l_cache(width)
    m.w.add_rope_freq_base(1e6)
    for i in range(layers):
        m.norm(f"blk.{i}.attn_norm.weight")
        if i % 2:
            m.attention(i)
        else:
            m.vector(f"blk.{i}.shortconv.conv.weight", m.dice.standard_normal((EMBD, width)))
            m.matrix(f"blk.{i}.shortconv.in_proj.weight", EMBD, 3 * EMBD)
            m.matrix(f"blk.{i}.shortconv.out_proj.weight", EMBD, EMBD)
        m.feed_forward(i)
    m.norm("token_embd_norm.weight")
    finish(m.w)


def recurrent(full, path):
    layers, inner, state, groups, heads, width = 2, 2 * EMBD, 16, 1, 4, 4
    conv = inner + 2 * groups * state
    m = Random(full, path, "mamba2", layers)
    m.w.add_head_count(0)
    m.w.add_feed_forward_length(0)
    m.w.add_ssm_conv_kernel(width)
    m.w.add_ssm_inner_size(inner)
    m.w.add_ssm_state_size(state)
    m.w.add_ssm_time_step_rank(heads)
    m.w.add_ssm_group_count(groups)
    for i in range(layers):
        m.norm(f"blk.{i}.attn_norm.weight")
        m.matrix(f"blk.{i}.ssm_in.weight", EMBD, inner + conv + heads)
        m.vector(f"blk.{i}.ssm_conv1d.weight", m.dice.standard_normal((conv, width)))
        m.vector(f"blk.{i}.ssm_conv1d.bias", np.zeros(conv))
        m.vector(f"blk.{i}.ssm_dt.bias", np.full(heads, -3))
        m.vector(f"blk.{i}.ssm_a", -np.arange(1, heads + 1).reshape(heads, 1) / 8)
        m.vector(f"blk.{i}.ssm_d", np.ones((heads, 1)))
        m.vector(f"blk.{i}.ssm_norm.weight", np.ones((groups, inner // groups)))
        m.matrix(f"blk.{i}.ssm_out.weight", inner, EMBD)
    m.norm("output_norm.weight")
    m.matrix("output.weight", EMBD, m.vocab)
    finish(m.w)


def adapter(full, path, seed):
    rank, n = 4, full.fields["llama.embedding_length"].contents()
    dice = np.random.default_rng(seed)
    w = gguf.GGUFWriter(path, "llama")
    w.add_type("adapter")
    w.add_string("adapter.type", "lora")
    w.add_float32("adapter.lora.alpha", 8.0)
    for layer in range(TINY_LAYERS):
        name = f"blk.{layer}.attn_q.weight.lora_"
        for part, shape in (("a", (rank, n)), ("b", (n, rank))):
            w.add_tensor(name + part, dice.standard_normal(shape).astype(np.float32) * 0.1)
    finish(w)


MODELS = {
    "tiny": lambda full, path: cut(full, path, 0),
    "other": lambda full, path: cut(full, path, TINY_LAYERS),
    "swa": sliding_window,
    "hybrid": hybrid,
    "recurrent": recurrent,
    "adapter": lambda full, path: adapter(full, path, 1),
    "adapter2": lambda full, path: adapter(full, path, 2),
}


def make(full_path, folder):
    full = gguf.GGUFReader(full_path)

    def path(name):
        return os.path.join(folder, f"{name}.gguf")

    for name, how in MODELS.items():   # whole or absent, also for who has it open
        how(full, path(name + ".new"))
        os.replace(path(name + ".new"), path(name))


if __name__ == "__main__":
    make(*sys.argv[1:3])
