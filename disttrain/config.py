"""The experiment: one typed, frozen object. Everything that can be refused is refused here, before work starts.

`Experiment` mirrors the YAML file section by section. This module imports no torch, so that `--help`, `schema` and
every mistake in a file answer at once. Reading files, applying overrides and wording mistakes is `config_file.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, PositiveInt, model_validator


class ExperimentError(ValueError):
    """The user's input was refused. The message says what was expected, what came, where, and what to do.

    `__main__` prints it without a traceback and exits with code 2.
    """


class Section(BaseModel):
    """A part of the experiment: frozen, and unknown keys are refused."""

    model_config = ConfigDict(frozen=True, extra="forbid", validate_default=True, use_attribute_docstrings=True)


EdgeType = tuple[str, str, str]


def parse_edge_type(text: str) -> EdgeType:
    """Read a relation as it is written in YAML: `"src,rel,dst"`, e.g. `"author,writes,paper"`.

    Raises:
        ValueError: if it does not have exactly three non-empty parts.
    """
    parts = tuple(part.strip() for part in text.split(","))
    if len(parts) != 3 or not all(parts):
        raise ValueError(f'a relation is written "source,relation,destination", got {text!r}')
    return parts


def edge_type_name(edge_type: EdgeType) -> str:
    """Write a relation as YAML and messages have it: `"src,rel,dst"`."""
    return ",".join(edge_type)


def _relation(text: str) -> str:
    return edge_type_name(parse_edge_type(text))


def _dotted(path: str) -> str:
    module, _, name = path.partition(":")
    if not module or not name:
        raise ValueError(f"a dotted path is written 'package.module:name', got {path!r}")
    return path


def _as_list(value: Any) -> Any:
    return value if isinstance(value, (list, tuple)) or value is None else [value]


Relation = Annotated[str, AfterValidator(_relation)]
"""A relation as a normalised `"src,rel,dst"` string; `parse_edge_type` gives the tuple."""

DottedPath = Annotated[str, AfterValidator(_dotted)]
"""`package.module:name` of something of the user's own."""

Names = Annotated[tuple[str, ...], BeforeValidator(_as_list)]
"""A list of names; a single name may stand alone."""

Fraction = Annotated[float, Field(ge=0.0, le=1.0)]

Seed = Annotated[int, Field(ge=0, lt=2**63)]


def _folder(name: str) -> str:
    if not name.strip() or name in (".", "..") or "/" in name or not name.isprintable():
        raise ValueError(f"expected a name that a folder can have, got {name!r} (run_dir takes a path)")
    return name


# --- data -----------------------------------------------------------------------------------------------------------
class SplitByMasks(Section):
    """The data set's own `train_mask`, `val_mask`, `test_mask`."""

    by: Literal["masks"] = "masks"
    val_from_train: Fraction = 0.0
    """Share of the training nodes held out for validation, for sets that publish none (HGB). Never taken from test."""
    seed: Seed = 0
    column: Annotated[int, Field(ge=0)] | None = None
    """Which split, for sets that publish several (masks of shape [num_nodes, num_splits])."""


class SplitByRatio(Section):
    """Labelled nodes at random, in these shares; what is left over is in no split."""

    by: Literal["ratio"]
    train: Fraction
    val: Fraction
    test: Fraction
    seed: Seed = 0

    @model_validator(mode="after")
    def _sum(self) -> SplitByRatio:
        if self.train + self.val + self.test > 1.0 + 1e-9:
            raise ValueError(f"train + val + test must be at most 1, got {self.train + self.val + self.test:g}")
        return self


class SplitByColumn(Section):
    """A column (tables) or node attribute (graphs) holds the name of each row's split."""

    by: Literal["column"]
    column: str
    train: Names = ("train",)
    val: Names = ("val", "valid", "validation")
    test: Names = ("test",)


class SplitByTime(Section):
    """Rows before `val` train, rows from `val` to before `test` validate, rows from `test` on test."""

    by: Literal["time"]
    column: str
    """A time column (tables), or a numeric node attribute (graphs)."""
    val: str | float
    """Where validation begins: an ISO date or date-time for date-time columns, a number for numeric ones."""
    test: str | float


Split = Annotated[SplitByMasks | SplitByRatio | SplitByColumn | SplitByTime, Field(discriminator="by")]


class Data(Section):
    """What every source has."""

    split: Split = SplitByMasks()
    """How the nodes of the task's type are divided into train, validation and test."""
    transforms: tuple[str | dict[str, dict[str, Any]], ...] = ()
    """PyG transforms by name (`ToUndirected`), with arguments (`{AddMetaPaths: {...}}`), or by dotted path."""


