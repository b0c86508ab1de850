"""What calls return: documents of the command line, with what is read of them typed."""

from __future__ import annotations

import html as _html
import json as _json
import math as _math
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Literal, TypedDict, overload

from . import _waggle

if TYPE_CHECKING:
    from pandas import DataFrame


class Cost(TypedDict, total=False):
    """A phase of a session: bytes on the wire each way, messages in one direction, and seconds of the client's clock."""

    bytes_client_to_server: int
    bytes_server_to_client: int
    flows: int
    seconds: float
    client_cpu_seconds: float
    server_cpu_seconds: float
    per_token: list[Cost]


class Operation(TypedDict):
    """What an operation took in a phase: ``path`` is that of its scopes, ``layer 3/attention/softmax``."""

    phase: str
    path: str
    bytes_client_to_server: int
    bytes_server_to_client: int
    flows: int
    seconds: float


class Row(TypedDict, total=False):
    """A policy at a budget in a study."""

    label: str
    budget: float | None
    policy: str
    perplexity: float
    perplexity_ratio: float
    accuracy: float
    agreement: float
    kl: float
    attended: float | None
    exact_match: float | None
    score: float | None


class Report(dict[str, Any]):
    """The report of a session or a plan, as ``waggle --json`` writes it: bytes, flows and seconds by phase and operation.

    Bytes are counted on the wire, each way, and flows are messages in one direction. Seconds are those of the client's
    clock; in a plan they are those of the network alone, and CPU seconds are NaN. ``report["text"]`` and
    ``report["tokens"]``, ids (tokens,), are what was generated. A notebook shows the page of ``waggle report --html``.
    """

    if TYPE_CHECKING:

        @overload
        def __getitem__(self, key: Literal["text"]) -> str: ...
        @overload
        def __getitem__(self, key: Literal["texts"]) -> list[str]: ...
        @overload
        def __getitem__(self, key: Literal["tokens"]) -> list[int]: ...
        @overload
        def __getitem__(self, key: Literal["prompt_tokens"]) -> int: ...
        @overload
        def __getitem__(self, key: Literal["phases"]) -> dict[str, Cost]: ...
        @overload
        def __getitem__(self, key: Literal["operations"]) -> list[Operation]: ...
        @overload
        def __getitem__(self, key: Literal["token_agreement", "max_abs_logit_error"]) -> float: ...
        @overload
        def __getitem__(self, key: str) -> Any: ...
        def __getitem__(self, key: str) -> Any: ...

    def __repr__(self) -> str:
        costs = self.get("phases", {}).values()
        both = ("bytes_client_to_server", "bytes_server_to_client")
        bytes_ = sum(cost.get(way, 0) for cost in costs for way in both)
        flows = sum(cost.get("flows", 0) for cost in costs)
        what = "plan" if self.get("predicted") else "session"
        name = self.get("model", {}).get("name", "a model")
        return f"<waggle.Report: {what} of {name}, {bytes_ / 1e6:.1f} MB, {flows} flows, keys {', '.join(self)}>"

    def _repr_html_(self) -> str:
        return _frame("session", self)

    def to_pandas(self, what: str = "operations") -> DataFrame:
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


class Evaluation(dict[str, Any]):
    """A study of cache policies, as ``waggle eval --json`` writes it. ``study["rows"]`` has a policy at a budget each;
    the first one is the full cache. A notebook shows the page of ``waggle report --html``."""

    if TYPE_CHECKING:

        @overload
        def __getitem__(self, key: Literal["rows"]) -> list[Row]: ...
        @overload
        def __getitem__(self, key: str) -> Any: ...
        def __getitem__(self, key: str) -> Any: ...

    def __repr__(self) -> str:
        return f"<waggle.Evaluation: {len(self.get('rows', []))} rows, keys {', '.join(self)}>"

    def _repr_html_(self) -> str:
        return _frame("study", self)

    def to_pandas(self) -> DataFrame:
        """A data frame with a row for every policy at every budget. Needs pandas.

        Columns: ``label`` (the policy without its budget), ``budget`` (a share, or tokens from 2 on), ``policy``, and the
        metrics: ``perplexity``, ``kl`` (nats), shares from 0 to 1 for the others.
        """
        import pandas

        return pandas.DataFrame(self["rows"])


