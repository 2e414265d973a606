"""Boosted trees on the same features and slots, as tensors: they export with the network into one graph.

Trees take sharp conditions on a few features where the network takes smooth mixtures of many; the mean of
both forecasts better than either. LightGBM grows them; here a tree becomes three small matrices (Nakandala et
al., "A Tensor Compiler for Unified Machine Learning Prediction Serving", OSDI 2020).
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import lightgbm
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from features.ticks import SLOTS

CLASSES = SLOTS + 1
"""The slots of the coming minute, and none."""
NEVER = 1e9
"""Count of passed conditions that no row reaches: leaves that only fill a tensor up."""


@dataclass(frozen=True, slots=True)
class TreeSettings:
    """How trees are grown; a round grows one for each class."""

    rounds: int = 120
    leaves: int = 15
    learning_rate: float = 0.06
    least_ticks: int = 40
    features_share: float = 0.3
    ticks_share: float = 0.7
    penalty: float = 10.0


class Trees(nn.Module):
    """Features (n, F) to the chance of each class (n, CLASSES).

    A row goes left where its feature is at most the threshold. A leaf is reached where every condition on its
    path is met: ``paths`` counts those to the left as +1 and those to the right as -1, so that the sum over
    conditions met equals the number of left turns on the path, ``turns``, there and nowhere else.
    """

    feature: Tensor
    threshold: Tensor
    paths: Tensor
    turns: Tensor
    value: Tensor

    def __init__(self, grown: list[dict[str, Any]]) -> None:
        super().__init__()
        shapes = [_flat(tree) for tree in grown]
        conditions = max(1, *(len(shape.feature) for shape in shapes))
        leaves = max(len(shape.value) for shape in shapes)
        count = len(shapes)
        feature, threshold = (
            np.zeros((count, conditions), np.int64),
            np.zeros((count, conditions), np.float32),
        )
        paths, value = (
            np.zeros((count, conditions, leaves), np.float32),
            np.zeros((count, leaves), np.float32),
        )
        turns = np.full((count, leaves), NEVER, np.float32)
        for tree, shape in enumerate(shapes):
            feature[tree, : len(shape.feature)] = shape.feature
            threshold[tree, : len(shape.feature)] = shape.threshold
            value[tree, : len(shape.value)] = shape.value
            turns[tree, : len(shape.value)] = 0.0
            for leaf, path in enumerate(shape.paths):
                for condition, left in path:
                    paths[tree, condition, leaf] = 1.0 if left else -1.0
                    turns[tree, leaf] += left
        for name, values in (("feature", feature.ravel()), ("threshold", threshold), ("paths", paths)):
            self.register_buffer(name, torch.from_numpy(values))
        for name, values in (("turns", turns), ("value", value)):
            self.register_buffer(name, torch.from_numpy(values))

    def raw(self, features: Tensor) -> Tensor:
        """Sums of the leaves reached, by class, (n, CLASSES)."""
        count, conditions = self.threshold.shape
        asked = features.index_select(1, self.feature).reshape(-1, count, conditions)
        left = (asked <= self.threshold).to(features.dtype)
        met = torch.einsum("ntc,tcl->ntl", left, self.paths)
        reached = (met == self.turns).to(features.dtype)
        return (reached * self.value).sum(dim=-1).reshape(-1, count // CLASSES, CLASSES).sum(dim=1)

    def forward(self, features: Tensor) -> Tensor:
        """Chance of each class."""
        return torch.softmax(self.raw(features), dim=-1)


def grow(
    features: NDArray[np.float32], slot: NDArray[np.int64], settings: TreeSettings, seed: int
) -> lightgbm.Booster:
    """Boost trees on the slot of the next onset; the same ticks, settings and seed give the same trees."""
    parameters = {
        "objective": "multiclass",
        "num_class": CLASSES,
        "learning_rate": settings.learning_rate,
        "num_leaves": settings.leaves,
        "min_data_in_leaf": settings.least_ticks,
        "feature_fraction": settings.features_share,
        "bagging_fraction": settings.ticks_share,
        "bagging_freq": 1,
        "lambda_l2": settings.penalty,
        "seed": seed,
        "deterministic": True,
        "force_row_wise": True,
        "num_threads": 1,
        "verbosity": -1,
    }
    return lightgbm.train(parameters, lightgbm.Dataset(features, slot), settings.rounds)


def as_tensors(grown: lightgbm.Booster) -> Trees:
    """The same trees as a module."""
    return Trees([tree["tree_structure"] for tree in grown.dump_model()["tree_info"]])


@dataclass(frozen=True, slots=True)
class _Flat:
    """A tree: its conditions, its leaves, and for each leaf the (condition, left) that lead there."""

    feature: list[int]
    threshold: list[np.float32]
    value: list[float]
    paths: list[tuple[tuple[int, bool], ...]]


def _flat(root: dict[str, Any]) -> _Flat:
    flat = _Flat([], [], [], [])
    for node, path in _walk(root, (), flat):
        flat.value.append(node["leaf_value"])
        flat.paths.append(path)
    return flat


def _walk(
    node: dict[str, Any], path: tuple[tuple[int, bool], ...], flat: _Flat
) -> Iterator[tuple[dict[str, Any], tuple[tuple[int, bool], ...]]]:
    """Every leaf under a node with its path, noting the conditions on the way."""
    if "split_feature" not in node:
        yield node, path
        return
    condition = len(flat.feature)
    flat.feature.append(node["split_feature"])
    flat.threshold.append(_at_most(node["threshold"]))
    yield from _walk(node["left_child"], (*path, (condition, True)), flat)
    yield from _walk(node["right_child"], (*path, (condition, False)), flat)


def _at_most(threshold: float) -> np.float32:
    """The largest float32 that is not over the threshold: float32 features then go the same way."""
    nearest = np.float32(threshold)
    return nearest if float(nearest) <= threshold else np.nextafter(nearest, np.float32(-np.inf))
