"""Private inference between two parties, from Python.

A server has a language model, and a client has a prompt; together they generate text, or find the class of one. The
server learns neither the prompt nor the answer, and the client does not learn the weights.

==================  ==================================================================================
:func:`plan`        what a session would send: exact bytes and flows, from shapes alone
:func:`sweep`       what a decoded token or a pass costs, planned over models, lengths, policies, links and phases
:func:`reproduce`   what a paper publishes, beside the same here
:func:`compare`     two records side by side
:func:`plot`        figures of studies, sweeps and reports
:func:`evaluate`    what cache policies cost in accuracy, also one that is a function of yours
:func:`demo`        generates text with both parties in this process
:func:`classify`    finds classes of texts or images with both parties in this process
:class:`Server`     a server of a model, in a process of its own
:class:`Client`     generates and classifies with the model of a server
:class:`Chat`       a conversation with it, of several turns
:func:`policies`    the cache policies, with options and defaults
:func:`models`      the bundled models
==================  ==================================================================================

Further keyword arguments are called as the options of the command line, with underscores for dashes, and are texts,
numbers and booleans: ``policy="h2o:budget=0.25"``, ``preprocess=True``, ``temperature=0.7``. ``waggle --help`` lists
them. What goes wrong is a :class:`WaggleError` with the words of the command line.

Ctrl-C ends every call within a second, and other threads of Python run meanwhile. What it computed goes on in the
background to the end of its layer or pass. Calls that take long have ``progress``: ``True`` shows bars of tqdm
(widgets in a notebook), and a function is called with :class:`Progress`, in the thread of the call. What the function
raises ends the call.
"""

from __future__ import annotations

import contextlib as _contextlib
import json as _json
import re as _re
import signal as _signal
import subprocess as _subprocess
import sys as _sys
import threading as _threading
import warnings as _warnings
import weakref as _weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from operator import index as _index
from os import PathLike, fspath
from os.path import isfile as _isfile
from pathlib import Path as _Path
from typing import IO, TYPE_CHECKING, Any, NamedTuple, TypeGuard, Union

from . import _waggle
from ._results import Answer, Answers, Evaluation, GlueEvaluation, Report, Scores, Table, Turn, _without_cpu
from ._tables import compare, plot, reproduce, study, sweep
from ._text import Pieces
from ._waggle import WaggleError, __version__

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from ._options import (
        AskOptions,
        ClassifyOptions,
        DemoOptions,
        GenerateOptions,
        LinkOptions,
        PlanOptions,
        ServerOptions,
        TalkOptions,
        TaskOptions,
    )

__all__ = [
    "Answer",
    "Answers",
    "Chat",
    "Client",
    "Evaluation",
    "GlueEvaluation",
    "Pieces",
    "Progress",
    "Report",
    "Scores",
    "Server",
    "Table",
    "Turn",
    "WaggleError",
    "__version__",
    "classify",
    "compare",
    "demo",
    "evaluate",
    "models",
    "plan",
    "plot",
    "policies",
    "reproduce",
    "sweep",
]

#: Words, token ids (tokens,) or a file of words (a `pathlib.Path`).
Prompt = Union[str, Sequence[int], "PathLike[str]"]
#: Several of these, which the model reads side by side.
Prompts = Sequence[Prompt]
#: What an encoder reads: a text, two of them in a tuple, token ids (tokens,) or the file of an image, a
#: `pathlib.Path`.
Input = Union[str, tuple[str, str], Sequence[int], "PathLike[str]"]
#: Scores in, kept indices out: see :func:`evaluate`.
Function = Callable[["Scores", int], Iterable[Iterable[int]]]


class Progress(NamedTuple):
    """How far a call is: ``done`` of ``total`` in the unit of its step."""

    #: ``"offline"`` (bytes on the wire), ``"prefill"`` (layers), ``"decode"`` (tokens) or ``"study"`` (passes).
    step: str
    #: From 0 or 1 to ``total``; a session of its own, or another step, begins anew.
    done: int
    total: int


#: Whether bars are shown, or what is called with each :class:`Progress`.
Watcher = Union[bool, Callable[[Progress], object]]


