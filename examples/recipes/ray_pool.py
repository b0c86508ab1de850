#!/usr/bin/env python3
"""Makes a pool in parts, each a task of Ray, wherever the cluster has room:

    examples/recipes/ray_pool.py --parts 8 --pool /shared/juliet.pool -- --prompt-len 64 --tokens 40

What follows `--` are options of `waggle preprocess`. A part that failed is made again alone, up to --attempts times.
Called again, it makes the parts that are missing, and no others. Ray comes from the package index: pip install ray.
"""

import argparse
import os
import pathlib
import subprocess
import sys

import ray

PART = pathlib.Path(__file__).resolve().parent / "part"


@ray.remote(max_retries=0)
def make(pool, part, options, environment):
    """Makes one part; returns it with the exit code and what the program said."""
    command = [str(PART), pool, part, *options]
    done = subprocess.run(
        command,
        env={**os.environ, **environment},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
    )
    return part, done.returncode, done.stdout.strip()


def arguments():
    parser = argparse.ArgumentParser(description="Makes a pool in parts, each a task of Ray.")
    parser.add_argument("--pool", required=True, help="where the pool is to be, on a file system that all hosts share")
    parser.add_argument("--parts", type=int, required=True, help="how many parts")
    parser.add_argument("--attempts", type=int, default=3, help="how often a part is tried (default: 3)")
    parser.add_argument("--cpus", type=float, default=2, help="cores of a task (default: 2)")
    parser.add_argument("--address", help="the cluster (default: RAY_ADDRESS, or one of this machine alone)")
    parser.add_argument("options", nargs="*", metavar="OPTION", help="options of `waggle preprocess`, after --")
    return parser.parse_args()


def main():
    args = arguments()
    ray.init(address=args.address, log_to_driver=False, include_dashboard=False if args.address is None else None)
    environment = {name: value for name, value in os.environ.items() if name.startswith("WAGGLE")}
    pool = os.path.abspath(args.pool)
    wanted = [f"{number}/{args.parts}" for number in range(1, args.parts + 1)]
    task = make.options(num_cpus=args.cpus)
    for attempt in range(1, args.attempts + 1):
        waiting = [task.remote(pool, part, args.options, environment) for part in wanted]
        wanted = []
        while waiting:
            ready, waiting = ray.wait(waiting)
            part, code, said = ray.get(ready[0])
            print(f"part {part}, attempt {attempt}, code {code}: {said}", flush=True)
            if code != 0:
                wanted.append(part)
        if not wanted:
            return 0
    print(f"parts that are missing: {' '.join(wanted)}", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main())
