"""The list of groups, refreshed every few seconds."""

from __future__ import annotations

import time
from typing import ClassVar, Final

from rich.text import Text
from textual import work
from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.widgets import DataTable, Footer, Input, Static
from textual.worker import Worker

from tidegate.cli.client import admin_client
from tidegate.cli.failures import CommandFailed
from tidegate.cli.places import AdminHttp
from tidegate.cli.top.cells import cell, text_of
from tidegate.cli.top.figures import ORDERS, Line, Rates, cells, chosen
from tidegate.cli.top.group_screen import GroupScreen

_COLUMNS: Final = (
    ("GROUP", 24), ("STATE", 10), ("MEMB", 5), ("LAG", 8), ("RATE/S", 8), ("SINCE", 10), ("TROUBLE", 15),
)  # fmt: skip
"""Column widths: 80 in all."""
_STYLES: Final = {"stuck": "bold red", "trouble": "yellow", "": ""}


class Top(App[None]):
    """Groups by severity; Enter opens one."""

    TITLE = "tidegate top"
    ENABLE_COMMAND_PALETTE = False
    CSS = """
    #status, #sentence { height: 1; }
    #sentence { color: $text-muted; }
    #filter { height: 1; border: none; display: none; }
    #filter.open { display: block; }
    DataTable { height: 1fr; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("q", "quit", "quit"),
        Binding("t", "order('trouble')", "trouble"),
        Binding("l", "order('lag')", "lag"),
        Binding("r", "order('rate')", "rate"),
        Binding("m", "order('members')", "members"),
        Binding("s", "order('since')", "since"),
        Binding("n", "order('name')", "name"),
        Binding("slash", "filter", "filter", key_display="/"),
        Binding("escape", "clear", show=False),
    ]

    def __init__(self, admin: AdminHttp, org: str, interval_s: float) -> None:
        super().__init__()
        self._admin, self._org, self._interval_s = admin, org, interval_s
        self._rates = Rates()
        self._lines: list[Line] = []
        self._shown: list[Line] = []
        self._order = "trouble"
        self._failure = ""
        self._loading: Worker[None] | None = None
        # Kept here, not looked up: a list may come while the program closes, and another screen may be open.
        self._status = Static(id="status")
        self._table: DataTable[Text] = DataTable(id="groups", cursor_type="row", cell_padding=0)
        self._filter = Input(placeholder="filter: id, state or trouble", id="filter", compact=True)
        self._sentence = Static(id="sentence")

    def compose(self) -> ComposeResult:
        yield self._status
        yield self._table
        yield self._filter
        yield self._sentence
        yield Footer()

    def on_mount(self) -> None:
        """Refresh now and periodically."""
        for head, width in _COLUMNS:
            self._table.add_column(head, width=width)
        self._table.focus()
        self._observe()
        self.set_interval(self._interval_s, self._observe)

    def _observe(self) -> None:
        if self._loading is None or self._loading.is_finished:
            self._loading = self._load()

    @work
    async def _load(self) -> None:
        try:
            rows = await admin_client.every_group(self._admin, self._org)
        except CommandFailed as failure:
            self._failure = str(failure)
        else:
            self._failure = ""
            self._lines = self._rates.lines(rows, time.monotonic(), int(time.time() * 1000))
        self._draw()

    def _draw(self) -> None:
        table, text = self._table, self._filter.value
        chosen_before = self._current()
        self._shown = chosen(self._lines, self._order, text)
        table.clear()
        for line in self._shown:
            style = _STYLES[line.severity]
            table.add_row(*(cell(text, width, style) for text, (_, width) in zip(cells(line), _COLUMNS, strict=True)))
        names = [line.group for line in self._shown]
        if chosen_before in names:
            table.move_cursor(row=names.index(chosen_before))
        self._status.update(self._status_line(text))
        self._show_message()

    def _status_line(self, text: str) -> Text:
        if self._failure:
            return text_of(self._failure, "bold red")
        bad = sum(bool(line.severity) for line in self._lines)
        lag = sum(line.lag for line in self._lines)
        reported = f"{len(self._lines)} groups, {bad} with trouble, lag {lag:,}, by {self._order}"
        return text_of(f"{reported}, {len(self._shown)} with {text!r}" if text else reported, "bold")

    def _current(self) -> str | None:
        row = self._table.cursor_row
        return self._shown[row].group if 0 <= row < len(self._shown) else None

    def _show_message(self) -> None:
        row = self._table.cursor_row
        sentence = self._shown[row].sentence if 0 <= row < len(self._shown) else ""
        self._sentence.update(text_of(sentence))

    # -- keys

    def action_order(self, order: str) -> None:
        """Sort by `order`."""
        assert order in ORDERS
        self._order = order
        self._draw()

    def action_filter(self) -> None:
        """Focus the filter."""
        if self.screen is self.screen_stack[0]:
            self._filter.add_class("open").focus()

    def action_clear(self) -> None:
        """Clear the filter."""
        self._filter.value = ""
        self._close_filter()

    def _close_filter(self) -> None:
        self._filter.set_class(bool(self._filter.value), "open")
        self._table.focus()
        self._draw()

    def on_input_changed(self, event: Input.Changed) -> None:
        """Apply the changed filter."""
        self._draw()

    def on_input_submitted(self, event: Input.Submitted) -> None:
        """Keep the filter and return to the table, so that keys sort again."""
        self._close_filter()

    def on_data_table_row_highlighted(self, event: DataTable.RowHighlighted) -> None:
        """Show the message of the highlighted group."""
        self._show_message()

    def on_data_table_row_selected(self, event: DataTable.RowSelected) -> None:
        """Open the selected group."""
        if event.data_table.id == "groups" and (group := self._current()) is not None:
            self.push_screen(GroupScreen(self._admin, self._org, group, self._interval_s))