def policies() -> list[dict[str, Any]]:
    """Every cache policy: ``name``, ``about``, ``options`` (``key``, ``default``, ``required``), ``shows`` (what both
    parties learn besides lengths), ``clear_only`` and ``can_cut``."""
    return [policy for policy in _waggle.policies() if policy["name"] != "python"]


def models() -> list[str]:
    """Names of the bundled models. Everywhere a model is asked for, a Hugging Face directory will do as well."""
    return _waggle.models()


def plan(
    model: str | PathLike[str] = "stories260k",
    *,
    prompt_len: int = 32,
    texts: int = 1,
    tokens: int | None = None,
    cached: int | None = None,
    **options: Unpack[PlanOptions],
) -> Report:
    """Predicts a session from shapes alone: the same bytes, messages and flows as a real one.

    :param model: directory, ``config.json``, bundled name, or that of a published shape, ``"bert-base"`` for instance
    :param prompt_len: tokens of the prompt
    :param texts: texts of that length that the model reads side by side, as those of :func:`classify`. If some are
        shorter and padded to it, give ``pad_prompt=True`` as well.
    :param tokens: tokens to generate: 32 unless given, of an encoder 1
    :param cached: plan one decoding step after so many tokens instead, without the pass over the prompt
    :param options: ``policy``, ``link`` (``"lan"``, ``"wan"``, ``"RATEmbit,DELAYms"``), ``preprocess``, ``reveal`` and
        others of ``waggle plan``
    """
    lengths: dict[str, Any] = {"prompt_len": prompt_len, "texts": texts, "tokens": tokens, "cached": cached}
    return Report(_without_cpu(_waggle.plan(fspath(model), **{**lengths, **options})))


def demo(
    prompt: Prompt | Prompts = "Once upon a time",
    *,
    model: str | PathLike[str] = "stories260k",
    tokens: int = 32,
    check: bool = False,
    stream: Callable[[str], object] | None = None,
    progress: Watcher = False,
    **options: Unpack[DemoOptions],
) -> Report:
    """Generates text with both parties in this process: the whole protocol, over memory.

    :param prompt: words, token ids, or a file; or a list of these, which the model reads side by side
    :param tokens: tokens to generate
    :param check: hold the tokens against the model in the clear: ``report["token_agreement"]``, a share from 0 to 1
    :param stream: called with each piece of the text as it comes, in another thread. What it raises, ``demo`` raises
        at the end.
    :param progress: bars, or a function of :class:`Progress`
    :param options: ``policy``, ``preprocess``, ``reveal``, ``temperature``, ``seed``, ``samples`` (texts after each
        prompt; of several the report has ``texts``) and others of ``waggle demo``
    """
    with _told(progress) as told:
        return Report(_waggle.demo(fspath(model), _prompt(prompt), tokens, check, stream, told, **options))


def classify(
    inputs: Input | Iterable[Input],
    *,
    model: str | PathLike[str] = "whose-line",
    batch: int = 8,
    progress: Watcher = False,
    **options: Unpack[ClassifyOptions],
) -> Answers:
    """Finds the classes of texts or images, the scores of a regression, or masked words, with both parties in this
    process: the whole protocol, over memory. :meth:`Client.classify` asks a server.

    :param inputs: a text, two texts in a tuple, which the model reads together, token ids, or the file of an image (a
        ``pathlib.Path``); or an iterable of these
    :param model: the directory of an encoder, or a bundled name
    :param batch: inputs that the model reads side by side, in one pass and one session, padded to the longest of
        them. More of them take several sessions.
    :param progress: bars, or a function of :class:`Progress`, for each session
    :param options: ``pad`` (``"auto"`` or lengths, ``"32,128"``: the server sees the padded length alone),
        ``preprocess``, ``reveal``, ``tokenizer``, ``preprocessor`` and others of ``waggle classify``
    """
    with _told(progress) as told:
        return Answers(_waggle.classify_here(fspath(model), _inputs(inputs), batch, told, **options))


