"""The training loop: epochs, optimizer, precision, checkpoints, time limits."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, PositiveInt

from .section import Fraction, Names, Section


class EarlyStop(Section):
    metric: str
    patience: PositiveInt = 10
    """Epochs (evaluations) without improvement."""
    mode: Literal["auto", "max", "min"] = "auto"
    """Which way the metric gets better; `auto` knows it."""


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
    """Also within an epoch, each so many steps; null: at the end of epochs only."""
    every_epochs: PositiveInt = 1
    """Epochs between checkpoints at their ends. The best epoch so far and the last one always write theirs, so that
    only time is lost: small data has epochs that take no longer than a checkpoint."""
    keep: PositiveInt = 2
    """How many of the newest stay; the best one stays beside them."""


class Elastic(Section):
    """What stays as it was when fewer machines take part than `launch.nodes` (see `launch.min_nodes`)."""

    keep: Literal["batches", "per_rank"] = "batches"
    """batches: every mini-batch. A step has a share for each rank of `launch.nodes` machines, and those that are there
    compute them all, one after another where need be: the loss goes the same way, to rounding, and a step takes longer.
    per_rank: what a rank has in a step. Steps then have fewer seeds, and an epoch has more steps."""
    lr: Literal["linear", "sqrt", "constant"] = "linear"
    """With `per_rank`: how the learning rate follows the number of seeds in a step."""


class Train(Section):
    epochs: PositiveInt = 10
    max_steps: PositiveInt | None = None
    """Stop after so many optimizer steps over all epochs."""
    accumulate: PositiveInt = 1
    """Batches whose gradients make one optimizer step, as if they were one batch; the last step of an epoch takes what
    is left. Steps (`max_steps`, `log_every`, of the scheduler, in the summary) are those of the optimizer."""
    optimizer: Literal["adamw", "adam", "sgd"] = "adamw"
    lr: Annotated[float, Field(gt=0.0)] = 0.005
    weight_decay: Annotated[float, Field(ge=0.0)] = 0.0
    momentum: Fraction = 0.9
    """Of `sgd`."""
    scheduler: Scheduler = Scheduler()
    grad_clip: Annotated[float, Field(gt=0.0)] | None = None
    """Largest norm of the whole gradient; null: no clipping."""
    on_nan: Literal["stop", "skip"] = "stop"
    """When the loss or the gradient of a step is not finite: end the run, or leave this step out, on all ranks alike.
    Either way a message names the first tensor that went wrong, and the weights stay as they were before the step."""
    max_skipped: PositiveInt = 10
    """As many steps may be left out, over the whole run, before it ends all the same."""
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
    """Steps between lines of `metrics.jsonl`."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    threads: PositiveInt | None = None
    """Compute threads per rank; null: the cores that the job may use, shared out among its machine's ranks (or
    OMP_NUM_THREADS)."""
    elastic: Elastic = Elastic()
    timeout: Annotated[float, Field(gt=0.0, le=1e7)] = 300.0
    """Seconds that one rank waits for another before the job ends with a message."""
