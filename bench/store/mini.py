# SPDX-License-Identifier: MIT
"""A model that is quick on a busy machine: the tokenizer and template of SmolLM2, its KV
rows in two layers, and random weights an eighth of the size. Hit rates do not depend on
what a model says; times on it are those of nothing real.

    build/llama/venv/bin/python bench/store/mini.py FULL.gguf MINI.gguf
"""

import os
import sys

import gguf
import numpy

LAYERS, WIDTH, HEADS, HEAD, FORWARD = 2, 64, 3, 64, 192
OVERRIDES = {
    "llama.block_count": LAYERS, "llama.embedding_length": WIDTH,
    "llama.feed_forward_length": FORWARD, "llama.attention.head_count": HEADS,
    "llama.attention.head_count_kv": HEADS, "llama.rope.dimension_count": HEAD,
}


def copy_fields(reader, writer):
    for key, field in reader.fields.items():
        if key.startswith("GGUF.") or key in ("general.architecture", "general.file_type"):
            continue
        value, kind = field.contents(), field.types[0]
        value = OVERRIDES.get(key, value)
        if kind == gguf.GGUFValueType.ARRAY:
            writer.add_key_value(key, value, kind, sub_type=field.types[-1])
        else:
            writer.add_key_value(key, value, kind)


def add_tensors(writer, n_vocab):
    rng = numpy.random.default_rng(1)

    def matrix(name, rows, columns):
        data = rng.standard_normal((rows, columns)) / numpy.sqrt(columns)
        writer.add_tensor(name, data.astype(numpy.float32))

    def ones(name):
        writer.add_tensor(name, numpy.ones(WIDTH, numpy.float32))
    matrix("token_embd.weight", n_vocab, WIDTH)
    ones("output_norm.weight")
    for i in range(LAYERS):
        ones(f"blk.{i}.attn_norm.weight")
        ones(f"blk.{i}.ffn_norm.weight")
        for name in ("attn_q", "attn_k", "attn_v"):
            matrix(f"blk.{i}.{name}.weight", HEADS * HEAD, WIDTH)
        matrix(f"blk.{i}.attn_output.weight", WIDTH, HEADS * HEAD)
        matrix(f"blk.{i}.ffn_gate.weight", FORWARD, WIDTH)
        matrix(f"blk.{i}.ffn_up.weight", FORWARD, WIDTH)
        matrix(f"blk.{i}.ffn_down.weight", WIDTH, FORWARD)


def main(full, mini):
    reader = gguf.GGUFReader(full)
    writer = gguf.GGUFWriter(mini + ".part", "llama")
    copy_fields(reader, writer)
    for name in ("key_length", "value_length"):
        writer.add_uint32(f"llama.attention.{name}", HEAD)
    add_tensors(writer, len(reader.fields["tokenizer.ggml.tokens"].data))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    os.rename(mini + ".part", mini)


if __name__ == "__main__":
    main(*sys.argv[1:])
