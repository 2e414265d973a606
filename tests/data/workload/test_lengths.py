from collections.abc import Callable
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from data.errors import InputError
from data.workload.lengths import LN_MEDIAN_SD, LN_SIGMA, MEAN_TOKENS, client_lengths, draw_tokens


def test_built_in_clients_have_the_published_mix_and_spread() -> None:
    shares = np.full(20_000, 1 / 20_000)
    drawn = client_lengths(np.random.default_rng(0), shares, None)
    assert shares @ drawn.mean_tokens == pytest.approx(MEAN_TOKENS)
    assert drawn.ln_median.std(axis=0) == pytest.approx(LN_MEDIAN_SD, rel=0.03)
    assert np.asarray(np.corrcoef(drawn.ln_median.T))[0, 1] == pytest.approx(0.51, abs=0.03)
    assert np.quantile(np.log(drawn.sigma), 0.5, axis=0) == pytest.approx(LN_SIGMA, abs=0.03)


def test_the_mix_is_weighted_by_share() -> None:
    shares = np.array([0.9, 0.1])
    assert shares @ client_lengths(np.random.default_rng(1), shares, None).mean_tokens == pytest.approx(
        MEAN_TOKENS
    )


def test_clients_come_from_a_file(tmp_path: Path) -> None:
    frame = pl.DataFrame(
        {
            "input_mean": [110.0, 110.0],
            "input_p50": [100, 100],
            "input_p95": [200, 200],
            "output_mean": [22.0, 22.0],
            "output_p50": [20, 20],
            "output_p95": [20, 20],
        }
    )
    frame.write_parquet(tmp_path / "clients.parquet")
    drawn = client_lengths(np.random.default_rng(0), np.array([0.5, 0.5]), tmp_path / "clients.parquet")
    assert drawn.sigma[0] == pytest.approx([np.log(2) / 1.645, 0.05])
    assert drawn.mean_tokens[0] == pytest.approx([110, 22])


def test_the_public_file_of_clients_is_readable(real_trace: Callable[[str], Path]) -> None:
    shares = 1 / np.arange(1, 31)
    drawn = client_lengths(np.random.default_rng(0), shares, real_trace("servegen_lengths.parquet"))
    assert np.isfinite(drawn.mean_tokens).all()
    assert np.ptp(drawn.ln_median[:, 0]) > 1


@pytest.mark.parametrize(
    ("frame", "sentence"),
    [
        (None, "does not exist"),
        (pl.DataFrame({"input_mean": [1.0]}), "lacks the column"),
        (
            pl.DataFrame(
                {
                    name: [0]
                    for name in (
                        "input_mean",
                        "input_p50",
                        "input_p95",
                        "output_mean",
                        "output_p50",
                        "output_p95",
                    )
                }
            ),
            "no client",
        ),
    ],
)
def test_a_wrong_file_is_told_in_a_sentence(
    tmp_path: Path, frame: pl.DataFrame | None, sentence: str
) -> None:
    path = tmp_path / "clients.parquet"
    if frame is not None:
        frame.write_parquet(path)
    with pytest.raises(InputError, match=sentence):
        client_lengths(np.random.default_rng(0), np.ones(2), path)


def test_a_file_that_is_no_parquet_is_told_in_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "clients.parquet").write_text("input_mean,output_mean\n")
    with pytest.raises(InputError, match="is not a Parquet file"):
        client_lengths(np.random.default_rng(0), np.ones(2), tmp_path / "clients.parquet")


def test_lengths_stay_within_bounds() -> None:
    tokens = draw_tokens(np.random.default_rng(0), np.full(10_000, 3.0), np.full(10_000, 3.0), 500)
    assert tokens.min() == 1
    assert tokens.max() == 500
