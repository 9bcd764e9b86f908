"""The only broker of `tidegate dev`: imports what it needs while the embedded server starts, then serves.

`python -m tidegate.deferred_serve` reads its environment, a JSON object on one line, from stdin. It ends if there is
none.
"""

from __future__ import annotations

import json
import os
import sys

from tidegate import serve, startup


def main() -> None:
    """Import, wait for the environment, and run the broker with it."""
    startup.prepare()
    serve.import_broker()
    environment = sys.stdin.buffer.readline()
    if environment:
        os.environ.clear()
        os.environ.update(json.loads(environment))
        serve.main(serve.ServeOptions())


if __name__ == "__main__":
    main()
