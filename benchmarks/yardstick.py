"""PyG's `NeighborLoader`, what a user would pick instead: the yardstick of the sampling benchmark.

Since PyG has no sampling kernels of its own, they come from pyg-lib where it is installed, or from torch-sparse. Of
torch-sparse, PyG's loader needs one library out of twelve. This script fetches the source distribution through pip and
compiles that one (1 CPU minute, where all of them take 12) into `benchmarks/.cache`, which git ignores:

    python benchmarks/yardstick.py

A torch-sparse that is installed as a whole (`pip install --no-build-isolation torch_sparse==0.6.18`, 12 CPU minutes) is
used as it is. Needs a C++ compiler. Nothing of it is a part of disttrain, nor does disttrain need it.

torch-sparse draws without replacement with a bias (2 of 3 neighbours: 1.00, 0.50, 0.50 instead of 0.67 each): it
measures speed, and is no oracle.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch_geometric.typing
from contestant import Took
from torch_geometric.data import HeteroData
from torch_geometric.loader import NeighborLoader
from torch_geometric.sampler import NeighborSampler

from disttrain.world import World

VERSION = "0.6.18"
PAIR = ", two at a time"
"""Of the name of PyG's kernels: two processes ran them at the same time, as the ranks of two machines do here."""
CACHE = Path(__file__).parent / ".cache"
_DOWNLOAD_SECONDS = 300
_COMPILE_SECONDS = 1800


class YardstickError(RuntimeError):
    """The kernels cannot be had here. The message says why."""


def _library() -> Path:
    torch_version = torch.__version__.replace("+", "-")
    return CACHE / f"torch_sparse-{VERSION}-torch-{torch_version}-{sys.implementation.cache_tag}.so"


def _run(command: Sequence[str], seconds: float, **options: Any) -> None:
    try:
        subprocess.run(command, check=True, timeout=seconds, capture_output=True, text=True, **options)
    except subprocess.TimeoutExpired as error:
        raise YardstickError(f"{' '.join(command)} took more than {seconds:g} s") from error
    except subprocess.CalledProcessError as error:
        raise YardstickError(f"{' '.join(command)} failed:\n{error.stdout[-2000:]}\n{error.stderr[-4000:]}") from error


_SETUP = """
from setuptools import setup
from torch.utils.cpp_extension import BuildExtension, CppExtension

extension = CppExtension(
    "neighbor_sample",
    ["csrc/neighbor_sample.cpp", "csrc/cpu/neighbor_sample_cpu.cpp"],
    include_dirs=["csrc", "third_party/parallel-hashmap"],
    extra_compile_args=["-O3"],
    extra_link_args=["-s"],
)
setup(name="yardstick", ext_modules=[extension], cmdclass={"build_ext": BuildExtension.with_options(use_ninja=False)})
"""


def build() -> Path:
    """Compile torch-sparse's neighbour sampling, unless it lies in the cache already; returns the library.

    Flags are those of its own build. Everything happens in a temporary folder; only the library is kept.

    Raises:
        YardstickError: no source distribution to be had, or no working compiler.
    """
    library = _library()
    if library.exists():
        return library
    CACHE.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="yardstick-") as scratch:
        download = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--no-binary", ":all:"]
        # pip asks the package for its metadata, for which its build imports the installed torch.
        download += ["--no-build-isolation", "--dest", scratch, f"torch_sparse=={VERSION}"]
        _run(download, _DOWNLOAD_SECONDS)
        (archive,) = Path(scratch).glob("*.tar.gz")
        with tarfile.open(archive) as files:
            files.extractall(scratch, filter="data")
        source = Path(scratch) / f"torch_sparse-{VERSION}"
        (source / "yardstick_setup.py").write_text(_SETUP)
        compile_one = [sys.executable, "yardstick_setup.py", "build_ext", "--build-lib", "built"]
        _run(compile_one, _COMPILE_SECONDS, cwd=source)
        (built,) = (source / "built").glob("neighbor_sample*.so")
        landing = library.with_suffix(f".{os.getpid()}")
        shutil.copyfile(built, landing)
        os.replace(landing, library)
    return library


