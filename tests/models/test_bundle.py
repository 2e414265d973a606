import json
import math
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from onnx import TensorProto, helper

from data.errors import InputError
from features.windows import NAMES, SPEC_HASH
from models.bundle import MANIFEST_FILE, MODEL_FILE, Bundle, Manifest, providers
from models.forecaster import Examples, Forecaster
from tests.models.conftest import write

GUARD = {"threshold": 1.5, "effective_negatives": 400, "thinning_step": 3, "advisory_reason": None}


def change(folder: Path, **fields: Any) -> None:
    """Overwrite fields of the manifest; None takes one away."""
    manifest = json.loads((folder / MANIFEST_FILE).read_text()) | fields
    kept = {name: value for name, value in manifest.items() if value is not None}
    (folder / MANIFEST_FILE).write_text(json.dumps(kept))


def test_a_bundle_says_what_the_forecaster_says(
    bundle_folder: Path, forecaster: Forecaster, unseen: Examples
):
    bundle = Bundle.load(bundle_folder)
    for features in (unseen.features[:1], unseen.features):
        forecast = bundle.forecast(features)
        with torch.inference_mode():
            p_slots, peak_load = (out.numpy() for out in forecaster(torch.from_numpy(features)))
        np.testing.assert_allclose(forecast.p_slots, p_slots, atol=1e-5)
        np.testing.assert_allclose(forecast.p_onset, p_slots.sum(axis=1), atol=1e-5)
        np.testing.assert_allclose(forecast.peak_load, peak_load, rtol=1e-5)


def test_the_manifest_comes_back_whole(bundle_folder: Path, forecaster: Forecaster):
    manifest = Bundle.load(bundle_folder).manifest
    assert manifest == Manifest.model_validate_json(manifest.model_dump_json())
    assert (manifest.feature_names, manifest.feature_spec_hash) == (NAMES, SPEC_HASH)
    assert manifest.scaler_mean == tuple(forecaster.encoder.mean.tolist())
    assert (manifest.guard.threshold, manifest.guard.scale) == (1.5, 0.7)
    assert manifest.metrics == {"event_recall": 0.5, "lead_time_s": None}
    assert manifest.training.requests == 6_000


def test_the_version_names_model_and_calibration(bundle_folder: Path):
    bundle = Bundle.load(bundle_folder)
    assert len(bundle.version) == 12
    assert bundle.providers[-1] == providers()[-1] == "CPUExecutionProvider"
    manifest = json.loads((bundle_folder / MANIFEST_FILE).read_text())

    def version(**changed: Any) -> str:
        (bundle_folder / MANIFEST_FILE).write_text(json.dumps(manifest | changed))
        return Bundle.load(bundle_folder).version

    assert version() == version(metrics={}, versions={"tidegate": "9.9.9"}) == bundle.version
    assert version(guard=manifest["guard"] | {"threshold": 1.25}) != bundle.version


def test_writing_again_replaces_the_bundle(bundle_folder: Path, model: bytes, forecaster: Forecaster):
    (bundle_folder / MODEL_FILE).write_bytes(b"old")
    write(bundle_folder, model, forecaster)
    Bundle.load(bundle_folder)
    assert sorted(path.name for path in bundle_folder.iterdir()) == sorted([MANIFEST_FILE, MODEL_FILE])


@pytest.mark.parametrize("name", [MANIFEST_FILE, MODEL_FILE])
def test_a_missing_file_is_named(bundle_folder: Path, name: str):
    (bundle_folder / name).unlink()
    with pytest.raises(InputError, match=rf"is not complete: .*{name} can't be read \(No such file"):
        Bundle.load(bundle_folder)


def test_a_missing_folder_is_named(tmp_path: Path):
    with pytest.raises(InputError, match=r"nowhere is not complete: .*nowhere/bundle.json"):
        Bundle.load(tmp_path / "nowhere")


