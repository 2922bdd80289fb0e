"""A table with a title over it."""

from __future__ import annotations

from rich.table import Table


def titled(title: str, *columns: str) -> Table:
    """In a narrow terminal, what does not fit goes on in the next line: names that are cut off may look the same."""
    table = Table(title=title, title_justify="left")
    for number, column in enumerate(columns):
        table.add_column(column, justify="left" if number == 0 else "right", overflow="fold")
    return table
