"""The process of :class:`waggle.Server`, which reads from standard input what it serves."""

import json
import os
import signal
import sys
import threading

from . import WaggleError, _waggle


def _follow() -> None:
    """Ends this process when nobody holds the other end of its input any more."""
    sys.stdin.read()
    os.kill(os.getpid(), signal.SIGTERM)


def main() -> int:
    # A server handles signals itself.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    asked = json.loads(sys.stdin.readline())
    threading.Thread(target=_follow, daemon=True).start()
    try:
        return _waggle.serve(**asked)
    except (TypeError, WaggleError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