def evaluate(
    text: Prompt | None = None,
    policies: str | Function | Sequence[str | Function] = (),
    *,
    policy: str | Function | None = None,
    task: str = "text",
    data: str | PathLike[str] | None = None,
    model: str | PathLike[str] = "stories260k",
    budgets: Sequence[float] | None = None,
    context: int | None = None,
    prompt: int | None = None,
    sequences: int | None = None,
    engine: str = "float",
    progress: Watcher = False,
    **options: Unpack[TaskOptions],
) -> Evaluation | GlueEvaluation:
    """What cache policies cost in accuracy, beside the full cache; with ``task="glue"`` what an encoder gets right.

    The text is cut into sequences. The first tokens of each go through the model at once and the rest token by token on
    the pruned cache, and every prediction of the rest is scored.

    A policy is a text, ``"h2o"`` or ``"snapkv:window=16"``, or a function of yours, which only ``engine="float"`` and
    ``"fixed"`` run::

        def heavy(scores, keep):
            return [numpy.argsort(head)[-keep:] for head in scores]

    The function is called for every layer at the end of the prompt, and after each later token that leaves more tokens
    than the budget allows. It gets :class:`Scores` and the number of tokens that may stay, and returns the indices that
    each key/value head keeps: 1 to ``keep`` of them, in any order. What it raises, ``evaluate`` raises.

    The task ``"glue"`` has ``data`` in the place of the text, and no policies. It holds the classes or scores that an
    encoder gives against those of the file, and against f32::

        waggle.evaluate(task="glue", data="whose-line.tsv", model="whose-line", engine="fixed")["metrics"]

    Other tasks, and costs beside a study, are those of the command line, without functions and bars::

        waggle.evaluate(task="needle", policies=["snapkv", "mpcache"], lengths=[128, 256], budgets=[0.25])
        waggle.evaluate("tinystories.json", ["snapkv"], costs="lan", cores=16)

    :param text: words, token ids, or a file: a ``pathlib.Path``, or a text that is the path of a file or the name of
        a bundled one (``"tinystories.json"``)
    :param policies: the policies; ``policy`` names a single one
    :param task: ``"text"``, ``"glue"``, or ``"needle"``, ``"key-value"``, ``"recall"``, ``"longbench"``, ``"rouge-2"``, ``"rouge-l"``
    :param data: for ``"glue"`` a file of one of its tasks, columns with tabs between them or JSON lines: texts,
        perhaps pairs, with labels or scores; a bundled one is ``"whose-line.tsv"``
    :param budgets: shares of the cache in (0, 1], or numbers of tokens from 2 on; 0.05, 0.1, 0.25, 0.5 and 1 unless
        given. A policy with a ``budget`` of its own runs at that one alone.
    :param context: tokens of a sequence; 256 unless given
    :param prompt: how many of these go through the model at once; half of them unless given
    :param sequences: number of sequences; 4 of a text unless given, all lines of ``data``
    :param engine: ``"float"`` (f32), ``"fixed"`` (the parties' numbers, in the clear) or ``"secure"`` (both parties)
    :param progress: a bar, or a function of :class:`Progress`
    :param options: ``lengths``, ``depths``, ``seed``, ``prompts`` of a task; ``costs`` (a link) and ``cores``
    """
    if isinstance(policies, str) or callable(policies):
        policies = [policies]
    given = [*policies, *([] if policy is None else [policy])]
    if options or task not in ("text", "glue"):
        if any(callable(one) for one in given) or progress:
            raise WaggleError("the command line, which has this task and costs, knows no functions and shows no bars")
        asked = {"policies": given or None, "budgets": budgets, "context": context, "prompt": prompt, "sequences": sequences}
        return study(text, {**asked, "task": task, "data": data, "model": model, "engine": engine, **options})
    of_text = {"text": text, "policies": given or None, "budgets": budgets, "context": context, "prompt": prompt}
    for name, value in (of_text if task == "glue" else {"data": data}).items():
        if value is not None:
            raise WaggleError(f"{name} is no option of the task {task}")
    if (data if task == "glue" else text) is None:
        raise WaggleError(f"{'data' if task == 'glue' else 'text'} is missing")
    if data is not None:
        with _told(progress) as told:
            return GlueEvaluation(_waggle.glue(fspath(model), data, sequences, engine, told))
    assert text is not None
    context = 256 if context is None else context
    functions: dict[str, Function] = {}
    texts = [one if isinstance(one, str) else _named(one, functions) for one in given]
    setting = {
        "model": fspath(model),
        "text": _Path(text) if isinstance(text, str) and (text in _waggle.texts() or _isfile(text)) else _prompt(text),
        "budgets": [0.05, 0.1, 0.25, 0.5, 1.0] if budgets is None else list(budgets),
        "context": context,
        "prompt": context // 2 if prompt is None else prompt,
        "sequences": 4 if sequences is None else sequences,
        "engine": engine,
    }
    with _told(progress) as told:
        return Evaluation(_waggle.evaluate(setting, texts, functions, told))


