"""Names that were probably meant."""

from __future__ import annotations

from collections.abc import Iterable

from ..config.check import nearest as closest


def nearest(name: str, valid: Iterable[str], limit: int = 12) -> str:
    """End of a message about an unknown name: the nearest valid one, or all of them where none is near.

    Examples:
        `nearest("flihgt", ["flight", "plane"])` is `'; did you mean "flight"?'`
    """
    names = list(valid)
    if close := closest(name, names):
        return f'; did you mean "{close}"?'
    if not names:
        return "; there are none"
    more = f" and {len(names) - limit} more" if len(names) > limit else ""
    return f"; there are: {', '.join(names[:limit])}{more}"
