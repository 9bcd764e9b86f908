"""One group: its barrier with a countdown, members, lag by partition."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any, ClassVar, Final

from rich.text import Text
from textual import work
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.screen import Screen
from textual.widgets import DataTable, Footer, Static
from textual.worker import Worker

from tidegate.cli.client import admin_client
from tidegate.cli.failures import CommandFailed
from tidegate.cli.places import AdminHttp
from tidegate.cli.top.cells import cell, paragraph, text_of
from tidegate.cli.top.figures import facts, member_cells, names_of, partition_cells

_MEMBERS: Final = (("MEMBER", 20), ("HOST", 15), ("NOW", 16), ("LAST", 8), ("PARTITIONS", 21))
_PARTITIONS: Final = (("PARTITION", 26), ("COMMITTED", 12), ("END", 12), ("LAG", 10), ("OWNER", 20))
_TICK_S: Final = 0.5


class GroupScreen(Screen[None]):
    """Opened by Enter, closed by Escape."""

    CSS = """
    #group { height: 1; text-style: bold; }
    #facts { height: auto; max-height: 6; }
    #members { height: 1fr; max-height: 40%; }
    #partitions { height: 1fr; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,backspace", "app.pop_screen", "back"),
        Binding("q", "app.quit", "quit"),
    ]

    def __init__(self, admin: AdminHttp, org: str, group_id: str, interval_s: float) -> None:
        super().__init__()
        self._admin, self._org, self._group_id, self._interval_s = admin, org, group_id, interval_s
        self._found: Mapping[str, Any] | None = None
        self._summary = ""
        self._loading: Worker[None] | None = None
        self._refreshed_s = 0.0
        self._facts = Static(id="facts")
        self._members: DataTable[Text] = DataTable(id="members", cursor_type="row", cell_padding=0)
        self._partitions: DataTable[Text] = DataTable(id="partitions", cursor_type="row", cell_padding=0)

    def compose(self) -> ComposeResult:
        yield Static(text_of(self._group_id), id="group")
        yield self._facts
        yield self._members
        yield self._partitions
        yield Footer()

    def on_mount(self) -> None:
        """Refresh now and periodically; update the countdown every second."""
        for table, columns in ((self._members, _MEMBERS), (self._partitions, _PARTITIONS)):
            for head, width in columns:
                table.add_column(head, width=width)
        self._observe()
        self.set_interval(self._interval_s, self._observe)
        self.set_interval(_TICK_S, self._refresh_status)

    def _observe(self) -> None:
        if self._loading is None or self._loading.is_finished:
            self._loading = self._load()

    @work
    async def _load(self) -> None:
        try:
            found = await admin_client.get(self._admin, self._group_id, "", self._org)
            explained = await admin_client.get(self._admin, self._group_id, "explain", self._org)
        except CommandFailed as failure:
            self._facts.update(paragraph([str(failure)], "bold red"))
            self._found = None
            return
        self._found, self._summary, self._refreshed_s = found, explained["summary"], time.monotonic()
        self._refresh_status()
        names = names_of(found["members"])
        _fill(self._members, _MEMBERS, [member_cells(one, found["now_ms"]) for one in found["members"]])
        worst_first = sorted(found["partitions"], key=lambda one: -(one["lag"] or 0))
        _fill(self._partitions, _PARTITIONS, [partition_cells(one, names) for one in worst_first])

    def _refresh_status(self) -> None:
        if self._found is not None:
            now_ms = self._found["now_ms"] + int((time.monotonic() - self._refreshed_s) * 1000)
            self._facts.update(paragraph(facts(self._found, self._summary, now_ms)))


def _fill(table: DataTable[Text], columns: tuple[tuple[str, int], ...], rows: list[tuple[str, ...]]) -> None:
    row = table.cursor_row
    table.clear()
    for cells in rows:
        table.add_row(*(cell(text, width) for text, (_, width) in zip(cells, columns, strict=True)))
    table.move_cursor(row=row)
