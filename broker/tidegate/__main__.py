"""The entry of the `tidegate` command and of `python -m tidegate`: a broker at once, or the whole command line."""

from __future__ import annotations

import sys

from tidegate import serve


def main() -> None:
    """Run `serve` without the command line's imports, and whatever else, its help included, with them."""
    command, *arguments = sys.argv[1:] or [""]
    options = serve.parse(arguments) if command == "serve" else None
    if options is not None:
        serve.main(options)
        return
    from tidegate.command_line import command_line

    command_line(prog_name="tidegate")


if __name__ == "__main__":
    main()
