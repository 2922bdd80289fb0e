"""Randomness is a function of the position: there is no generator state to save, and a resumed run draws the same."""

from __future__ import annotations

import hashlib

import torch


def seed_of(*position: int | str) -> int:
    """A well-mixed 63-bit seed from a position, e.g. `(run seed, epoch, step, rank)`."""
    digest = hashlib.blake2b(repr(position).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1


def seed_step(run_seed: int, epoch: int, step: int, share: int) -> None:
    """Call before each training step: dropout depends on the position alone.

    Args:
        share: of the step; where no machine is missing, the rank.
    """
    torch.manual_seed(seed_of("step", run_seed, epoch, step, share))
