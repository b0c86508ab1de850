"""The command line: ``python -m waggle``."""

import signal
import sys

from . import _waggle


def main() -> int:
    # The program ends by Ctrl-C like any other, and a server handles signals itself.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    return _waggle.run(["waggle", *sys.argv[1:]])


if __name__ == "__main__":
    sys.exit(main())
