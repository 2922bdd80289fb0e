"""Tables with a title."""

from __future__ import annotations

import io

from rich.console import Console

from disttrain.report.titled import titled


def test_names_are_whole_in_a_narrow_terminal() -> None:
    table = titled("relations", "relation", "edges")
    names = ["customer,orders,product", "customer,orders,producer"]
    for name in names:
        table.add_row(name, "12")
    console = Console(width=24, record=True, file=io.StringIO())
    console.print(table)
    first = "".join(line.split("│")[1].strip() for line in console.export_text().splitlines() if line.startswith("│"))
    assert first == "".join(names)
