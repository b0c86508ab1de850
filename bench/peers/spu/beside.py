#!/usr/bin/env python3
"""Runs one layer of GPT-2's or BERT's shape, or one operation, in SPU and in Waggle, in turn, over the same relay.

    python3 -m venv venv && venv/bin/pip install spu==0.9.5
    cargo build --release
    venv/bin/python bench/peers/spu/beside.py --link lan --repeat 5 --out bench/results/data/peers-lan
    venv/bin/python bench/peers/spu/beside.py --layer encoder --link lan --out bench/results/data/peers-encoder-lan
    venv/bin/python bench/peers/spu/beside.py --parties 3 --link lan --out bench/results/data/peers-three-decode-lan

Both sides are two or three processes on this machine; the bytes of each pair pass a relay (`link.py`) that imitates
the network and counts. Neither side encrypts the connection. Each side's answer is compared with the layer in the clear.
"""

import argparse
import atexit
import itertools
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
from operands import OPERATIONS, WORDS, operands  # noqa: E402

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
WORK = LAYERS | OPERATIONS
SHAPE = {"width": 768, "heads": 12}
SEED = 7
# The largest error of an answer, of SPU's layer and of Waggle's logits.
TOLERANCE = 0.05


def free_port():
    """A port that nobody listens to at the moment."""
    import socket

    with socket.create_server(("127.0.0.1", 0)) as probe:
        return probe.getsockname()[1]


class Links:
    """The networks of some parties: a link of each pair."""

    def __init__(self, parties, name):
        self.of = {pair: Link(*LINKS[name]) for pair in itertools.combinations(range(parties), 2)}

    def relay(self, source, target, port, duplex):
        """A port that leads the party `source` to the port of the party `target`."""
        return relay(self.of[min(source, target), max(source, target)], port, int(source > target), duplex)

    def reset(self):
        """Begins a new count."""
        for link in self.of.values():
            link.reset()

    def count(self):
        """Bytes of all links, and flows of the one with most."""
        links = self.of.values()
        return {"bytes": sum(sum(link.bytes) for link in links), "flows": max(link.flows for link in links)}


class Spu:
    """Parties of SPU that hold one layer and wait."""

    def __init__(self, parties, link_name, layer, tokens, folder):
        import spu_party
        from spu import api, libspu

        self.name = f"SPU 0.9.5, {'Cheetah' if parties == 2 else 'ABY3'}"
        self.links = Links(parties, link_name)
        shared, values = operands(layer, SHAPE["width"], SHAPE["heads"], tokens, SEED)
        io = api.Io(parties, spu_party.config(parties))
        shares = [[] for _ in range(parties)]
        for i, value in enumerate(values):
            # The input and the cache are shared; the weights lie at the server, who is party 0.
            owner = -1 if i < shared else 0
            for rank, share in enumerate(io.make_shares(value, libspu.Visibility.VIS_SECRET, owner)):
                shares[rank].append((bytes(share.meta), [bytes(chunk) for chunk in share.share_chunks]))
        self.io, self.libspu = io, libspu
        import jax

        self.expected = jax.jit(spu_party.layer(layer, SHAPE["heads"]))(*values)
        ports = [free_port() for _ in range(parties)]
        self.parties = []
        for rank in range(parties):
            file = folder / f"shares{rank}"
            file.write_bytes(pickle.dumps(shares[rank]))
            # A party's own address is where it listens; another's leads through the relay.
            way = lambda to: ports[to] if to == rank else self.links.relay(rank, to, ports[to], duplex=False)
            addresses = [f"127.0.0.1:{way(to)}" for to in range(parties)]
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

        self.links.reset()
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
        opened = self.io.reconstruct(shares).astype(float)
        error = float(np.max(np.abs(opened - np.asarray(self.expected))))
        if not error < TOLERANCE:
            raise SystemExit(f"SPU's answer is off by {error}")
        return {
            "seconds": max(answer["seconds"] for answer in answers),
            "cpu_seconds": sum(answer["cpu_seconds"] for answer in answers),
            **self.links.count(),
            "prepared_seconds": None,
            "prepared_bytes": 0,
            "error": error,
        }

    def close(self):
        for party in self.parties:
            party.stdin.close()
            party.wait(timeout=30)


def config(layer, layers):
    """The configuration of Waggle's model: so many layers of one shape."""
    if layer == "encoder":
        return {
            "model_type": "bert", "architectures": ["BertForSequenceClassification"], "vocab_size": 256,
            "max_position_embeddings": 1024, "type_vocab_size": 2, "hidden_size": SHAPE["width"],
            "intermediate_size": 4 * SHAPE["width"], "num_attention_heads": SHAPE["heads"], "num_hidden_layers": layers,
            "num_labels": 2, "layer_norm_eps": 1e-12, "hidden_act": "gelu",
        }  # fmt: skip
    return {
        "model_type": "gpt2", "architectures": ["GPT2LMHeadModel"], "vocab_size": 256, "n_positions": 1024,
        "n_embd": SHAPE["width"], "n_head": SHAPE["heads"], "n_layer": layers,
        "layer_norm_epsilon": 1e-5, "activation_function": "gelu_new",
    }  # fmt: skip


