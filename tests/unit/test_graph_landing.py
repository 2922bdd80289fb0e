"""Partition directories appear whole or not at all: kills, failures, full disks, and two writers at a time."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
import textwrap
from contextlib import ExitStack
from pathlib import Path

import pytest

from disttrain.config import ExperimentError, Partition
from disttrain.graph import landing as landing_module
from disttrain.graph import partitioner
from disttrain.graph.files import read_manifest
from disttrain.graph.landing import AlreadyThereError, landing, remove_leftovers
from disttrain.graph.verify import verify
from tests.graphs import write_parts, zoo

REPOSITORY = Path(__file__).resolve().parents[2]


# A process that forks, and whose children die by SIGKILL at every moment of partitioning in turn; others go on.
_KILLED = textwrap.dedent(
    """
    import hashlib, os, random, shutil, signal, sys, warnings
    from pathlib import Path
    warnings.simplefilter("ignore")
    import pyarrow
    from disttrain.config import Partition
    from disttrain.graph import files, journal, landing, partitioner, writer
    from disttrain.graph.verify import verify
    from tests.graphs import zoo

    target, data, events, written = Path(sys.argv[1]), zoo(), [0], [0]
    keys = {"venue": pyarrow.array(["a", "b", None, "d", "e"])}

    def die_at(moment):
        events[0] += 1
        if events[0] == moment:
            os.kill(os.getpid(), signal.SIGKILL)

    def watched(function, moment):
        def call(*arguments, **options):
            die_at(moment)
            result = function(*arguments, **options)
            die_at(moment)
            return result
        return call

    def torn(blocks, moment):
        for block in blocks:
            yield block[: len(block) // 2]
            die_at(moment)
            yield block[len(block) // 2 :]

    def torn_line(self, line, moment):
        sealed = journal._sealed(line)
        with (self.directory / journal._JOURNAL).open("ab") as file:
            file.write(sealed[:30])
            file.flush()
            die_at(moment)
            file.write(sealed[30:])

    def partition(moment):
        write = writer.write_array

        def write_torn(path, dtype, shape, blocks):
            written[0] += 1
            return write(path, dtype, shape, torn(blocks, moment))

        writer.write_array = partitioner.write_array = write_torn
        partitioner.write_manifest = watched(files.write_manifest, moment)
        landing._make = watched(landing._make, moment)
        landing._take_over = watched(landing._take_over, moment)
        landing.remove_work = watched(journal.remove_work, moment)
        journal.Journal._append = lambda self, line: torn_line(self, line, moment)
        files.os.replace = watched(os.replace, moment)
        partitioner.partition(
            data, keys, {}, Partition(parts=3, method="ldg"), 3, target, "f", lambda line: die_at(moment)
        )

    def run(moment):
        child = os.fork()
        if child == 0:
            partition(moment)
            os.write(counted, b"%d %d" % (events[0], written[0]))
            os._exit(0)
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])

    def finish():
        assert run(0) == 0
        return tuple(map(int, os.read(answer, 100).split()))

    def contents():
        return {p.relative_to(target): p.read_bytes() for p in sorted(target.rglob("*")) if p.is_file()}

    # Compiled once, not in each child.
    partitioner.partition(data, {}, {}, Partition(parts=3, method="ldg"), 3, f"{target}-first", "f", lambda line: None)
    answer, counted = os.pipe()
    moments, files_of_all = finish()
    undisturbed = contents()
    shutil.rmtree(target)
    least, landed = files_of_all, 0
    # The first and the last ones are each of a kind, between them file follows file.
    for moment in sorted({*range(1, 11), *range(11, moments, 23), *range(moments - 9, moments + 1)}):
        assert run(moment) == -signal.SIGKILL
        # Complete, or not there at all.
        if target.exists():
            assert verify(target) == []
            landed += 1
        _, again = finish()
        # The later it was killed the less is left to be done.
        assert again <= least, (moment, again, least)
        least = again
        assert contents() == undisturbed, moment
        assert [p.name for p in target.parent.iterdir() if "partial" in p.name] == []
        shutil.rmtree(target)
    assert least == 0
    # Killed again and again, soon after it went on.
    rng, deaths = random.Random(0), 0
    while run(rng.randrange(15, 60)) != 0:
        deaths += 1
    assert contents() == undisturbed
    print(moments, files_of_all, landed, deaths)
    """
)


def test_killed_at_any_moment_what_was_finished_is_kept_and_nothing_torn(tmp_path: Path):
    result = subprocess.run(
        [sys.executable, "-c", _KILLED, str(tmp_path / "p")],
        capture_output=True,
        text=True,
        timeout=500,
        check=False,
        cwd=REPOSITORY,
        env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
    )
    assert result.returncode == 0, result.stderr
    moments, files, landed, deaths = map(int, result.stdout.split())
    # Each line of progress, each file, each line of the journal, the manifest, the renaming.
    assert moments > 150
    assert files > 50
    # The renaming, what is removed after it (before, after), the last line.
    assert landed == 4
    assert deaths > 3


def test_leftovers_of_the_dead_are_removed_and_the_living_left_alone(tmp_path: Path):
    with landing(tmp_path / "p", 0) as living:
        (living / "half").write_text("x")
        dead = tmp_path / "p.partial-elsewhere-1"
        dead.mkdir()
        (dead / ".lock").touch()
        (dead / "half").write_text("x")
        empty = tmp_path / "p.partial-elsewhere-2"
        empty.mkdir()
        other = tmp_path / "pp.partial-elsewhere-1"
        other.mkdir()
        assert remove_leftovers(tmp_path / "p") == [dead]
        assert sorted(path.name for path in tmp_path.iterdir()) == sorted([living.name, other.name])
    assert (tmp_path / "p" / "half").read_text() == "x"
    assert not (tmp_path / "p" / ".lock").exists()


def test_the_second_of_two_writers_finds_the_first_ones(tmp_path: Path):
    with ExitStack() as stack:
        slow = stack.enter_context(landing(tmp_path / "p", 0))
        with landing(tmp_path / "p", 0) as fast:
            assert slow != fast
            (fast / "a").write_text("fast")
        (slow / "a").write_text("slow")
        with pytest.raises(AlreadyThereError):
            stack.close()
    assert (tmp_path / "p" / "a").read_text() == "fast"
    assert [path.name for path in tmp_path.iterdir()] == ["p"]


def test_the_second_of_two_partitionings_takes_the_first_ones(tmp_path: Path):
    target, lines = tmp_path / "p", []

    def meanwhile(line: str) -> None:
        lines.append(line)
        if len(lines) == 3:
            write_parts(zoo(), target, 2)

    manifest = partitioner.partition(
        zoo(), {}, {}, Partition(parts=2, method="random"), 2, target, "test-2-random", meanwhile
    )
    assert lines[-1] == f"{target} is there already"
    assert manifest == read_manifest(target)
    assert [path.name for path in tmp_path.iterdir()] == ["p"]


def _fail_at_the_third_edge_type(failure: type[BaseException], target: Path) -> None:
    def fail(line: str) -> None:
        if line.startswith("writing edge type 3"):
            raise failure

    with pytest.raises(failure):
        partitioner.partition(zoo(), {}, {}, Partition(parts=2), 2, target, "f", fail)


def test_a_failure_leaves_nothing(tmp_path: Path):
    _fail_at_the_third_edge_type(ValueError, tmp_path / "p")
    assert list(tmp_path.iterdir()) == []


def test_what_was_done_before_ctrl_c_is_kept_and_gone_in_the_end(tmp_path: Path):
    _fail_at_the_third_edge_type(KeyboardInterrupt, tmp_path / "p")
    assert not (tmp_path / "p").exists()
    lines: list[str] = []
    partitioner.partition(zoo(), {}, {}, Partition(parts=2), 2, tmp_path / "p", "f", lines.append)
    assert "going on where an earlier run ended: the cut and 35 files" in lines[0]
    assert verify(tmp_path / "p") == []
    assert [path.name for path in tmp_path.iterdir()] == ["p"]


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
def test_disk_full(number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    calls = []

    def fsync(descriptor: int) -> None:
        calls.append(descriptor)
        if len(calls) == 5:
            raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "fsync", fsync)
    with pytest.raises(
        ExperimentError, match=r"MB are free\. Make room, or name a directory elsewhere: partition\.dir"
    ):
        write_parts(zoo(), tmp_path / "p", 2)
    assert list(tmp_path.iterdir()) == []


def test_a_real_limit_on_file_size(tmp_path: Path):
    resource = pytest.importorskip("resource")
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (8_000, before[1]))
    try:
        with pytest.raises(ExperimentError, match="a file may not grow more"):
            write_parts(zoo(), tmp_path / "p", 2)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, handler)
    assert list(tmp_path.iterdir()) == []


def test_too_little_room_is_said_before_the_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    import shutil
    from collections import namedtuple

    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(landing_module.shutil, "disk_usage", lambda path: usage(10**9, 10**9 - 10_000, 10_000))
    lines: list[str] = []
    with pytest.raises(ExperimentError, match=r"take about 0\.1 MB, 0\.0 MB are free"):
        partitioner.partition(zoo(), {}, {}, Partition(parts=2), 2, tmp_path / "p", "f", lines.append)
    assert lines == []
    assert list(tmp_path.iterdir()) == []
    assert shutil is landing_module.shutil


def test_a_place_that_cannot_be_written(tmp_path: Path):
    (tmp_path / "file").touch()
    with pytest.raises(ExperimentError, match="cannot be made"):
        write_parts(zoo(), tmp_path / "file" / "p", 2)
