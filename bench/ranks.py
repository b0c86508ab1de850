#!/usr/bin/env python3
"""Measures a server whose products are spread over ranks, each a host to the others:

    cargo build --release --features mpi
    target/release/waggle synth --config gpt2 --dtype bf16 --out DIR
    bench/ranks.py --ranks 1,2,4 llama=DIR gpt2=DIR

Each rank of `waggle serve` under Open MPI has a network namespace with a name, an address and a link to a switch,
which tc holds to the rate and, where the kernel has netem, the delay of Waggle's `lan`. Rank r runs on core r
modulo the cores. The client has a namespace too, the last core, and a link to rank 0 that Waggle imitates (`--link
lan`). One session fills a pool and another spends it. Bytes between ranks are those of their links, with the
headers of TCP. Linux alone, as root: apt-get install iproute2 openmpi-bin.
"""

import argparse
import contextlib
import json
import os
import pathlib
import re
import shlex
import statistics
import subprocess
import sys
import tempfile
import time

HUB, CLIENT, RANK = "waggle-hub", "waggle-client", "waggle-rank-"
RATE, DELAY = "3016mbit", "150us"
CORES = len(os.sched_getaffinity(0))
# In the place of ssh: the last number of an address names the namespace.
AGENT = f"""#!/bin/sh
host={RANK}${{1##*.}}
shift
exec ip netns exec "$host" unshare --uts sh -c "hostname $host; $*"
"""
NETWORK, SERVER = "10.77.0", "10.78.0.1:7411"
MCA = f"--mca btl tcp,self --mca btl_tcp_if_include {NETWORK}.0/24 --mca oob_tcp_if_include {NETWORK}.0/24 --mca pml ob1"


