#!/usr/bin/env python3
"""Runs one layer of GPT-2's or BERT's shape in CrypTen, whose correlations come from a party that both trust.

    python3 -m venv venv && SKLEARN_ALLOW_DEPRECATED_SKLEARN_PACKAGE_INSTALL=True \
        venv/bin/pip install crypten==0.4.1 torch==2.5.1 torchvision==0.20.1
    venv/bin/python bench/peers/crypten/layer.py --layer encoder --repeat 5 --out bench/results/peers-crypten-encoder

Two parties and the trusted third one are processes on this machine, and talk over its loopback. The answer is compared
with the layer in the clear. Bytes and rounds are those that CrypTen counts.
"""

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path

import torch
import torch.multiprocessing as processes

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "spu"))

from operands import operands  # noqa: E402

SHAPE = {"width": 768, "heads": 12}
SEED = 7
TOLERANCE = 0.05


class Clear:
    """Functions of a layer in the clear."""

    gelu = staticmethod(lambda x: torch.nn.functional.gelu(x, approximate="tanh"))
    softmax = staticmethod(lambda x: x.softmax(-1))
    inverse_root = staticmethod(torch.rsqrt)
    join = staticmethod(lambda parts: torch.cat(parts, dim=1))


class Shared:
    """The same functions of shares. GELU, which CrypTen lacks, is PUMA's as in `spu_party.py`, with one comparison."""

    @staticmethod
    def gelu(x):
        import crypten

        low, middle, high = (crypten.stack([x + 4.0, x + 1.95, 3.0 - x]) < 0)[:]
        x2 = x.square()
        x4 = x2.square()
        x3, x6 = x2 * x, x4 * x2
        left = -0.011034134030615728 * x3 - 0.11807612951181953 * x2 - 0.42226581151983866 * x - 0.5054031199708174
        centre = 0.0018067462606141187 * x6 - 0.037688200365904236 * x4 + 0.3603292692789629 * x2 + 0.5 * x
        return left * (middle - low) + (centre + 0.008526321541038084) * (1 - middle - high) + x * high

    softmax = staticmethod(lambda x: x.softmax(-1))
    inverse_root = staticmethod(lambda x: x.inv_sqrt())

    @staticmethod
    def join(parts):
        import crypten

        return crypten.cat(parts, dim=1)


def norm(f, x, gain, bias):
    """Layer normalisation with the epsilon that SPU's layer has."""
    centred = x - x.mean(-1, keepdim=True)
    variance = (centred * centred).mean(-1, keepdim=True)
    return centred * f.inverse_root(variance + 1e-3) * gain + bias


def attention(f, x, cache, heads, causal, wqkv, bqkv, wo, bo):
    """Attention of the rows of `x` to each other, and to a cache of keys and values [heads, cached, width / heads]."""
    rows, width = x.shape
    split = lambda t: t.reshape(rows, heads, width // heads).transpose(0, 1)
    qkv = x.matmul(wqkv) + bqkv
    q, k, v = (split(qkv[:, i * width : (i + 1) * width]) for i in range(3))
    if cache:
        k, v = f.join([cache[0], k]), f.join([cache[1], v])
    scores = q.matmul(k.transpose(1, 2)) * (width // heads) ** -0.5
    if causal:
        scores = scores + torch.full((rows, rows), -100.0).triu(1)
    return f.softmax(scores).matmul(v).transpose(0, 1).reshape(rows, width).matmul(wo) + bo


def layer(f, kind, heads, values):
    """GPT-2's layer at a decoding step or at a prompt, or BERT's."""
    x, *cache = values[:-12]
    g1, b1, wqkv, bqkv, wo, bo, g2, b2, wi, bi, wd, bd = values[-12:]
    if kind == "encoder":
        x = norm(f, x + attention(f, x, cache, heads, False, wqkv, bqkv, wo, bo), g1, b1)
        return norm(f, x + f.gelu(x.matmul(wi) + bi).matmul(wd) + bd, g2, b2)
    x = x + attention(f, norm(f, x, g1, b1), cache, heads, kind == "prompt", wqkv, bqkv, wo, bo)
    return x + f.gelu(norm(f, x, g2, b2).matmul(wi) + bi).matmul(wd) + bd


def party(rank, args, folder):
    """A party of two, or the trusted third one (rank 2). Writes its runs into a file."""
    os.environ.update(
        WORLD_SIZE="2", RANK=str(rank), DISTRIBUTED_BACKEND="gloo", RENDEZVOUS=f"file://{folder}/meeting",
        GLOO_SOCKET_IFNAME="lo",
    )  # fmt: skip
    torch.set_num_threads(1)
    import crypten
    import crypten.communicator
    from crypten.config import cfg

    cfg.mpc.provider = args.provider
    cfg.communicator.verbose = True
    if rank == 2:
        crypten.mpc.provider.TTPServer()
        return
    crypten.init()
    shared, values = operands(args.layer, SHAPE["width"], SHAPE["heads"], args.tokens, SEED)
    values = [torch.from_numpy(value) for value in values]
    expected = layer(Clear, args.layer, SHAPE["heads"], values)
    # The client, party 1, has the input; the weights are the server's, and CrypTen shares both.
    values = [crypten.cryptensor(value, src=1 if i < shared else 0) for i, value in enumerate(values)]
    talk, runs = crypten.communicator.get(), []
    for _ in range(args.repeat + 1):
        talk.barrier()
        crypten.reset_communication_stats()
        start, cpu = time.monotonic(), time.process_time()
        answer = layer(Shared, args.layer, SHAPE["heads"], values)
        taken = {"seconds": time.monotonic() - start, "cpu_seconds": time.process_time() - cpu}
        taken.update(talk.get_communication_stats())
        taken["error"] = float((answer.get_plain_text() - expected).abs().max())
        runs.append(taken)
    Path(folder, f"runs{rank}").write_text(json.dumps(runs))


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--layer", choices=("decode", "prompt", "encoder"), default="encoder")
    parser.add_argument("--tokens", type=int, default=128, help="tokens in the cache, of the prompt, or of the text")
    parser.add_argument("--provider", choices=("TTP", "TFP"), default="TTP", help="a third party, or party 0 itself")
    parser.add_argument("--repeat", type=int, default=5, help="measured runs after one that warms up")
    parser.add_argument("--out", type=Path, help="write OUT.json")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        processes.spawn(party, (args, folder), nprocs=3 if args.provider == "TTP" else 2)
        runs = [json.loads(Path(folder, f"runs{rank}").read_text()) for rank in range(2)]
    print(json.dumps(runs, indent=1))


if __name__ == "__main__":
    main()
