"""Rules of the code base: scripts keep their contracts, every key and API is described, modules stay small."""

from __future__ import annotations

import inspect
import os
import re
import runpy
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final

import pytest

from tidegate.apis import registry
from tidegate.protocol.schemas import load_request_schema
from tidegate.store.keys import ClusterKeys, GroupKeys, LogKeys, ShardKeys, TransactionKeys
from tidegate.store.scripts import Script

REPOSITORY: Final = Path(__file__).resolve().parents[2]
SCRIPTS: Final = REPOSITORY / "redis_scripts"
DOCS: Final = REPOSITORY / "docs"

REFUSED_WHEN_FULL: Final = frozenset(
    {
        "archive/replay_append",
        "archive/restore_segments",
        "archive/swap_log",
        "cluster/add_samples",
        "cluster/begin_restore",
        "groups/restore_group",
        "log/begin_compaction",
        "log/create_log",
        "log/restore_log",
        "records/append_records",
        "records/stage_records",
        "topics/add_partitions",
        "topics/create_topic",
    }
)
"""Scripts that a full Redis refuses; every other one that writes is allowed then."""

TYPES: Final = frozenset({"hash", "zset", "stream", "string", "set", "list"})
WRITES: Final = re.compile(
    r"(APPEND|P?EXPIRE(AT)?|H?DEL|UNLINK|H?INCR(BY)?|M?SET|SETNX|PERSIST|PUBLISH|RENAME|[LR]PUSH"
    r"|HM?SET|HSETNX|S(ADD|REM)|X(ACK|ADD|DEL|GROUP|READGROUP|SETID|TRIM)|Z(ADD|INCRBY|REM\w*))",
    re.IGNORECASE,
)
LINES_MAX: Final = 400
TEXT_SUFFIXES: Final = frozenset({".py", ".lua", ".md", ".toml", ".yaml", ".yml", ".txt", ".json", ".svg", ".tpl", ""})
SKIPPED: Final = frozenset(
    {".git", ".venv", ".venv-site", ".venv-supply", "__pycache__", "build", "dist", "node_modules"}
)


def script_names() -> list[str]:
    """Every script by its name, without what is only included."""
    found = (path.relative_to(SCRIPTS).with_suffix("").as_posix() for path in SCRIPTS.rglob("*.lua"))
    return sorted(name for name in found if not name.startswith("lib/"))


def source(name: str) -> str:
    """A script's own text."""
    return (SCRIPTS / f"{name}.lua").read_text("utf-8")


def rendered(name: str) -> str:
    """What runs: the text with its includes, without comments."""
    script = object.__new__(Script)  # not registered: that is the callers' business
    object.__setattr__(script, "name", name)
    text = re.sub(r"--\[\[.*?\]\]", "", script.source.decode(), flags=re.DOTALL)
    return re.sub(r"--[^\n]*", "", text)


def header(name: str) -> str:
    """A script's contract."""
    match = re.match(r"#!lua[^\n]*\n--\[\[(.*?)\n\]\]\n", source(name), re.DOTALL)
    assert match, f"{name}: a shebang, then --[[ its contract ]]"
    return match.group(1)


def flags(name: str) -> set[str]:
    """The flags of a script's first line."""
    match = re.fullmatch(r"#!lua(?: flags=([a-z,-]+))?", source(name).split("\n", 1)[0])
    assert match, f"{name}: the first line is `#!lua` with its flags"
    return set((match.group(1) or "").split(",")) - {""}


def declared(name: str, kind: str) -> tuple[list[int], bool]:
    """Indexes of KEYS or ARGV that the header names, and whether the last stands for any number."""
    indexes, variadic = [], False
    for number, dots, meaning in re.findall(rf"^{kind}\[(\d+)(\.{{2,3}})?\] +(.*)$", header(name), re.MULTILINE):
        indexes.append(int(number))
        variadic = bool(dots) or meaning.startswith(("then ", "and on"))
    return indexes, variadic