def call(line, check=True):
    done = subprocess.run(shlex.split(line), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    if check and done.returncode != 0:
        sys.exit(f"{line}\n{done.stderr}")
    return done


def up(name, device, address):
    call(f"ip -n {name} address add {address}/24 dev {device}")
    call(f"ip -n {name} link set {device} up")


@contextlib.contextmanager
def network(ranks):
    """The ranks' namespaces around a switch, and the client's beside the first. Says whether links have a delay."""
    names, delayed = [f"{RANK}{number}" for number in range(1, ranks + 1)], False
    try:
        for name in [HUB, CLIENT, *names]:
            call(f"ip netns add {name}")
            call(f"ip -n {name} link set lo up")
        call(f"ip -n {HUB} link add switch up type bridge")
        for number, name in enumerate(names, 1):
            call(f"ip -n {HUB} link add port{number} master switch up type veth peer name ranks netns {name}")
            up(name, "ranks", f"{NETWORK}.{number}")
            for space, device in [(name, "ranks"), (HUB, f"port{number}")]:
                call(f"tc -n {space} qdisc add dev {device} root handle 1: tbf rate {RATE} burst 1mb latency 50ms")
            netem = f"tc -n {name} qdisc add dev ranks parent 1: netem delay {DELAY} limit 100000"
            delayed = call(netem, check=False).returncode == 0
        call(f"ip -n {CLIENT} link add server type veth peer name client netns {names[0]}")
        up(CLIENT, "server", "10.78.0.2")
        up(names[0], "client", SERVER.split(":")[0])
        yield delayed
    finally:
        for name in [HUB, CLIENT, *names]:
            call(f"ip netns delete {name}", check=False)


@contextlib.contextmanager
def job(waggle, model, ranks, dir):
    """`waggle serve` under mpirun. Yields a function: the MB sent between ranks, and each rank's processor seconds."""
    (dir / "agent").write_text(AGENT)
    (dir / "agent").chmod(0o755)
    hosts = ",".join(f"{NETWORK}.{number}" for number in range(1, ranks + 1))
    serve = f"{waggle} serve --model {os.path.abspath(model)} --listen {SERVER} --pools {dir}/kept --link lan"
    serve += " --timeout 3600 --skip-range-check"
    rank = f"echo $$ > {dir}/pid.$OMPI_COMM_WORLD_RANK; exec taskset -c $((OMPI_COMM_WORLD_RANK % {CORES})) {serve}"
    mpirun = f"mpirun --allow-run-as-root -n {ranks} --host {hosts} --bind-to none {MCA} --mca mpi_yield_when_idle 1"
    mpirun += f" --mca plm_rsh_agent {dir}/agent -x WAGGLE_HOME sh -c {shlex.quote(rank)}"
    first = ["ip", "netns", "exec", f"{RANK}1", "unshare", "--uts", "sh", "-c", f"hostname {RANK}1; exec {mpirun}"]
    with (dir / "log").open("w") as log:
        process = subprocess.Popen(first, stdout=log, stderr=log)

    def said(words):
        return len(re.findall(words, (dir / "log").read_text(), re.MULTILINE))

    def spent():
        links = [call(f"ip -j -s -n {RANK}{number} link show ranks").stdout for number in range(1, ranks + 1)]
        pids = [(dir / f"pid.{number}").read_text().strip() for number in range(ranks)]
        stats = [pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split() for pid in pids]
        ticks = os.sysconf("SC_CLK_TCK")
        seconds = [(int(stat[11]) + int(stat[12])) / ticks for stat in stats]
        return [sum(json.loads(link)[0]["stats64"]["tx"]["bytes"] for link in links) / 1e6, *seconds]

    while not said("^serving ") or said("this rank has its columns") < ranks - 1:
        if process.poll() is not None:
            sys.exit((dir / "log").read_text())
        time.sleep(0.05)
    try:
        yield spent
    finally:
        # Rank 0 ends the others.
        call(f"kill {(dir / 'pid.0').read_text()}", check=False)
        process.wait()


def measure(args, model, ranks):
    """Fills a pool and spends it. Returns seconds, processor seconds and MB of both; the text; whether links delay."""
    with tempfile.TemporaryDirectory(prefix="waggle-ranks-") as name, network(ranks) as delayed:
        dir, waggle, row = pathlib.Path(name), args.waggle, []
        os.environ["WAGGLE_HOME"] = f"{dir}/home"
        call(f"{waggle} keygen")
        client = f"ip netns exec {CLIENT} taskset -c {CORES - 1} {waggle}"
        pool = f"--tokens {args.tokens} --pool {dir}/a.pool --connect {SERVER} --timeout 3600 --link lan --cores 2"
        prompt = ",".join(map(str, range(1, args.prompt + 1)))
        with job(waggle, model, ranks, dir) as spent:
            for line in [f"preprocess --prompt-len {args.prompt}", f"generate --preprocess --prompt-ids {prompt}"]:
                before = spent()
                call(f"{client} {line} {pool} --json {dir}/report.json")
                used = [late - early for early, late in zip(before, spent())]
                report = json.loads((dir / "report.json").read_text())
                phases = report["phases"]
                decode = "decode" in phases and phases["decode"]["seconds"] / (args.tokens - 1)
                processor = sum(phase["cpu_seconds"] for phase in phases.values())
                row += [decode or phases["offline"]["seconds"], processor, used[1], max(used[2:], default=0), used[0]]
        print(model, ranks, *row, file=sys.stderr, flush=True)
        return row, report["tokens"], delayed


def main():
    parser = argparse.ArgumentParser(description="Measures a server whose products are spread over ranks.")
    parser.add_argument("models", nargs="+", metavar="NAME=DIR")
    parser.add_argument("--waggle", type=os.path.abspath, default="target/release/waggle")
    parser.add_argument("--ranks", default="1,2,4")
    parser.add_argument("--prompt", type=int, default=16, help="tokens of the prompt (default: 16)")
    parser.add_argument("--tokens", type=int, default=5, help="tokens that are generated (default: 5)")
    parser.add_argument("--repeat", type=int, default=3, help="rounds, of which the table has medians (default: 3)")
    args = parser.parse_args()
    cells = [(*pair.split("=", 1), int(ranks)) for pair in args.models for ranks in args.ranks.split(",")]
    rounds = [[measure(args, *cell[1:]) for cell in cells] for _ in range(args.repeat)]
    both = "processor: client + rank 0 + busiest other | MB between ranks"
    print(f"| | ranks | preparing, s | {both} | a token, s | {both} |\n{'|---' * 8}|")
    for (name, _, ranks), samples in zip(cells, zip(*rounds)):
        assert len({str(text) for _, text, _ in samples}) == 1, "another text"
        row = list(map(statistics.median, zip(*(row for row, _, _ in samples))))
        halves = ["{:.2f} | {:.1f} + {:.1f} + {:.1f} | {:.2f}".format(*half) for half in (row[:5], row[5:])]
        print(f"| {name} | {ranks} | {' | '.join(halves)} |")
    print(f"\nranks' links: {RATE}, " + (f"{DELAY} one way" if rounds[0][0][2] else "no delay: this kernel has no netem"))


if __name__ == "__main__":
    main()
