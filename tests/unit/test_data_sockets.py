"""A server that accepts and then falls silent ends a download."""

from __future__ import annotations

import socket
from urllib.request import urlopen

import pytest

from disttrain.data import sockets


def test_a_silent_server_ends_a_download(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sockets, "_SECONDS_OF_SILENCE", 0.5)
    with socket.create_server(("localhost", 0)) as server:
        url = f"http://localhost:{server.getsockname()[1]}/"
        with pytest.raises(OSError, match="timed out"), sockets.bounded_sockets():
            urlopen(url)
    assert socket.getdefaulttimeout() is None
