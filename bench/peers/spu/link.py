"""An imitated network: a TCP relay with a rate and a delay for each direction, which counts what passes."""

import collections
import socket
import threading
import time

CHUNK = 1 << 18


class Link:
    """What both directions of a network between two parties share: the rate, the delay, and the counts.

    `rate` is in bytes a second for each direction (0: not limited), `delay` in seconds one way.
    """

    def __init__(self, rate=0, delay=0.0):
        self.rate, self.delay = rate, delay
        self._lock = threading.Lock()
        self._free = [0.0, 0.0]
        self.reset()

    def reset(self):
        """Begins a new count."""
        with self._lock:
            self.bytes = [0, 0]
            self.flows = 0
            self._last = None

    def arrival(self, direction, size, speaks):
        """Counts `size` bytes that a party sends now, and says when they arrive.

        A flow is a maximal run of data in one direction. Answers of a transport (`speaks` is false) carry nothing of
        a protocol: they count as bytes, and end no flow.
        """
        now = time.monotonic()
        with self._lock:
            self.bytes[direction] += size
            if speaks and self._last != direction:
                self.flows += 1
                self._last = direction
            if self.rate:
                self._free[direction] = max(now, self._free[direction]) + size / self.rate
                now = self._free[direction]
        return now + self.delay


def relay(link, target, direction, duplex):
    """Relays connections to the port `target` and returns the port to connect to.

    `direction` is the way of the data of who connects: 0 from party 0 to party 1. With `duplex` both ways of a
    connection speak; without it what comes back is an answer of the transport.
    """
    listener = socket.create_server(("127.0.0.1", 0))
    threading.Thread(target=_accept, args=(listener, link, target, direction, duplex), daemon=True).start()
    return listener.getsockname()[1]


def _accept(listener, link, target, direction, duplex):
    while True:
        near, _ = listener.accept()
        try:
            far = socket.create_connection(("127.0.0.1", target))
        except OSError:
            # The party does not listen yet; who connects tries again.
            near.close()
            continue
        for end in (near, far):
            end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        _pump(link, near, far, direction, True)
        _pump(link, far, near, 1 - direction, duplex)


def _pump(link, source, sink, direction, speaks):
    """Carries bytes from `source` to `sink` in two threads, so that the delay of one chunk delays no other."""
    waiting, changed = collections.deque(), threading.Condition()

    def read():
        while True:
            try:
                data = source.recv(CHUNK)
            except OSError:
                data = b""
            due = link.arrival(direction, len(data), speaks) if data else time.monotonic()
            with changed:
                waiting.append((due, data))
                changed.notify()
            if not data:
                return

    def write():
        while True:
            with changed:
                while not waiting:
                    changed.wait()
                due, data = waiting.popleft()
            pause = due - time.monotonic()
            if pause > 0:
                time.sleep(pause)
            try:
                if not data:
                    sink.shutdown(socket.SHUT_WR)
                    return
                sink.sendall(data)
            except OSError:
                return

    for work in (read, write):
        threading.Thread(target=work, daemon=True).start()
