import lightgbm
import numpy as np
import pytest
import torch

from models.forecaster import Examples
from models.trees import CLASSES, Trees, TreeSettings, as_tensors, grow
from tests.models.conftest import planted

FEW = TreeSettings(rounds=12)


@pytest.fixture(scope="module")
def learned() -> Examples:
    return planted(0, 4_000)


@pytest.fixture(scope="module")
def grown(learned: Examples) -> lightgbm.Booster:
    return grow(learned.features, learned.slot, FEW, seed=1)


def test_tensors_say_what_the_trees_say(grown: lightgbm.Booster, unseen: Examples) -> None:
    trees = as_tensors(grown)
    raw = trees.raw(torch.from_numpy(unseen.features)).numpy()
    np.testing.assert_allclose(raw, grown.predict(unseen.features, raw_score=True), atol=1e-5)
    chances = trees(torch.from_numpy(unseen.features)).numpy()
    np.testing.assert_allclose(chances, grown.predict(unseen.features), atol=1e-6)
    assert chances.shape == (len(unseen.slot), CLASSES)


def test_values_on_a_threshold_go_the_same_way(grown: lightgbm.Booster, learned: Examples) -> None:
    # Thresholds lie between training values, which are float32 like these.
    raw = as_tensors(grown).raw(torch.from_numpy(learned.features)).numpy()
    np.testing.assert_allclose(raw, grown.predict(learned.features, raw_score=True), atol=1e-5)


def test_a_threshold_is_never_rounded_up() -> None:
    third = {
        "split_feature": 0,
        "threshold": 1 / 3,
        "left_child": {"leaf_value": 1.0},
        "right_child": {"leaf_value": 2.0},
    }
    trees = Trees([third] * CLASSES)
    above = np.nextafter(np.float32(1 / 3), np.float32(1))
    below = np.nextafter(above, np.float32(0))
    assert below <= 1 / 3 or np.float32(1 / 3) > 1 / 3
    for value in (below, above, np.float32(1 / 3)):
        expected = 1.0 if float(value) <= 1 / 3 else 2.0
        assert trees.raw(torch.tensor([[value]]))[0, 0].item() == expected


def test_a_tree_without_a_split_says_its_one_value() -> None:
    split = {
        "split_feature": 1,
        "threshold": 0.0,
        "left_child": {"leaf_value": -1.0},
        "right_child": {"leaf_value": 1.0},
    }
    trees = Trees([{"leaf_value": 0.5}, *[split] * (CLASSES - 1)])
    raw = trees.raw(torch.tensor([[9.0, -0.5], [9.0, 0.5]]))
    assert raw[:, 0].tolist() == [0.5, 0.5]
    assert raw[:, 1].tolist() == [-1.0, 1.0]


def test_the_same_seed_grows_the_same_trees(grown: lightgbm.Booster, learned: Examples) -> None:
    again = grow(learned.features, learned.slot, FEW, seed=1)
    other = grow(learned.features, learned.slot, FEW, seed=2)
    first = grown.predict(learned.features[:50])
    np.testing.assert_array_equal(again.predict(learned.features[:50]), first)
    assert not np.array_equal(other.predict(learned.features[:50]), first)


def test_a_class_that_never_occurs_is_unlikely(grown: lightgbm.Booster, unseen: Examples) -> None:
    assert not np.isin([0, 1, 2], planted(0, 4_000).slot).any()
    assert grown.predict(unseen.features)[:, :3].max() < 0.01
