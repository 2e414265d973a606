"""The bundle: model.onnx + bundle.json, the unit that serving loads. No training package is needed here."""

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import onnxruntime as ort
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from data.errors import InputError
from features.ticks import SLOTS
from features.windows import NAMES, SPEC_HASH
from models.graph import objection

MODEL_FILE = "model.onnx"
MANIFEST_FILE = "bundle.json"
PEAK_QUANTILES = (0.5, 0.9)
OUTPUTS = ("p_slots", "peak_load")
"""What the graph gives."""
MAX_BYTES = {MANIFEST_FILE: 4 << 20, MODEL_FILE: 512 << 20}
"""Longer files are no bundle of ours; they are not read."""


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class TrainingWindow(_Strict):
    """What the forecaster learned from: UTC instants in ISO 8601 and the trace they belong to."""

    source: str
    data_sha256: str
    first: str
    last: str
    requests: int


class GuardState(_Strict):
    """How the guard starts: its threshold on the score, or the reason why the forecaster stays advisory.

    ``skill`` is what opens the skill gate at the start: for the latest onsets of the calibration span,
    whether a would-be alarm anticipated them, and the chance that one moved by a random time would have.
    """

    threshold: float | None
    scale: float = Field(default=1.0, gt=0.0)
    effective_negatives: int
    thinning_step: int
    advisory_reason: str | None
    skill: tuple[tuple[bool, Annotated[float, Field(gt=0.0, le=1.0)]], ...] = ()


class Manifest(_Strict):
    """bundle.json."""

    schema_version: Literal[2] = 2
    model_sha256: str
    feature_names: tuple[str, ...]
    feature_spec_hash: str
    scaler_mean: tuple[float, ...]
    scaler_scale: tuple[float, ...]
    peak_quantiles: tuple[float, ...] = PEAK_QUANTILES
    training: TrainingWindow
    guard: GuardState
    metrics: dict[str, float | None]
    versions: dict[str, str]


@dataclass(frozen=True, slots=True)
class Forecast:
    """What the forecaster says of n ticks.

    Attributes:
        p_slots: probability that the next burst onset lies in each 10 s slot of the next 60 s, (n, SLOTS).
        peak_load: quantiles of the highest load in the next 60 s, tokens/s, (n, len(PEAK_QUANTILES)).

    """

    p_slots: NDArray[np.float32]
    peak_load: NDArray[np.float32]

    @property
    def p_onset(self) -> NDArray[np.float64]:
        """Probability of a burst onset within the next 60 s, (n,)."""
        return np.asarray(self.p_slots.sum(axis=1, dtype=np.float64).clip(0.0, 1.0))


class Bundle:
    """A loaded bundle: its manifest and a warmed inference session."""

    def __init__(self, manifest: Manifest, session: ort.InferenceSession) -> None:
        self.manifest = manifest
        self._session = session

    @property
    def version(self) -> str:
        """Short name of this very model and calibration, from their content.

        A threshold belongs to one calibration: the same model, calibrated anew, is another bundle. The same
        bundle written again, with other metrics or package versions, is not.
        """
        calibration = self.manifest.guard.model_dump_json(exclude_defaults=True)
        return hashlib.sha256(f"{self.manifest.model_sha256} {calibration}".encode()).hexdigest()[:12]

    @property
    def providers(self) -> list[str]:
        """Execution providers that really run the model, best first."""
        return list(self._session.get_providers())

    def forecast(self, features: NDArray[np.float32]) -> Forecast:
        """Forecast n ticks from their features, (n, len(NAMES)), all finite."""
        p_slots, peak_load = self._session.run(list(OUTPUTS), {"features": features})
        return Forecast(p_slots, peak_load)

    @classmethod
    def load(cls, folder: Path) -> "Bundle":
        """Load, check and warm a bundle.

        Raises:
            InputError: naming the file, when one is missing, damaged, or made for other features.

        """
        manifest_path, model_path = folder / MANIFEST_FILE, folder / MODEL_FILE
        try:
            manifest = Manifest.model_validate_json(_read(manifest_path))
            model = _read(model_path)
        except OSError as error:
            raise InputError(
                f"Bundle {folder} is not complete: {error.filename} can't be read ({error.strerror}). "
                "Point to a folder that `tidegate train` or `tidegate backtest` wrote."
            ) from error
        except ValidationError as error:
            first = error.errors()[0]
            where = ".".join(map(str, first["loc"])) or "the file"
            raise InputError(
                f"{manifest_path} is not a valid bundle manifest: {where}: {first['msg']}."
            ) from error
        if hashlib.sha256(model).hexdigest() != manifest.model_sha256:
            raise InputError(
                f"{model_path} is damaged: its SHA-256 is not the one in {MANIFEST_FILE}. Copy it again."
            )
        if manifest.feature_spec_hash != SPEC_HASH or manifest.feature_names != NAMES:
            raise InputError(
                f"Bundle {folder} was made for feature list {manifest.feature_spec_hash}, this version "
                f"computes {SPEC_HASH}; retrain with this version of Tidegate."
            )
        _check_graph(model, model_path)
        bundle = cls(manifest, _session(model, model_path))
        try:
            _try_out(bundle)
        except Exception as error:  # see _session: no common base
            raise InputError(
                f"{model_path} is no forecaster of {len(NAMES)} features: {error} Export it again."
            ) from error
        return bundle