def used(name: str, kind: str) -> tuple[set[int], bool]:
    """Indexes of KEYS or ARGV that what runs takes, and whether it takes others by computing them."""
    text = rendered(name)
    computed = re.search(rf"#{kind}\b|\b{kind}\[\D|\b(?:unpack|ipairs)\({kind}\b", text)
    return {int(number) for number in re.findall(rf"\b{kind}\[(\d+)\]", text)}, bool(computed)


def test_refused_when_full_lists_scripts_that_exist() -> None:
    assert set(script_names()) >= REFUSED_WHEN_FULL


@pytest.mark.parametrize("name", script_names())
def test_flags_match_what_a_script_does_to_a_full_server(name: str) -> None:
    commands = re.findall(r'\bp?call\(\s*"([A-Za-z]+)"', rendered(name))
    writes = any(WRITES.fullmatch(command) for command in commands)

    if name in REFUSED_WHEN_FULL:
        assert flags(name) == set()
    elif writes:
        assert flags(name) == {"allow-oom"}
    else:
        assert flags(name) == {"no-writes"}


@pytest.mark.parametrize("name", script_names())
@pytest.mark.parametrize("kind", ["KEYS", "ARGV"])
def test_header_names_what_the_script_takes(name: str, kind: str) -> None:
    indexes, variadic = declared(name, kind)
    taken, computed = used(name, kind)

    assert indexes == list(range(1, len(indexes) + 1)), f"{kind} are numbered from 1 without gaps"
    fixed = set(indexes[:-1] if variadic else indexes)
    surplus = {index for index in taken if index > len(indexes)}
    assert not surplus or variadic, f"{kind}{sorted(surplus)} are not in the header"
    assert computed == variadic, f"a {kind} list of any length is declared as {kind}[n...]"
    assert fixed <= taken, f"{kind}{sorted(fixed - taken)} are declared and not used"


@pytest.mark.parametrize("name", script_names())
def test_header_is_a_contract(name: str) -> None:
    contract = header(name)
    codes = set(re.findall(r"^  ([A-Z_]+) =", source("lib/errors"), re.MULTILINE))
    _, _, errors = contract.partition("\nErrors ")
    own = re.sub(r"--\[\[.*?\]\]", "", source(name), flags=re.DOTALL)

    for number, what in re.findall(r"^KEYS\[(\d+)(?:\.{2,3})?\] +\S+ +(\S+)", contract, re.MULTILINE):
        assert what in TYPES, f"KEYS[{number}]: a name, then a type of Redis"
    assert re.search(r"^Returns +\S", contract, re.MULTILINE)
    assert errors, "Errors, or `Errors   none`"
    assert re.search(r"\b(run|running) twice\b|\ba repeat\b", contract, re.IGNORECASE), "is it safe to run twice?"
    assert set(re.findall(r"\b[A-Z]{3,}_[A-Z_]+\b", errors)) - {"NONE"} <= codes
    assert set(re.findall(r"\bERROR\.([A-Z_]+)", own)) - {"NONE"} <= set(re.findall(r"\b[A-Z_]+\b", contract))


def test_every_script_has_one_caller() -> None:
    callers = Counter(
        name
        for free in ("broker", "pipeline")
        for path in (REPOSITORY / free).rglob("*.py")
        for name in re.findall(r'\bScript\("([^"]+)"', path.read_text())
    )

    assert dict(callers) == dict.fromkeys(script_names(), 1)


def test_every_include_exists_and_is_used() -> None:
    wanted = {
        included
        for path in SCRIPTS.rglob("*.lua")
        for included in re.findall(r"^-- @include (\S+)$", path.read_text(), re.MULTILINE)
    }

    assert wanted | {"lib/layout"} == {f"lib/{path.stem}" for path in (SCRIPTS / "lib").glob("*.lua")}


