"""Numbers of things in messages."""

from __future__ import annotations


def counted(number: int, thing: str) -> str:
    """`1 machine`, `2 machines`, `1,000 machines`; `thing` is one whose plural ends in s."""
    return f"{number:,} {thing}{'' if number == 1 else 's'}"
