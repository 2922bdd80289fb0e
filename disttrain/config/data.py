"""Where the graph or the graphs come from, and how nodes or graphs are divided into training, validation and test."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, PositiveInt, model_validator

from .section import Bytes, DottedPath, Fraction, Names, Relation, RelationName, Section, Seed, TypeName, as_list

Transform = str | dict[str, dict[str, Any]]
"""A name or dotted path, by itself or with arguments."""
Transforms = tuple[Transform, ...]
_OneOrMore = Transform | Transforms


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


class SplitStratified(SplitByRatio):
    """Like `ratio`, with these shares of each class, to within one row. Where there are several labels, rows are spread
    evenly in the order of their labels, so that each split has its share of those that have the same ones. Numbers
    (regression) have no classes: refused."""

    by: Literal["stratified"]  # pyright: ignore[reportIncompatibleVariableOverride]


class SplitByFolds(Section):
    """Cross-validation: one of so many equal folds tests, the others train and validate. A run is one fold; run all of
    them (`data.split.fold=0` and on), and average."""

    by: Literal["folds"]
    folds: Annotated[int, Field(ge=2)] = 10
    fold: Annotated[int, Field(ge=0)] = 0
    """The one that tests, from 0 on."""
    val: Fraction = 0.1
    """Share of the other folds that validates."""
    stratify: bool = True
    """Each class has its share in each fold, to within one; classes are those of labels that are whole numbers. Of
    several labels, and of other numbers, no heed is taken."""
    seed: Seed = 0

    @model_validator(mode="after")
    def _fold(self) -> SplitByFolds:
        if self.fold >= self.folds:
            raise ValueError(f"fold must be 0 to {self.folds - 1}, got {self.fold}")
        return self


class SplitByFiles(Section):
    """Files list the rows of each split by number, from 0 on: text with commas or spaces between, or `.npy`."""

    by: Literal["files"]
    train: str
    val: str | None = None
    test: str | None = None


class SplitByFunction(Section):
    """A function of your own says which rows are in which split: it returns three lists of row numbers, from 0 on, or
    three masks. Of `labels`, `num_graphs` and `graphs` (of nodes: `labels`, `num_nodes`, `graph` and `node_type`) it
    gets those that it has parameters for."""

    by: Literal["function"]
    function: DottedPath
    args: dict[str, Any] = {}


Split = Annotated[
    SplitByMasks
    | SplitByRatio
    | SplitStratified
    | SplitByFolds
    | SplitByFiles
    | SplitByFunction
    | SplitByColumn
    | SplitByTime,
    Field(discriminator="by"),
]


class Data(Section):
    """What every source has."""

    split: Split = SplitByMasks()
    """How the nodes of the task's type, or the graphs of a collection, are divided into train, validation and test."""
    transforms: Transforms = ()
    """PyG transforms by name (`ToUndirected`), with arguments (`{AddMetaPaths: {...}}`), or by dotted path. Of a
    collection each graph goes through them each time that it is used; one graph does once."""
    pre_transforms: Transforms = ()
    """The same, before these and once: each graph of a collection goes through them before it is stored."""
    pre_filter: Annotated[Transforms, BeforeValidator(as_list, json_schema_input_type=_OneOrMore)] = ()
    """Of a collection: function of your own by dotted path, with arguments as for `transforms`, or a list of them.
    Graphs for which one is false are left out, before `pre_transforms`."""
    storage: Literal["auto", "memory", "mmap", "hybrid", "ondisk"] = "auto"
    """Of a collection: each rank reads its arrays into memory (`memory`), or all map the same files (`mmap`), or some
    attributes are read and the others mapped (`hybrid`), or graphs are read from a database (`ondisk`, PyG's
    `OnDiskDataset`). Batches are the same. `auto` takes `memory`, `hybrid` or `mmap` by size, and says why."""
    memory_limit: Bytes | None = None
    """Of `storage: auto`: what all ranks of a machine together may take for the collection, e.g. "8 GiB"; null: a
    quarter of what is free."""
    in_memory: Names | None = None
    """Of `storage: hybrid`: the attributes that are read into memory (`[x, edge_attr]`); null: those of nodes."""
    ondisk_backend: Literal["sqlite", "rocksdb"] = "sqlite"
    """Of `storage: ondisk`; `rocksdb` needs `pip install rocksdict`."""
    cache: Bytes = 0
    """Of `storage: ondisk`: graphs that were used last are kept in memory, up to so many bytes in each rank,
    which its worker processes share out."""
    shard: bool = False
    """Of a collection: each machine has only its own graphs in memory, an equal range of all, and shuffles within it.
    A step's graphs then depend on the number of machines."""
    store: str | None = None
    """Of a collection: the folder that its arrays are kept in, each in one of its own; null: beside the data."""
    first: PositiveInt | None = None
    """Of a collection that has been extended: as it was when it had so many graphs; null: with all."""


class PygData(Data):
    """A class of `torch_geometric.datasets` by name; downloaded and processed by one process per machine."""

    source: Literal["pyg"]
    dataset: str
    root: str
    args: dict[str, Any] = {}
    """The class's own arguments."""


class OgbData(Data):
    """A node-property set of the Open Graph Benchmark; needs `pip install ogb`. Downloaded by one process per machine.

    Its official split is what `split: {by: masks}` takes; years become the attribute `time`."""

    source: Literal["ogb"]
    dataset: str
    """`ogbn-arxiv`, `ogbn-products`, `ogbn-mag`, `ogbn-proteins` or `ogbn-papers100M`."""
    root: str
    """The folder that OGB calls root: the set lies in a folder of its name below."""


class FileData(Data):
    """A `HeteroData` or `Data` saved with `torch.save`."""

    source: Literal["file"]
    path: str
    trust: bool = False
    """Unpickle arbitrary objects of this file. Only for files that you made."""


