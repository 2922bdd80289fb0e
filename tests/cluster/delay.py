"""Latency on a host's cable: a relay between two ends, for kernels without tc's netem. Runs in the switch's namespace.

    python delay.py PORT HOST_NAMESPACE MILLISECONDS

The host's port leaves the bridge, a TAP device takes its place, and this process carries each frame from one to the
other, so many milliseconds late and in order. It says `ready`, and ends by SIGTERM.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import select
import signal
import socket
import struct
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable

_NEW_NETWORK = 0x40000000
_SIOCETHTOOL, _TUNSETIFF = 0x8946, 0x400454CA
_CHECKSUMS, _SEGMENTS, _LARGE = 0x17, 0x1F, 0x24
"""ETHTOOL_STXCSUM, ETHTOOL_STSO, ETHTOOL_SGSO: what a virtual card leaves to the next one, which a relay is not."""
_TAP, _NO_HEADER = 0x0002, 0x1000
_FORCED_BUFFER = 33
_OUTGOING = 4
_MOST = 65600
_AT_ONCE = 256


def enter(namespace: str) -> None:
    descriptor = os.open(namespace, os.O_RDONLY)
    if ctypes.CDLL(None, use_errno=True).setns(descriptor, _NEW_NETWORK):
        raise OSError(ctypes.get_errno(), f"setns {namespace}")
    os.close(descriptor)


def send_whole_frames(device: str) -> None:
    with socket.socket() as any_socket:
        for what in (_SEGMENTS, _LARGE, _CHECKSUMS):
            value = ctypes.create_string_buffer(struct.pack("II", what, 0))
            request = struct.pack("16sP8x", device.encode(), ctypes.addressof(value))
            fcntl.ioctl(any_socket, _SIOCETHTOOL, request)


def link(*arguments: str) -> None:
    subprocess.run(["ip", "link", "set", *arguments], check=True)


class Way:
    """Frames that travel in one direction."""

    def __init__(self, read: Callable[[], bytes | None], write: Callable[[bytes], object], seconds: float) -> None:
        self._read, self._write, self._seconds = read, write, seconds
        self._underway: deque[tuple[float, bytes]] = deque()

    def take(self) -> None:
        for _ in range(_AT_ONCE):
            try:
                frame = self._read()
            except BlockingIOError:
                return
            if frame is not None:
                self._underway.append((time.monotonic() + self._seconds, frame))

    def deliver(self) -> float:
        """Hand on what is due; seconds until more is."""
        while self._underway and self._underway[0][0] <= time.monotonic():
            try:
                self._write(self._underway.popleft()[1])
            except OSError:  # a full buffer drops frames, as a switch does
                pass
        return max(0.0, self._underway[0][0] - time.monotonic()) if self._underway else 1.0


def main(port: str, namespace: str, milliseconds: str) -> None:
    own = f"/proc/{os.getpid()}/ns/net"
    back = os.open(own, os.O_RDONLY)
    enter(namespace)
    send_whole_frames("eth0")
    enter(f"/proc/self/fd/{back}")
    tap, name = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK), f"late-{port}"
    fcntl.ioctl(tap, _TUNSETIFF, struct.pack("16sH14x", name.encode(), _TAP | _NO_HEADER))
    raw = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(3))
    raw.bind((port, 0))
    raw.setsockopt(socket.SOL_SOCKET, _FORCED_BUFFER, 8 << 20)
    raw.setblocking(False)

    def from_host() -> bytes | None:
        frame, address = raw.recvfrom(_MOST)
        return None if address[2] == _OUTGOING else frame  # what this process has sent

    seconds = float(milliseconds) / 1000.0
    ways = {
        raw.fileno(): Way(from_host, lambda frame: os.write(tap, frame), seconds),
        tap: Way(lambda: os.read(tap, _MOST), raw.send, seconds),
    }
    ended: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, _: ended.append(number))
    link(port, "nomaster")
    link(port, "promisc", "on")
    link(name, "txqueuelen", "5000")
    link(name, "master", "br0")
    link(name, "up")
    try:
        print("ready", flush=True)
        wait = 0.0
        while not ended:
            ready, _, _ = select.select(list(ways), [], [], wait)
            for descriptor in ready:
                ways[descriptor].take()
            wait = min(way.deliver() for way in ways.values())
    finally:
        link(name, "nomaster")
        link(port, "promisc", "off")
        link(port, "master", "br0")


if __name__ == "__main__":
    main(*sys.argv[1:])