class PygData(Data):
    """A class of `torch_geometric.datasets` by name; downloaded and processed by one process per machine."""

    source: Literal["pyg"]
    dataset: str
    root: str
    args: dict[str, Any] = {}
    """The class's own arguments."""


class FileData(Data):
    """A `HeteroData` or `Data` saved with `torch.save`."""

    source: Literal["file"]
    path: str
    trust: bool = False
    """Unpickle arbitrary objects of this file. Only for files that you made."""


class PythonData(Data):
    """A function of the user's own that returns a `HeteroData` or `Data`."""

    source: Literal["python"]
    function: DottedPath
    args: dict[str, Any] = {}


class GeneratedNodes(Section):
    num_nodes: PositiveInt
    features: Annotated[int, Field(ge=0)] = 0
    """Width of `x`; 0 for a type without features."""


class GeneratedEdges(Section):
    num_edges: PositiveInt
    reverse: bool = True
    """Also add the reverse relation `dst,rev_<rel>,src`."""
    exponent: tuple[float, float] = (0.5, 0.7)
    """Power-law exponents of the degrees at the source and at the destination; 0 is uniform."""


class GeneratedData(Data):
    """A seeded graph: power-law degrees, planted communities, labels that can be learned from features and neighbours.

    `kind: ring` is the graph of the exactness tests: `num_nodes` nodes, v -> v+1 and v -> v+2 (mod n), `x[v] = [v]`.
    """

    source: Literal["generated"]
    kind: Literal["communities", "ring"] = "communities"
    seed: Seed = 0
    nodes: dict[str, GeneratedNodes]
    edges: dict[Relation, GeneratedEdges] = {}
    target: str | None = None
    """The node type that gets labels and a split; the first one if null."""
    num_classes: PositiveInt = 10
    num_communities: PositiveInt = 64
    homophily: Fraction = 0.8
    """Share of the edges whose ends lie in the same community."""
    noise: Annotated[float, Field(ge=0.0)] = 1.0
    """Standard deviation of the noise on features, against class centres of unit variance."""
    split: Split = SplitByRatio(by="ratio", train=0.6, val=0.2, test=0.2)


class TableFeatures(Section):
    """Columns (or SQL expressions named in `columns`) that become features."""

    numeric: Names = ()
    categorical: Names = ()
    boolean: Names = ()
    datetime: Names = ()
    """Each becomes year, month, day, weekday and hour, scaled, and their sines and cosines where they are cyclic."""


class NodeTable(Section):
    file: str
    """CSV or Parquet, relative to `root`; a `.zip` that holds one CSV is read too."""
    key: str | None = None
    """The column that identifies a row; null: the row's number (0-based, before `where`)."""
    where: str | None = None
    """SQL condition; rows that do not satisfy it are left out."""
    columns: dict[str, str] = {}
    """Further columns, each an SQL expression over the table's own (`late: arr_delay > 15`)."""
    features: TableFeatures = TableFeatures()
    label: str | None = None
    """Column that becomes `y`: integers, booleans or text are classes. NULL: the row has no label."""
    time: str | None = None
    """Date-time or numeric column that becomes the node attribute `time` (seconds since 1970 for date-times)."""
    foreign_keys: dict[str, str] = {}
    """Column -> node type whose key it holds: an edge type `this,<column>,that`. NULL: no edge."""


class EdgeTable(Section):
    file: str
    src: str
    """Column that holds the source's key."""
    dst: str
    """Column that holds the destination's key."""
    where: str | None = None
    columns: dict[str, str] = {}
    features: TableFeatures = TableFeatures()
    """They become `edge_attr`."""
    time: str | None = None


class TablesData(Data):
    """Node tables, edge tables and foreign keys in CSV or Parquet become a heterogeneous graph."""

    source: Literal["tables"]
    root: str
    """A folder, or `package:<name>/<folder>` for files that a pip package carries."""
    nodes: dict[str, NodeTable]
    edges: dict[Relation, EdgeTable] = {}
    missing: Names = ("",)
    """What stands for a missing value in CSV files (`["", "NA"]`)."""
    reverse: bool | Literal["only"] = True
    """Add the reverse of each relation, `dst,rev_<rel>,src`; `only`: in its place (a flight learns of its plane, the
    plane nothing of its other flights)."""
    dangling: Literal["refuse", "drop"] = "refuse"
    """A key that no row has: refuse (the message counts them and shows some), or leave out those edges (counted)."""


