"""For processes that ranks are forked from: what takes each rank seconds is done once, before it is forked.

Imported, and it has started no thread and run no backward pass, which forked processes could not bear.
"""

from __future__ import annotations

import gc

import numpy as np
import torchmetrics
import torchmetrics.classification

import disttrain.sampling
import disttrain.train.job
from disttrain.graph.order import group_by_key

assert torchmetrics.classification and disttrain.sampling and disttrain.train.job
group_by_key(np.zeros(1, dtype=np.int64), 1)  # the first call of a compiled function: numba sets itself up
gc.collect()
gc.freeze()  # forked processes do not look through all this again, which would copy its memory for each of them