class PythonData(Data):
    """A function of the user's own that returns a `HeteroData` or `Data`, or a list or iterator of them."""

    source: Literal["python"]
    function: DottedPath
    args: dict[str, Any] = {}
    reads: Names | None = None
    """Of a collection: all files and folders that decide what the function gives (`*`, `**` as in a shell), `[]` if
    there are none. Then it is not called while they, its module and its arguments are as they were. Null: it is called
    at each start, and what it gives compared with what is stored."""


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
    nodes: dict[TypeName, GeneratedNodes]
    edges: dict[Relation, GeneratedEdges] = {}
    target: str | None = None
    """The node type that gets labels and a split; the first one if null."""
    target_kind: Literal["classes", "numbers"] = "classes"
    """The label `y` of the target type: a class; or a number, its class over `num_classes` and a tenth of the node's
    first feature (of a ring: the node's id)."""
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


class CsvFormat(Section):
    """How a CSV file is written. Parquet files need none of this."""

    delimiter: str | None = None
    """Up to four characters (`"|"`, `"::"`); null: the likeliest of `,` `;` `|` and tab in the first line."""
    quote: str = '"'
    """What encloses values with delimiters or line breaks in them, doubled inside; `""`: nothing does."""
    names: Names = ()
    """Names of all columns, for a file whose first line is data."""
    encoding: str = "utf-8"
    """`utf-8`, `utf-16` or `latin-1`."""
    text: Names = ()
    """Columns that stay text whatever they look like (postal codes: `01234`). Keys do so by themselves."""


class Table(Section):
    """What node and edge tables have in common."""

    file: str
    """CSV or Parquet, relative to `root`; a `.zip` that holds one CSV is read too. With `*`, `?` or `**` all files that
    fit, in the order of their names; they must have the same columns."""
    csv: CsvFormat = CsvFormat()
    where: str | None = None
    """SQL condition; rows that do not satisfy it are left out."""
    columns: dict[str, str] = {}
    """Further columns, each an SQL expression over the table's own (`late: arr_delay > 15`)."""
    features: TableFeatures = TableFeatures()
    time: str | None = None
    """Date-time or numeric column that becomes the attribute `time`; date-times are seconds since 1970, with
    fractions where there are any."""


Reverse = bool | Literal["only"]


class ForeignKey(Section):
    """The long form of a foreign key: of several columns, or with settings of its own."""

    columns: Annotated[Names, Field(min_length=1)]
    """As many as the type's key has, in the same order. NULL in any of them: no edge."""
    type: str
    """The node type whose key they hold."""
    reverse: Reverse | None = None
    """Instead of `data.reverse`, for this relation."""


class NodeTable(Table):
    key: Names | None = None
    """The column or columns that identify a row; null: the row's number (0-based, before `where`)."""
    label: Names | None = None
    """Column that becomes `y`. Classification: integers, booleans or text are classes; several columns, or one that
    holds lists, are several labels per node. Regression: numbers. NULL: the row has no label."""
    foreign_keys: dict[RelationName, str | ForeignKey] = {}
    """Column -> node type whose key it holds: an edge type `this,<column>,that`. NULL: no edge. The long form,
    `<name>: {columns: [a, b], type: that}`, gives `this,<name>,that`."""

    @property
    def references(self) -> dict[str, ForeignKey]:
        """Name of the relation -> its foreign key, the short form spelt out."""
        return {
            name: key if isinstance(key, ForeignKey) else ForeignKey(columns=(name,), type=key)
            for name, key in self.foreign_keys.items()
        }


class EdgeTable(Table):
    src: Annotated[Names, Field(min_length=1)]
    """Column that holds the source's key; as many columns as it has."""
    dst: Annotated[Names, Field(min_length=1)]
    """Column that holds the destination's key; as many columns as it has."""
    features: TableFeatures = TableFeatures()
    """They become `edge_attr`."""
    reverse: Reverse | None = None
    """Instead of `data.reverse`, for this relation."""


class TablesData(Data):
    """Node tables, edge tables and foreign keys in CSV or Parquet become a heterogeneous graph."""

    source: Literal["tables"]
    root: str
    """A folder, or `package:<name>/<folder>` for files that a pip package carries."""
    nodes: dict[TypeName, NodeTable]
    edges: dict[Relation, EdgeTable] = {}
    missing: Names = ("",)
    """What stands for a missing value in CSV files (`["", "NA"]`)."""
    reverse: Reverse = True
    """Add the reverse of each relation, `dst,rev_<rel>,src`; `only`: in its place (a flight learns of its plane, the
    plane nothing of its other flights)."""
    duplicates: Literal["refuse", "drop"] = "refuse"
    """Several rows with one key: refuse (the message counts them and shows some), or keep the first (counted)."""
    dangling: Literal["refuse", "drop"] = "refuse"
    """A key that no row has: refuse (the message counts them and shows some), or leave out those edges (counted)."""
    missing_labels: Literal["keep", "refuse", "drop"] = "keep"
    """Rows without a label: keep them as nodes that are in no split, refuse, or leave them out (counted)."""
    missing_times: Literal["refuse", "drop"] = "refuse"
    """Rows of a table with a `time` that have none: refuse, or leave them out (counted)."""
    memory_bytes: Annotated[Bytes, Field(ge=1 << 26)] | None = None
    """How much memory the tables may take while they are read, e.g. "512 MiB"; more goes through the disk. Null: an
    eighth of the machine's or container's, between 1 and 4 GiB. The graph is the same whatever it is."""


DataSource = Annotated[
    PygData | OgbData | FileData | PythonData | GeneratedData | TablesData,
    Field(discriminator="source"),
]
