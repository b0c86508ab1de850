#!/usr/bin/env python3
"""Runs one layer of GPT-2's or BERT's shape in SPU's Cheetah backend and in Waggle, in turn, over the same relay.

    python3 -m venv venv && venv/bin/pip install spu==0.9.5
    cargo build --release
    venv/bin/python bench/peers/spu/beside.py --link lan --repeat 5 --out bench/results/reports/peers-lan
    venv/bin/python bench/peers/spu/beside.py --layer encoder --link lan --out bench/results/reports/peers-encoder-lan

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
from operands import operands  # noqa: E402

# The names and numbers of `waggle --link`: bytes a second, and seconds one way.
LINKS = {
    "loopback": (0, 0.0),
    "lan": (377_000_000, 0.00015),
    "lan-1g": (125_000_000, 0.00025),
    "wan": (50_000_000, 0.002),
    "wan-far": (12_500_000, 0.040),
}
LAYERS = {
    "decode": "One decoder layer of GPT-2 small, one token after {} cached ones",
    "prompt": "One decoder layer of GPT-2 small, a prompt of {} tokens",
    "encoder": "One encoder layer of BERT-base, a text of {} tokens",
}
SHAPE = {"width": 768, "heads": 12}
SEED = 7
# The largest error of an answer, of SPU's layer and of Waggle's logits.
TOLERANCE = 0.05


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
        shared, values = operands(layer, SHAPE["width"], SHAPE["heads"], tokens, SEED)
        io = api.Io(2, spu_party.config())
        shares = [[], []]
        for i, value in enumerate(values):
            # The input and the cache are shared; the weights lie at the server, who is party 0.
            owner = -1 if i < shared else 0
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
        """The layer once."""
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
        if not error < TOLERANCE:
            raise SystemExit(f"SPU's answer is off by {error}")
        return {
            "seconds": max(answer["seconds"] for answer in answers),
            "cpu_seconds": sum(answer["cpu_seconds"] for answer in answers),
            "bytes": sum(self.link.bytes),
            "flows": self.link.flows,
            "prepared_seconds": None,
            "prepared_bytes": 0,
            "error": error,
        }

    def close(self):
        for party in self.parties:
            party.stdin.close()
            party.wait(timeout=30)


def config(layer):
    """The configuration of Waggle's model: the shape of one layer, twice where all of its rows count."""
    if layer == "encoder":
        return {
            "model_type": "bert", "architectures": ["BertForSequenceClassification"], "vocab_size": 256,
            "max_position_embeddings": 1024, "type_vocab_size": 2, "hidden_size": SHAPE["width"],
            "intermediate_size": 4 * SHAPE["width"], "num_attention_heads": SHAPE["heads"], "num_hidden_layers": 2,
            "num_labels": 2, "layer_norm_eps": 1e-12, "hidden_act": "gelu",
        }  # fmt: skip
    return {
        "model_type": "gpt2", "architectures": ["GPT2LMHeadModel"], "vocab_size": 256, "n_positions": 1024,
        "n_embd": SHAPE["width"], "n_head": SHAPE["heads"], "n_layer": 1 if layer == "decode" else 2,
        "layer_norm_epsilon": 1e-5, "activation_function": "gelu_new",
    }  # fmt: skip


def both_ways(cost):
    """Bytes of both directions."""
    return cost["bytes_client_to_server"] + cost["bytes_server_to_client"]


class Waggle:
    """Sessions of Waggle with a small model; its first layer's part is taken out of the report.

    The last layer of a pass computes only the row that is asked for. Where all rows count, the model has two layers.
    """

    def __init__(self, binary, link, link_name, layer, tokens, phases, folder):
        self.binary, self.link, self.layer, self.folder = binary, link, layer, folder
        self.name = f"Waggle, {'one phase' if phases == 1 else 'two phases, online'}"
        self.terms = [] if link_name == "loopback" else ["--plan-for", link_name]
        self.chosen = ["--preprocess=true"] if phases == 2 else []
        self.ids = ",".join(str(i % 251) for i in range(tokens))
        self.answers = ["--tokens", 3 if layer == "decode" else 1]
        self.model = folder / "model"
        if not self.model.exists():
            (folder / "config.json").write_text(json.dumps(config(layer)))
            self.command("synth", "--config", folder / "config.json", "--out", self.model)
        session = ["--model", self.model, "--prompt-ids", self.ids, *self.answers]
        self.clear = self.report("float", *session)["tokens"]
        # The relay needs sessions of two commands; `demo` has the check of the logits.
        self.error = self.report("demo", *session, "--check", *self.chosen, *self.terms)["max_abs_logit_error"]
        if not self.error < TOLERANCE:
            raise SystemExit(f"Waggle's logits are off by {self.error}")
        self.planned = 0
        if layer == "decode" and self.chosen:
            # A session prepares its prompt and its steps at once, and so the bytes of one step are those of a plan.
            plan = self.report("plan", "--model", self.model, "--cached", tokens, *self.chosen, *self.terms)
            self.planned = both_ways(plan["phases"]["offline"])

    def command(self, *arguments):
        done = subprocess.run([self.binary, *map(str, arguments)], capture_output=True, text=True)
        if done.returncode:
            raise SystemExit(f"waggle {arguments[0]}: {done.stderr.strip()}")

    def report(self, *arguments):
        """What a command writes with `--json`."""
        file = self.folder / "report.json"
        self.command(*arguments, "--json", file)
        return json.loads(file.read_text())

    def run(self):
        """One session: a prompt and, at `decode`, two steps of which the layer's mean is taken."""
        port = free_port()
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
            if self.layer == "encoder":
                asked = ["classify", "--text-ids", self.ids]
            else:
                asked = ["generate", "--prompt-ids", self.ids, *self.answers]
            run = self.report(*asked, "--connect", address, "--insecure-plaintext", *self.chosen, *self.terms)
        finally:
            serve.terminate()
            serve.wait(timeout=30)
        if run["tokens"] != self.clear:
            raise SystemExit(f"Waggle's answer is {run['tokens']}, that of its clear engine {self.clear}")
        part = lambda phase: [o for o in run["operations"] if o["phase"] == phase and o["path"].startswith("layer 0")]
        total = lambda operations, key: sum(o[key] for o in operations)
        steps = len(run["tokens"]) - 1
        decode = self.layer == "decode"
        online, passes = (part("decode"), steps) if decode else (part("prefill"), 1)
        return {
            "seconds": total(online, "seconds") / passes,
            "cpu_seconds": None,
            "bytes": sum(map(both_ways, online)) / passes,
            "flows": total(online, "flows") / passes,
            "prepared_seconds": None if decode else total(part("offline"), "seconds"),
            "prepared_bytes": self.planned if decode else sum(map(both_ways, part("offline"))),
            "setup_seconds": run["phases"]["setup"]["seconds"],
            "setup_bytes": both_ways(run["phases"]["setup"]),
            "error": self.error,
        }

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


