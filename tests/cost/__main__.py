"""`python -m tests.cost`: print what each operation costs; fail where it is more than table.toml says.

`--update` writes the table instead; `--walks` lists the product's files that run for some operations.
"""

from __future__ import annotations

import argparse
import sys

from tests.cost import table
from tests.cost.cluster import run
from tests.cost.operations import measure_all, walk_all


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.cost", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--update", action="store_true", help="write the figures to tests/cost/table.toml")
    parser.add_argument("--walks", action="store_true", help="list the files that some operations pass")
    options = parser.parse_args()
    if options.walks:
        for name, files in run(walk_all).items():
            print(f"{name}: {len(files)} files", *files, "", sep="\n  ")
        return 0
    update = options.update
    python, allowed = table.read()
    if update and python != table.PYTHON:
        print(f"the table is written with Python {python}, which this is not", file=sys.stderr)
        return 2
    measured = run(measure_all)
    print(table.shown(measured, allowed))
    if update:
        table.PATH.write_text(table.text(measured), "utf-8")
        return 0
    found = table.problems(allowed, measured, python)
    if python != table.PYTHON:
        print(f"calls and bytecodes are not compared: the table has those of Python {python}")
    if found:
        print("", *found, "", sep="\n")
        print("`make cost ARGS=--update` writes the table. If a figure rises, say why in the commit.")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