DataSource = Annotated[
    PygData | FileData | PythonData | GeneratedData | TablesData,
    Field(discriminator="source"),
]


# --- partition ------------------------------------------------------------------------------------------------------
class Partition(Section):
    parts: PositiveInt | Literal["auto"] = "auto"
    """How many; `auto`: one per machine. A graph cut into P parts runs on any number of machines up to P."""
    method: Literal["metis", "random"] = "metis"
    dir: str | None = None
    """Where; null: `partitions/` beside the data, in a folder named by its content."""
    seed: Seed = 0


# --- task, model ----------------------------------------------------------------------------------------------------
Metric = Literal["accuracy", "micro_f1", "macro_f1", "auroc", "average_precision"]


class NodeClassification(Section):
    kind: Literal["node_classification"]
    node_type: str | None = None
    """Null: the only type that has the label."""
    label: str = "y"
    multilabel: bool | Literal["auto"] = "auto"
    """`auto`: a label of shape [num_nodes, num_labels] is multi-label, one of shape [num_nodes] is single-label."""
    metrics: tuple[Metric, ...] = (
        "accuracy",
        "micro_f1",
        "macro_f1",
    )


Task = NodeClassification

Conv = Literal["sage", "gat", "gcn"]
Aggr = Literal["mean", "max", "min", "sum", "softmax", "std", "var", "median", "powermean"]


class RelationOptions(Section):
    """What one relation does differently; null: as the model says."""

    conv: Conv | None = None
    aggr: Aggr | None = None
    heads: PositiveInt | None = None


class Inputs(Section):
    """Feature alignment: each node type's attributes become one tensor of width `hidden` (or stay as they are)."""

    project: bool = True
    """A Linear per type to `hidden`. false: features go to the first convolution as wide as they are."""
    standardize: bool = False
    """Subtract the mean and divide by the standard deviation of each column of `x` (computed over all nodes)."""
    layer_norm: bool = False
    dropout: Fraction = 0.0
    embedding_dim: PositiveInt | None = None
    """Width of the learnable embedding of types without features; null: `hidden`."""
    categorical_dim: PositiveInt = 16
    """Width of the embedding of each categorical column (`x_cat`)."""


class HeteroConvModel(Section):
    kind: Literal["hetero_conv"]
    hidden: PositiveInt = 64
    layers: PositiveInt = 2
    conv: Conv = "sage"
    aggr: Aggr = "mean"
    heads: PositiveInt = 1
    """Attention heads of `gat`; their outputs are averaged, so that the width stays `hidden`."""
    relation_aggr: Literal["sum", "mean", "max", "attention"] = "sum"
    relations: dict[Relation, RelationOptions] = {}
    residual: bool = False
    norm: Literal["none", "layer", "batch"] = "none"
    activation: Literal["relu", "elu", "leaky_relu", "gelu"] = "relu"
    dropout: Fraction = 0.0
    inputs: Inputs = Inputs()
    l2_normalize: bool = False
    """Normalise the output embedding before the head to unit length, as Simple-HGN does."""


class CustomModel(Section):
    """A module of the user's own; the contract is in `disttrain.models`."""

    kind: Literal["custom"]
    module: DottedPath
    args: dict[str, Any] = {}
    layers: PositiveInt = 2
    """Number of hops it consumes; must equal the length of `sampling.fanout`."""


Model = Annotated[HeteroConvModel | CustomModel, Field(discriminator="kind")]

Fanout = Annotated[int, Field(ge=-1, le=1_000_000)]


# --- sampling, training ---------------------------------------------------------------------------------------------
class Sampling(Section):
    fanout: tuple[Fanout, ...] | dict[Relation | Literal["default"], tuple[Fanout, ...]] = (10, 5)
    """Neighbours per hop: -1 all, 0 none. One list for all relations, or a list per relation and `default`."""
    batch_size: PositiveInt = 512
    """Seeds per rank and step."""
    eval_batch_size: PositiveInt | None = None
    """Null: `batch_size`."""
    eval_fanout: tuple[Fanout, ...] | dict[Relation | Literal["default"], tuple[Fanout, ...]] | None = None
    """Fanout when evaluating; null: `fanout`."""
    replace: bool = False
    """Draw with replacement."""
    workers: Annotated[int, Field(ge=0)] = 1
    """Loader threads per rank; 0: sample in the training thread."""
    prefetch: PositiveInt = 4
    """Batches per worker that may wait, ready, for the trainer."""
    locality: bool = True
    """A rank's seeds come from its own machine's nodes first. false: a rank's seeds do not depend on the cut."""
    shuffle: bool = True
    backend: Literal["auto", "numba"] = "auto"


