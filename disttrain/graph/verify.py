"""Whether a partition directory is as its manifest says, and what its files say fits together.

Everything is read in blocks: memory is 16 bytes a node and an eighth of a byte an edge.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from ..config import EdgeType, edge_type_name
from ..machine_code import compiled
from .blocks import blocks_of, id_blocks, row_blocks
from .columns import Summary, summarise
from .cut_figures import largest_share, shares
from .files import MANIFEST, digest_file, parse_manifest, wrong_sizes
from .holds import HOLDS, Holds, manifest_digest
from .journal import LOCK, WORK
from .order import add_counts, count_keys

_TOLERANCE = 1e-4
"""Of mean and deviation, relative to the deviation or mean: they are summed in another order here."""


def verify(directory: str | Path) -> list[str]:
    """Check that all files of the manifest are there and no others, their sizes and checksums; and if so, that the
    arrays fit together and are what the manifest says of them.

    Of a directory that was sent here in part, what it holds is held against the checksums of what was received.

    Returns:
        What is wrong, a line each; empty if nothing is.

    Raises:
        ExperimentError: no manifest, or one that is damaged or of another format.

    Cost: reads every byte three times.
    """
    directory = Path(directory)
    manifest = parse_manifest(directory)
    wrong = wrong_sizes(directory, manifest)
    problems = list(wrong.values())
    if (holds := Holds.read(directory)) is not None:
        if holds.manifest != manifest_digest(directory):
            problems.append(f"{HOLDS} is that of another manifest; remove the directory")
        return [*problems, *holds.damaged(directory), *_unknown(directory, manifest)]
    for name, entry in manifest["files"].items():
        if name not in wrong and (problem := _wrong_content(directory / name, name, entry)):
            problems.append(problem)
    problems += _unknown(directory, manifest)
    return problems or list(_broken_invariants(directory, manifest))


def _wrong_content(path: Path, name: str, entry: dict[str, Any]) -> str | None:
    try:
        same = digest_file(path) == entry
    except OSError as error:
        return f"{name} cannot be read ({error.strerror})"
    return None if same else f"{name}: its checksum differs from the manifest's, the file was changed or damaged"


def _unknown(directory: Path, manifest: dict[str, Any]) -> list[str]:
    return [f"{name} is not in the manifest; remove it" for name in _strangers(directory, manifest)]


def _strangers(directory: Path, manifest: dict[str, Any]) -> list[str]:
    """What is not the partition's; what a writer leaves that is killed just after landing is."""
    files = (*manifest["files"], MANIFEST, HOLDS, LOCK)
    folders = {parent.as_posix() for name in files for parent in Path(name).parents}
    found = ((path, path.relative_to(directory)) for path in sorted(directory.rglob("*")))
    return [
        name.as_posix()
        for path, name in found
        if name.as_posix() not in (folders if path.is_dir() and not path.is_symlink() else files)
        and name.parts[0] != WORK
    ]


def _broken_invariants(directory: Path, manifest: dict[str, Any]) -> Iterator[str]:
    def load(name: str) -> np.ndarray:
        # An array proper: a memmap would be a type of its own to the kernels, and its minimum one again.
        return np.asarray(np.load(directory / name, mmap_mode="r", allow_pickle=False))

    parts, counts, part_of, seeds = manifest["parts"], {}, {}, np.zeros(manifest["parts"], dtype=np.int64)
    largest = {}
    for index, entry in enumerate(manifest["node_types"]):
        where, count, bounds = f"node type {entry['type']}", entry["num_nodes"], np.asarray(entry["bounds"])
        counts[entry["type"]] = count
        original = load(f"nodes/{index}/original_id.npy")
        covers = len(bounds) == parts + 1 and bounds[0] == 0 and bounds[-1] == count
        if not covers or (np.diff(bounds) < 0).any():
            yield f"{where}: its bounds do not divide 0 to {count} into the parts"
        else:
            part_of[entry["type"]] = np.repeat(np.arange(parts, dtype=np.int32), np.diff(bounds))
            largest[entry["type"]] = largest_share(np.diff(bounds))
            if not _ascends_within(original, bounds):
                yield f"{where}: original_id does not ascend within a part"
        if not is_permutation(original, count):
            yield f"{where}: original_id is no permutation"
        yield from _wrong_attributes(where, entry["attributes"], count, load)
        mask = entry["attributes"].get("train_mask")
        if mask is not None and entry["type"] in part_of:
            seeds += _seeds(load(mask["file"]), part_of[entry["type"]], parts)
    crossing: dict[EdgeType, tuple[int, int]] = {}
    for entry in manifest["edge_types"]:
        problems = list(_wrong_edges(entry, counts, part_of, load, crossing))
        yield from problems
        where = f"edge type {edge_type_name(tuple(entry['type']))}"
        yield from _wrong_attributes(where, entry["attributes"], entry["num_edges"], load)
    yield from _wrong_keys(directory, manifest, counts)
    if len(part_of) == len(counts) and manifest["balance"] != {"per_type": largest, "train_seeds": seeds.tolist()}:
        yield f"{MANIFEST}: the balance is not that of the files"
    if len(crossing) == len(manifest["edge_types"]) and manifest["edge_cut"] != shares(crossing):
        yield f"{MANIFEST}: the edge cut is not that of the files"


