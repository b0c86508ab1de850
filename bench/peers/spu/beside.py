#!/usr/bin/env python3
"""Runs one layer of GPT-2's or BERT's shape in SPU's Cheetah backend and in Waggle, in turn, over the same relay.

    python3 -m venv venv && venv/bin/pip install spu==0.9.5
    cargo build --release
    venv/bin/python bench/peers/spu/beside.py --link lan --repeat 5 --out bench/results/peers-lan

Both sides are two processes on this machine; their bytes pass one relay (`link.py`) that imitates the network and
counts. Neither side encrypts the connection. Each side's answer is compared with the layer in the clear.
"""

import argparse
import json
import os
import pickle
import platform
import statistics
import subprocess
import sys
import tempfile
from datetime import datetime, timezone
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))

from link import Link, relay  # noqa: E402

# The names and numbers of `waggle --link`: bytes a second, and seconds one way.
LINKS = {
    "loopback": (0, 0.0),
    "lan": (377_000_000, 0.00015),
    "lan-1g": (125_000_000, 0.00025),
    "wan": (50_000_000, 0.002),
    "wan-far": (12_500_000, 0.040),
}
SHAPE = {"width": 768, "heads": 12}
SEED = 7
LAYERS = {
    "decode": "One decoding step of a layer of GPT-2 small on {} cached tokens",
    "prompt": "One layer of GPT-2 small on a prompt of {} tokens",
    "encoder": "One layer of BERT-base on a text of {} tokens",
}


def free_port():
    """A port that nobody listens to at the moment."""
    import socket

    with socket.create_server(("127.0.0.1", 0)) as probe:
        return probe.getsockname()[1]


class Spu:
    """Two parties of SPU that hold one layer and wait."""

    name = "SPU 0.9.5, Cheetah"

    def __init__(self, link, layer, tokens, folder):
        import spu_party
        from spu import api, libspu

        self.link = link
        values = spu_party.operands(layer, SHAPE["width"], SHAPE["heads"], tokens, SEED)
        io = api.Io(2, spu_party.config())
        shares = [[], []]
        for i, value in enumerate(values):
            # The input and the cache are shared; the weights lie at the server, who is party 0.
            owner = -1 if i < spu_party.inputs(layer) else 0
            for rank, share in enumerate(io.make_shares(value, libspu.Visibility.VIS_SECRET, owner)):
                shares[rank].append((bytes(share.meta), [bytes(chunk) for chunk in share.share_chunks]))
        self.io, self.libspu = io, libspu
        import jax

        self.expected = jax.jit(spu_party.layer(layer, SHAPE["heads"]))(*values)
        ports = [free_port(), free_port()]
        # A party's own address is where it listens; the other's leads through the relay.
        to_server = relay(link, ports[0], 1, duplex=False)
        to_client = relay(link, ports[1], 0, duplex=False)
        hosts = [[ports[0], to_client], [to_server, ports[1]]]
        self.parties = []
        for rank in range(2):
            file = folder / f"shares{rank}"
            file.write_bytes(pickle.dumps(shares[rank]))
            addresses = [f"127.0.0.1:{port}" for port in hosts[rank]]
            shape = [str(n) for n in (SHAPE["width"], SHAPE["heads"], tokens, SEED)]
            command = [sys.executable, str(HERE / "spu_party.py"), "--rank", str(rank), "--hosts", *addresses]
            command += ["--shares", str(file), "--layer", layer, "--shape", *shape]
            log = open(folder / f"spu{rank}.log", "w")
            self.parties.append(
                subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True)
            )
        for party in self.parties:
            self.answer(party)

    @staticmethod
    def answer(party):
        """The next line of JSON of a party, whose library may print other lines."""
        for line in party.stdout:
            if line.startswith("{"):
                return json.loads(line)
        raise SystemExit(f"a party of SPU ended with code {party.wait()}")

    def run(self):
        """One step of the layer."""
        import numpy as np

        self.link.reset()
        for party in self.parties:
            party.stdin.write("run\n")
            party.stdin.flush()
        answers = [self.answer(party) for party in self.parties]
        shares = []
        for answer in answers:
            meta, chunks = answer["share"]
            share = self.libspu.Share()
            share.meta, share.share_chunks = bytes.fromhex(meta), [bytes.fromhex(chunk) for chunk in chunks]
            shares.append(share)
        error = float(np.max(np.abs(self.io.reconstruct(shares) - np.asarray(self.expected))))
        if not error < 0.05:
            raise SystemExit(f"SPU's answer is off by {error}")
        return {
            "seconds": max(answer["seconds"] for answer in answers),
            "cpu_seconds": sum(answer["cpu_seconds"] for answer in answers),
            "bytes": sum(self.link.bytes),
            "flows": self.link.flows,
            "error": error,
        }

    def close(self):
        for party in self.parties:
            party.stdin.close()
            party.wait(timeout=30)