def both_ways(cost):
    """Bytes of both directions."""
    return cost["bytes_client_to_server"] + cost["bytes_server_to_client"]


# The parties of Waggle by their number in `Links`.
SERVER, CLIENT, HELPER = range(3)


class Waggle:
    """Sessions of Waggle with a small model; its first layer's part is taken out of the report.

    The last layer of a pass computes only the row that is asked for. Where all rows count, the model has two layers.
    """

    parties = 2
    # On a link that nobody names a session plans for what it measures.
    loopback = ()

    def __init__(self, name, binary, link_name, layer, tokens, chosen, folder):
        self.name, self.binary, self.layer, self.folder = f"Waggle, {name}", binary, layer, folder
        self.links = Links(self.parties, link_name)
        self.terms = [*chosen, *(self.loopback if link_name == "loopback" else ("--plan-for", link_name))]
        # At 128 tokens the clear engine's largest logits lie further apart than the error of Waggle's.
        self.ids = ",".join(str(11 * i % 251) for i in range(tokens))
        self.answers = 3 if layer == "decode" else 1
        helper = self.listen("helper") if self.parties > HELPER else None
        to_helper = lambda way: [] if helper is None else ["--helper", f"127.0.0.1:{way(helper)}"]
        self.helped = to_helper(lambda port: self.links.relay(CLIENT, HELPER, port, duplex=True))
        server = [*to_helper(lambda port: self.links.relay(SERVER, HELPER, port, duplex=True)), "--skip-range-check"]
        self.servers, self.clear = {}, {}
        for layers in self.depths():
            model = folder / f"model{layers}"
            if not model.exists():
                (folder / "config.json").write_text(json.dumps(config(layer, layers)))
                self.command("synth", "--config", folder / "config.json", "--out", model)
            session = ["--model", model, "--prompt-ids", self.ids, "--tokens", self.answers]
            self.clear[layers] = self.report("float", *session)["tokens"]
            # The relay needs sessions of two commands; `demo` has the check of the logits.
            terms = [*self.terms, *to_helper(lambda port: port)]
            plain = ["--insecure-plaintext"] if helper is not None else []
            self.error = self.report("demo", *session, "--check", *plain, *terms)["max_abs_logit_error"]
            if not self.error < TOLERANCE:
                raise SystemExit(f"Waggle's logits are off by {self.error}")
            port = self.listen("serve", "--model", model, *server, *self.terms)
            self.servers[layers] = self.links.relay(CLIENT, SERVER, port, duplex=True)
        self.planned = 0
        if self.parties == 2 and layer == "decode" and chosen:
            # A session prepares its prompt and its steps at once, and so the bytes of one step are those of a plan.
            plan = self.report("plan", "--model", model, "--cached", tokens, *self.terms)
            self.planned = both_ways(plan["phases"]["offline"])

    def depths(self):
        """The numbers of layers of the models."""
        return [1 if self.layer == "decode" else 2]

    def command(self, *arguments):
        done = subprocess.run([self.binary, *map(str, arguments)], capture_output=True, text=True)
        if done.returncode:
            raise SystemExit(f"waggle {arguments[0]}: {done.stderr.strip()}")

    def report(self, *arguments):
        """What a command writes with `--json`."""
        file = self.folder / "report.json"
        self.command(*arguments, "--json", file)
        return json.loads(file.read_text())

    def listen(self, *arguments):
        """The port of a command that serves until this process ends."""
        port = free_port()
        command = [self.binary, *map(str, arguments), "--listen", f"127.0.0.1:{port}", "--insecure-plaintext"]
        log = open(self.folder / f"{arguments[0]}.log", "a")
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True)
        atexit.register(process.terminate)
        # Its first line says that it listens.
        if not process.stdout.readline():
            raise SystemExit(f"waggle {arguments[0]} ended with code {process.wait()}")
        return port

    def session(self, layers, answers):
        """The report of a session, and what the relays counted."""
        self.links.reset()
        asked = ["generate", "--prompt-ids", self.ids, "--tokens", answers]
        if self.layer == "encoder":
            asked = ["classify", "--text-ids", self.ids]
        address = f"127.0.0.1:{self.servers[layers]}"
        run = self.report(*asked, "--connect", address, "--insecure-plaintext", *self.helped, *self.terms)
        if run["tokens"] != self.clear[layers][:answers]:
            raise SystemExit(f"Waggle's answer is {run['tokens']}, that of its clear engine {self.clear[layers]}")
        return run, self.links.count()

    def run(self):
        """One session: a prompt and, at `decode`, two steps of which the layer's mean is taken."""
        run, _ = self.session(*self.depths(), self.answers)
        part = lambda phase: [o for o in run["operations"] if o["phase"] == phase and o["path"].startswith("layer 0")]
        total = lambda operations, key: sum(o[key] for o in operations)
        decode = self.layer == "decode"
        online, passes = (part("decode"), self.answers - 1) if decode else (part("prefill"), 1)
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
        """Its processes end with this one."""