class Client:
    """Generates and classifies with the model of a server, which learns the length of a text and nothing else of it.

    Every call but :meth:`chat` opens a session of its own and ends it. A ``with`` block ends the conversations that its
    client opened::

        with waggle.Client("example.org") as client:
            print(client.chat().say("ROMEO:"))

    Keys and trust are those of the command line: a server and a client of one user trust each other, and another server
    is trusted by ``server_key="ed25519:..."``.

    :param address: ``"host:port"``
    :param options: what every call has in common: ``policy``, ``link``, ``server_key``, ``preprocess``, ``expect`` and
        others of ``waggle generate``
    """

    def __init__(self, address: str = "127.0.0.1:7411", **options: Unpack[LinkOptions]) -> None:
        self.address = address
        self._options = options
        self._chats: _weakref.WeakSet[Chat] = _weakref.WeakSet()

    def close(self) -> None:
        """Ends the conversations that are still open."""
        with _contextlib.ExitStack() as stack:
            for chat in self._chats:
                stack.callback(chat.close)
        self._chats.clear()

    def __enter__(self) -> Client:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        _end(self.close, kind)

    def generate(
        self,
        prompt: Prompt | Prompts = "Once upon a time",
        *,
        tokens: int = 32,
        stream: Callable[[str], object] | None = None,
        progress: Watcher = False,
        **options: Unpack[GenerateOptions],
    ) -> Report:
        """Generates ``tokens`` tokens after ``prompt`` (words, token ids, or a file), in a session of its own. ``stream``
        is called with each piece of the text as it comes, in another thread; what it raises is raised at the end.
        Several prompts in a list, and ``samples`` texts after each, are read side by side; the report has ``texts``.
        ``progress`` shows bars, or is called with :class:`Progress`."""
        given: dict[str, Any] = {**self._options, **options}
        with _told(progress) as told:
            return Report(_waggle.generate(self.address, _prompt(prompt), tokens, stream, told, **given))

    def stream(
        self, prompt: Prompt | Prompts = "Once upon a time", *, tokens: int = 32, **options: Unpack[GenerateOptions]
    ) -> Pieces:
        """:meth:`generate` as an iterator over the pieces of the text, which ``async for`` takes as well; ``await`` gives
        the report::

            for piece in client.stream("ROMEO:"):
                print(piece, end="")
        """
        asked: dict[str, Any] = {**self._options, **options}
        address, words = self.address, _prompt(prompt)
        return Pieces(lambda hear, watch: Report(_waggle.generate(address, words, tokens, hear, watch, **asked)))

    def classify(
        self,
        inputs: Input | Iterable[Input],
        *,
        batch: int = 8,
        progress: Watcher = False,
        **options: Unpack[AskOptions],
    ) -> Answers:
        """Asks the server's encoder for the classes of texts or images, the scores of a regression, or masked words.
        The server learns how long the inputs are and how many a session has, and nothing else of them. ``inputs``,
        ``batch``, ``progress`` and ``options`` are those of :func:`classify`."""
        given: dict[str, Any] = {**self._options, **options}
        with _told(progress) as told:
            return Answers(_waggle.classify(self.address, _inputs(inputs), batch, told, **given))

    def chat(
        self,
        *,
        tokens: int = 64,
        turn_tokens: int = 64,
        system: str | None = None,
        check: str | PathLike[str] | None = None,
        **options: Unpack[TalkOptions],
    ) -> Chat:
        """Opens a session of several turns, which ends with :meth:`Chat.close` or at the end of a ``with`` block,
        that of the chat or that of the client.

        :param tokens: most tokens of an answer
        :param turn_tokens: most tokens that a turn adds before its answer, the marks of the chat template included. With
            ``preprocess=True`` so much is prepared between turns.
        :param system: a message that stands before the first turn
        :param check: hold every answer against this model in the clear, a directory or a bundled name:
            ``turn["token_agreement"]``, a share from 0 to 1
        :param options: ``preprocess``, ``no_template``, ``no_stop_at_eos``, ``transcript`` (a file), ``policy``,
            ``temperature`` and others of ``waggle chat``
        """
        given: dict[str, Any] = {"turn_tokens": turn_tokens, "system": system, "check": check}
        chat = Chat(self.address, tokens=tokens, **{**self._options, **options, **given})
        self._chats.add(chat)
        return chat


