#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Cuts the first group of sequences out of a recorded batch: how grpo_batch.safetensors was made.

    cut_rollouts.py ROLLOUTS.safetensors OUTPUT.safetensors [SEQUENCES]

Keeps the logits of the first SEQUENCES (4: one prompt's group) with everything per token and per sequence, leaves out hidden and
weight, and writes the counts of the cut into the metadata. Advantages are normalised within a group, so a whole group keeps its own;
that is checked. Only the standard library is needed.
"""
import json
import statistics
import struct
import sys

LEFT_OUT = ("hidden", "weight")
CODES = {"F32": "f", "I32": "i", "I64": "q"}


def read(path):
    """The metadata, and {name: (dtype, shape, bytes)}."""
    with open(path, "rb") as file:
        header = json.loads(file.read(struct.unpack("<Q", file.read(8))[0]))
        body = file.read()
    metadata = header.pop("__metadata__", {})
    return metadata, {name: (entry["dtype"], entry["shape"], body[slice(*entry["data_offsets"])])
                      for name, entry in header.items()}


def write(path, metadata, tensors):
    header = {"__metadata__": metadata}
    offset = 0
    for name, (dtype, shape, data) in tensors.items():
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [offset, offset + len(data)]}
        offset += len(data)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for _, _, data in tensors.values():
            file.write(data)


def numbers(tensor):
    dtype, _, data = tensor
    return [value for value, in struct.iter_unpack("<" + CODES[dtype], data)]


def head(tensor, count):
    """The first `count` of the first dimension."""
    dtype, shape, data = tensor
    return dtype, [count] + shape[1:], data[:len(data) // shape[0] * count]


def check_advantages(tensors, lengths, offsets):
    """Each sequence has one advantage, and they are its group's rewards less their mean, over the sample deviation."""
    rewards = numbers(tensors["rewards"])
    advantages = numbers(tensors["advantages"])
    mean, deviation = statistics.mean(rewards), statistics.stdev(rewards)
    for sequence, (length, offset) in enumerate(zip(lengths, offsets)):
        expected = (rewards[sequence] - mean) / deviation
        for row in range(offset, offset + length):
            if abs(advantages[row] - expected) > 1e-4:
                sys.exit(f"row {row}: advantage {advantages[row]}, but the group's rewards give {expected}: not a whole group?")


def counts(tensors, lengths, offsets):
    """Predicted tokens with mask (a sequence's first token is never predicted), and sequences with at least one."""
    token_mask, sample_mask = numbers(tensors["token_mask"]), numbers(tensors["sample_mask"])
    tokens = sequences = 0.0
    for sequence, (length, offset) in enumerate(zip(lengths, offsets)):
        predicted = sum(token_mask[offset + 1:offset + length]) * sample_mask[sequence]
        tokens += predicted
        sequences += sample_mask[sequence] if predicted > 0 else 0
    return tokens, sequences


def main():
    source, output = sys.argv[1:3]
    kept = int(sys.argv[3]) if len(sys.argv) > 3 else 4
    metadata, tensors = read(source)
    total = len(numbers(tensors["cu_seqlens"])) - 1
    all_rows = tensors["logits"][1][0]
    rows = numbers(tensors["cu_seqlens_padded"])[kept]
    keep_of = {all_rows: rows, total: kept, total + 1: kept + 1}
    cut = {name: head(tensor, keep_of[tensor[1][0]]) for name, tensor in tensors.items() if name not in LEFT_OUT}

    real, offsets = numbers(cut["cu_seqlens"]), numbers(cut["cu_seqlens_padded"])
    lengths = [end - begin for begin, end in zip(real, real[1:])]
    check_advantages(cut, lengths, offsets)
    tokens, sequences = counts(cut, lengths, offsets)
    write(output, {
        "kind": "packed_clipped_policy_gradient",
        "config": "{}",
        "global_valid_toks": repr(tokens),
        "global_valid_seqs": repr(sequences),
        "description": f"the first {kept} sequences (one prompt) of: {metadata['description']}",
        "layout": metadata["layout"],
    }, cut)
    print(f"{kept} sequences, {rows} rows, {tokens:.0f} valid tokens, {sequences:.0f} valid sequences")


if __name__ == "__main__":
    main()
