"""Tables and figures of the command line."""

from __future__ import annotations

import json as _json
import subprocess as _subprocess
import sys as _sys
import tempfile as _tempfile
from collections.abc import Sequence
from os import PathLike, fspath
from os.path import isfile as _isfile
from pathlib import Path as _Path
from typing import TYPE_CHECKING, Any

from . import _waggle
from ._results import Evaluation, Table
from ._waggle import WaggleError

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from ._options import CompareOptions, PlotOptions, ReproduceOptions, SweepOptions, TaskOptions


def sweep(
    models: str | Sequence[str] = "gpt2",
    *,
    contexts: int | Sequence[int] = (128, 512),
    policies: str | Sequence[str] = "full",
    links: str | Sequence[str] = "lan",
    phases: str | Sequence[str] = "two",
    json: str | PathLike[str] | None = None,
    **options: Unpack[SweepOptions],
) -> Table:
    """Plans what a decoded token costs, the mean of some after a prompt, for every combination. Of an encoder, or with
    ``pass_=True``, it is a pass over the context.

    :param models: directories, ``config.json`` files, bundled names or those of published shapes
    :param contexts: tokens of the prompt, or of the pass
    :param policies: cache policies; each is compared with the first
    :param links: ``"lan"``, ``"wan"``, those of papers, ``"RATEmbit,DELAYms"``
    :param phases: ``"one"``, ``"two"``, ``"dealt"``, ``"dealt-weights"``, ``"three-parties"``
    :param json: write the record here, for :func:`plot` and :func:`compare`
    :param options: ``cores``, ``tokens`` (of the mean), ``by="operation"``, ``price`` and others of ``waggle sweep``
    """
    lists = {"models": models, "contexts": contexts, "policies": policies, "links": links, "phases": phases}
    return _tables("sweep", [], {**lists, "json": json, **options}).popitem()[1]


def reproduce(
    paper: str | None = None, row: int | None = None, **options: Unpack[ReproduceOptions]
) -> dict[str, Table]:
    """What a paper publishes, and the same by this program: the tables ``figures`` or ``ablations``, and ``sources``.

    :param paper: the paper by its system, ``"bumblebee"`` for instance; without one, all of them
    :param row: one row of it alone, by its number
    :param options: ``cores``, ``link``, ``run`` (measure it on this machine) and others of ``waggle reproduce``
    """
    named = [str(word) for word in (paper, row) if word is not None]
    return _tables("reproduce", named, {**options})


def compare(
    first: str | PathLike[str], second: str | PathLike[str], **options: Unpack[CompareOptions]
) -> dict[str, Table]:
    """Two reports, two studies or two sweeps that were written as JSON, side by side; ratios are of the second to the
    first."""
    return _tables("compare", [fspath(first), fspath(second)], {**options})


def plot(*files: str | PathLike[str], out: str | PathLike[str], **options: Unpack[PlotOptions]) -> list[_Path]:
    """Draws figures of a study, a sweep or any number of reports that were written as JSON, each as SVG and as text for LaTeX (pgfplots).

    :param files: the documents
    :param out: the folder of the figures, which are returned
    :param options: ``x`` (``"length"``, ``"cores"``, ``"links"`` or an option of the policies),
        ``metric`` and others of ``waggle plot``
    """
    return [_Path(line) for line in _command("plot", [fspath(file) for file in files], {"out": out, **options}).splitlines()]


def study(text: Any, options: dict[str, Any]) -> Evaluation:
    """A study of the command line. Words that are no file are given as one."""
    with _tempfile.TemporaryDirectory() as folder:
        file = _Path(folder) / "study.json"
        named = isinstance(text, PathLike) or text in _waggle.texts() or isinstance(text, str) and _isfile(text)
        if text is not None and not named:
            if not isinstance(text, str):
                raise WaggleError("the command line, which has this task and costs, takes words and files alone")
            (_Path(folder) / "words.txt").write_text(text, encoding="utf-8")
            text = _Path(folder) / "words.txt"
        _command("eval", [], {**options, "text": text, "json": file})
        return Evaluation(_json.loads(file.read_text(encoding="utf-8")))


#: What stands between the values of an option that takes several.
_BETWEEN = {"policies": ";", "links": ","}


def _command(name: str, words: list[str], options: dict[str, Any]) -> str:
    """What the command `name` writes to its standard output."""
    for option, value in options.items():
        flag = "--" + option.rstrip("_").replace("_", "-")
        if value is True:
            words.append(flag)
        elif value is not None and value is not False:
            several = isinstance(value, (list, tuple))
            between = ";" if name == "plot" else _BETWEEN.get(option, ",")
            words.append(f"{flag}={between.join(map(str, value)) if several else value}")
    # Modules of the folder that the user is in are not for it.
    safe = ["-P"] if _sys.version_info >= (3, 11) else []
    ran = _subprocess.run([_sys.executable, *safe, "-m", "waggle", name, *words], capture_output=True, text=True)
    if ran.returncode:
        raise WaggleError(ran.stderr.strip().removeprefix("error: "))
    return ran.stdout


def _tables(name: str, words: list[str], options: dict[str, Any]) -> dict[str, Table]:
    document = _json.loads(_command(name, words, {**options, "format": "json"}))
    return {title: Table(rows) for title, rows in document.items()}
