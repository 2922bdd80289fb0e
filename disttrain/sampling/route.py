"""The one way in which ranks speak about the graph: a message to each machine goes out, one from each comes back."""

from __future__ import annotations

import numpy as np
import torch
import torch.distributed as dist

from ..world import World
from .memory import BLOCKS
from .request import starts

_HEAD_BYTES = 16
"""Of a message whose size the receiver does not know: its size, and whether any machine's goes on in a second round."""


class Route:
    """A loader worker's line to its counterparts, the ranks with the same local rank on the other machines.

    Each `exchange` is one collective, or two: all counterparts take part, with empty messages where they have nothing
    to say. On a single machine nobody is there, and nothing is sent; such a route needs no world.
    """

    def __init__(self, world: World | None = None, group: dist.ProcessGroup | None = None) -> None:
        self.world, self.group = world, group
        self.machine, self.num_machines = (0, 1) if world is None else (world.machine, world.num_machines)
        self.exchanges = 0
        self.bytes_sent = 0
        self._rooms: dict[str, _Rooms] = {}

    def exchange(
        self, message: np.ndarray, sizes: np.ndarray, what: str, answer_sizes: np.ndarray | None = None
    ) -> tuple[np.ndarray, np.ndarray]:
        """Send `sizes[m]` elements of `message` to each machine m, in the order of machines; receive theirs.

        Args:
            message: 1-D; what goes to machine 0 first. Nothing goes to the own machine.
            sizes: int64 [num_machines].
            answer_sizes: int64 [num_machines] where the receiver knows what will come.
            what: for the message when a peer fails. Exchanges that are called the same on this route are of one dtype,
                and where sizes are not known, are expected to be about as large as the last time: what is larger costs
                another collective.

        Returns:
            What came, 1-D and in the order of machines, and the size of each part.
        """
        if self.num_machines == 1:
            return np.empty(0, message.dtype), np.zeros(1, np.int64)
        assert self.world is not None and self.group is not None, "several machines need a process group"
        self.exchanges += 1
        with self.world.waiting(what):
            if answer_sizes is not None:
                return self._send(message, sizes, answer_sizes), answer_sizes
            rooms = self._rooms.setdefault(what, _Rooms(self.num_machines, self.machine))
            return self._send_with_heads(message, sizes, rooms)

    def _send(self, message: np.ndarray, sizes: np.ndarray, answer_sizes: np.ndarray) -> np.ndarray:
        inbox = BLOCKS.empty(int(answer_sizes.sum()), message.dtype)
        dist.all_to_all_single(
            torch.from_numpy(inbox),
            torch.from_numpy(message),
            answer_sizes.tolist(),
            sizes.tolist(),
            group=self.group,
        )
        self.bytes_sent += message.nbytes
        return inbox

    def _send_with_heads(self, message: np.ndarray, sizes: np.ndarray, rooms: _Rooms) -> tuple[np.ndarray, np.ndarray]:
        """To each machine goes its message's size and as much of it as there is room for, padded; the rest of all
        messages in a second round. All heads say whether their sender has a rest for anybody, so that all agree."""
        others = [machine for machine in range(self.num_machines) if machine != self.machine]
        head = _HEAD_BYTES // message.itemsize
        first = np.minimum(sizes, rooms.sent)
        goes_on = bool((first < sizes).any())
        padded_sizes, arriving_sizes = rooms.sent.copy(), rooms.received.copy()
        padded_sizes[others] += head
        arriving_sizes[others] += head
        padded = BLOCKS.empty(int(padded_sizes.sum()), message.dtype)
        begins, at = starts(sizes), starts(padded_sizes)
        for machine in others:
            part = padded[at[machine] : at[machine] + padded_sizes[machine]]
            part[:head] = np.array([sizes[machine], goes_on], np.int64).view(message.dtype)
            part[head : head + first[machine]] = message[begins[machine] : begins[machine] + first[machine]]
            part[head + first[machine] :] = 0
        arrived = self._send(padded, padded_sizes, arriving_sizes)

        answer_sizes, at = np.zeros_like(sizes), starts(arriving_sizes)
        for machine in others:
            answer_sizes[machine], other_goes_on = arrived[at[machine] : at[machine] + head].view(np.int64)
            goes_on |= bool(other_goes_on)
        first_arrived = np.minimum(answer_sizes, rooms.received)
        parts = [arrived[at[m] + head : at[m] + head + first_arrived[m]] for m in others]
        if goes_on:
            rest = [message[begins[m] + first[m] : begins[m] + sizes[m]] for m in others]
            left = answer_sizes - first_arrived
            more, at = self._send(np.concatenate(rest), sizes - first, left), starts(left)
            parts = [piece for m, part in zip(others, parts) for piece in (part, more[at[m] : at[m] + left[m]])]
        rooms.adapt(sizes, answer_sizes)
        return parts[0] if len(parts) == 1 else np.concatenate(parts), answer_sizes


class _Rooms:
    """How many elements are sent to each machine, and come from each, before sizes are known.

    Sender and receiver know the same sizes after each exchange, and so make the same of them.
    """

    def __init__(self, num_machines: int, me: int) -> None:
        self.me = me
        self.sent, self.received = np.zeros(num_machines, np.int64), np.zeros(num_machines, np.int64)

    def adapt(self, sizes: np.ndarray, answer_sizes: np.ndarray) -> None:
        self.sent, self.received = _room(self.sent, sizes), _room(self.received, answer_sizes)
        self.sent[self.me] = self.received[self.me] = 0


def _room(room: np.ndarray, sizes: np.ndarray) -> np.ndarray:
    """A little more than was needed; what there is, where that is enough and not far too much."""
    wanted = sizes + sizes // 16 + 64
    return np.where((sizes <= room) & (room <= 2 * wanted), room, wanted)
