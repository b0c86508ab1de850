#!/usr/bin/env python3
"""Runs one layer of GPT-2's or BERT's shape in CrypTen, whose correlations come from a party that both trust.

    python3 -m venv venv && SKLEARN_ALLOW_DEPRECATED_SKLEARN_PACKAGE_INSTALL=True \
        venv/bin/pip install crypten==0.4.1 torch==2.5.1 torchvision==0.20.1
    venv/bin/python bench/peers/crypten/layer.py --layer encoder --link lan --out bench/results/data/peers-crypten-encoder-lan

Two parties and the trusted third one are processes on this machine. The bytes between the two pass the relay of
`beside.py`; the third one's way to party 0 is not slowed. The answer is compared with the layer in the clear.
"""

import argparse
import json
import os
import re
import statistics
import sys
import tempfile
import threading
import time
from pathlib import Path

import torch
import torch.distributed as distributed
import torch.multiprocessing as processes

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "spu"))

from beside import LAYERS, LINKS, SEED, SHAPE, TOLERANCE, machine  # noqa: E402
from link import Link, relay  # noqa: E402
from operands import operands  # noqa: E402

# Two that compute, and the third that both trust.
PARTIES = 3

# An IPv4 address of this machine as the library Gloo stores it: family, port, 127.0.0.1.
ADDRESS = re.compile(rb"(?<=\x02\x00)(..)(?=\x7f\x00\x00\x01)", re.DOTALL)


class Clear:
    """Functions of a layer in the clear."""

    gelu = staticmethod(torch.nn.functional.gelu)
    softmax = staticmethod(lambda x: x.softmax(-1))
    inverse_root = staticmethod(torch.rsqrt)
    join = staticmethod(lambda parts: torch.cat(parts, dim=1))


class Shared:
    """The same functions of shares. GELU, which CrypTen lacks, is PUMA's as in `spu_party.py`, with one comparison."""

    @staticmethod
    def gelu(x):
        import crypten

        below = crypten.stack([x + 4.0, x + 1.95, 3.0 - x]) < 0
        low, middle, high = (below[i] for i in range(3))
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


class Meeting(distributed.Store):
    """A file in which parties find each other, where the way between the two leads through the relay."""

    def __init__(self, folder, size, rank, parent):
        super().__init__()
        self.file, self.rank, self.parent = distributed.FileStore(f"{folder}/meeting", size), rank, parent
        self.own = {}

    def wait(self, *keys_and_timeout):
        self.file.wait(*keys_and_timeout)

    def add(self, key, amount):
        return self.file.add(key, amount)

    def set(self, key, value):
        if found := ADDRESS.search(value):
            self.own[key.rpartition("/")[0]] = found[0]
            # The key has the rank in a group, which may be that of a pair with the third party.
            self.file.set(f"{key} is of", str(self.rank))
        self.file.set(key, value)

    def get(self, key):
        value = self.file.get(key)
        found = ADDRESS.search(value)
        if not found or {self.rank, int(self.file.get(f"{key} is of"))} != {0, 1}:
            return value
        # Gloo compares ports as they lie in memory: the larger one connects, and must stay so beside the relay's.
        order = lambda port: int.from_bytes(port, "little")
        port = own = self.own[key.rpartition("/")[0]]
        if order(own) < order(found[0]):
            return value
        while order(port) >= order(own):
            port = ask(self.parent, "relay", int.from_bytes(found[0], "big")).to_bytes(2, "big")
        return ADDRESS.sub(lambda _: port, value, count=1)


def ask(parent, *question):
    """The answer of the process that has the relay."""
    parent.send(question)
    return parent.recv()


def answer(child, link, rank):
    """Answers the questions of a party."""
    while True:
        try:
            what, *rest = child.recv()
        except EOFError:
            return
        if what == "relay":
            child.send(relay(link, *rest, rank, duplex=True))
        elif what == "reset":
            child.send(link.reset())
        else:
            child.send({"bytes": sum(link.bytes), "flows": link.flows})


