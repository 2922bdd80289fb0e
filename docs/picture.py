"""Draws what a finished run printed, as docs/quickstart.svg: python docs/picture.py runs/quickstart"""

from __future__ import annotations

import json
import re
import sys
from io import StringIO
from pathlib import Path

from rich.console import Console

from disttrain.report.table import show_summary

PICTURE = Path(__file__).parent / "quickstart.svg"


def draw(run: Path) -> str:
    """SVG of the last epochs' lines and of the final table."""
    console = Console(record=True, width=104, file=StringIO(), highlight=False)
    console.print("$ make quickstart\n...", markup=False)
    losses, lines = {}, []
    for line in (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines():
        event = json.loads(line)
        if event["event"] == "epoch":
            losses[event["epoch"]] = event["loss"]
        elif event["event"] == "evaluation" and event["split"] == "val":
            figures = "  ".join(f"val {name} {value:.4f}" for name, value in event["metrics"].items())
            lines.append(f"epoch {event['epoch']}  loss {losses[event['epoch']]:.4f}  {figures}")
    for line in lines[-4:]:
        console.print(line, markup=False)
    show_summary(json.loads((run / "summary.json").read_text(encoding="utf-8")), console)
    # The reader's own monospaced font serves: the picture fetches nothing.
    return re.sub(r"@font-face \{.*?\}\s*", "", console.export_svg(title="disttrain"), flags=re.DOTALL)


if __name__ == "__main__":
    PICTURE.write_text(draw(Path(sys.argv[1])), encoding="utf-8")