def key_names() -> Iterator[str]:
    """Every key that keys.py can make, with placeholders."""

    def strings(keys: Any, but: set[str]) -> Iterator[str]:
        for name in keys.__dataclass_fields__:
            if name not in but and isinstance(getattr(keys, name), str):
                yield getattr(keys, name)

    cluster = ClusterKeys("tidegate")
    yield from strings(cluster, {"prefix"})
    for name, method in inspect.getmembers(ClusterKeys, inspect.isfunction):  # an instance's Python 3.11.2 cannot list
        if not name.startswith("_"):
            _, *parameters = inspect.signature(method).parameters
            yield method(cluster, *(f"<{parameter.replace('_', ' ')}>" for parameter in parameters))
    shard = ShardKeys("tidegate", 0)
    group = GroupKeys.of("tidegate", 1, "<org>", "G")
    for key in (*strings(shard, {"prefix"}), *strings(group, {"org", "group_id", "ref"})):
        yield key.replace("{co:0}", "{co:<n>}").replace(">:G", ">:<group>")
    transaction = TransactionKeys.of("tidegate", 1, "<org>", "T")
    for key in strings(transaction, {"org", "transactional_id", "ref"}):
        yield key.replace("{tx:0}", "{tx:<n>}").replace(">:T", ">:<transactional id>")
    log = LogKeys.of("tidegate", "<org>", "<topic>", "<p>", "<topic id>")  # type: ignore[arg-type]
    yield from strings(log, set())
    yield log.compacted("<run>")


@pytest.mark.parametrize("key", list(key_names()))
def test_every_key_is_described(key: str) -> None:
    assert f"`{key}`" in (DOCS / "redis-layout.md").read_text()


def test_every_served_api_is_described() -> None:
    rows = re.findall(r"^\| (\w+) \| (\d+) \| (\d+)-(\d+) \|", (DOCS / "apis.md").read_text(), re.MULTILINE)
    described = {(name, int(key), int(first), int(last)) for name, key, first, last in rows}
    served = {
        ("".join(word.title() for word in api.name.split("_")), key, api.first, api.last)
        for key, api in registry.load_all().items()
    }

    assert described == served


CONFIRMED_OTHERWISE: Final = {
    "by the log": {"produce", "write_txn_markers"},
    "by the script's batch": {"offset_commit", "share_acknowledge", "share_fetch"},
    "by the coordinator of transactions": {
        "init_producer_id", "add_partitions_to_txn", "add_offsets_to_txn", "end_txn", "txn_offset_commit",
    },
    "not: a lost membership costs a rebalance": {
        "join_group", "leave_group", "consumer_group_heartbeat", "share_group_heartbeat", "streams_group_heartbeat",
    },
    "not: a read": {
        "describe_producers", "describe_transactions", "list_transactions", "consumer_group_describe",
        "share_group_describe", "streams_group_describe", "describe_share_group_offsets",
    },
}  # fmt: skip


def test_every_api_that_changes_something_is_confirmed() -> None:
    """As durable as `durability` says before it is answered: docs/durability.md."""
    unconfirmed = {api.name for api in registry.load_all().values() if not api.safe_late and not api.confirmed}

    assert unconfirmed == set().union(*CONFIRMED_OTHERWISE.values())


ANSWER_BY_THEMSELVES: Final = {
    "committed_offsets.py": {"_commit_held"},
    "fetch.py": {"answer_message_sets"},
    "fetch_reading.py": {"run"},
    "fetched_offsets.py": {"_or_refuse"},
    "group_creation.py": {"ask"},
    "mirroring.py": {"quietly"},
    "produce.py": {"_find_topic", "_open_beside", "_reply_beside", "_start_in_slices"},
    "queued_commits.py": {"_acknowledge", "_confirm"},
}
"""Coroutines of handlers that turn each failure into an answer, or need none: Produce is answered at its time-out."""


def test_tasks_of_handlers_answer_whatever_fails() -> None:
    """Else its connection waits for ever, and all requests behind it: `Call.answer_later` is for the others."""
    started = {
        path.name: found
        for path in (REPOSITORY / "broker/tidegate/apis").glob("*.py")
        if (found := set(re.findall(r"tasks\.start\((?:\w+\.)*(\w+)\(", path.read_text())))
    }

    assert started == ANSWER_BY_THEMSELVES