class WaggleOfThree(Waggle):
    """Sessions of Waggle with a third machine that deals, which does not tell what it deals to which layer.

    So a layer takes half of what three layers take more than one. At `decode` the prompt's part is taken off as well:
    that of a session which ends with it.
    """

    parties = 3
    # Sessions whose costs are subtracted have one plan: that for the rate and delay which one machine is assumed to have.
    loopback = ("--plan-for", "32000mbit,0.05ms")

    def depths(self):
        return [1, 3]

    def cost(self, layers):
        """A prompt or, at `decode`, the mean of two steps, which take nothing that is prepared."""
        run, count = self.session(layers, self.answers)
        phases = run["phases"]
        if self.layer == "decode":
            _, prompt = self.session(layers, 1)
            steps = self.answers - 1
            step = {key: (count[key] - prompt[key]) / steps for key in count}
            return {"seconds": phases["decode"]["seconds"] / steps, **step}
        prepared = both_ways(phases["offline"])
        count["bytes"] -= prepared
        ahead = {"prepared_seconds": phases["offline"]["seconds"], "prepared_bytes": prepared}
        return {"seconds": phases["prefill"]["seconds"], **count, **ahead}

    def run(self):
        """Half of what three layers take more than one."""
        one, three = map(self.cost, self.depths())
        layer = {key: (three[key] - one[key]) / 2 for key in one}
        return {"prepared_seconds": None, "prepared_bytes": 0, **layer, "cpu_seconds": None, "error": self.error}


class WaggleOperation:
    """One operation of Waggle's, by threads of one process over networks that it imitates itself."""

    def __init__(self, binary, link_name, layer, tokens):
        self.name = "Waggle, three parties"
        network = [] if link_name == "loopback" else [link_name]
        shape = ["--rows", str(WORDS // tokens), "--columns", str(tokens)]
        # The first run has what a process does once.
        self.command = [str(binary.parent / "examples/three_parties"), layer, *network, *shape, "--runs", "2"]

    def run(self):
        """The second run of a process."""
        done = subprocess.run(self.command, capture_output=True, text=True)
        if done.returncode:
            raise SystemExit(f"{self.command[0]}: {done.stderr.strip()}")
        run = json.loads(done.stdout.splitlines()[-1])
        return {**run, "cpu_seconds": None, "prepared_seconds": None, "prepared_bytes": 0}

    def close(self):
        """Nothing runs between runs."""


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
    shape = f" (width {SHAPE['width']}, {SHAPE['heads']} heads), " if chosen["layer"] in LAYERS else ", "
    lines = [
        f"{WORK[chosen['layer']].format(chosen['tokens'])}{shape}"
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
    parser.add_argument("--waggle", type=Path, default=HERE.parents[2] / "target/release/waggle", help="the binary")
    parser.add_argument("--link", choices=LINKS, default="lan")
    parser.add_argument("--parties", type=int, choices=(2, 3), default=2, help="Cheetah's two, or ABY3's three")
    parser.add_argument(
        "--layer", choices=WORK, default="decode", help="GPT-2's at a step or a prompt, or BERT's, or an operation"
    )
    parser.add_argument("--tokens", type=int, default=128, help="tokens in the cache, of the prompt, or of the text")
    parser.add_argument("--repeat", type=int, default=5, help="measured runs of each side, after one that warms up")
    parser.add_argument("--out", type=Path, help="write OUT.json and OUT.md")
    args = parser.parse_args()
    try:
        import spu  # noqa: F401
    except ImportError:
        raise SystemExit("SPU is not installed here: pip install spu==0.9.5 (Python 3.8 to 3.11, x86-64)") from None
    if not args.waggle.is_file():
        raise SystemExit(f"{args.waggle} is not there: cargo build --release")
    version = subprocess.run([args.waggle, "--version"], capture_output=True, text=True, check=True).stdout.strip()
    with tempfile.TemporaryDirectory() as folder:
        folder, work = Path(folder), (args.link, args.layer, args.tokens)
        waggle = lambda kind, name, *chosen: kind(name, args.waggle, *work, chosen, folder)
        if args.layer in OPERATIONS:
            sides = [WaggleOperation(args.waggle, *work)] if args.parties == 3 else []
        elif args.parties == 3:
            sides = [waggle(WaggleOfThree, "three parties", "--parties=3")]
        else:
            two_phases = waggle(Waggle, "two phases, online", "--preprocess=true")
            sides = [waggle(Waggle, "one phase"), two_phases]
        # SPU's parties wait from here on, and so Waggle's answers are checked before.
        sides.insert(0, Spu(args.parties, *work, folder))
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
            "parties": args.parties, "layer": args.layer, "tokens": args.tokens, "link": args.link,
            "repeat": args.repeat, "shape": SHAPE, "seed": SEED,
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
