"""Private text generation between two parties, from Python.

A server has a language model, and a client has a prompt; together they generate text. The server learns neither the
prompt nor the text, and the client does not learn the weights.

==================  ==================================================================================
:func:`plan`        what a session would send: exact bytes and flows, from shapes alone
:func:`evaluate`    what cache policies cost in accuracy, also one that is a function of yours
:func:`demo`        both parties in this process
:class:`Server`     a server of a model, in a process of its own
:class:`Client`     generates with the model of a server
:func:`policies`    the cache policies, with options and defaults
:func:`models`      the bundled models
==================  ==================================================================================

Further keyword arguments are the options of the command line, with underscores for dashes: ``policy="h2o:budget=0.25"``,
``preprocess=True``, ``reveal="token"``. ``python -m waggle --help`` lists them. What goes wrong is a
:class:`WaggleError` with the words of the command line. Ctrl-C ends every call within a layer of the model or a pass of
a study, and other threads of Python run meanwhile.
"""

from __future__ import annotations

import json as _json
import re as _re
import signal as _signal
import subprocess as _subprocess
import sys as _sys
import threading as _threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from os import PathLike, fspath
from typing import Any, Union

from . import _waggle
from ._waggle import WaggleError

__all__ = [
    "Client",
    "Evaluation",
    "Report",
    "Scores",
    "Server",
    "WaggleError",
    "demo",
    "evaluate",
    "models",
    "plan",
    "policies",
]

Option = Union[str, int, float, bool, None]
#: Words, or token ids.
Prompt = Union[str, Sequence[int]]
#: Scores in, kept indices out: see :func:`evaluate`.
Function = Callable[["Scores", int], Iterable[Iterable[int]]]


class Report(dict):
    """The report of a session or a plan, as ``waggle --json`` writes it: bytes, flows and seconds by phase and operation.

    Bytes are counted on the wire, each way. Seconds are those of the client's clock; in a plan they are those of the
    network alone. ``report["text"]`` and ``report["tokens"]`` are what was generated.
    """

    def to_pandas(self, what: str = "operations"):
        """A data frame of the ``"operations"`` or the ``"phases"``, one row for each.

        Columns: ``bytes_client_to_server``, ``bytes_server_to_client``, ``flows``, ``seconds`` and others of the report.
        Needs pandas.
        """
        import pandas

        if what == "operations":
            return pandas.DataFrame(self["operations"])
        if what == "phases":
            # The tokens after the first have a list beside their sum.
            sums = {
                phase: {name: value for name, value in cost.items() if name != "per_token"}
                for phase, cost in self["phases"].items()
            }
            return pandas.DataFrame.from_dict(sums, orient="index").rename_axis("phase").reset_index()
        raise ValueError(f"what={what!r}: one of operations, phases")


class Evaluation(dict):
    """A study of cache policies, as ``waggle eval --json`` writes it. ``study["rows"]`` has a policy at a budget each;
    the first one is the full cache."""

    def to_pandas(self):
        """A data frame with a row for every policy at every budget. Needs pandas.

        Columns: ``label`` (the policy without its budget), ``budget`` (a share, or tokens from 2 on), ``policy``, and the
        metrics: ``perplexity``, ``kl`` (nats), shares from 0 to 1 for the others.
        """
        import pandas

        return pandas.DataFrame(self["rows"])


class Scores(list):
    """What an eviction policy sees of a layer: for every key/value head the attention that each of its tokens received
    so far, summed over queries and over the query heads that share the head. A numpy array (tokens,) of float64 for each
    head, or a list where there is no numpy. Heads may hold different tokens.
    """

    #: Index of the layer.
    layer: int
    #: Tokens of the text so far.
    seen: int
    #: The same as the scores, from the latest query alone.
    latest: list
    #: Positions in the text of the tokens that each head holds.
    positions: list


def policies() -> list[dict[str, Any]]:
    """Every cache policy: ``name``, ``about``, ``options`` (``key``, ``default``, ``required``), ``shows`` (what both
    parties learn besides lengths), ``clear_only`` and ``can_cut``."""
    return [policy for policy in _json.loads(_waggle.policies()) if policy["name"] != "python"]


def models() -> list[str]:
    """Names of the bundled models. Everywhere a model is asked for, a Hugging Face directory will do as well."""
    return _waggle.models()


