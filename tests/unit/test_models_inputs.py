"""Feature alignment: dtypes, missing values, categories, embeddings by original id."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch_geometric.data import HeteroData

from disttrain import config
from disttrain.config import ExperimentError
from disttrain.models.inputs import Inputs

from .small_batches import batch_of, random_graph, schema_of
from .test_models_hetero_conv import statistics


def inputs_of(data: HeteroData, statistics_of: Any = None, **settings: Any) -> Inputs:
    torch.manual_seed(0)
    none = lambda node_type, name: None  # noqa: E731
    return Inputs(config.Inputs(**settings), schema_of(data), data.node_types, 8, statistics_of or none)


@pytest.mark.parametrize("dtype", [torch.float16, torch.float64, torch.int32, torch.uint8, torch.bool])
def test_features_of_any_dtype_become_float32(dtype: torch.dtype) -> None:
    data = random_graph()
    data["paper"].x = (data["paper"].x > 0).to(dtype)
    x = inputs_of(data, project=False)(batch_of(data, "paper", [2, 0], layers=1))["paper"]
    assert x.dtype == torch.float32
    assert torch.equal(x[:2], data["paper"].x[[2, 0]].float())


def test_missing_values_become_the_mean_and_standardized_ones_zero() -> None:
    data = random_graph()
    data["paper"].x[0, 1] = float("nan")
    data["paper"].x[:, 2] = float("nan")
    data["paper"].x[:, 3] = 7.0
    batch = batch_of(data, "paper", list(range(30)), layers=1)

    def of(node_type: str, name: str) -> Any:
        with np.errstate(all="ignore"):
            values = data[node_type][name].numpy()
            count = (~np.isnan(values)).sum(0)
            mean = np.nansum(values, 0) / count
            return mean, np.sqrt(np.nansum((values - mean) ** 2, 0) / count)

    filled = inputs_of(data, of, project=False)(batch)["paper"]
    assert filled[0, 1] == pytest.approx(data["paper"].x[1:, 1].mean().item(), abs=1e-6)
    assert (filled[:, 2] == 0).all()
    standard = inputs_of(data, of, project=False, standardize=True)(batch)["paper"]
    assert standard.isfinite().all()
    assert standard[0, 1] == pytest.approx(0.0, abs=1e-6)
    assert (standard[:, 2:4] == 0).all()
    torch.testing.assert_close(standard[:, 0].mean(), torch.tensor(0.0), atol=1e-6, rtol=0)
    torch.testing.assert_close(standard[:, 0].std(unbiased=False), torch.tensor(1.0), atol=1e-5, rtol=0)


@pytest.mark.parametrize("dtype", [torch.float64, torch.int64])
def test_digits_that_float32_has_not_are_there_when_standardized(dtype: torch.dtype) -> None:
    data = random_graph()
    times = (1_700_000_000 + 3 * torch.arange(30, dtype=torch.float64)).to(dtype)
    data["paper"].x = times[:, None].repeat(1, 2)
    batch = batch_of(data, "paper", list(range(30)), layers=1)
    values = times.double()
    mean, std = values.mean(), values.std(unbiased=False)

    def of(node_type: str, name: str) -> Any:
        return (np.full(2, mean), np.full(2, std)) if node_type == "paper" else None

    standard = inputs_of(data, of, project=False, standardize=True)(batch)["paper"]
    assert standard.dtype == torch.float32
    torch.testing.assert_close(standard[:, 0], ((values - mean) / std).float())
    assert len(standard[:, 0].unique()) == 30


def test_types_without_features_have_a_row_per_original_id() -> None:
    data = random_graph()
    inputs = inputs_of(data)
    batch = batch_of(data, "paper", [9, 8, 7], layers=1)
    embedding = inputs.types["venue"].embedding
    assert isinstance(embedding, torch.nn.Embedding)
    assert embedding.weight.shape == (4, 8)
    assert torch.equal(inputs(batch)["venue"], embedding.weight[batch["venue"].n_id])
    assert inputs_of(data, embedding_dim=3).types["venue"].linear is not None


def test_categories_have_an_embedding_per_column() -> None:
    data = random_graph()
    data["paper"].x_cat = torch.stack([torch.arange(30) % 5, torch.arange(30) % 3], dim=1)
    batch = batch_of(data, "paper", [4, 6], layers=1)
    inputs = inputs_of(data, project=False, categorical_dim=2)
    first, second = inputs.types["paper"].categories  # pyright: ignore[reportGeneralTypeIssues]
    assert isinstance(first, torch.nn.Embedding)
    assert isinstance(second, torch.nn.Embedding)
    out = inputs(batch)["paper"]
    assert out.shape[1] == inputs.out_channels["paper"] == 6 + 2 + 2
    assert (first.num_embeddings, second.num_embeddings) == (5, 5)
    assert torch.equal(out[:2, 6:], torch.cat([first.weight[[4, 1]], second.weight[[1, 0]]], dim=1))
    assert inputs.wants["paper"] == ("x", "x_cat")


def test_each_column_has_a_table_of_its_own_size_where_it_is_known() -> None:
    data = random_graph()
    data["paper"].x_cat = torch.stack([torch.arange(30) % 5, torch.arange(30) % 3], dim=1)

    def rows(sizes: dict[str, int]) -> list[int]:
        schema = schema_of(data)
        schema.info["categories"] = {"paper": sizes}
        inputs = Inputs(config.Inputs(), schema, data.node_types, 8, lambda node_type, name: None)
        assert inputs(batch_of(data, "paper", [4, 6], layers=1))["paper"].isfinite().all()
        return [table.num_embeddings for table in inputs.types["paper"].categories]  # type: ignore[union-attr]

    assert rows({"kind": 5, "colour": 3}) == [5, 3]
    assert rows({"kind": 5}) == [5, 5], "what is said does not fit the columns"
    assert rows({"kind": 2, "colour": 3}) == [5, 5], "nor the codes"


@pytest.mark.parametrize(
    ("codes", "said"),
    [
        (torch.tensor([0, -1] * 15), "the smallest is -1"),
        (torch.tensor([0.0, 1.5] * 15), "they are float32"),
        (torch.tensor([0, 10**10] * 15), "number the categories"),
    ],
)
def test_codes_that_are_none_are_refused(codes: torch.Tensor, said: str) -> None:
    data = random_graph()
    data["paper"].x_cat = codes
    with pytest.raises(ExperimentError, match=f'node type "paper": x_cat .*{said}'):
        inputs_of(data)


def test_codes_may_be_booleans() -> None:
    data = random_graph()
    data["paper"].x_cat = torch.arange(30) > 3
    assert inputs_of(data)(batch_of(data, "paper", [2, 5], layers=1))["paper"].isfinite().all()


def test_other_data_are_scaled_and_filled_as_those_that_were_trained_on() -> None:
    data, other = random_graph(), random_graph()
    other["paper"].x = other["paper"].x * 3 + 5
    trained = inputs_of(data, statistics(data), standardize=True)
    model = inputs_of(other, statistics(other), standardize=True)
    batch = batch_of(other, "paper", [2, 5], layers=1)
    assert not torch.allclose(model(batch)["paper"], trained(batch)["paper"])
    model.load_state_dict(trained.state_dict())
    torch.testing.assert_close(model(batch)["paper"], trained(batch)["paper"])
