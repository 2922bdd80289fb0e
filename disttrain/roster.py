"""Who does which share of a step: a run is laid out for so many machines, and those that are there do it all."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from .config import Experiment

if TYPE_CHECKING:
    from .world import World


def laid_out_for(experiment: Experiment, num_machines: int) -> int:
    """For how many machines a run is laid out where so many are there: `launch.nodes`, if some may be missing."""
    launch = experiment.launch
    return num_machines if launch.min_nodes is None or launch.nodes is None else launch.nodes


def steps_change(experiment: Experiment) -> bool:
    """Whether steps are divided among the machines that there are, and so become others when some come or go."""
    return experiment.launch.min_nodes is not None and experiment.train.elastic.keep == "per_rank"


@dataclass(frozen=True)
class Roster:
    """Each step of a run has a share for each rank of each machine that the run is laid out for.

    Where machines are missing, those that are there take over: machine m of N' has the shares of the machines
    floor(mN/N') to floor((m+1)N/N') of N, as it hosts their partitions; its ranks compute them one after another, in
    rounds. So what a share holds does not depend on who computes it.
    """

    machines: int
    """That the run is laid out for."""
    ranks_per_machine: int
    present: int
    """Machines that are there; at most `machines`."""

    @staticmethod
    def whole(world: World) -> Roster:
        """Nobody is missing."""
        return Roster(world.num_machines, world.local_size, world.num_machines)

    @staticmethod
    def of(experiment: Experiment, world: World) -> Roster:
        if experiment.train.elastic.keep == "per_rank":
            return Roster.whole(world)
        return Roster(laid_out_for(experiment, world.num_machines), world.local_size, world.num_machines)

    @property
    def num_shares(self) -> int:
        """Of each step."""
        return self.machines * self.ranks_per_machine

    @property
    def rounds(self) -> int:
        """The same on all ranks; some have nothing to do in the last one."""
        return -(-self.machines // self.present)

    def shares(self, rank: int) -> tuple[int, ...]:
        """What a rank has to do in each step, at least one share; one in each round."""
        machine, local = divmod(rank, self.ranks_per_machine)
        first, end = (m * self.machines // self.present for m in (machine, machine + 1))
        return tuple(missing * self.ranks_per_machine + local for missing in range(first, end))

    def in_round(self, round_: int) -> list[int | None]:
        """The share of each rank in a round; None: it has had all of its own."""
        of_ranks = [self.shares(rank) for rank in range(self.present * self.ranks_per_machine)]
        return [shares[round_] if round_ < len(shares) else None for shares in of_ranks]
