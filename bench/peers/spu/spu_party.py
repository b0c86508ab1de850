"""One party of SPU with one layer of GPT-2 or BERT, or one operation. `beside.py` starts two of these, or three.

Reads `run` on standard input, answers with a line of JSON. The layer's exponential, reciprocal and inverse root are
SPU's own; GELU is PUMA's piecewise polynomial (Dong et al., "PUMA", 2023, equation 6), which is what SPU's examples of
language models put in the place of `tanh`.
"""

import argparse
import json
import pickle
import sys
import time

import jax.numpy as jnp
import numpy as np
from operands import operands


def gelu(x):
    """PUMA's GELU: two polynomials between -4 and 3."""
    low, middle, high = x < -4.0, x < -1.95, x > 3.0
    x2 = x * x
    x3, x4 = x2 * x, x2 * x2
    x6 = x3 * x3
    left = -0.011034134030615728 * x3 - 0.11807612951181953 * x2 - 0.42226581151983866 * x - 0.5054031199708174
    centre = (
        0.0018067462606141187 * x6 - 0.037688200365904236 * x4 + 0.3603292692789629 * x2 + 0.5 * x + 0.008526321541038084
    )
    below = jnp.where(low, 0.0, left)
    return jnp.where(high, x, jnp.where(middle, below, centre))


def softmax(x):
    """Softmax over the last axis; the exponential is taken where it is not negligible (PUMA, section 4.2)."""
    shifted = x - jnp.max(x, axis=-1, keepdims=True)
    weights = jnp.exp(shifted) * (shifted > -14.0)
    return weights / jnp.sum(weights, axis=-1, keepdims=True)


def norm(x, gain, bias):
    """Layer normalisation without an epsilon that fixed point could not hold."""
    centred = x - jnp.mean(x, axis=-1, keepdims=True)
    variance = jnp.mean(centred * centred, axis=-1, keepdims=True)
    return centred * (1.0 / jnp.sqrt(variance + 1e-3)) * gain + bias


def attention(x, cache, heads, causal, wqkv, bqkv, wo, bo):
    """Attention of the rows of `x` to each other, and to a cache of keys and values [heads, cached, width / heads]."""
    rows, width = x.shape
    size = width // heads
    split = lambda t: t.reshape(rows, heads, size).transpose(1, 0, 2)
    q, k, v = (split(t) for t in jnp.split(x @ wqkv + bqkv, 3, axis=1))
    if cache:
        k, v = (jnp.concatenate([old, new], axis=1) for old, new in zip(cache, (k, v), strict=True))
    scores = jnp.matmul(q, k.transpose(0, 2, 1)) * (1.0 / np.sqrt(size))
    if causal:
        # The mask is public: what is below -14 counts as nothing.
        scores = scores + np.triu(np.full((rows, rows), -100.0, np.float32), 1)
    mixed = jnp.matmul(softmax(scores), v).transpose(1, 0, 2).reshape(rows, width)
    return mixed @ wo + bo


def layer(kind, heads):
    """A function of a layer's operands: GPT-2's at a decoding step or at a prompt, or BERT's; or a single operation."""

    def before(x, *rest):
        """GPT-2 normalises before its two parts."""
        *cache, g1, b1, wqkv, bqkv, wo, bo, g2, b2, wi, bi, wd, bd = rest
        x = x + attention(norm(x, g1, b1), cache, heads, kind == "prompt", wqkv, bqkv, wo, bo)
        return x + gelu(norm(x, g2, b2) @ wi + bi) @ wd + bd

    def after(x, g1, b1, wqkv, bqkv, wo, bo, g2, b2, wi, bi, wd, bd):
        """BERT normalises after them, and every row sees every other."""
        x = norm(x + attention(x, [], heads, False, wqkv, bqkv, wo, bo), g1, b1)
        return norm(x + gelu(x @ wi + bi) @ wd + bd, g2, b2)

    operations = {"gelu": gelu, "softmax": softmax, "compare": lambda x: x < 0.0}
    return operations.get(kind, after if kind == "encoder" else before)


def config(parties):
    """SPU's backend of so many parties as it ships, over 64 bits; of two, with weights held by their owner."""
    from spu import libspu

    protocol = libspu.ProtocolKind.CHEETAH if parties == 2 else libspu.ProtocolKind.ABY3
    chosen = libspu.RuntimeConfig(protocol=protocol, field=libspu.FieldType.FM64)
    chosen.fxp_fraction_bits = 18
    chosen.experimental_enable_colocated_optimization = parties == 2
    return chosen


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--rank", type=int, required=True)
    parser.add_argument("--hosts", nargs="+", required=True)
    parser.add_argument("--shares", required=True)
    parser.add_argument("--layer", required=True)
    parser.add_argument("--shape", type=int, nargs=4, required=True, metavar=("WIDTH", "HEADS", "TOKENS", "SEED"))
    args = parser.parse_args()
    from spu import api, libspu
    from spu.utils import frontend

    width, heads, tokens, seed = args.shape
    _, values = operands(args.layer, width, heads, tokens, seed)
    names = [f"in{i}" for i in range(len(values))]
    # One reciprocal of a softmax's sum in the place of a division of each word, as in SPU's examples.
    options = libspu.CompilerOptions(enable_optimize_denominator_with_broadcast=True)
    executable, _ = frontend.compile(
        frontend.Kind.JAX, layer(args.layer, heads), values, {}, names, [libspu.Visibility.VIS_SECRET] * len(values),
        lambda outputs: [f"out{i}" for i in range(len(outputs))], copts=options,
    )  # fmt: skip
    desc = libspu.link.Desc()
    desc.recv_timeout_ms = 600_000
    desc.http_timeout_ms = 600_000
    for rank, host in enumerate(args.hosts):
        desc.add_party(f"party{rank}", host)
    runtime = api.Runtime(libspu.link.create_brpc(desc, args.rank), config(len(args.hosts)))
    with open(args.shares, "rb") as file:
        for name, (meta, chunks) in zip(names, pickle.load(file), strict=True):
            share = libspu.Share()
            share.meta, share.share_chunks = meta, chunks
            runtime.set_var(name, share)
    print(json.dumps({"ready": True}), flush=True)
    for line in sys.stdin:
        if line.strip() != "run":
            break
        start, cpu = time.monotonic(), time.process_time()
        runtime.run(executable)
        taken = {"seconds": time.monotonic() - start, "cpu_seconds": time.process_time() - cpu}
        out = runtime.get_var("out0")
        taken["share"] = [out.meta.hex(), [chunk.hex() for chunk in out.share_chunks]]
        print(json.dumps(taken), flush=True)


if __name__ == "__main__":
    main()