def row(name, runs):
    """Medians of a side, with the least and the largest time."""
    median = lambda key: statistics.median(run[key] for run in runs)
    seconds = [run["seconds"] for run in runs]
    return {
        "side": name, "runs": len(runs), "seconds": median("seconds"), "least": min(seconds), "most": max(seconds),
        "bytes": round(median("bytes")), "flows": round(median("flows")),
        "prepared_seconds": None if runs[0]["prepared_seconds"] is None else median("prepared_seconds"),
        "prepared_bytes": round(median("prepared_bytes")),
    }  # fmt: skip


def table(record):
    """The record as Markdown: ratios are those of the first row to the row."""
    chosen, machine_, rows = record["options"], record["machine"], record["rows"]
    lines = [
        f"{LAYERS[chosen['layer']].format(chosen['tokens'])} (width {SHAPE['width']}, {SHAPE['heads']} heads), "
        f"link `{chosen['link']}`. {machine_['processor']} ({', '.join(machine_['features'])}), "
        f"{machine_['cores']} cores, {machine_['date']}, {record['waggle']}.",
        "",
        "| side | s (median) | least to most | MB | flows | prepared s | prepared MB | faster | in all | fewer MB |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    first = rows[0]
    times = lambda ratio: f"{ratio:.0f}" if ratio >= 10 else f"{ratio:.1f}"
    for r in rows:
        prepared_seconds, prepared, in_all = "", "", ""
        if r["prepared_bytes"]:
            prepared = f"{r['prepared_bytes'] / 1e6:.2f}" + (" (plan)" if r["prepared_seconds"] is None else "")
        if r["prepared_seconds"] is not None:
            prepared_seconds = f"{r['prepared_seconds']:.3f}"
        if r["prepared_seconds"] is not None or not r["prepared_bytes"]:
            in_all = times(first["seconds"] / (r["seconds"] + (r["prepared_seconds"] or 0)))
        lines.append(
            f"| {r['side']} | {r['seconds']:.3f} | {r['least']:.3f} to {r['most']:.3f} | {r['bytes'] / 1e6:.2f} "
            f"| {r['flows']} | {prepared_seconds} | {prepared} | {times(first['seconds'] / r['seconds'])} | {in_all} "
            f"| {times(first['bytes'] / (r['bytes'] + r['prepared_bytes']))} |"
        )
    return "\n".join(lines) + "\n"


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--waggle", default=str(HERE.parents[2] / "target/release/waggle"), help="the binary")
    parser.add_argument("--link", choices=LINKS, default="lan")
    parser.add_argument("--layer", choices=LAYERS, default="decode", help="GPT-2's at a step or a prompt, or BERT's")
    parser.add_argument("--tokens", type=int, default=128, help="tokens in the cache, of the prompt, or of the text")
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
        work = (args.layer, args.tokens)
        sides = [Waggle(args.waggle, link, args.link, *work, phases, Path(folder)) for phases in (1, 2)]
        # SPU's parties wait from here on, and so Waggle's answers are checked before.
        sides.insert(0, Spu(spu_link, *work, Path(folder)))
        runs = [[] for _ in sides]
        for turn in range(args.repeat + 1):
            for side, kept in zip(sides, runs, strict=True):
                outcome = side.run()
                print(f"{'warm-up' if turn == 0 else turn}: {side.name}: {outcome}", file=sys.stderr, flush=True)
                if turn:
                    kept.append(outcome)
        for side in sides:
            side.close()
    record = {
        "version": 2, "waggle": version, "machine": machine(),
        "options": {
            "layer": args.layer, "tokens": args.tokens, "link": args.link, "repeat": args.repeat, "shape": SHAPE,
            "seed": SEED,
        },
        "rows": [row(side.name, kept) for side, kept in zip(sides, runs, strict=True)],
        "samples": {side.name: kept for side, kept in zip(sides, runs, strict=True)},
    }  # fmt: skip
    text = table(record)
    print(text, end="")
    if args.out:
        args.out.with_suffix(".json").write_text(json.dumps(record, indent=1) + "\n")
        args.out.with_suffix(".md").write_text(text)


if __name__ == "__main__":
    main()
