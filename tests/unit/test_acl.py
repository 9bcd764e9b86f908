"""The rules of a broker's Redis user, against what brokers and their scripts really call."""

from __future__ import annotations

import importlib
import re
from pathlib import Path

import pytest

from tidegate.cluster import acl
from tidegate.cluster.acl import acl_rules
from tidegate.settings import Settings
from tidegate.store import scripts

BROKER = Path(acl.__file__).parent.parent
WITHOUT_A_RIGHT = {"HELLO", "AUTH"}
CONTAINERS = {"FUNCTION": "function|load", "MEMORY": "memory|usage", "XINFO": "xinfo|groups"}
NO_COMMANDS = {"SCRIPT", "SELECT", "WAIT", "WAITAOF", "ASKING", "CLUSTER"}
"""Given where the settings ask for them."""
DECLARED = re.compile(r'\bScript\("([^"]+)"\)')
CALLED_IN_LUA = re.compile(r'\bp?call\(\s*"([A-Z]+)"(?:,\s*"([A-Z]+)")?|\bstand\("([A-Z]+)"\)')
CALLED_IN_PYTHON = re.compile(
    r'(?:\bcommand|\bread|\bcall|_asked_now|_ask|send\w*)\(\s*\[?"([A-Z]{3,})"'  # the first word of what is sent
    r'|list\[Arg\] = \["([A-Z]+)"|^ +"(X[A-Z]+)", \w|_(?:head|marks?) = \["([A-Z]+)"|\["([A-Z]{4,})", key',
    re.MULTILINE,
)
CALLED_BESIDE = re.compile(r'\["(FUNCTION|SCRIPT)", "(\w+)"|\("(FUNCTION)", "(\w+)"|= \("(FCALL)", script()')
"""Subcommands of FUNCTION and SCRIPT, and the verb that replaces EVALSHA."""


def called_by_scripts() -> set[str]:
    """Every command of every script of brokers, with its subcommand where it is one of a container."""
    importlib.import_module("tidegate.app")  # and with it every module that declares a script
    importlib.import_module("tidegate.cli.client.log_repair")  # but that of a command which may use the brokers' user
    declared = {name for path in BROKER.rglob("*.py") for name in DECLARED.findall(path.read_text())}
    found = set()
    for script in scripts.registered():
        if script.name not in declared:
            continue  # the pipeline's
        source = re.sub(r"--\[\[.*?\]\]", "", script.source.decode(), flags=re.DOTALL)
        for command, argument, stood in CALLED_IN_LUA.findall(source):
            if stood:
                found.add(f"xgroup|{stood}".lower())
            elif command not in ("MEMORY", "XGROUP", "XINFO"):
                found.add(command.lower())
            elif argument:
                found.add(f"{command}|{argument}".lower())
    return found


def called_by_brokers() -> set[str]:
    """Every command that a module sends itself, but the operators' own `tidegate redis`."""
    found = set()
    for path in BROKER.rglob("*.py"):
        if path.name != "redis_command.py":
            for words in CALLED_IN_PYTHON.findall(path.read_text()):
                found.add("".join(words))
            for words in CALLED_BESIDE.findall(path.read_text()):
                found.add("|".join(filter(None, words)))
    return {CONTAINERS.get(word, word.lower()) for word in found - WITHOUT_A_RIGHT - NO_COMMANDS}


def commands(rules: list[str]) -> set[str]:
    return {rule[1:] for rule in rules if rule.startswith("+")}


def test_rules_allow_what_is_called_and_nothing_else() -> None:
    called = called_by_scripts() | called_by_brokers()

    assert commands(acl_rules(Settings())) == called


def test_every_right_is_taken_away_first() -> None:
    rules = acl_rules(Settings())

    assert rules[:5] == ["resetkeys", "~tidegate:*", "resetchannels", "&tidegate:*", "-@all"]
    assert all(rule.startswith("+") for rule in rules[5:])
    assert not any("@" in rule for rule in rules[5:])


@pytest.mark.parametrize(
    ("durability", "more"), [("memory", set()), ("replicated:1", {"wait"}), ("fsynced:1", {"wait", "waitaof"})]
)
def test_waiting_for_replicas_and_the_disk_is_a_right_of_its_own(durability: str, more: set[str]) -> None:
    base = commands(acl_rules(Settings()))

    assert commands(acl_rules(Settings(durability=durability))) - base == more


@pytest.mark.parametrize(
    ("url", "more"),
    [
        ("redis://h/", set()),
        ("redis://h/0", set()),
        ("redis://u:p@h:1/7", {"select"}),
        ("redis+sentinel://h:1/main", set()),
        ("redis+sentinel://h:1/main/0", set()),
        ("redis+sentinel://h:1/main/10", {"select"}),
        ("rediss+cluster://h:1,i:2", {"asking", "cluster|info", "cluster|slots"}),
    ],
)
def test_address_names_what_else_is_needed(url: str, more: set[str]) -> None:
    assert commands(acl_rules(Settings(redis_url=url))) - commands(acl_rules(Settings())) == more


def test_prefix_is_no_pattern() -> None:
    rules = acl_rules(Settings(key_prefix="a*b[c]"))

    assert rules[1] == r"~a\*b\[c\]:*"