@pytest.mark.parametrize("position", [0.0, 0.3, 0.999])
def test_a_model_with_a_flipped_byte_is_damaged(bundle_folder: Path, position: float):
    path = bundle_folder / MODEL_FILE
    model = bytearray(path.read_bytes())
    model[int(position * len(model))] ^= 1
    path.write_bytes(model)
    with pytest.raises(InputError, match=rf"{MODEL_FILE} is damaged: its SHA-256"):
        Bundle.load(bundle_folder)


def cuts(size: int) -> list[int]:
    return sorted({0, 1, size // 7, size // 2, size - size // 7, size - 1})


@pytest.mark.parametrize("name", [MANIFEST_FILE, MODEL_FILE])
def test_a_file_cut_anywhere_is_named(bundle_folder: Path, tmp_path: Path, name: str):
    whole = (bundle_folder / name).read_bytes()
    content = len(whole.rstrip())  # without the line end a manifest is as good as with it
    for at in cuts(content):
        cut = tmp_path / f"cut-{at}"
        shutil.copytree(bundle_folder, cut)
        (cut / name).write_bytes(whole[:at])
        with pytest.raises(InputError, match=f"cut-{at}/{name} is (damaged|not a valid bundle manifest)"):
            Bundle.load(cut)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"colour": "red"}, r"colour: Extra inputs are not permitted"),
        ({"guard": {"threshold": 1.0, "mood": 1}}, r"guard\.\w+: "),
        ({"schema_version": 1}, r"schema_version: Input should be 2"),
        ({"scaler_mean": None}, r"scaler_mean: Field required"),
        ({"guard": {**GUARD, "threshold": math.nan}}, r"guard.threshold: Input should be a finite number"),
        ({"guard": {**GUARD, "scale": 0.0}}, r"guard.scale: Input should be greater than 0"),
        ({"metrics": {"event_recall": "high"}}, r"metrics.event_recall: Input should be a valid number"),
    ],
)
def test_a_manifest_that_does_not_fit_is_refused(bundle_folder: Path, fields: dict[str, Any], message: str):
    change(bundle_folder, **fields)
    with pytest.raises(InputError, match=rf"{MANIFEST_FILE} is not a valid bundle manifest: {message}"):
        Bundle.load(bundle_folder)


@pytest.mark.parametrize(
    "fields", [{"feature_spec_hash": "0123456789abcdef"}, {"feature_names": list(reversed(NAMES))}]
)
def test_a_bundle_for_other_features_is_refused(bundle_folder: Path, fields: dict[str, Any]):
    change(bundle_folder, **fields)
    with pytest.raises(InputError, match=rf"this version computes {SPEC_HASH}; retrain"):
        Bundle.load(bundle_folder)


def test_what_is_no_model_is_refused(tmp_path: Path, forecaster: Forecaster):
    write(tmp_path, b"no model at all", forecaster)
    with pytest.raises(InputError, match=rf"{MODEL_FILE} is not an ONNX graph"):
        Bundle.load(tmp_path)


def test_a_model_of_something_else_is_refused(tmp_path: Path, forecaster: Forecaster):
    shape = ["ticks", 3]
    graph = helper.make_graph(
        [helper.make_node("Identity", ["x"], ["y"])],
        "something else",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, shape)],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    write(tmp_path, model.SerializeToString(), forecaster)
    with pytest.raises(InputError, match=rf"{MODEL_FILE} is no forecaster of {len(NAMES)} features"):
        Bundle.load(tmp_path)


@pytest.mark.parametrize("metric", [math.nan, math.inf])
def test_a_metric_that_is_no_number_is_not_written(
    tmp_path: Path, model: bytes, forecaster: Forecaster, metric: float
):
    with pytest.raises(ValueError, match="finite number"):
        write(tmp_path, model, forecaster, event_recall=metric)
    with pytest.raises(InputError, match=MANIFEST_FILE):
        Bundle.load(tmp_path)  # half-written never loads
