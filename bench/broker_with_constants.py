"""`python -m bench.broker_with_constants tidegate.log.append.ENTRY_BYTES_MAX=8192 ...`: a broker with other constants.

Measures and tests set here what no operator sets. A constant is replaced in the module that defines it, and in those
that have imported it.
"""

from __future__ import annotations

import importlib
import sys


def main() -> None:
    """Replace the constants of the command line, then run `tidegate serve`."""
    for assignment in sys.argv[1:]:
        name, _, value = assignment.partition("=")
        module_name, _, constant = name.rpartition(".")
        new = type(getattr(importlib.import_module(module_name), constant))(value)
        for module in [one for name, one in sys.modules.items() if name.startswith("tidegate.")]:
            if hasattr(module, constant):
                setattr(module, constant, new)
    sys.argv = ["tidegate", "serve"]
    from tidegate.__main__ import main as tidegate

    tidegate()


if __name__ == "__main__":
    main()
