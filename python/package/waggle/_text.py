"""A text as it is written."""

from __future__ import annotations

import asyncio as _asyncio
import queue as _queue
import threading as _threading
import weakref as _weakref
from collections.abc import AsyncIterator, Callable, Generator, Iterator
from typing import Any

from ._results import Report

#: A session, which is given what hears the pieces of its text and what watches its steps.
Session = Callable[[Callable[[str], object], Callable[[str, int, int], object]], Report]


class Pieces(Iterator[str], AsyncIterator[str]):
    """The pieces of a text as they come, by :meth:`Client.stream`.

    It is an iterator for ``for`` and for ``async for``, and ``await`` waits for the report. What goes wrong is raised
    where the next piece is asked for. One that is closed, or that nobody holds any more, ends its session at the next
    token.
    """

    #: That of the session, after the last piece.
    report: Report | None

    def __init__(self, session: Session) -> None:
        self.report = None
        self._over = False
        self._given: _queue.SimpleQueue[str | Report | BaseException] = _queue.SimpleQueue()
        left = _threading.Event()
        self.close = _weakref.finalize(self, left.set)
        # The thread holds what it needs and not this, so that this can be let go.
        _threading.Thread(target=_write, args=(session, self._given, left), daemon=True).start()

    def __iter__(self) -> Pieces:
        return self

    def __next__(self) -> str:
        if not self._over:
            try:
                given = self._given.get()
            except BaseException:
                self.close()
                raise
            if (piece := self._piece(given)) is not None:
                return piece
        raise StopIteration

    def __aiter__(self) -> Pieces:
        return self

    async def __anext__(self) -> str:
        if not self._over:
            try:
                given = await _asyncio.to_thread(self._given.get)
            except BaseException:
                self.close()
                raise
            if (piece := self._piece(given)) is not None:
                return piece
        raise StopAsyncIteration

    def __await__(self) -> Generator[Any, None, Report]:
        return self._all().__await__()

    async def _all(self) -> Report:
        async for _ in self:
            pass
        assert self.report is not None, "a session that failed has raised"
        return self.report

    def _piece(self, given: str | Report | BaseException) -> str | None:
        if isinstance(given, str):
            return given
        self._over = True
        if isinstance(given, BaseException):
            raise given
        self.report = given
        return None


class _Left(Exception):
    """Nobody wants the text any more."""


def _write(
    session: Session, given: _queue.SimpleQueue[str | Report | BaseException], left: _threading.Event
) -> None:
    def watch(*_: object) -> None:
        if left.is_set():
            raise _Left

    try:
        given.put(session(given.put, watch))
    except BaseException as error:
        given.put(error)
