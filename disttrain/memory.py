"""What to do when memory has run out."""

from __future__ import annotations

from .watchman import LESS_MEMORY


def memory_advice(error: BaseException) -> str | None:
    """A sentence for errors that say that memory has run out, on the machine or the GPU; None for others.

    Known by name and text: torch need not be imported.
    """
    text = str(error)
    if type(error).__name__ == "OutOfMemoryError" or "CUDA out of memory" in text:
        return f"the GPU had no memory left: {LESS_MEMORY}; train.precision=bf16 halves what the layers keep"
    if isinstance(error, MemoryError) or "can't allocate memory" in text or "Cannot allocate memory" in text:
        return f"the machine had no memory left: {LESS_MEMORY}"
    return None