def _wrong_edges(
    entry: dict[str, Any],
    counts: dict[str, int],
    part_of: dict[str, np.ndarray],
    load: Callable[[str], np.ndarray],
    crossing: dict[EdgeType, tuple[int, int]],
) -> Iterator[str]:
    """Also counts the edges between parts, if nothing is wrong."""
    src_type, _, dst_type = edge_type = tuple(entry["type"])
    where, count = f"edge type {edge_type_name(edge_type)}", entry["num_edges"]
    num_src, num_dst = counts[src_type], counts[dst_type]
    colptr, row, edge_id, degree = (load(entry["files"][n]) for n in ("colptr", "row", "edge_id", "src_degree"))
    fits = colptr.shape == (num_dst + 1,) and colptr[0] == 0 and colptr[-1] == count
    if not fits:
        yield f"{where}: colptr does not fit"
    elif (np.diff(colptr) < 0).any():
        fits = False
        yield f"{where}: colptr descends"
    if row.shape != (count,):
        yield f"{where}: row does not have {count} entries"
        return
    if count and (row.min() < 0 or row.max() >= num_src):
        yield f"{where}: a source is not among the {num_src} nodes of type {src_type}"
        return
    if not is_permutation(edge_id, count):
        yield f"{where}: edge_id is no permutation"
    elif fits and not _ascends_within(edge_id, colptr):
        yield f"{where}: the edges of a destination are not in the order of edge_id"
    num_leaving = np.zeros(num_src, dtype=np.int64)
    for ids in id_blocks(row):
        add_counts(ids, num_leaving)
    if not np.array_equal(num_leaving, degree):
        yield f"{where}: src_degree does not count the sources"
    if fits and src_type in part_of and dst_type in part_of:
        crosses = 0
        for rows in row_blocks(count, 8):
            first, end = np.searchsorted(colptr, [rows.start, rows.stop - 1], side="right") - 1
            within = np.clip(colptr[first : end + 2], rows.start, rows.stop)
            dst_part = np.repeat(part_of[dst_type][first : end + 1], np.diff(within))
            crosses += int(np.count_nonzero(part_of[src_type][row[rows]] != dst_part))
        crossing[edge_type] = (crosses, count)


def _seeds(mask: np.ndarray, part: np.ndarray, parts: int) -> np.ndarray:
    """How many training seeds each part has."""
    is_seed = np.logical_or.reduce(mask, axis=tuple(range(1, mask.ndim)), dtype=bool) if mask.ndim > 1 else mask != 0
    return count_keys(part[is_seed], parts)


def _wrong_attributes(
    where: str, attributes: dict[str, Any], count: int, load: Callable[[str], np.ndarray]
) -> Iterator[str]:
    for name, entry in attributes.items():
        array = load(entry["file"])
        expected = (count, *entry["shape"])
        if array.shape != expected or array.dtype.name != entry["dtype"]:
            yield (
                f"{where}, attribute {name}: expected {entry['dtype']} {list(expected)}, "
                f"the file holds {array.dtype.name} {list(array.shape)}"
            )
            continue
        found = summarise(array, feature=name == "x")
        told = {"low": found.low, "high": found.high, "missing": found.missing}
        if told != {key: entry[key] for key in told}:
            yield f"{where}, attribute {name}: range or number of missing values are not those of the file"
        if not _same_statistics(found, *(load(entry[key]) if entry[key] else None for key in ("mean", "std"))):
            yield f"{where}, attribute {name}: mean or standard deviation are not those of the file"


def _same_statistics(found: Summary, mean: np.ndarray | None, std: np.ndarray | None) -> bool:
    if mean is None or std is None or found.mean is None or found.std is None:
        return mean is None and std is None and found.mean is None and found.std is None
    if mean.shape != found.mean.shape or std.shape != found.std.shape:
        return False
    with np.errstate(invalid="ignore", over="ignore"):
        room = _TOLERANCE * (np.abs(found.mean) + np.abs(found.std))
        return all(
            bool(((np.abs(one - other) <= room) | (one == other) | ~(np.isfinite(one) | np.isfinite(other))).all())
            for one, other in ((mean, found.mean), (std, found.std))
        )


def _wrong_keys(directory: Path, manifest: dict[str, Any], counts: dict[str, int]) -> Iterator[str]:
    for node_type, name in manifest["keys"].items():
        import pyarrow
        import pyarrow.parquet

        try:
            table = pyarrow.parquet.ParquetFile(directory / name)
            rows, columns = table.metadata.num_rows, table.schema_arrow.names
        except (pyarrow.ArrowException, OSError) as error:
            yield f"{name} is no readable Parquet file ({error})"
            continue
        if rows != counts.get(node_type) or columns != ["key"]:
            expected = f"a column `key` of {counts.get(node_type)} rows, for the nodes of type {node_type}"
            yield f"{name}: expected {expected}, got {columns} of {rows}"


@compiled
def _mark(ids: np.ndarray, seen: np.ndarray) -> bool:
    """Set the bit of each id; False if one is set already."""
    for index in range(len(ids)):
        byte, bit = ids[index] >> 3, np.uint8(1 << (ids[index] & 7))
        if seen[byte] & bit:
            return False
        seen[byte] |= bit
    return True


def is_permutation(ids: np.ndarray, count: int) -> bool:
    """Whether `ids` holds each of 0 to `count - 1` once. Memory: a bit an id."""
    if ids.shape != (count,):
        return False
    seen = np.zeros(count // 8 + 1, dtype=np.uint8)
    return all(block.min() >= 0 and block.max() < count and _mark(block, seen) for block in id_blocks(ids))


def _ascends_within(values: np.ndarray, bounds: np.ndarray) -> bool:
    """Whether the values rise strictly within each range `bounds[i]` to `bounds[i + 1] - 1`, which cover them."""
    first, last = 0, None
    for block in blocks_of(values):
        end = first + len(block)
        falls = np.flatnonzero(np.diff(block) <= 0) + first + 1
        if last is not None and block[0] <= last:
            falls = np.append(falls, first)
        # A range may begin there.
        if len(falls) and not (bounds[np.searchsorted(bounds, falls)] == falls).all():
            return False
        first, last = end, block[-1]
    return True
