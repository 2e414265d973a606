import dataclasses

import numpy as np
import pytest
import torch

from features.ticks import SLOTS
from features.windows import NAMES
from models.bundle import PEAK_QUANTILES
from models.forecaster import NONE, Examples, Forecaster, train
from tests.models.conftest import SMALL, planted


def say(forecaster: Forecaster, features: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    with torch.inference_mode():
        p_slots, peak_load = forecaster(torch.from_numpy(features))
    return p_slots.numpy(), peak_load.numpy()


def test_a_planted_rule_is_learned(forecaster: Forecaster, unseen: Examples):
    p_onset = say(forecaster, unseen.features)[0].sum(axis=1)
    soon = unseen.slot != NONE
    # Share of pairs (onset, none) in the right order: 0.5 by chance.
    ranks = p_onset.argsort().argsort()
    pairs = soon.sum() * (~soon).sum()
    area = (ranks[soon].sum() - soon.sum() * (soon.sum() - 1) / 2) / pairs
    assert area > 0.95
    assert p_onset[soon].mean() > 0.6
    assert p_onset[~soon].mean() < 0.15
    assert np.mean(p_onset) == pytest.approx(soon.mean(), abs=0.05)


def test_the_slot_of_the_onset_is_learned(forecaster: Forecaster, unseen: Examples):
    with torch.inference_mode():
        logits, _ = forecaster.members(torch.from_numpy(unseen.features))
    assert logits.shape == (SMALL.members, len(unseen.slot), SLOTS + 1)
    likeliest = logits.softmax(dim=-1).mean(dim=0)[:, :NONE].argmax(dim=-1).numpy()
    assert np.mean(likeliest[unseen.slot == 3] == 3) > 0.95


def test_peaks_are_learned(forecaster: Forecaster, unseen: Examples):
    _, peak_load = say(forecaster, unseen.features)
    peak = unseen.peak_ratio * np.exp(unseen.features[:, NAMES.index("baseline")])
    share_under = (peak[:, None] <= peak_load).mean(axis=0)
    np.testing.assert_allclose(share_under, PEAK_QUANTILES, atol=0.15)
    soon = unseen.slot != NONE
    assert np.median(peak_load[soon, 0]) > 2.0 * np.median(peak_load[~soon, 0])


def test_a_feature_that_never_varied_in_training_says_nothing(forecaster: Forecaster, unseen: Examples):
    changed = unseen.features.copy()
    changed[:, NAMES.index("refusals_60_s")] = 50.0
    for before, after in zip(say(forecaster, unseen.features), say(forecaster, changed), strict=True):
        np.testing.assert_array_equal(before, after)


@pytest.mark.parametrize("size", [0.0, 1.0, 1e3, 1e6])
def test_whatever_the_features_probabilities_and_quantiles_are_in_order(forecaster: Forecaster, size: float):
    features = (np.random.default_rng(2).standard_normal((200, len(NAMES))) * size).astype(np.float32)
    features[:, NAMES.index("baseline")] = 7.0
    p_slots, peak_load = say(forecaster, features)
    assert p_slots.shape == (200, SLOTS)
    assert peak_load.shape == (200, len(PEAK_QUANTILES))
    assert (p_slots >= 0.0).all()
    assert (p_slots.sum(axis=1) <= 1.0 + 1e-6).all()
    assert np.isfinite(peak_load).all()
    assert (peak_load > 0.0).all()
    assert (np.diff(peak_load, axis=1) >= 0.0).all()


def test_each_tick_is_told_on_its_own(forecaster: Forecaster, unseen: Examples):
    together, _ = say(forecaster, unseen.features[:10])
    alone = np.concatenate([say(forecaster, unseen.features[i : i + 1])[0] for i in range(10)])
    np.testing.assert_allclose(alone, together, atol=1e-6)
    assert not forecaster.training  # no dropout once trained


def test_the_scaler_is_inside_and_bears_a_feature_that_never_varies(forecaster: Forecaster):
    features = planted(0, 6_000).features
    constant = NAMES.index("refusals_60_s")
    np.testing.assert_allclose(forecaster.encoder.mean.numpy(), features.mean(axis=0), atol=1e-4)
    np.testing.assert_allclose(
        np.delete(forecaster.encoder.scale.numpy(), constant),
        np.delete(features.std(axis=0, ddof=1), constant),
        rtol=1e-3,
    )
    assert forecaster.encoder.scale[constant] > 0.0
    assert all(torch.isfinite(weight).all() for weight in forecaster.state_dict().values())


def weights(seed: int) -> dict[str, torch.Tensor]:
    short = dataclasses.replace(SMALL, epochs=1, hidden=8, seed=seed)
    return train(planted(0, 600), short).state_dict()


def test_the_same_seed_gives_the_same_weights_and_another_seed_others():
    torch.manual_seed(123)
    first = weights(5)
    torch.manual_seed(456)
    again, other = weights(5), weights(6)
    assert all(torch.equal(first[name], again[name]) for name in first)
    assert not torch.equal(first["first.weight"], other["first.weight"])


def test_members_differ(forecaster: Forecaster):
    assert not torch.equal(forecaster.first.weight[0], forecaster.first.weight[1])


def test_fewer_examples_than_a_batch_are_learned_too():
    few = planted(4, 40)
    trained = train(few, dataclasses.replace(SMALL, epochs=2, hidden=4))
    assert np.isfinite(say(trained, few.features)[0]).all()


def test_training_leaves_the_number_of_threads():
    before = torch.get_num_threads()
    train(planted(4, 40), dataclasses.replace(SMALL, epochs=1, hidden=4))
    assert torch.get_num_threads() == before