@pytest.mark.parametrize("key", sorted(registry.load_all()))
def test_handler_is_annotated_with_the_newest_request(key: int) -> None:
    """`Any` is for requests whose fields differ between versions: `protocol/shapes.py`."""
    api = registry.served[key]
    newest = load_request_schema(key, api.last)
    annotation = next(text for name, text in inspect.get_annotations(api.handler).items() if name != "call")
    source = inspect.getsource(inspect.getmodule(api.handler))  # type: ignore[arg-type]
    package, _, module = newest.__module__.rpartition(".")
    lines = (
        rf"from {newest.__module__} import [^()\n]*\b{newest.__name__}\b",
        rf"from {newest.__module__} import \([^()]*\b{newest.__name__},",
        rf"from {package} import {module} as {annotation.partition('.')[0]}\n",
    )

    if annotation != "Any" and not api.raw:
        assert annotation.rpartition(".")[2] == newest.__name__
        assert any(re.search(line, source) for line in lines), f"import it from {newest.__module__}"


def test_every_scenario_of_the_specification_is_a_test() -> None:
    names = [
        name
        for path in (REPOSITORY / "tests" / "scripts").glob("test_*.py")
        for name in re.findall(r"^(?:async )?def (test_scenario_\w+)", path.read_text(), re.MULTILINE)
    ]

    assert {int(name.split("_")[2]) for name in names} == set(range(1, 101))


LOG_SCENARIOS = 156


def test_every_scenario_of_the_log_is_a_test() -> None:
    """`test_log_<number>_...`, wherever it runs: of units, scripts, whole brokers or chaos."""
    numbers = {
        int(number)
        for path in (REPOSITORY / "tests").rglob("test_*.py")
        for number in re.findall(r"^(?:async )?def test_log_(\d+)_", path.read_text(), re.MULTILINE)
    }

    assert numbers == set(range(1, LOG_SCENARIOS + 1))


@pytest.mark.parametrize(("files", "last"), [("consumer", 67), ("share", 52), ("streams", 18)])
def test_every_scenario_of_next_generation_groups_is_a_test(files: str, last: int) -> None:
    """Consumer groups (KIP-848), share groups (KIP-932), streams groups (KIP-1071): 137 scenarios."""
    tests = REPOSITORY / "tests"
    paths = [*(tests / "scripts").glob(f"test_{files}_*.py"), *(tests / "unit/groups").glob(f"test_{files}_*.py")]
    found: set[int] = set()
    for path in paths:
        for first, word, second in re.findall(
            r"^(?:async )?def test_(?:\w+_)?scenario_(\d+)(?:_(to|and)_(\d+))?_", path.read_text(), re.MULTILINE
        ):
            found |= {
                int(first),
                *([int(second)] if word else []),
                *range(int(first), int(second or 0) if word == "to" else 0),
            }

    assert found == set(range(1, last + 1))


def modules() -> list[Path]:
    """Every module that ships or measures."""
    return sorted(path for free in ("broker", "pipeline", "bench") for path in (REPOSITORY / free).rglob("*.py"))


def test_error_replies_of_redis_are_parsed_in_the_store_alone() -> None:
    """Others match on `store/outcome.py`. The CLI and the probes of `doctor` are clients of their own."""
    parsed = re.compile(r"\bhiredis\b|\bis_refusal\b|str\((?:error|failure|reply)\)\.(?:startswith|split|partition)")
    clients = ("broker/tidegate/store/", "broker/tidegate/cli/")
    found = [str(path.relative_to(REPOSITORY)) for path in modules() if parsed.search(path.read_text("utf-8"))]
    assert [name for name in found if not name.startswith(clients) and name.startswith("broker/")] == []


def test_modules_fit_one_sitting() -> None:
    lengths = {path.relative_to(REPOSITORY).as_posix(): len(path.read_text().splitlines()) for path in modules()}

    assert {path: length for path, length in lengths.items() if length > LINES_MAX} == {}