class Waggle:
    """Sessions of Waggle with a model of one layer or two; the first layer's part is taken out of the report."""

    def __init__(self, binary, link, link_name, layer, tokens, phases, folder):
        self.binary, self.link, self.layer, self.tokens, self.folder = binary, link, layer, tokens, folder
        self.name = f"Waggle, {'one phase' if phases == 1 else 'two phases, online'}"
        self.terms = [] if link_name == "loopback" else ["--plan-for", link_name]
        self.chosen = ["--preprocess=true"] if phases == 2 else []
        self.model = folder / "model"
        if not self.model.exists():
            # Of a last layer the rows that nobody reads are left out, so that a whole one needs one behind it.
            layers = 1 if layer == "decode" else 2
            config = {
                "model_type": "gpt2", "architectures": ["GPT2LMHeadModel"], "vocab_size": 256, "n_positions": 1024,
                "n_embd": SHAPE["width"], "n_head": SHAPE["heads"], "n_layer": layers, "layer_norm_epsilon": 1e-5,
                "activation_function": "gelu_new",
            }  # fmt: skip
            if layer == "encoder":
                config = {
                    "model_type": "bert", "architectures": ["BertForSequenceClassification"], "vocab_size": 256,
                    "hidden_size": SHAPE["width"], "num_hidden_layers": layers, "num_attention_heads": SHAPE["heads"],
                    "intermediate_size": 4 * SHAPE["width"], "max_position_embeddings": 512, "type_vocab_size": 2,
                    "layer_norm_eps": 1e-12, "hidden_act": "gelu",
                }  # fmt: skip
            (folder / "config.json").write_text(json.dumps(config))
            self.command("synth", "--config", folder / "config.json", "--out", self.model)

    def command(self, *arguments):
        done = subprocess.run([self.binary, *map(str, arguments)], capture_output=True, text=True)
        if done.returncode:
            raise SystemExit(f"waggle {arguments[0]}: {done.stderr.strip()}")
        return done.stdout

    def run(self):
        """One session: the layer's part of its prompt, or the mean of its part of the steps after that.

        In one phase all is made at once, so that what the session books as preparation counts with the rest, except
        in a step, where it is the prompt's.
        """
        port = free_port()
        report = self.folder / "report.json"
        log = open(self.folder / "serve.log", "w")
        serve = subprocess.Popen(
            [self.binary, "serve", "--model", self.model, "--listen", f"127.0.0.1:{port}", "--insecure-plaintext",
             "--skip-range-check", *self.terms],
            stdout=subprocess.PIPE, stderr=log, text=True,
        )  # fmt: skip
        # Its first line says that it listens.
        if not serve.stdout.readline():
            raise SystemExit(f"waggle serve ended with code {serve.wait()}")
        try:
            address = f"127.0.0.1:{relay(self.link, port, 1, duplex=True)}"
            ids = ",".join(str(i % 251) for i in range(self.tokens))
            generated = 3 if self.layer == "decode" else 1
            self.command(
                "generate", "--connect", address, "--insecure-plaintext", "--prompt-ids", ids, "--tokens", generated,
                "--json", report, *self.chosen, *self.terms,
            )  # fmt: skip
        finally:
            serve.terminate()
            serve.wait(timeout=30)
        run = json.loads(report.read_text())
        layer = [o for o in run["operations"] if o["path"].startswith("layer 0")]
        of = lambda *phases: [o for o in layer if o["phase"] in phases]
        offline = of("offline")
        if self.layer == "decode":
            online, offline, parts = of("decode"), [], len(run["tokens"]) - 1
        else:
            online, parts = of("prefill") if self.chosen else of("offline", "prefill"), 1
        total = lambda key, rows: sum(o[key] for o in rows) / parts
        both = lambda rows: total("bytes_client_to_server", rows) + total("bytes_server_to_client", rows)
        clear = self.folder / "clear.json"
        self.command(
            "float", "--model", self.model, "--prompt-ids", ids, "--tokens", generated, "--json", clear
        )
        clear = json.loads(clear.read_text())["tokens"]
        if clear != run["tokens"]:
            raise SystemExit(f"Waggle wrote {run['tokens']}, its clear engine {clear}")
        return {
            "seconds": total("seconds", online),
            "cpu_seconds": None,
            "bytes": both(online),
            "flows": total("flows", online),
            "error": None,
            "prepared_seconds": total("seconds", offline) if self.chosen and offline else None,
            "prepared_bytes": both(offline) if self.chosen and offline else None,
        }

    def prepared_bytes(self):
        """Bytes that the preparation of one step of the layer takes, by plan: 0 where it is measured or made at once."""
        if not self.chosen or self.layer != "decode":
            return 0
        out = self.folder / "plan.json"
        self.command("plan", "--model", self.model, "--cached", self.tokens, "--json", out, *self.chosen, *self.terms)
        offline = json.loads(out.read_text())["phases"]["offline"]
        return offline["bytes_client_to_server"] + offline["bytes_server_to_client"]

    def close(self):
        """Nothing runs between sessions."""


