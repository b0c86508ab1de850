"""A server and a proxy in processes of their own, and the plaintext engine to compare with.

WAGGLE names the program; `.ci/run clients` builds it.
"""

import json
import math
import os
import subprocess
from pathlib import Path

import pytest

WAGGLE = os.environ["WAGGLE"]
MODEL = "shakespeare-llama"
ASSETS = Path(__file__).parents[2] / "model/assets"


def waggle(*words):
    """Runs the program to its end."""
    return subprocess.run([WAGGLE, *words], check=True, capture_output=True, text=True).stdout


def start(*words):
    """A process of the program, and the last word of the line by which it says that it is ready."""
    process = subprocess.Popen([WAGGLE, *words], stdout=subprocess.PIPE, text=True)
    return process, process.stdout.readline().split()[-1]


@pytest.fixture(scope="session")
def proxy(tmp_path_factory):
    """The address of a proxy."""
    os.environ["WAGGLE_HOME"] = str(tmp_path_factory.mktemp("home"))
    server, address = start("serve", "--model", MODEL, "--listen", "127.0.0.1:0")
    proxy, url = start("proxy", "--connect", address, "--listen", "127.0.0.1:0", "--preprocess", "--tokens", "32",
                       "--turn-tokens", "32")
    yield url
    for process in (proxy, server):
        process.terminate()
    assert [process.wait(timeout=120) for process in (proxy, server)] == [0, 0]


@pytest.fixture(scope="session")
def clear(tmp_path_factory):
    """What the plaintext engine says: the text after a prompt, and the logarithms of the prompt's probabilities."""
    place = tmp_path_factory.mktemp("clear")

    def ask(prompt, tokens=1):
        waggle("float", "--model", MODEL, "--prompt", prompt, "--tokens", str(tokens), "--json", f"{place}/report.json")
        report = json.loads((place / "report.json").read_text())

        def logprob(row, token):
            most = max(row)
            return row[token] - most - math.log(sum(math.exp(x - most) for x in row))

        ids = report["prompt_ids"] + report["tokens"]
        worth = [logprob(row, token) for row, token in zip(report["logits"], ids[1:])]
        return report["text"], worth

    return ask
