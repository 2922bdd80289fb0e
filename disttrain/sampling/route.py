"""The one way in which ranks speak about the graph: a message to each machine goes out, one from each comes back."""

from __future__ import annotations

import numpy as np
import torch
import torch.distributed as dist

from ..world import World
from .memory import BLOCKS


class Route:
    """A loader worker's line to its counterparts, the ranks with the same local rank on the other machines.

    Each `exchange` is one collective: all counterparts take part, with empty messages where they have nothing to say.
    On a single machine nobody is there, and nothing is sent; such a route needs no world.
    """

    def __init__(self, world: World | None = None, group: dist.ProcessGroup | None = None) -> None:
        self.world, self.group = world, group
        self.machine, self.num_machines = (0, 1) if world is None else (world.machine, world.num_machines)
        self.exchanges = 0
        self.bytes_sent = 0

    def exchange(
        self, message: np.ndarray, sizes: np.ndarray, what: str, answer_sizes: np.ndarray | None = None
    ) -> tuple[np.ndarray, np.ndarray]:
        """Send `sizes[m]` elements of `message` to each machine m, in the order of machines; receive theirs.

        Args:
            message: 1-D; what goes to machine 0 first. Nothing goes to the own machine.
            sizes: int64 [num_machines].
            answer_sizes: int64 [num_machines] where the receiver knows what will come; otherwise they are asked for
                first.
            what: for the message when a peer fails.

        Returns:
            What came, 1-D and in the order of machines, and the size of each part.
        """
        if self.num_machines == 1:
            return np.empty(0, message.dtype), np.zeros(1, np.int64)
        assert self.world is not None and self.group is not None, "several machines need a process group"
        with self.world.waiting(what):
            if answer_sizes is None:
                answer_sizes = np.empty_like(sizes)
                dist.all_to_all_single(torch.from_numpy(answer_sizes), torch.from_numpy(sizes), group=self.group)
            inbox = BLOCKS.empty(int(answer_sizes.sum()), message.dtype)
            dist.all_to_all_single(
                torch.from_numpy(inbox),
                torch.from_numpy(message),
                answer_sizes.tolist(),
                sizes.tolist(),
                group=self.group,
            )
        self.exchanges += 1
        self.bytes_sent += message.nbytes
        return inbox, answer_sizes
