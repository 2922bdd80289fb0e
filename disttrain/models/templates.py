"""The modules that PyG writes for its convolutions: a temporary file each, which it leaves."""

from __future__ import annotations

import os
import sys
import tempfile

from .. import guard

_owned: set[str] = set()


def own_templates() -> None:
    """Let the files of those that this process has imported go with it. Until then, tracebacks show their lines."""
    for name, module in list(sys.modules.items()):
        file = getattr(module, "__file__", None) or ""
        if name.startswith("torch_geometric.") and os.path.dirname(file) == tempfile.gettempdir():
            if file not in _owned:
                guard.own(file)
            _owned.add(file)