class GlueEvaluation(dict[str, Any]):
    """A study of an encoder, as ``waggle eval --task glue --json`` writes it: ``study["metrics"]``, each with its
    ``value`` and an ``interval``; ``agreement``, the share of answers that f32 gives as well; ``largest_error``, that
    of a logit; and the ``answers``, with ``gold`` and ``logits`` of each example."""

    def __repr__(self) -> str:
        metrics = ", ".join(f"{name} {scored['value']:.4f}" for name, scored in self.get("metrics", {}).items())
        return f"<waggle.GlueEvaluation: {len(self.get('answers', []))} examples, {metrics}>"

    def to_pandas(self) -> DataFrame:
        """A data frame with a row for every metric: ``metric``, ``value``, ``low`` and ``high``, the ends of a 95 %
        interval. Needs pandas."""
        import pandas

        columns = ["metric", "value", "low", "high"]
        rows = []
        for name, scored in self["metrics"].items():
            interval = scored.get("interval", {})
            rows.append([name, scored["value"], interval.get("low"), interval.get("high")])
        return pandas.DataFrame(rows, columns=columns)


class Answer(dict[str, Any]):
    """What an encoder says of an input. ``str(answer)`` is the class.

    ``class`` is the name of the class, or the word in the place of the mask; ``probability`` is that of this class,
    from 0 to 1, by itself where ``problem_type`` is ``multi_label_classification``; ``logits`` (classes,) are those of
    all classes, before the softmax or the sigmoid. Of a model of scores ``score`` is the number, and ``class`` and
    ``probability`` are None. With ``reveal="token"`` the client learns the class alone.
    """

    def __str__(self) -> str:
        return str(self["score"] if self["class"] is None else self["class"])


class Answers(list[Answer]):
    """An :class:`Answer` for each input, in order."""

    #: The reports of the sessions, each of which took a batch of the inputs.
    reports: list[Report]

    def __init__(self, sessions: Iterable[dict[str, Any]] = ()) -> None:
        self.reports = []
        for session in sessions:
            self.reports.append(Report(session["report"]))
            self.extend(map(Answer, session["answers"]))

    def to_pandas(self) -> DataFrame:
        """A data frame with a row for every input: ``class``, ``probability``, ``score`` and ``logits``. Needs
        pandas."""
        import pandas

        return pandas.DataFrame(list(self), columns=["class", "probability", "score", "logits"])


class Scores(list[Any]):
    """What an eviction policy sees of a layer: for every key/value head the attention that each of its tokens received
    so far, summed over queries and over the query heads that share the head. A numpy array (tokens,) of float64 for each
    head, or a list where there is no numpy. Heads may hold different tokens.
    """

    #: Index of the layer.
    layer: int
    #: Tokens of the text so far.
    seen: int
    #: The same as the scores, from the latest query alone: (tokens,) for each head, which sum up to the number of
    #: query heads that share it.
    latest: list[Any]
    #: Positions in the text, counted from 0, of the tokens that each head holds: (tokens,) of ascending integers for
    #: each head.
    positions: list[Any]


class Turn(dict[str, Any]):
    """A turn of a conversation, as ``waggle chat --json`` lists it. ``str(turn)`` is the answer.

    ``text`` and ``tokens`` are the answer, ``prompt_tokens`` the number of tokens that the model read for it, and
    ``conversation`` counts resets from 0. ``before`` is what was prepared ahead, ``phases`` what the turn itself took:
    ``setup``, ``offline``, ``prefill`` and ``decode``, each with bytes each way, flows and seconds of the client's clock.
    With ``check`` also ``token_agreement``, a share from 0 to 1.
    """

    def __str__(self) -> str:
        return str(self["text"])


class Table(list[dict[str, Any]]):
    """The rows of a table of the command line, by the names of its columns in CSV: bytes, seconds and numbers as they
    are, None where nothing is known. What a row assumes, its link, phases and cores among it, stands in the row."""

    def to_pandas(self) -> DataFrame:
        """A data frame with a row for each. Needs pandas."""
        import pandas

        return pandas.DataFrame(list(self))


def _without_cpu(value: Any) -> Any:
    """The same without CPU seconds, which no plan without a calibration has."""
    if isinstance(value, dict):
        return {name: _math.nan if name.endswith("cpu_seconds") else _without_cpu(of) for name, of in value.items()}
    return [_without_cpu(entry) for entry in value] if isinstance(value, list) else value


def _finite(value: Any) -> Any:
    """The same as the program writes it, with zeros for what is not known."""
    if isinstance(value, dict):
        return {name: _finite(of) for name, of in value.items()}
    if isinstance(value, list):
        return [_finite(entry) for entry in value]
    return 0.0 if isinstance(value, float) and _math.isnan(value) else value


def _frame(name: str, document: dict[str, Any]) -> str:
    """The page of a document, for a notebook: in a frame of its own, so that its styles stay there."""
    page = _html.escape(_waggle.page(name, _json.dumps(_finite(document))))
    return f'<iframe srcdoc="{page}" style="width: 100%; height: 40em; border: 0" sandbox></iframe>'