def write_bundle(folder: Path, model: bytes, **manifest: Any) -> Manifest:
    """Write model and manifest; the manifest comes last, so that a half-written bundle never loads."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / MANIFEST_FILE).unlink(missing_ok=True)
    (folder / MODEL_FILE).write_bytes(model)
    written = Manifest(
        model_sha256=hashlib.sha256(model).hexdigest(),
        feature_names=NAMES,
        feature_spec_hash=SPEC_HASH,
        **manifest,
    )
    text = json.dumps(written.model_dump(mode="json"), indent=2, allow_nan=False)
    (folder / MANIFEST_FILE).write_text(text + "\n")
    return written


def _read(path: Path) -> bytes:
    """A file's bytes; a pipe or a device in its place would be waited for, or never end."""
    if path.exists() and not path.is_file():
        raise InputError(f"{path} is not a regular file; copy the bundle there again.")
    most = MAX_BYTES[path.name]
    with path.open("rb") as file:
        content = file.read(most + 1)
    if len(content) > most:
        raise InputError(f"{path} is over {most} bytes, which no bundle's {path.name} is.")
    return content


def _check_graph(model: bytes, path: Path) -> None:
    try:
        reason = objection(model)
    except ValueError as error:
        raise InputError(f"{path} is not an ONNX graph: {error}. Export it again.") from error
    if reason is not None:
        raise InputError(f"{path} is not loaded: {reason}. Export it again.")


def _try_out(bundle: Bundle) -> None:
    """Forecast twice, which warms the session too; ValueError where an answer makes no sense."""
    for ticks in (1, 2):
        forecast = bundle.forecast(np.zeros((ticks, len(NAMES)), dtype=np.float32))
        wanted = {"p_slots": (ticks, SLOTS), "peak_load": (ticks, len(bundle.manifest.peak_quantiles))}
        for name, shape in wanted.items():
            answer = getattr(forecast, name)
            if answer.shape != shape:
                raise ValueError(f"{name} has shape {answer.shape} in place of {shape}.")
            if not np.isfinite(answer).all():
                raise ValueError(f"{name} is not finite for calm traffic.")
        if not ((forecast.p_slots >= 0.0).all() and (forecast.p_slots.sum(axis=1) <= 1.0 + 1e-4).all()):
            raise ValueError("p_slots are no probabilities.")


def _session(model: bytes, path: Path) -> ort.InferenceSession:
    options = ort.SessionOptions()
    # One tick every 5 s: more threads, or threads that spin, would only take cores from the engine.
    options.intra_op_num_threads = 1
    options.inter_op_num_threads = 1
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    options.add_session_config_entry("session.inter_op.allow_spinning", "0")
    options.log_severity_level = 3
    try:
        return ort.InferenceSession(model, options, providers=providers())
    except Exception as error:  # onnxruntime raises its own types, which share no base but this one
        raise InputError(f"{path} can't be loaded by onnxruntime {ort.__version__}: {error}") from error


def providers() -> list[str]:
    """CUDA where onnxruntime has it and an NVIDIA device is there, then CPU."""
    if "CUDAExecutionProvider" in ort.get_available_providers() and Path("/dev/nvidia0").exists():
        return ["CUDAExecutionProvider", "CPUExecutionProvider"]
    return ["CPUExecutionProvider"]
