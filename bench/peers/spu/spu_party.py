"""One party of SPU's Cheetah backend with one layer of GPT-2 or BERT. `beside.py` starts two of these.

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


def layer(kind, heads):
    """A layer on `x`, [rows, width]: a decoding step on a cache `keys`, `values` [heads, tokens, width / heads], a
    prompt, of whose tokens none attends to later ones, or all tokens of an encoder, which has its norms after."""

    def attend(x, cache, wqkv, bqkv):
        rows, width = x.shape
        size = width // heads
        q, k, v = jnp.split(x @ wqkv + bqkv, 3, axis=1)
        q, k, v = (t.reshape(rows, heads, size).transpose(1, 0, 2) for t in (q, k, v))
        if cache:
            k, v = (jnp.concatenate([old, new], axis=1) for old, new in zip(cache, (k, v), strict=True))
        scores = jnp.matmul(q, k.transpose(0, 2, 1)) * (1.0 / np.sqrt(size))
        if kind == "prompt":
            # Far enough below all others that the softmax leaves it out.
            scores = scores + np.triu(np.full((rows, rows), -40.0, dtype=np.float32), 1)
        return jnp.matmul(softmax(scores), v).transpose(1, 0, 2).reshape(rows, width)

    def run(x, *rest):
        cache, weights = rest[:-12], rest[-12:]
        g1, b1, wqkv, bqkv, wo, bo, g2, b2, wi, bi, wd, bd = weights
        if kind == "encoder":
            x = norm(x + attend(x, cache, wqkv, bqkv) @ wo + bo, g1, b1)
            return norm(x + gelu(x @ wi + bi) @ wd + bd, g2, b2)
        x = x + attend(norm(x, g1, b1), cache, wqkv, bqkv) @ wo + bo
        return x + gelu(norm(x, g2, b2) @ wi + bi) @ wd + bd

    return run


def inputs(kind):
    """How many operands are shared; the rest belongs to the server."""
    return 3 if kind == "decode" else 1


def operands(kind, width, heads, tokens, seed):
    """Random operands of the layer, the shared ones first."""
    rng = np.random.default_rng(seed)
    size, inner = width // heads, 4 * width
    draw = lambda *shape, scale=1.0: (rng.standard_normal(shape) * scale).astype(np.float32)
    weight = lambda rows, columns: draw(rows, columns, scale=rows**-0.5)
    public = [draw(tokens, width)]
    if kind == "decode":
        public = [draw(1, width), draw(heads, tokens, size, scale=0.5), draw(heads, tokens, size, scale=0.5)]
    affine = lambda: [1.0 + draw(width, scale=0.1), draw(width, scale=0.1)]
    return public + [
        *affine(), weight(width, 3 * width), draw(3 * width, scale=0.1), weight(width, width), draw(width, scale=0.1),
        *affine(), weight(width, inner), draw(inner, scale=0.1), weight(inner, width), draw(width, scale=0.1),
    ]  # fmt: skip


def config():
    """The Cheetah backend as SPU ships it, over 64 bits, with weights held by their owner."""
    from spu import libspu

    chosen = libspu.RuntimeConfig(protocol=libspu.ProtocolKind.CHEETAH, field=libspu.FieldType.FM64)
    chosen.fxp_fraction_bits = 18
    chosen.experimental_enable_colocated_optimization = True
    return chosen


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--rank", type=int, required=True)
    parser.add_argument("--hosts", nargs=2, required=True)
    parser.add_argument("--shares", required=True)
    parser.add_argument("--layer", required=True)
    parser.add_argument("--shape", type=int, nargs=4, required=True, metavar=("WIDTH", "HEADS", "TOKENS", "SEED"))
    args = parser.parse_args()
    from spu import api, libspu
    from spu.utils import frontend

    width, heads, tokens, seed = args.shape
    values = operands(args.layer, width, heads, tokens, seed)
    names = [f"in{i}" for i in range(len(values))]
    executable, _ = frontend.compile(
        frontend.Kind.JAX, layer(args.layer, heads), values, {}, names, [libspu.Visibility.VIS_SECRET] * len(values),
        lambda outputs: [f"out{i}" for i in range(len(outputs))],
    )  # fmt: skip
    desc = libspu.link.Desc()
    desc.recv_timeout_ms = 600_000
    desc.http_timeout_ms = 600_000
    for rank, host in enumerate(args.hosts):
        desc.add_party(f"party{rank}", host)
    runtime = api.Runtime(libspu.link.create_brpc(desc, args.rank), config())
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
