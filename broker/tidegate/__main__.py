"""The entry of the `tidegate` command and of `python -m tidegate`: `serve` and `dev` at once, or the command line."""

from __future__ import annotations

import sys

from tidegate import serve


def main() -> None:
    """Run `serve` and `dev` without the command line's imports, and whatever else, their help included, with them."""
    command, *arguments = sys.argv[1:] or [""]
    if command == "serve" and (serve_options := serve.parse(arguments)) is not None:
        serve.main(serve_options)
        return
    if command == "dev":
        from tidegate.cli.dev import command as dev

        if (dev_options := dev.parse(arguments)) is not None:
            dev.main(dev_options)
            return
    from tidegate.command_line import command_line

    command_line(prog_name="tidegate")


if __name__ == "__main__":
    main()
