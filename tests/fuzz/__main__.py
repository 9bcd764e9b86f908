"""`python -m tests.fuzz`: fuzz a live broker for a while, and print what was found."""

from __future__ import annotations

import argparse
import asyncio
import random
import sys
from typing import Any

from tests.fuzz.live import fuzz


def main() -> int:
    options = _options()
    seed = random.SystemRandom().randrange(1, 1 << 30) if options.seed == "random" else int(options.seed)
    print(f"seed {seed}", flush=True)
    findings = asyncio.run(fuzz(options.seconds, seed, options.api))
    print("\n".join(findings.lines()))
    return 1 if findings.failures() else 0


def _options() -> Any:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=20, help="how long (default 20)")
    parser.add_argument("--seed", default="1", help="what is drawn, or 'random' (default 1)")
    parser.add_argument("--api", type=int, action="append", default=[], help="only this API key; may be repeated")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
