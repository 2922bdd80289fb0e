"""What the documentation says is what the code does."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path

from disttrain.config.schema import schema_text

REPOSITORY = Path(__file__).parents[2]


def test_the_page_of_all_keys_is_up_to_date():
    place = REPOSITORY / "docs" / "write_experiment_page.py"
    spec = importlib.util.spec_from_file_location("write_experiment_page", place)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    assert module.PAGE.read_text(encoding="utf-8") == module.page(), f"run python {place.relative_to(REPOSITORY)}"
    assert module.SCHEMA.read_text(encoding="utf-8") == schema_text(), f"run python {place.relative_to(REPOSITORY)}"


def test_links_lead_somewhere():
    pages = [REPOSITORY / "README.md", REPOSITORY / "CONTRIBUTING.md", *(REPOSITORY / "docs").glob("*.md")]
    for page in pages:
        for target in re.findall(r"\]\(([^)#]+)\)", page.read_text(encoding="utf-8")):
            if not target.startswith("http"):
                assert (page.parent / target).exists(), f"{page.name} links to {target}, which is not there"
