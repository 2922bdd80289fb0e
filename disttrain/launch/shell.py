"""Commands as a shell script has them, so that what it starts gets every word byte for byte."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Sequence


class Shell(str):
    """A word that the shell is to read as it stands: `"$port"`."""


def set_up(lines: Sequence[str]) -> list[str]:
    """Lines of the user's that set up the environment. With `set -e`, one of them that fails ends the script; what
    comes after them goes on after a failure, to do what is to be done then."""
    return [*lines, "set +efu +o pipefail  # as the lines above may have set them"] if lines else []


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
