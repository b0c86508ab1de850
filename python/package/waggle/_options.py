"""Options of calls by their names, for editors and type checkers: those of the command line, with underscores."""

from __future__ import annotations

from collections.abc import Sequence
from os import PathLike
from typing import TypedDict, Union

Path = Union[str, "PathLike[str]"]
Number = Union[int, str]


class TermsOptions(TypedDict, total=False):
    """What both parties of a session agree on."""

    policy: str
    select: str
    preprocess: bool
    reveal: str
    logit_bits: Number
    ot: str
    packing: str
    masks: str
    cores: Number
    plan_for: str
    prefill_chunk: Number


class PlanOptions(TermsOptions, total=False):
    """Of a session that is planned."""

    link: str
    stop_at_eos: bool
    pad_prompt: bool


class SamplingOptions(TypedDict, total=False):
    """How tokens are chosen."""

    temperature: float
    top_p: float
    seed: int


class PublicOptions(TypedDict, total=False):
    """Of a text, or its token ids, that the server reads in the clear before private ones."""

    public_prefix: Union[str, Sequence[int]]
    prefix_policy: str


class TextOptions(SamplingOptions, PublicOptions, total=False):
    """Of a text that two parties generate."""

    samples: int
    stop_at_eos: bool
    pad_answer: bool
    pad_prompt: str
    draft: str
    draft_rate: float
    pool: Path
    tokenizer: Path


class InputOptions(TypedDict, total=False):
    """Of inputs that an encoder reads."""

    pad: str
    pool: Path
    tokenizer: Path
    preprocessor: Path


class LinkOptions(TermsOptions, total=False):
    """Of a client and its server."""

    link: str
    timeout: float
    connect_timeout: float
    expect: Path
    server_key: str
    identity: Path
    insecure_plaintext: bool


class DemoOptions(TermsOptions, TextOptions, total=False):
    """Of a text that both parties generate in this process."""


class ClassifyOptions(TermsOptions, InputOptions, total=False):
    """Of classes that both parties find in this process."""


class GenerateOptions(LinkOptions, TextOptions, total=False):
    """Of a text of a client."""


class AskOptions(LinkOptions, InputOptions, total=False):
    """Of classes that a client asks for."""


class TalkOptions(LinkOptions, SamplingOptions, PublicOptions, total=False):
    """Of a conversation."""

    public_system: bool
    stop_at_eos: bool
    no_stop_at_eos: bool
    pad_answer: bool
    no_pad_answer: bool
    template: Path
    no_template: bool
    transcript: Path
    tokenizer: Path


class ServerOptions(TermsOptions, PublicOptions, total=False):
    """Of a server, which offers the public text to its clients."""

    link: str
    allow: Path
    allow_any: bool
    identity: Path
    insecure_plaintext: bool
    max_prompt: int
    max_public: int
    max_tokens: int
    max_positions: int
    max_draft: int
    max_reveals: Number
    no_chat: bool
    sessions: int
    max_sessions_per_key: int
    queue: int
    pools: Path
    max_pools: int
    max_pools_total: int
    weight_cache: int
    skip_range_check: bool
    halves_by_client: bool
    json: Path
    metrics: str
    timeout: float
    session_limit: float
    handshake_timeout: float
    max_idle: int
    max_idle_per_address: int


class CalibratedOptions(TypedDict, total=False):
    """Of costs by a calibration."""

    calibration: Path
    peer_calibration: Path
    one_machine: bool


class SweepOptions(CalibratedOptions, total=False):
    """Of a table of plans."""

    cores: Union[Number, Sequence[Number]]
    tokens: int
    first_step: bool
    pass_: bool
    by: str
    positions: int
    public: str
    rank: int
    price: str
    watts: float
    out: Path


class ReproduceOptions(CalibratedOptions, total=False):
    """Of a paper's rows."""

    run: bool
    model: Path
    tokens: int
    link: str
    cores: Number
    bib: Path


class CompareOptions(TypedDict, total=False):
    """Of two documents side by side."""

    operations: bool


class PlotOptions(TypedDict, total=False):
    """Of figures."""

    metric: Union[str, Sequence[str]]
    x: str
    labels: Union[str, Sequence[str]]
    links: Union[str, Sequence[str]]
    phases: Union[str, Sequence[str]]
    policies: Union[str, Sequence[str]]


class TaskOptions(CalibratedOptions, total=False):
    """Of a study that the command line makes: its tasks, and costs beside it."""

    prompts: Path
    lengths: Union[int, Sequence[int]]
    depths: Union[float, Sequence[float]]
    seed: int
    costs: str
    cores: Number