class EarlyStop(Section):
    metric: str
    patience: PositiveInt = 10
    """Epochs (evaluations) without improvement."""
    mode: Literal["max", "min"] = "max"


class Scheduler(Section):
    kind: Literal["constant", "cosine", "linear", "step"] = "constant"
    warmup_steps: Annotated[int, Field(ge=0)] = 0
    min_factor: Fraction = 0.0
    """`cosine` and `linear` end at this share of the learning rate."""
    step_epochs: PositiveInt = 10
    gamma: Annotated[float, Field(gt=0.0, le=1.0)] = 0.5
    """`step`: multiply by `gamma` every `step_epochs` epochs."""


class Checkpoints(Section):
    every_steps: PositiveInt | None = None
    """Also within an epoch, each so many steps; null: at the end of each epoch only."""
    keep: PositiveInt = 2
    """How many of the newest stay; the best one stays beside them."""


class Train(Section):
    epochs: PositiveInt = 10
    max_steps: PositiveInt | None = None
    """Stop after so many optimizer steps over all epochs."""
    optimizer: Literal["adamw", "adam", "sgd"] = "adamw"
    lr: Annotated[float, Field(gt=0.0)] = 0.005
    weight_decay: Annotated[float, Field(ge=0.0)] = 0.0
    momentum: Fraction = 0.9
    """Of `sgd`."""
    scheduler: Scheduler = Scheduler()
    grad_clip: Annotated[float, Field(gt=0.0)] | None = None
    """Largest norm of the whole gradient; null: no clipping."""
    precision: Literal["fp32", "bf16", "fp16"] = "fp32"
    fp32_layers: Names = ()
    """Modules, by their dotted name in the model (`inputs`, `convs.0`), that compute in fp32 whatever `precision`."""
    early_stop: EarlyStop | None = None
    best_metric: str | None = None
    """Which validation metric chooses the best checkpoint; null: that of `early_stop`, else the task's first."""
    eval_every: PositiveInt = 1
    """Epochs between evaluations on the validation split (the last epoch is always evaluated)."""
    checkpoint: Checkpoints = Checkpoints()
    log_every: PositiveInt = 10
    """Steps between lines of `metrics.jsonl`, and between checks for a requested stop."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    threads: PositiveInt | None = None
    """Compute threads per rank; null: the machine's cores shared out among its ranks (or OMP_NUM_THREADS)."""
    timeout: Annotated[float, Field(gt=0.0, le=1e7)] = 300.0
    """Seconds that one rank waits for another before the job ends with a message."""


class Launch(Section):
    """What the job was sized for; checked against the world that was really started. Null: whatever comes."""

    nodes: PositiveInt | None = None
    procs_per_node: PositiveInt | None = None


def fanout_conflicts(layers: int, fanouts: Mapping[str, Any]) -> dict[tuple[str, ...], str]:
    """Fanouts that are not one per layer: their path within `sampling`, and what is wrong.

    Args:
        layers: of the model.
        fanouts: key in `sampling` -> a list, a list per relation, or None.
    """
    conflicts = {}
    for key, fanout in fanouts.items():
        for path, hops in (
            {(key, relation): hops for relation, hops in fanout.items()}
            if isinstance(fanout, dict)
            else {(key,): fanout}
        ).items():
            if hops is not None and len(hops) != layers:
                conflicts[path] = (
                    f"has {len(hops)} hops ({list(hops)}), but model.layers is {layers}; give one fanout per layer"
                )
    return conflicts


class Experiment(Section):
    """One experiment: a YAML file, read and checked."""

    name: Annotated[str, AfterValidator(_folder)] = "experiment"
    """Names the run directory."""
    seed: Seed = 0
    """Of first weights, shuffles, draws and dropout: with the same one, a run repeats itself."""
    run_dir: str | None = None
    """Null: `runs/<name>`."""
    data: DataSource
    partition: Partition = Partition()
    task: Task
    model: Model
    sampling: Sampling = Sampling()
    train: Train = Train()
    launch: Launch = Launch()

    @model_validator(mode="after")
    def _fanout_matches_layers(self) -> Experiment:
        fanouts = {"fanout": self.sampling.fanout, "eval_fanout": self.sampling.eval_fanout}
        conflicts = fanout_conflicts(self.model.layers, fanouts)
        if conflicts:
            raise ValueError("; ".join(f"sampling.{'.'.join(path)} {text}" for path, text in conflicts.items()))
        return self

    @property
    def directory(self) -> str:
        """The run directory."""
        return self.run_dir or f"runs/{self.name}"
