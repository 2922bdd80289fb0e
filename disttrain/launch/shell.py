"""Commands as a shell script has them, so that what it starts gets every word byte for byte."""

from __future__ import annotations

import shlex
from collections.abc import Iterable


class Shell(str):
    """A word that the shell is to read as it stands: `"$port"`."""


def shell_words(command: Iterable[str]) -> list[str]:
    return [word if isinstance(word, Shell) else shlex.quote(word) for word in command]


def shell_command(command: Iterable[str], indent: str = "", width: int = 120) -> str:
    """A command, broken into lines that end in a backslash where it is long. No word is broken."""
    lines: list[str] = []
    for word in shell_words(command):
        if lines and len(lines[-1]) + 1 + len(word) <= width - 2:
            lines[-1] += f" {word}"
        else:
            lines.append(f"{indent}{'    ' if lines else ''}{word}")
    return " \\\n".join(lines)
