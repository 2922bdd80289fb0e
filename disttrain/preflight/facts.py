"""What one rank knows of itself and its machine, before any process group is there. Costs some ten milliseconds."""

from __future__ import annotations

import hashlib
import json
import os
import platform
import secrets
import shutil
import socket
import time
import zlib
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..config import Experiment
from ..config.file import plain
from ..memory import available_memory, total_memory
from . import network
from .peers import NONCE_BYTES

if TYPE_CHECKING:
    import torch

PACKAGES = ("disttrain", "torch", "torch_geometric", "numba", "numpy")
_SHARED_MEMORY = Path("/dev/shm")


@dataclass(frozen=True)
class Disk:
    path: str
    free: int
    """Bytes that this user may still write there."""


@dataclass(frozen=True)
class Partitions:
    """Those that are in `partition.dir` already."""

    directory: str
    digest: str
    """Of the manifest, and with it of all files."""
    data: str
    """Fingerprint of the data that they were made from."""
    parts: int


@dataclass(frozen=True)
class Facts:
    """Of one rank. Plain values, so that they can be sent and shown as JSON."""

    rank: int = 0
    local_rank: int = 0
    local_size: int = 1
    machine: int = 0
    host: str = ""
    process: int = 0
    nonce: str = ""
    """Of this rank in this attempt."""
    refused: str = ""
    """Why this rank cannot take part: its input or its device was refused."""
    wanted: bool = True
    """`launch.preflight`."""
    network: str = ""
    """The same for ranks that share one network, see `network.identity`."""
    address: str = ""
    """That gloo will use; empty: there is none."""
    address_from: str = ""
    port: int = 0
    """Where this machine's first rank listens for tries; 0: it does not."""
    interfaces: network.Interfaces = field(default_factory=dict)
    nccl_problem: str = ""
    device: str = "cpu"
    """`cpu` or `cuda`."""
    device_name: str = ""
    device_id: str = ""
    """The GPU's own, the same for all ranks that see it."""
    device_free: int = 0
    versions: dict[str, str] = field(default_factory=dict)
    source: str = ""
    """Digest of this package's own files."""
    memory_free: int = 0
    memory_total: int = 0
    disks: dict[str, Disk] = field(default_factory=dict)
    """Of the run directory, the partitions and the scratch space, as far as the settings name them."""
    shared_memory_free: int | None = None
    """In /dev/shm; None: there is no such thing."""
    nccl_shared_memory: bool = True
    """NCCL_SHM_DISABLE has not said otherwise."""
    open_files: int = 0
    """As many may be open in this process."""
    partitions: Partitions | None = None
    experiment: str = ""
    """Digest of its settings; empty: it is read elsewhere."""
    settings: dict[str, Any] | None = None
    """The same in full, where digests differ."""
    time: float = 0.0

    @property
    def name(self) -> str:
        return f"rank {self.rank} on {self.host}"

    def packed(self) -> bytes:
        """To send: without the settings it fits into one packet, so that it arrives where larger ones are lost."""
        return zlib.compress(json.dumps({**asdict(self), "settings": None}).encode())

    @staticmethod
    def unpacked(content: bytes) -> Facts:
        values = json.loads(zlib.decompress(content))
        # Another version of the package may know other facts.
        known = {entry.name for entry in fields(Facts)}
        values = {key: value for key, value in values.items() if key in known}
        values["disks"] = {name: Disk(**disk) for name, disk in values.get("disks", {}).items()}
        if values.get("partitions"):
            values["partitions"] = Partitions(**values["partitions"])
        return Facts(**values)


