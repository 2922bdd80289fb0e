"""What `disttrain submit docker` starts: a container on each host."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import AfterValidator, Field, PositiveInt, model_validator

from .section import Bytes, Names, Section, spelt

_ONE_WORD = r"[^\s\-][^\s]*"
"""What begins with a dash would be an option."""

_HOST = spelt(_ONE_WORD, "a host as ssh takes it, `name` or `user@name`")
_USER = spelt(r"[\w.\-]+(:[\w.\-]+)?", '"user" or "user:group", as names or numbers')

Absolute = Annotated[str, AfterValidator(spelt("/.*", "a path from the root, /..."))]
"""A path from the root."""


class Mount(Section):
    """A folder of the host that the container sees."""

    source: Absolute
    """On the host, where it has to be already."""
    target: Absolute | None = None
    """In the container; null: the same path."""
    read_only: bool = False


class Docker(Section):
    """The containers that `disttrain submit docker` starts, one for each machine."""

    image: Annotated[str, AfterValidator(spelt(_ONE_WORD, "one word"))] = "disttrain:cpu"
    """On each host already, or to be had there by `docker pull`. docker/Dockerfile makes it."""
    hosts: Annotated[Names, Field(json_schema_extra={"examples": [["user@node1", "user@node2"]]})] = ()
    """Where the containers run, one each, as `ssh` takes it; empty: all of them on this machine, without ssh."""
    addresses: Names = ()
    """Of the hosts, as they reach each other; empty: what `hosts` has."""
    directory: Absolute | None = None
    """The folder that a container works in: there under the same path, on every host. null: the one you submit from."""
    mounts: tuple[Mount, ...] = ()
    """Further folders, such as the data's."""
    gpus: Literal["all"] | PositiveInt | tuple[int | str, ...] | None = None
    """Of each host, for its container: `all`, a number, or a list of indices or names. Without `launch.procs_per_node`,
    a rank for each. Containers that share this machine share out a list."""
    shm_size: Bytes = 8 << 30
    """Room in /dev/shm, where NCCL and loader processes put what they exchange; Docker gives 64 MB. It is a limit, not
    taken in advance."""
    network: Annotated[str, AfterValidator(spelt(_ONE_WORD, "one word"))] = "host"
    """`host`, the host's own; or one of Docker's, in which containers find each other by name (`docker network create`;
    over several hosts it has to be an overlay network)."""
    user: Annotated[str, AfterValidator(_USER)] | None = None
    """User and group in the container, to whom the files then belong: "1000:1000"; null: yours."""
    stop_seconds: PositiveInt = 60
    """For a container to stop, with a checkpoint; torchrun gives its ranks 30 s."""
    options: Names = ()
    """Further words for `docker run`, one each: `--ulimit=memlock=-1`, `--device=/dev/infiniband`."""
    ssh: Names = ()
    """Further words for `ssh`, one each: `-p`, `2222`."""

    @model_validator(mode="after")
    def _one_address_each(self) -> Docker:
        for host in (*self.hosts, *self.addresses):
            _HOST(host)
        if self.addresses and len(self.addresses) != len(self.hosts):
            raise ValueError(
                f"addresses has {len(self.addresses)} entries, hosts {len(self.hosts)}: expected one for each"
            )
        return self
