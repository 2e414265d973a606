"""Export of a trained forecaster to one ONNX graph, with proof that both say the same."""

import logging
import warnings

import numpy as np
import onnxruntime as ort
import torch
from numpy.typing import NDArray

from models.bundle import OUTPUTS
from models.forecaster import Forecaster

PARITY_BATCHES = (1, 2, 7)
TICKS_AT_ONCE = 2_000
"""Ticks that are forecast together: trees as tensors take some 100 kB a tick."""
PARITY = 1e-5
"""Largest difference allowed between torch and the exported graph, relative above 1."""


class ParityError(RuntimeError):
    """The exported graph computes something else than the model: no bundle may be made of it."""


def export(forecaster: Forecaster, features: NDArray[np.float32]) -> bytes:
    """Export to ONNX with any batch size, and check it on real features (n, F), n >= 7.

    Raises:
        ParityError: when an output differs by more than 1e-5, on batches of 1, 2 and 7 or on them all.

    """
    example = torch.from_numpy(features[:2])
    # The exporter warns of each operator of torchvision, which nothing here uses.
    logging.getLogger("torch.onnx._internal.exporter._registration").setLevel(logging.ERROR)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the exporter's own deprecations are not ours to act on
        program = torch.onnx.export(
            forecaster,
            (example,),
            dynamo=True,
            input_names=["features"],
            output_names=list(OUTPUTS),
            dynamic_shapes={"features": {0: torch.export.Dim("ticks")}},
            verbose=False,
        )
    if program is None:
        raise ParityError("torch.onnx.export gave no program.")
    model: bytes = program.model_proto.SerializeToString()
    parts = np.array_split(features, 1 + len(features) // TICKS_AT_ONCE)
    check_parity(forecaster, model, [*(features[:batch] for batch in PARITY_BATCHES), *parts])
    return model


def check_parity(forecaster: Forecaster, model: bytes, batches: list[NDArray[np.float32]]) -> None:
    """Compare torch and onnxruntime on every batch; see `export`."""
    session = ort.InferenceSession(model, providers=["CPUExecutionProvider"])
    for batch in batches:
        with torch.inference_mode():
            expected = [output.numpy() for output in forecaster(torch.from_numpy(batch))]
        found = session.run(list(OUTPUTS), {"features": batch})
        for name, want, got in zip(OUTPUTS, expected, found, strict=True):
            if want.shape != got.shape:
                raise ParityError(
                    f"{name} of the exported graph has shape {got.shape}, torch gives {want.shape}."
                )
            difference = float(np.max(np.abs(want - got) / np.maximum(np.abs(want), 1.0), initial=0.0))
            if not difference <= PARITY:
                raise ParityError(
                    f"{name} of the exported graph differs from torch by {difference:.2e} "
                    f"on a batch of {len(batch)}."
                )
