"""Names that were probably meant."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches


def nearest(name: str, valid: Iterable[str], limit: int = 12) -> str:
    """End of a message about an unknown name: the nearest valid one, or all of them where there are few.

    Examples:
        `nearest("flihgt", ["flight", "plane"])` is `'; did you mean "flight"?'`
    """
    names = list(valid)
    lowered = {candidate.lower(): candidate for candidate in names}
    close = get_close_matches(name.lower(), lowered, n=1, cutoff=0.6)
    if close:
        return f'; did you mean "{lowered[close[0]]}"?'
    if not names:
        return "; there are none"
    shown = ", ".join(names[:limit])
    return f"; there are: {shown}" + (f" and {len(names) - limit} more" if len(names) > limit else "")
