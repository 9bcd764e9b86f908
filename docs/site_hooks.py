"""MkDocs hooks: the navigation comes from docs/README.md; links out of docs/ point to the repository."""

from __future__ import annotations

import posixpath
import re
from typing import Any, Final

_HEADING: Final = re.compile(r"^## +(.+)$")
_ENTRY: Final = re.compile(r"^\| \[([^\]]+)\]\(([^)#\s]+\.md)\) \| (.+?) \|$")
_OUTSIDE: Final = re.compile(r"(?<=\]\()(?:\.\./)+[^)\s]+")


def navigation(index: str) -> list[dict[str, Any]]:
    """The sections and pages of the index, in its order; decisions are called by number and title."""
    sections: list[dict[str, Any]] = [{"Tidegate": "README.md"}]
    for line in index.splitlines():
        if heading := _HEADING.match(line):
            sections.append({heading[1]: []})
        elif (entry := _ENTRY.match(line)) and sections[1:]:
            name, path, title_text = entry.groups()
            title = f"{name} {re.sub(r'[`*]', '', title_text)}" if name.isdigit() else name
            next(iter(sections[-1].values())).append({title: path})
    return [section for section in sections if any(section.values())]


def on_config(config: Any) -> Any:
    """MkDocs: the navigation comes from docs/README.md, so that a page is listed once."""
    with open(posixpath.join(config["docs_dir"], "README.md"), encoding="utf-8") as index:
        config["nav"] = navigation(index.read())
    return config


def on_page_markdown(markdown: str, page: Any, config: Any, **_: Any) -> str:
    """MkDocs: links to files outside docs/ lead to the repository."""
    here = posixpath.dirname(page.file.src_uri)

    def lead(link: re.Match[str]) -> str:
        path = posixpath.normpath(posixpath.join("docs", here, link[0]))
        return link[0] if path.startswith("docs/") else f"{config['repo_url'].rstrip('/')}/blob/main/{path}"

    return _OUTSIDE.sub(lead, markdown)
