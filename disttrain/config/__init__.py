"""The experiment: one typed, frozen object. Everything that can be refused is refused here, before work starts.

`Experiment` mirrors the YAML file section by section, a module each. This package imports no torch, so that `--help`,
`schema` and every mistake in a file answer at once. `file.py` reads files, lays overrides over them and words mistakes.
"""

from __future__ import annotations

from .data import (
    Data,
    DataSource,
    EdgeTable,
    FileData,
    GeneratedData,
    GeneratedEdges,
    GeneratedNodes,
    NodeTable,
    PygData,
    PythonData,
    Split,
    SplitByColumn,
    SplitByMasks,
    SplitByRatio,
    SplitByTime,
    TableFeatures,
    TablesData,
)
from .experiment import Experiment
from .model import Aggr, Conv, CustomModel, HeteroConvModel, Inputs, Model, RelationOptions
from .partition import Partition
from .sampling import Fanout, Sampling, fanout_conflicts
from .section import (
    DottedPath,
    EdgeType,
    ExperimentError,
    Fraction,
    Names,
    Relation,
    Section,
    Seed,
    edge_type_name,
    parse_edge_type,
)
from .task import Metric, NodeClassification, Task
from .train import Checkpoints, EarlyStop, Launch, Scheduler, Train

__all__ = [
    "Aggr",
    "Checkpoints",
    "Conv",
    "CustomModel",
    "Data",
    "DataSource",
    "DottedPath",
    "EarlyStop",
    "EdgeTable",
    "EdgeType",
    "Experiment",
    "ExperimentError",
    "Fanout",
    "FileData",
    "Fraction",
    "GeneratedData",
    "GeneratedEdges",
    "GeneratedNodes",
    "HeteroConvModel",
    "Inputs",
    "Launch",
    "Metric",
    "Model",
    "Names",
    "NodeClassification",
    "NodeTable",
    "Partition",
    "PygData",
    "PythonData",
    "Relation",
    "RelationOptions",
    "Sampling",
    "Scheduler",
    "Section",
    "Seed",
    "Split",
    "SplitByColumn",
    "SplitByMasks",
    "SplitByRatio",
    "SplitByTime",
    "TableFeatures",
    "TablesData",
    "Task",
    "Train",
    "edge_type_name",
    "fanout_conflicts",
    "parse_edge_type",
]