def test_module_names_describe_their_content() -> None:
    vague = {"utils", "util", "helpers", "helper", "common", "manager", "misc"}

    assert [path for path in (*modules(), *SCRIPTS.rglob("*.lua")) if path.stem in vague] == []


def texts() -> Iterator[tuple[str, str]]:
    """Every text file of the tree, by its path."""
    for folder, folders, names in os.walk(REPOSITORY):  # skips a folder that another test removes meanwhile
        folders[:] = sorted(name for name in folders if not _is_skipped(name) and name != ".hypothesis")
        for path in (Path(folder) / name for name in sorted(names) if not _is_skipped(name)):
            if path.suffix in TEXT_SUFFIXES and path.is_file():
                yield path.relative_to(REPOSITORY).as_posix(), path.read_text("utf-8", "replace")


def _is_skipped(name: str) -> bool:
    return name in SKIPPED or name.endswith((".egg-info", "_cache"))


def test_nothing_depends_on_one_machine() -> None:
    words = ("/" + "work/", "--index" + "-url", "--extra-index" + "-url", "--find" + "-links", "--trusted" + "-host")

    found = [(path, word) for path, text in texts() for word in words if word in text]

    assert found == []


def anchors(path: Path) -> set[str]:
    """What a page's headings are called in links, by the rule of git hosts, which mkdocs.yml follows."""
    text = re.sub(r"```.*?```", "", path.read_text(), flags=re.DOTALL)
    titles = re.findall(r"^#+ +(.+?) *$", text, re.MULTILINE)
    plain = (re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", title).lower() for title in titles)
    return {re.sub(r"[^\w\- ]", "", title).replace(" ", "-") for title in plain}


def test_links_in_documents_lead_somewhere() -> None:
    broken = []
    for path in (*REPOSITORY.glob("*.md"), *DOCS.rglob("*.md")):
        for target in re.findall(r"\]\(([^)\s]+)\)", re.sub(r"```.*?```", "", path.read_text(), flags=re.DOTALL)):
            here, _, anchor = target.partition("#")
            page = path.parent / here if here else path
            if "://" not in here and not (page.exists() and (not anchor or anchor in anchors(page))):
                broken.append(f"{path.relative_to(REPOSITORY)}: {target}")

    assert broken == []


def test_tables_in_documents_are_whole() -> None:
    broken = []
    for path in (*REPOSITORY.glob("*.md"), *DOCS.rglob("*.md")):
        text = re.sub(r"```.*?```", "", path.read_text(), flags=re.DOTALL)
        for table in re.findall(r"(?:^\|.*\n)+", text, re.MULTILINE):
            _, rule, *rows = [*table.splitlines(), ""]
            if not re.fullmatch(r"[|:\- ]+", rule) or not any(rows):
                broken.append(f"{path.relative_to(REPOSITORY)}: {table[:60]}")

    assert broken == []


def test_index_is_the_site() -> None:
    site = runpy.run_path(str(DOCS / "site_hooks.py"))
    navigation = site["navigation"]((DOCS / "README.md").read_text())
    pages = [
        path
        for section in navigation[1:]
        for entries in section.values()
        for entry in entries
        for path in entry.values()
    ]

    assert sorted(pages) == sorted(
        path.relative_to(DOCS).as_posix() for path in DOCS.rglob("*.md") if path.name != "README.md"
    )
    assert len(set(pages)) == len(pages)


def test_links_out_of_docs_lead_to_the_repository() -> None:
    lead = runpy.run_path(str(DOCS / "site_hooks.py"))["on_page_markdown"]
    page = SimpleNamespace(file=SimpleNamespace(src_uri="decisions/0001.md"))

    led = lead("[a](../cli.md) [b](../../helm/README.md#x)", page=page, config={"repo_url": "https://host/t/"})

    assert led == "[a](../cli.md) [b](https://host/t/blob/main/helm/README.md#x)"