class Chat:
    """A conversation with the model of a server, by :meth:`Client.chat`::

        with waggle.Client(address).chat(tokens=40, preprocess=True) as chat:
            print(chat.say("ROMEO:"))
        chat.report

    The words of a turn alone go through the model, on a private cache that both parties keep. The server learns how many
    tokens each turn has, and when it comes. Between turns a thread keeps the session, and with ``preprocess`` prepares the
    next turn while Python does other things. A session that has failed raises its error at the next call; the
    transcript stays.
    """

    #: After :meth:`close`: that of the whole session, with a list of its ``turns``. None if the session has failed.
    report: Report | None

    def __init__(self, address: str, *, tokens: int = 64, **options: Unpack[TalkOptions]) -> None:
        self._chat = _waggle.Chat(address, tokens, **options)
        self.report = None
        # A session that nobody closes ends with the object or with the program.
        self._end = _weakref.finalize(self, _left, self._chat)
        # It has a say in how long answers are, so a user is shown what is new.
        if self._chat.template is not None:
            _warnings.warn(self._chat.template, stacklevel=3)

    def say(
        self, words: str, *, stream: Callable[[str], object] | None = None, progress: Watcher = False
    ) -> Turn:
        """Says ``words`` and returns the answer.

        A turn that is refused, because it is too long or the model's positions are used up, raises :class:`WaggleError`,
        and the conversation goes on. Ctrl-C in the middle of a turn ends the session.

        :param stream: called with each piece of the answer as it comes, in another thread. What it raises, ``say``
            raises after the turn, which is then part of the conversation.
        :param progress: bars, or a function of :class:`Progress`. What it raises ends the session.
        """
        with _told(progress) as told:
            turn, rereads = self._chat.say(words, stream, told)
        if rereads:
            _warnings.warn(
                "the chat template changes what was said before: the model read the conversation from its beginning",
                stacklevel=2,
            )
        return Turn(turn)

    def reset(self) -> None:
        """Begins another conversation in the same session: both parties drop the cache, and :attr:`transcript` begins
        anew."""
        self._chat.reset()

    @property
    def prepared(self) -> tuple[int, int]:
        """For how many tokens of the next turn correlations are there, and for how many there will be: ``(32, 128)``.
        Without ``preprocess`` it is ``(0, 0)``."""
        return self._chat.prepared()

    @property
    def transcript(self) -> list[dict[str, str]]:
        """What was said in this conversation: ``role`` (``"user"`` or ``"assistant"``) and ``text`` of each message. A turn
        under way is not in it before its end."""
        return self._chat.transcript()

    def close(self) -> None:
        """Ends the session; a second time does nothing. Raises what ended the session before, if no call did."""
        if self._end.detach() is not None:
            report = self._chat.close()
            self.report = None if report is None else Report(report)

    def __enter__(self) -> Chat:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        _end(self.close, kind)


def _end(close: Callable[[], None], raised: object) -> None:
    """Closes at the end of a block. What the block `raised` says more than the end of a session."""
    try:
        close()
    except WaggleError:
        if raised is None:
            raise


def _left(chat: _waggle.Chat) -> None:
    """Ends a session whose end nobody waits for."""
    try:
        chat.close()
    except Exception:
        pass


