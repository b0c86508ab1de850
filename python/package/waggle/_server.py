"""The process of :class:`waggle.Server`, which reads from standard input what it serves."""

import json
import signal
import sys

from . import WaggleError, _waggle


def main() -> int:
    # A server handles signals itself.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    try:
        return _waggle.serve(**json.load(sys.stdin))
    except (TypeError, WaggleError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
