"""The parts of the program that the package needs. Options are keywords of :mod:`waggle`."""

from collections.abc import Callable, Mapping, Sequence
from os import PathLike
from typing import Any, final

__all__ = [
    "Chat", "WaggleError", "__version__", "classify", "classify_here", "demo", "evaluate", "generate", "glue",
    "models", "page", "plan", "policies", "run", "serve", "texts",
]

__version__: str

class WaggleError(Exception):
    """What went wrong, in the words of the command line."""

_Option = str | int | float | bool | PathLike[str] | None
_Input = str | Sequence[int] | PathLike[str] | tuple[str, str]
_One = str | Sequence[int] | PathLike[str]
_Prompt = _One | Sequence[_One]
_Stream = Callable[[str], object] | None
# A step, what is done of it, and all of it.
_Progress = Callable[[str, int, int], object] | None
_Document = dict[str, Any]

@final
class Chat:
    """A conversation, whose session a thread of the program keeps."""

    template: str | None
    def __new__(cls, address: str, tokens: int = 64, **options: _Option) -> Chat: ...
    def say(self, words: str, stream: _Stream, progress: _Progress) -> tuple[_Document, bool]: ...
    def reset(self) -> None: ...
    def close(self) -> _Document | None: ...
    def prepared(self) -> tuple[int, int]: ...
    def transcript(self) -> list[dict[str, str]]: ...

def policies() -> list[_Document]: ...
def models() -> list[str]: ...
def plan(model: str, **options: _Option) -> _Document: ...
def demo(
    model: str, prompt: _Prompt, tokens: int, check: bool, stream: _Stream, progress: _Progress, **options: _Option
) -> _Document: ...
def generate(
    address: str, prompt: _Prompt, tokens: int, stream: _Stream, progress: _Progress, **options: _Option
) -> _Document: ...
def classify(
    address: str, inputs: Sequence[_Input], batch: int, progress: _Progress, **options: _Option
) -> list[_Document]: ...
def classify_here(
    model: str, inputs: Sequence[_Input], batch: int, progress: _Progress, **options: _Option
) -> list[_Document]: ...
def serve(model: str, listen: str, log: str, **options: _Option) -> int: ...
def evaluate(
    setting: Mapping[str, Any],
    policies: Sequence[str],
    functions: Mapping[str, Callable[..., Any]],
    progress: _Progress,
) -> _Document: ...
def glue(
    model: str, data: str | PathLike[str], sequences: int | None, engine: str, progress: _Progress
) -> _Document: ...
def page(name: str, json: str) -> str: ...
def texts() -> list[str]: ...
def run(words: Sequence[str]) -> int: ...
