import json
from collections.abc import Callable
from pathlib import Path

import polars as pl
import pytest

from data.errors import InputError
from data.servegen import read_pool
from data.servegen.pool import Empirical, Window

GOOD = {"0": {"input_tokens": "{100: 0.5, 200: 0.5}", "output_tokens": "{50: 0.7, 100: 0.3}"}}


@pytest.fixture
def folder(tmp_path: Path) -> Callable[..., Path]:
    def write(trace: str = "0,0.5,1.1,Gamma,0.9,2.2\n600,0,0,,0,0\n", dataset: object = GOOD) -> Path:
        pool = tmp_path / "m-tiny"
        pool.mkdir(exist_ok=True)
        (pool / "chunk-7-trace.csv").write_text(trace)
        (pool / "chunk-7-dataset.json").write_text(
            dataset if isinstance(dataset, str) else json.dumps(dataset)
        )
        return pool

    return write


def test_a_published_folder(folder: Callable[..., Path]) -> None:
    pool = read_pool(folder())
    (client,) = pool.clients
    assert (pool.name, pool.span_s, client.number) == ("m-tiny", 600, 7)
    assert client.windows == {0: Window(0.5, "Gamma", 0.9)}  # the idle window is none
    prompt, output = client.lengths[0]
    assert isinstance(prompt, Empirical)
    assert isinstance(output, Empirical)
    assert (prompt.tokens.tolist(), output.cumulative.tolist()) == ([100, 200], [0.7, 1.0])
    assert pool.requests(600) == 300


@pytest.mark.parametrize(
    ("trace", "dataset", "message"),
    [
        ("0,0.5\n", GOOD, "line 1 must read start_s, rate, cv, family, shape, scale; got '0,0.5'"),
        ("0,x,1,Gamma,1,1\n", GOOD, "line 1 must read"),
        ("0,1,1,Normal,1,1\n", GOOD, "family must be one of Gamma, Weibull; got 'Normal'"),
        ("0,1,1,Gamma,0,1\n", GOOD, "shape at least 0.005; got 1 and 0"),
        ("0,nan,1,Gamma,1,1\n", GOOD, "rate must be above 0"),
        ("0,inf,1,Gamma,1,1\n", GOOD, "rate must be above 0"),
        ("7,1,1,Gamma,1,1\n", GOOD, "windows must start every 600 s; client 7 has one at 7 s"),
        ("600,0,0,,0,0\n", GOOD, "must have a window that is not idle"),
        ("0,1,1,Gamma,1,1\n", {}, "must have the lengths of a client"),
        ("0,1,1,Gamma,1,1\n", "{cut", "reading it gives JSONDecodeError"),
        ("0,1,1,Gamma,1,1\n", [1], "must hold, by window, input_tokens"),
        (
            "0,1,1,Gamma,1,1\n",
            {"0": {"input_tokens": "{1: 1}"}},
            "reading it gives KeyError: 'output_tokens'",
        ),
        (
            "0,1,1,Gamma,1,1\n",
            {"0": {"input_tokens": "__import__('os').getcwd()", "output_tokens": "{1: 1}"}},
            "ValueError",
        ),
        (
            "0,1,1,Gamma,1,1\n",
            {"0": {"input_tokens": "{", "output_tokens": "{1: 1}"}},
            "not a Python dict: '{'",
        ),
        ("0,1,1,Gamma,1,1\n", {"0": {"input_tokens": "{}", "output_tokens": "{1: 1}"}}, "not a dict with"),
        ("0,1,1,Gamma,1,1\n", {"0": {"input_tokens": "{-1: 1}", "output_tokens": "{1: 1}"}}, "from 0 up"),
        ("0,1,1,Gamma,1,1\n", {"0": {"input_tokens": "{1: 0}", "output_tokens": "{1: 1}"}}, "not all be 0"),
        ("0,1,1,Gamma,1,1\n", {"0": {"input_tokens": 5, "output_tokens": "{1: 1}"}}, "must be a string"),
    ],
)
def test_what_is_wrong_with_a_folder_is_said(
    folder: Callable[..., Path], trace: str, dataset: object, message: str
) -> None:
    with pytest.raises(InputError) as error:
        read_pool(folder(trace, dataset))
    assert message in str(error.value)


def test_a_literal_that_is_too_long_is_not_parsed(
    folder: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("data.servegen.files.LITERAL_CHARS", 10)
    with pytest.raises(InputError, match="a string of at most 10 characters"):
        read_pool(folder())


def test_an_empty_folder(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"must hold files named chunk-N-trace\.csv"):
        read_pool(tmp_path)


def write_parquet(tmp_path: Path, measured: tuple[int, ...] = (1,)) -> tuple[Path, Path]:
    windows, lengths = tmp_path / "windows.parquet", tmp_path / "lengths.parquet"
    pl.DataFrame(
        {
            "pool": ["a", "a", "b"],
            "client": [1, 2, 1],
            "window_start_s": [0, 600, 0],
            "rate_rps": [1.0, 2.0, 3.0],
            "family": ["Gamma", "Weibull", "Gamma"],
            "param_1": [0.5, 0.7, 1.0],
        }
    ).write_parquet(windows)
    figures = {
        f"{axis}_{name}": 100 for axis in ("input", "output") for name in ("mean", "p50", "p95", "p99")
    }
    rows = [{"pool": "a", "client": client, "window_start_s": 0, **figures} for client in measured]
    pl.DataFrame(rows).write_parquet(lengths)
    return windows, lengths


def test_parquet_of_windows_and_lengths(tmp_path: Path) -> None:
    pool = read_pool(*write_parquet(tmp_path), "a")
    assert [client.windows for client in pool.clients] == [
        {0: Window(1.0, "Gamma", 0.5)},
        {600: Window(2.0, "Weibull", 0.7)},
    ]
    assert pool.borrowers == (2,)
    assert pool.clients[1].lengths == pool.clients[0].lengths


def test_what_is_wrong_with_parquet_is_said(tmp_path: Path) -> None:
    windows, lengths = write_parquet(tmp_path)
    with pytest.raises(InputError, match="pool must be one of a, b; got 'c'"):
        read_pool(windows, lengths, "c")
    with pytest.raises(InputError, match="pool must be one of a, b; got None"):
        read_pool(windows, lengths)
    with pytest.raises(InputError, match="--lengths"):
        read_pool(windows, None, "a")
    with pytest.raises(InputError, match="it has no 'input_mean'"):
        read_pool(windows, windows, "a")
    with pytest.raises(InputError, match="must have the lengths of a client of b"):
        read_pool(windows, lengths, "b")
    with pytest.raises(InputError, match="can't be read as Parquet"):
        read_pool(tmp_path / "none.parquet", lengths, "a")


def test_a_public_pool(real_trace: Callable[[str], Path]) -> None:
    windows, lengths = real_trace("servegen_arrivals.parquet"), real_trace("servegen_lengths.parquet")
    pool = read_pool(windows, lengths, "m-small")
    assert (len(pool.clients), pool.span_s, len(pool.borrowers)) == (43, 14 * 86_400, 5)