def plan(
    model: str | PathLike[str] = "shakespeare-gpt2",
    *,
    prompt_len: int = 32,
    tokens: int = 32,
    cached: int | None = None,
    **options: Option,
) -> Report:
    """Predicts a session from shapes alone: the same bytes, messages and flows as a real one.

    :param model: directory, ``config.json`` or bundled name
    :param prompt_len: tokens of the prompt
    :param tokens: tokens to generate
    :param cached: plan one decoding step after so many tokens instead, without the pass over the prompt
    :param options: ``policy``, ``link`` (``"lan"``, ``"wan"``, ``"RATEmbit,DELAYms"``), ``preprocess``, ``reveal`` and
        others of ``waggle plan``
    """
    return Report(_json.loads(_waggle.plan(fspath(model), prompt_len, tokens, cached, _options(options))))


def demo(
    prompt: Prompt = "ROMEO:\n",
    *,
    model: str | PathLike[str] = "shakespeare-gpt2",
    tokens: int = 32,
    check: bool = False,
    **options: Option,
) -> Report:
    """Generates text with both parties in this process: the whole protocol, over memory.

    :param prompt: words, or token ids
    :param tokens: tokens to generate
    :param check: hold the tokens against the model in the clear: ``report["token_agreement"]``, a share from 0 to 1
    :param options: ``policy``, ``preprocess``, ``reveal``, ``temperature``, ``seed`` and others of ``waggle demo``
    """
    return Report(_json.loads(_waggle.demo(fspath(model), _prompt(prompt), tokens, check, _options(options))))


def evaluate(
    text: Prompt,
    policies: str | Function | Sequence[str | Function] = (),
    *,
    policy: str | Function | None = None,
    model: str | PathLike[str] = "shakespeare-gpt2",
    budgets: Sequence[float] = (0.05, 0.1, 0.25, 0.5, 1.0),
    context: int = 256,
    prompt: int | None = None,
    sequences: int = 4,
    engine: str = "float",
) -> Evaluation:
    """What cache policies cost in accuracy, beside the full cache.

    The text is cut into sequences. The first tokens of each go through the model at once and the rest token by token on
    the pruned cache, and every prediction of the rest is scored.

    A policy is a text, ``"h2o"`` or ``"snapkv:window=16"``, or a function of yours, which only ``engine="float"`` and
    ``"fixed"`` run::

        def heavy(scores, keep):
            return [numpy.argsort(head)[-keep:] for head in scores]

    The function is called for every layer at the end of the prompt, and after each later token that leaves more tokens
    than the budget allows. It gets :class:`Scores` and the number of tokens that may stay, and returns the indices that
    each key/value head keeps: 1 to ``keep`` of them, in any order. What it raises, ``evaluate`` raises.

    :param text: words, or token ids
    :param policies: the policies; ``policy`` names a single one
    :param budgets: shares of the cache in (0, 1], or numbers of tokens from 2 on. A policy with a ``budget`` of its own
        runs at that one alone.
    :param context: tokens of a sequence
    :param prompt: how many of these go through the model at once; half of them unless given
    :param sequences: number of sequences
    :param engine: ``"float"`` (f32), ``"fixed"`` (the parties' numbers, in the clear) or ``"secure"`` (both parties)
    """
    if isinstance(policies, str) or callable(policies):
        policies = [policies]
    given = [*policies, *([] if policy is None else [policy])]
    functions: dict[str, Function] = {}
    texts = [one if isinstance(one, str) else _named(one, functions) for one in given]
    setting = {
        "model": fspath(model),
        "text": _prompt(text),
        "budgets": list(budgets),
        "context": context,
        "prompt": context // 2 if prompt is None else prompt,
        "sequences": sequences,
        "engine": engine,
    }
    return Evaluation(_json.loads(_waggle.evaluate(setting, texts, functions)))