class Server:
    """A server of a model, in a process of its own.

    It listens when the constructor returns, and ends with :meth:`close`, at the end of a ``with`` block, or with this
    process. Ctrl-C is not meant for it::

        with waggle.Server("shakespeare-llama") as server:
            print(waggle.Client(server.address).generate("JULIET:", tokens=20)["text"])

    :param model: directory or bundled name
    :param listen: address; port 0 takes a free one
    :param options: ``policy``, ``link``, ``sessions``, ``max_tokens`` and others of ``waggle serve``
    """

    def __init__(
        self, model: str | PathLike[str], *, listen: str = "127.0.0.1:0", log: str = "warn", **options: Unpack[ServerOptions]
    ) -> None:
        asked = _json.dumps({**options, "model": model, "listen": listen, "log": log}, default=fspath)
        self._process = _subprocess.Popen(
            [_sys.executable, "-m", "waggle._server"],
            stdin=_subprocess.PIPE,
            stdout=_subprocess.PIPE,
            stderr=_subprocess.PIPE,
            text=True,
            # Signals of a terminal or of a notebook are for this process.
            start_new_session=True,
        )
        self._in, self._out, self._err = (
            _given(pipe) for pipe in (self._process.stdin, self._process.stdout, self._process.stderr)
        )
        self._log: list[str] = []
        # Somebody reads what it says, or it would wait for that.
        self._reader = _threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        try:
            # The pipe stays open: the server ends when nobody holds it any more. One that ended before says why.
            with _contextlib.suppress(BrokenPipeError):
                print(asked, file=self._in, flush=True)
            line = self._out.readline()
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
        for line in self._err:
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
            except BaseException as error:
                # The time is up, or the user does not want to wait.
                self._process.kill()
                if not isinstance(error, _subprocess.TimeoutExpired):
                    raise
        self._process.wait()
        self._reader.join()
        with _contextlib.suppress(BrokenPipeError):
            self._in.close()
        self._out.close()
        self._err.close()

    def __enter__(self) -> Server:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _given(pipe: IO[str] | None) -> IO[str]:
    assert pipe is not None, "every pipe was asked for"
    return pipe


class _Bars:
    """A bar of tqdm for each step, a widget in a notebook."""

    _UNITS = {"offline": "B", "prefill": " layers", "decode": " tokens", "study": " passes"}

    def __init__(self) -> None:
        from tqdm.auto import tqdm

        self._new = tqdm
        self._bar: Any = None
        self._step = ""

    def __call__(self, step: str, done: int, total: int) -> None:
        if self._bar is None or step != self._step or done < self._bar.n:
            self.close()
            self._bar = self._new(total=total, desc=step, unit=self._UNITS[step], unit_scale=step == "offline")
            self._step = step
        self._bar.update(done - self._bar.n)

    def close(self) -> None:
        if self._bar is not None:
            self._bar.close()


@_contextlib.contextmanager
def _told(progress: Watcher) -> Iterator[Callable[[str, int, int], object] | None]:
    """What the program calls with progress."""
    if callable(progress):
        watcher = progress
        yield lambda *far: watcher(Progress(*far))
    elif progress:
        with _contextlib.closing(_Bars()) as bars:
            yield bars
    else:
        yield None


def _prompt(prompt: Any) -> Any:
    if isinstance(prompt, (str, PathLike)):
        return prompt
    return [_prompt(one) if isinstance(one, (str, PathLike)) or hasattr(one, "__len__") else int(one) for one in prompt]


def _inputs(given: Any) -> list[str | tuple[str, str] | PathLike[str] | list[int]]:
    """The inputs of one session or of several."""
    if isinstance(given, (str, PathLike)) or _is_pair(given):
        return [given]
    given = list(given)
    try:
        return [[_index(token) for token in given]] if given else []
    except TypeError:
        return [_input(one) for one in given]


def _input(given: Any) -> str | tuple[str, str] | PathLike[str] | list[int]:
    if isinstance(given, (str, PathLike)) or _is_pair(given):
        return given
    try:
        return [_index(token) for token in given]
    except TypeError:
        expected = "a text, a tuple of two texts, token ids or the path of an image"
        raise TypeError(f"an input is {expected}, not {given!r}") from None


def _is_pair(given: Any) -> TypeGuard[tuple[str, str]]:
    return isinstance(given, tuple) and len(given) == 2 and all(isinstance(text, str) for text in given)


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
    asarray: Callable[[Any], Any] = list
    with _contextlib.suppress(ImportError):
        from numpy import asarray
    scores = Scores(asarray(head) for head in view["scores"])
    scores.layer, scores.seen = view["layer"], view["seen"]
    scores.latest = [asarray(head) for head in view["latest"]]
    scores.positions = [asarray(head) for head in view["positions"]]
    return [[int(index) for index in head] for head in function(scores, keep)]