def facts_here(
    experiment: Experiment | None,
    *,
    rank: int = 0,
    local_rank: int = 0,
    local_size: int = 1,
    machine: int = 0,
    device: torch.device | None = None,
    refused: str = "",
    environment: Mapping[str, str] | None = None,
) -> Facts:
    """The facts of this process.

    Args:
        experiment: None: it could not be read here.
    """
    environment = os.environ if environment is None else environment
    there, host = network.interfaces(), socket.gethostname()
    settings = None if experiment is None else json.dumps(plain(experiment), sort_keys=True, default=str)
    chosen = network.gloo_address(environment, host, there)
    return Facts(
        rank=rank,
        local_rank=local_rank,
        local_size=local_size,
        machine=machine,
        host=host,
        process=os.getpid(),
        nonce=secrets.token_hex(NONCE_BYTES),
        refused=refused,
        wanted=experiment is None or experiment.launch.preflight,
        network=network.identity(),
        address=chosen.address,
        address_from=chosen.why,
        interfaces=there,
        nccl_problem=network.nccl_problem(environment, there),
        **_device(device),
        versions=versions(),
        source=_source() if local_rank == 0 else "",
        memory_free=available_memory(),
        memory_total=total_memory(),
        disks=_disks(experiment) if experiment is not None else {},
        shared_memory_free=shutil.disk_usage(_SHARED_MEMORY).free if _SHARED_MEMORY.is_dir() else None,
        nccl_shared_memory=environment.get("NCCL_SHM_DISABLE", "0") == "0",
        open_files=_open_files(),
        partitions=_partitions(experiment) if experiment is not None else None,
        experiment="" if settings is None else hashlib.blake2b(settings.encode(), digest_size=8).hexdigest(),
        settings=None if settings is None else json.loads(settings),
        time=time.time(),
    )


def versions() -> dict[str, str]:
    """Of what decides results, or what ranks say to each other; PyG is not imported for it."""
    import torch

    found = {"python": platform.python_version()}
    for package in PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            found[package] = "not installed"
    found["torch"] = str(torch.__version__)  # with the build: 2.13.0+cu130
    if torch.version.cuda:
        found["cuda"] = torch.version.cuda
        if torch.cuda.is_available() and torch.distributed.is_nccl_available():
            from torch.cuda import nccl

            found["nccl"] = ".".join(map(str, nccl.version()))
    return found


def _device(device: torch.device | None) -> dict[str, Any]:
    if device is None or device.type != "cuda":
        return {"device": "cpu"}
    import torch

    properties = torch.cuda.get_device_properties(device)
    return {
        "device": "cuda",
        "device_name": properties.name,
        "device_id": str(getattr(properties, "uuid", "")),
        "device_free": torch.cuda.mem_get_info(device)[0],
    }


def _source() -> str:
    """Two checkouts may have the same version and not the same code."""
    package = Path(__file__).resolve().parent.parent
    digest = hashlib.blake2b(digest_size=4)
    for file in sorted(package.rglob("*.py")):
        digest.update(str(file.relative_to(package)).encode())
        digest.update(file.read_bytes())
    return digest.hexdigest()


def _disks(experiment: Experiment) -> dict[str, Disk]:
    wanted = {
        "run": experiment.directory,
        "partitions": experiment.partition.dir or getattr(experiment.data, "root", None) or ".",
        "scratch": experiment.evaluate.scratch,
    }
    return {name: Disk(path, _free(Path(path))) for name, path in wanted.items() if path is not None}


def _free(path: Path) -> int:
    """Where the path is, or would be made."""
    path = path.absolute()
    for folder in (path, *path.parents):
        try:
            return shutil.disk_usage(folder).free
        except OSError:
            continue
    return 0


def _partitions(experiment: Experiment) -> Partitions | None:
    """Only where the settings name their directory: otherwise its name follows from the data, which takes long."""
    from ..graph.files import parse_manifest
    from ..graph.holds import Holds, manifest_digest

    if experiment.partition.dir is None:
        return None
    directory = Path(experiment.partition.dir)
    try:
        manifest, holds = parse_manifest(directory), Holds.read(directory)
        digest = holds.manifest if holds is not None else manifest_digest(directory)
        return Partitions(str(directory), digest or "", str(manifest["fingerprint"]), int(manifest["parts"]))
    except (ValueError, OSError, KeyError):  # what is wrong there is said where they are opened
        return None


def _open_files() -> int:
    import resource

    return resource.getrlimit(resource.RLIMIT_NOFILE)[0]