class Client:
    """Generates text with the model of a server, which learns the length of the prompt and nothing else of it.

    Keys and trust are those of the command line: a server and a client of one user trust each other, and another server
    is trusted by ``server_key="ed25519:..."``.

    :param address: ``"host:port"``
    :param options: what every call has in common: ``policy``, ``link``, ``server_key``, ``preprocess``, ``expect`` and
        others of ``waggle generate``
    """

    def __init__(self, address: str = "127.0.0.1:7411", **options: Option) -> None:
        self.address = address
        self._options = options

    def generate(self, prompt: Prompt = "ROMEO:\n", *, tokens: int = 32, **options: Option) -> Report:
        """Generates ``tokens`` tokens after ``prompt`` (words, or token ids), in a session of its own."""
        options = {**self._options, **options, "connect": self.address}
        return Report(_json.loads(_waggle.generate(_prompt(prompt), tokens, _options(options))))


class Server:
    """A server of a model, in a process of its own: ``python -m waggle serve``.

    It listens when the constructor returns, and ends with :meth:`close` or at the end of a ``with`` block::

        with waggle.Server("shakespeare-llama") as server:
            print(waggle.Client(server.address).generate("JULIET:", tokens=20)["text"])

    :param model: directory or bundled name
    :param listen: address; port 0 takes a free one
    :param options: ``policy``, ``link``, ``sessions``, ``max_tokens`` and others of ``waggle serve``
    """

    def __init__(
        self, model: str | PathLike[str], *, listen: str = "127.0.0.1:0", log: str = "warn", **options: Option
    ) -> None:
        words = [_sys.executable, "-m", "waggle", "serve", f"--model={fspath(model)}", f"--listen={listen}", f"--log={log}"]
        words += [f"--{name}" if value is None else f"--{name}={value}" for name, value in _options(options)]
        self._process = _subprocess.Popen(
            words, stdin=_subprocess.DEVNULL, stdout=_subprocess.PIPE, stderr=_subprocess.PIPE, text=True
        )
        self._log: list[str] = []
        # Somebody reads what it says, or it would wait for that.
        self._reader = _threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        try:
            line = self._process.stdout.readline()
        except BaseException:
            self.close()
            raise
        if not line:
            self._process.wait()
            self._reader.join()
            said = [line.removeprefix("error: ") for line in self._log if line.startswith("error: ")]
            self.close()
            raise WaggleError(said[-1] if said else "the server ended before it listened")
        #: ``"host:port"``, for clients.
        self.address: str = line.split()[-1]

    def _read(self) -> None:
        for line in self._process.stderr:
            self._log = [*self._log[-99:], line.rstrip("\n")]

    @property
    def log(self) -> list[str]:
        """The latest lines that the server logged."""
        return list(self._log)

    def close(self, timeout: float = 30.0) -> None:
        """Lets running sessions finish for up to ``timeout`` seconds, and ends the server."""
        if self._process.poll() is None:
            self._process.send_signal(_signal.SIGTERM)
            try:
                self._process.wait(timeout)
            except _subprocess.TimeoutExpired:
                self._process.kill()
        self._process.wait()
        self._reader.join()
        self._process.stdout.close()
        self._process.stderr.close()

    def __enter__(self) -> Server:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _prompt(prompt: Prompt) -> str | list[int]:
    return prompt if isinstance(prompt, str) else [int(token) for token in prompt]


def _options(options: Mapping[str, Any]) -> list[tuple[str, str | None]]:
    """Options as the command line has them. A switch that is off is left out."""
    given = []
    for name, value in options.items():
        if value is None or value is False:
            continue
        if callable(value):
            raise TypeError(f"{name}: only evaluate() runs a function of Python")
        given.append((name.replace("_", "-"), None if value is True else str(value)))
    return given


def _named(function: Function, functions: dict[str, Function]) -> str:
    """The policy that stands for `function`, under a name that no other has."""
    if not callable(function):
        raise TypeError(f"a policy is a text or a function, not {function!r}")
    name = _re.sub(r"\W+", "", getattr(function, "__name__", type(function).__name__)) or "function"
    while name in functions and functions[name] is not function:
        name += "_"
    functions[name] = function
    return f"python:function={name}"


def _kept(function: Function, view: dict[str, Any], keep: int) -> list[list[int]]:
    """Calls a policy, for the program."""
    try:
        from numpy import asarray
    except ImportError:
        asarray = list
    scores = Scores(asarray(head) for head in view["scores"])
    scores.layer, scores.seen = view["layer"], view["seen"]
    scores.latest = [asarray(head) for head in view["latest"]]
    scores.positions = [asarray(head) for head in view["positions"]]
    return [[int(index) for index in head] for head in function(scores, keep)]
