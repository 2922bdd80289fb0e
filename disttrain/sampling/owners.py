"""Asking the owners of nodes for a number each."""

from __future__ import annotations

import numpy as np

from .request import make_request, read_request
from .route import Route


def numbers_of(ids: np.ndarray, bounds: np.ndarray, own: np.ndarray, route: Route, what: str) -> np.ndarray:
    """int64, the number of each id: `own` holds those of the own range, others' are asked for. A collective.

    Args:
        ids: int [n], in partition order; any may come several times.
        bounds: who owns which, as in `PartitionBook`.
        own: int64 [own ids].
        what: for the message when a peer fails.

    Raises:
        PeerError: another machine failed, or did not answer in time.

    Cost: two exchanges, 16 bytes for each id that others own.
    """
    me = route.machine
    low, high = int(bounds[me]), int(bounds[me + 1])
    ids = np.asarray(ids, np.int64)
    mine = (low <= ids) & (ids < high)
    numbers = np.empty(len(ids), np.int64)
    numbers[mine] = own[ids[mine] - low]
    if route.num_machines == 1:
        return numbers
    request = make_request([ids], [bounds], me, route.num_machines, np.dtype(np.int64))
    received, sizes = route.exchange(request.message, request.sizes, f"{what}, the request")
    answers, at = [], 0
    for machine in range(route.num_machines):
        part = received[at : at + sizes[machine]]
        at += int(sizes[machine])
        answers.append(own[read_request(part, 1)[0] - low] if machine != me else part)
    answer_sizes = np.array([len(answer) for answer in answers], np.int64)
    answered, _ = route.exchange(np.concatenate(answers), answer_sizes, f"{what}, the answer", request.counts[0].copy())
    others = np.flatnonzero(~mine)
    owner = np.searchsorted(bounds, ids[others], side="right") - 1
    numbers[others[np.argsort(owner, kind="stable")]] = answered
    return numbers