def party(rank, args, folder, parents):
    """A party of two, or the trusted third one (rank 2). Writes its runs into a file."""
    # Its name keeps the Python object alive, which the group alone does not.
    meeting = Meeting(folder, PARTIES, rank, parents[rank])
    distributed.register_rendezvous_handler("meeting", lambda *_, **__: iter([(meeting, rank, PARTIES)]))
    os.environ.update(
        WORLD_SIZE="2", RANK=str(rank), DISTRIBUTED_BACKEND="gloo", RENDEZVOUS="meeting://", GLOO_SOCKET_IFNAME="lo"
    )
    torch.set_num_threads(1)
    import crypten
    import crypten.communicator
    from crypten.config import cfg

    cfg.mpc.provider = "TTP"
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
        if rank == 0:
            ask(parents[0], "reset")
        talk.barrier()
        crypten.reset_communication_stats()
        start, cpu = time.monotonic(), time.process_time()
        result = layer(Shared, args.layer, SHAPE["heads"], values)
        taken = {"seconds": time.monotonic() - start, "cpu_seconds": time.process_time() - cpu}
        taken["counted"] = talk.get_communication_stats()
        talk.barrier()
        taken["passed"] = ask(parents[rank], "count")
        taken["error"] = float((result.get_plain_text() - expected).abs().max())
        if not taken["error"] < TOLERANCE:
            raise SystemExit(f"CrypTen's answer is off by {taken['error']}")
        runs.append(taken)
    Path(folder, f"runs{rank}").write_text(json.dumps(runs))


def joined(of_server, of_client):
    """One run out of what both parties say of it."""
    return {
        "seconds": max(of_server["seconds"], of_client["seconds"]),
        "cpu_seconds": of_server["cpu_seconds"] + of_client["cpu_seconds"],
        **of_server["passed"],
        "rounds": of_client["counted"]["rounds"],
        # CrypTen counts what a party sends and receives; the third party talks to party 0 alone.
        "third_bytes": round(of_server["counted"]["bytes"] - of_client["counted"]["bytes"]),
        "error": of_server["error"],
    }


def table(record):
    """The record as Markdown."""
    chosen, machine_, runs = record["options"], record["machine"], record["runs"]
    median = lambda key: statistics.median(run[key] for run in runs)
    seconds = [run["seconds"] for run in runs]
    return (
        f"{LAYERS[chosen['layer']].format(chosen['tokens'])} (width {SHAPE['width']}, {SHAPE['heads']} heads), "
        f"link `{chosen['link']}`. {machine_['processor']} ({', '.join(machine_['features'])}), "
        f"{machine_['cores']} cores, {machine_['date']}.\n\n"
        "| side | s (median) | least to most | MB | rounds | MB of the third party |\n|---|---|---|---|---|---|\n"
        f"| CrypTen 0.4.1, trusted third party | {median('seconds'):.3f} | {min(seconds):.3f} to {max(seconds):.3f} "
        f"| {median('bytes') / 1e6:.2f} | {round(median('rounds'))} | {median('third_bytes') / 1e6:.2f} |\n"
    )


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--link", choices=LINKS, default="lan")
    parser.add_argument("--layer", choices=LAYERS, default="decode", help="GPT-2's at a step or a prompt, or BERT's")
    parser.add_argument("--tokens", type=int, default=128, help="tokens in the cache, of the prompt, or of the text")
    parser.add_argument("--repeat", type=int, default=5, help="measured runs after one that warms up")
    parser.add_argument("--out", type=Path, help="write OUT.json and OUT.md")
    args = parser.parse_args()
    link = Link(*LINKS[args.link])
    parents, children = zip(*(processes.Pipe() for _ in range(PARTIES)), strict=True)
    for rank, child in enumerate(children):
        threading.Thread(target=answer, args=(child, link, rank), daemon=True).start()
    with tempfile.TemporaryDirectory() as folder:
        processes.spawn(party, (args, folder, parents), nprocs=PARTIES)
        sides = [json.loads(Path(folder, f"runs{rank}").read_text()) for rank in range(2)]
    options = {name: getattr(args, name) for name in ("layer", "tokens", "link", "repeat")}
    record = {
        "version": 1, "machine": machine(), "options": {**options, "shape": SHAPE, "seed": SEED},
        "runs": [joined(*pair) for pair in zip(*sides, strict=True)][1:],
    }  # fmt: skip
    text = table(record)
    print(text, end="")
    if args.out:
        args.out.with_suffix(".json").write_text(json.dumps(record, indent=1) + "\n")
        args.out.with_suffix(".md").write_text(text)


if __name__ == "__main__":
    main()