def available(compile_missing: bool = True) -> dict[str, str]:
    """Which kernels there are: name -> where from; "torch-sparse" and "pyg-lib" may be among them.

    Args:
        compile_missing: compile torch-sparse's where they are neither installed nor in the cache.
    """
    found = {}
    if importlib.util.find_spec("torch_sparse") is not None:
        found["torch-sparse"] = "installed"
    elif compile_missing or _library().exists():
        library = build()
        torch.ops.load_library(str(library))
        found["torch-sparse"] = f"compiled, {library.name}"
    if torch_geometric.typing.WITH_PYG_LIB:
        found["pyg-lib"] = "installed"
    return found


@contextmanager
def _kernels(name: str) -> Iterator[None]:
    """PyG's sampler uses the kernels of this name inside."""
    typing = torch_geometric.typing
    before = typing.WITH_PYG_LIB, typing.WITH_TORCH_SPARSE
    typing.WITH_PYG_LIB, typing.WITH_TORCH_SPARSE = name == "pyg-lib", name == "torch-sparse"
    try:
        yield
    finally:
        typing.WITH_PYG_LIB, typing.WITH_TORCH_SPARSE = before


class Yardstick:
    """PyG's local loader over a graph in memory, features included, in the calling process.

    Args:
        data: `x` per node type, `edge_index` per relation; no other attributes, so that no others are gathered.
        node_type: of the seeds.
        fanout: neighbours per hop.
        kernels: a name out of `available()`.
    """

    def __init__(self, data: HeteroData, node_type: str, fanout: Sequence[int], kernels: str) -> None:
        self.data, self.node_type, self.fanout, self.kernels = data, node_type, list(fanout), kernels
        with _kernels(kernels), warnings.catch_warnings():
            warnings.filterwarnings("ignore", message=".*without a 'pyg-lib' installation is deprecated.*")
            self._sampler = NeighborSampler(data, self.fanout)

    def batches(self, seeds: torch.Tensor, batch_size: int) -> Iterator[HeteroData]:
        """Batches of `seeds` (int64 [num_seeds]), in their order, made in the calling thread."""
        loader = NeighborLoader(
            self.data,
            self.fanout,
            input_nodes=(self.node_type, seeds),
            neighbor_sampler=self._sampler,
            batch_size=batch_size,
            num_workers=0,
        )
        with _kernels(self.kernels):
            yield from loader


class YardstickRank:
    """PyG's local loader in a process of its own, for `RankPool`: as many at a time as there are contestants.

    Processes that run at the same time share the way to memory, and each takes more CPU time for the same copies. Ranks
    that stand for several machines do so here, and would not on machines of their own.
    """

    def __init__(
        self, world: World, data: HeteroData, node_type: str, fanouts: Sequence[Sequence[int]], kernels: Sequence[str]
    ) -> None:
        self.world = world
        available(compile_missing=False)  # loads the library
        self.yardsticks = {
            (name, tuple(fanout)): Yardstick(data, node_type, fanout, name) for fanout in fanouts for name in kernels
        }

    def epoch(self, kernels: str, fanout: Sequence[int], seeds: Sequence[np.ndarray], batch_size: int) -> Took:
        """Make the batches of this rank's seeds.

        Args:
            seeds: of each rank.
        """
        self.world.barrier("starting together")
        return time_pyg(self.yardsticks[kernels, tuple(fanout)], seeds[self.world.rank], batch_size)


def time_pyg(yardstick: Yardstick, seeds: np.ndarray, batch_size: int) -> Took:
    ids = torch.from_numpy(seeds)
    cpu, wall = time.process_time(), time.perf_counter()
    for batch in yardstick.batches(ids, batch_size):
        assert batch[yardstick.node_type].batch_size > 0
    return Took(len(seeds), time.process_time() - cpu, time.perf_counter() - wall)


if __name__ == "__main__":
    for kernels, origin in available().items():
        print(f"{kernels}: {origin}")