def machine():
    """The processor, its cores, and the date, without the machine's name."""
    names = [line.split(":")[1].strip() for line in open("/proc/cpuinfo") if line.startswith("model name")]
    flags = next((line for line in open("/proc/cpuinfo") if line.startswith("flags")), "").split()
    known = [flag for flag in ("avx2", "avx512f", "avx512ifma", "vaes") if flag in flags]
    return {
        "processor": names[0] if names else platform.processor(),
        "features": known,
        "cores": os.cpu_count(),
        "date": datetime.now(timezone.utc).strftime("%Y-%m-%d"),
    }


def row(name, runs, prepared):
    """Medians of a side, with the least and the largest time."""
    median = lambda key: statistics.median(run[key] for run in runs)
    seconds = [run["seconds"] for run in runs]
    return {
        "side": name, "runs": len(runs), "seconds": median("seconds"), "least": min(seconds), "most": max(seconds),
        "bytes": round(median("bytes")), "prepared_bytes": prepared, "flows": round(median("flows")),
    } | ({"prepared_seconds": median("prepared_seconds"), "prepared_bytes": round(median("prepared_bytes"))}
         if runs[0].get("prepared_bytes") else {})  # fmt: skip


def table(record):
    """The record as Markdown."""
    chosen, machine_ = record["options"], record["machine"]
    lines = [
        f"{LAYERS[chosen['layer']].format(chosen['tokens'])} (width {SHAPE['width']}, {SHAPE['heads']} heads), "
        f"link `{chosen['link']}`. {machine_['processor']} ({', '.join(machine_['features'])}), "
        f"{machine_['cores']} cores, {machine_['date']}, {record['waggle']}.",
        "",
        "| side | s (median) | least to most | MB | prepared MB | flows |",
        "|---|---|---|---|---|---|",
    ]
    for r in record["rows"]:
        how = f" in {r['prepared_seconds']:.2f} s" if "prepared_seconds" in r else " (plan)"
        prepared = f"{r['prepared_bytes'] / 1e6:.2f}{how}" if r["prepared_bytes"] else ""
        spread = f"{r['least']:.3f} to {r['most']:.3f}"
        lines.append(
            f"| {r['side']} | {r['seconds']:.3f} | {spread} | {r['bytes'] / 1e6:.2f} | {prepared} | {r['flows']} |"
        )
    return "\n".join(lines) + "\n"


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--waggle", default=str(HERE.parents[2] / "target/release/waggle"), help="the binary")
    parser.add_argument("--link", choices=LINKS, default="lan")
    parser.add_argument("--layer", choices=LAYERS, default="decode")
    parser.add_argument("--tokens", type=int, default=128, help="tokens in the cache, of the prompt or of the text")
    parser.add_argument("--repeat", type=int, default=5, help="measured runs of each side, after one that warms up")
    parser.add_argument("--out", type=Path, help="write OUT.json and OUT.md")
    args = parser.parse_args()
    try:
        import spu  # noqa: F401
    except ImportError:
        raise SystemExit("SPU is not installed here: pip install spu==0.9.5 (Python 3.8 to 3.11, x86-64)") from None
    if not Path(args.waggle).is_file():
        raise SystemExit(f"{args.waggle} is not there: cargo build --release")
    version = subprocess.run([args.waggle, "--version"], capture_output=True, text=True, check=True).stdout.strip()
    with tempfile.TemporaryDirectory() as folder:
        link = Link(*LINKS[args.link])
        spu_link = Link(*LINKS[args.link])
        sides = [Spu(spu_link, args.layer, args.tokens, Path(folder))]
        for phases in (1, 2):
            sides.append(Waggle(args.waggle, link, args.link, args.layer, args.tokens, phases, Path(folder)))
        runs = [[] for _ in sides]
        for turn in range(args.repeat + 1):
            for side, kept in zip(sides, runs, strict=True):
                outcome = side.run()
                print(f"{'warm-up' if turn == 0 else turn}: {side.name}: {outcome}", file=sys.stderr, flush=True)
                if turn:
                    kept.append(outcome)
        prepared = [0] + [side.prepared_bytes() for side in sides[1:]]
        for side in sides:
            side.close()
    record = {
        "version": 2, "waggle": version, "machine": machine(),
        "options": {
            "link": args.link, "layer": args.layer, "tokens": args.tokens, "repeat": args.repeat, "shape": SHAPE,
            "seed": SEED,
        },
        "rows": [row(side.name, kept, more) for side, kept, more in zip(sides, runs, prepared, strict=True)],
        "samples": {side.name: kept for side, kept in zip(sides, runs, strict=True)},
    }  # fmt: skip
    text = table(record)
    print(text, end="")
    if args.out:
        args.out.with_suffix(".json").write_text(json.dumps(record, indent=1) + "\n")
        args.out.with_suffix(".md").write_text(text)


if __name__ == "__main__":
    main()
