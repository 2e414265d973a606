from copy import deepcopy

import numpy as np
import onnxruntime as ort
import pytest
import torch

from features.ticks import SLOTS
from features.windows import NAMES
from models.bundle import PEAK_QUANTILES
from models.export import PARITY, PARITY_BATCHES, ParityError, check_parity
from models.forecaster import Examples, Forecaster
from tests.models.conftest import SMALL


@pytest.fixture(scope="module")
def session(model: bytes) -> ort.InferenceSession:
    return ort.InferenceSession(model, providers=["CPUExecutionProvider"])


@pytest.mark.parametrize("batch", [*PARITY_BATCHES, 500])
def test_the_graph_says_what_torch_says(
    forecaster: Forecaster, session: ort.InferenceSession, unseen: Examples, batch: int
):
    features = unseen.features[-batch:]  # not those that the export was checked on
    p_slots, peak_load = session.run(None, {"features": features})
    with torch.inference_mode():
        p_torch, peak_torch = (out.numpy() for out in forecaster(torch.from_numpy(features)))
    assert p_slots.shape == (batch, SLOTS)
    assert peak_load.shape == (batch, len(PEAK_QUANTILES))
    assert p_slots.dtype == peak_load.dtype == np.float32
    np.testing.assert_allclose(p_slots, p_torch, atol=PARITY)
    np.testing.assert_allclose(peak_load, peak_torch, rtol=PARITY)


def test_the_graph_has_one_input_and_two_outputs(session: ort.InferenceSession):
    (features,) = session.get_inputs()
    assert (features.name, features.type, features.shape[1]) == ("features", "tensor(float)", len(NAMES))
    assert [output.name for output in session.get_outputs()] == ["p_slots", "peak_load"]


def test_a_graph_of_other_weights_is_refused(forecaster: Forecaster, model: bytes, unseen: Examples):
    other = Forecaster(forecaster.encoder, SMALL).eval()
    with pytest.raises(ParityError, match=r"p_slots of the exported graph differs .* on a batch of 7"):
        check_parity(other, model, [unseen.features[:7]])


def test_a_graph_that_is_a_little_off_is_refused(forecaster: Forecaster, model: bytes, unseen: Examples):
    nudged = deepcopy(forecaster)
    check_parity(nudged, model, [unseen.features[:2]])
    with torch.no_grad():
        nudged.last.bias[..., -2] += 1e-3  # the median of the peak alone
    with pytest.raises(ParityError, match="peak_load"):
        check_parity(nudged, model, [unseen.features[:2]])


def test_a_model_that_says_nothing_finite_is_refused(forecaster: Forecaster, model: bytes, unseen: Examples):
    broken = deepcopy(forecaster)
    broken.encoder.scale.fill_(float("nan"))
    with pytest.raises(ParityError, match="nan"):
        check_parity(broken, model, [unseen.features[:2]])
