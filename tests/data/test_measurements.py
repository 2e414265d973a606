from pathlib import Path

import pytest

from data.errors import InputError
from data.measurements import choose, read_measurements

HEADER = "model,hardware,prompt_size,batch_size,prompt_time,token_time,tensor_parallel\n"


def write(path: Path, *rows: str) -> Path:
    path.write_text(HEADER + "".join(f"{row}\n" for row in rows))
    return path


def test_times_become_seconds(tmp_path):
    rows = read_measurements(write(tmp_path / "m.csv", "llama,h100,512,2,75.5,30.25,8")).rows

    assert rows.rows(named=True) == [
        {
            "model": "llama",
            "hardware": "h100",
            "tensor_parallel": 8,
            "prompt_tokens": 512,
            "batch": 2,
            "prefill_s": 0.0755,
            "decode_step_s": 0.03025,
        }
    ]


def test_rows_with_impossible_values_are_left_out_and_counted_by_reason(tmp_path):
    read = read_measurements(
        write(
            tmp_path / "m.csv",
            "llama,h100,512,2,75.5,30.25,8",
            "llama,h100,512,2,nan,30.25,8",
            "llama,h100,512,2,inf,30.25,8",
            "llama,h100,512,2,,30.25,8",
            "llama,h100,512,2,-1,30.25,8",
            "llama,h100,512,1.5,75.5,30.25,8",
            "llama,h100,1e300,1,75.5,30.25,8",
            ",h100,512,1,75.5,30.25,8",
            "llama,h100,512,1,75.5,fast,8",
        )
    )

    assert len(read.rows) == 1
    assert read.refused == {
        "prompt_time is no number over 0": 4,
        "batch_size is no whole number under 1e9": 1,
        "prompt_size is no whole number under 1e9": 1,
        "model is missing": 1,
        "token_time is no number over 0": 1,
    }


def test_a_column_that_is_not_there_is_named(tmp_path):
    path = tmp_path / "m.csv"
    path.write_text("model,hardware\nllama,h100\n")

    with pytest.raises(InputError, match="missing: tensor_parallel, prompt_size, batch_size"):
        read_measurements(path)


def test_a_file_that_is_none_is_refused(tmp_path):
    with pytest.raises(InputError, match="can't be read as CSV"):
        read_measurements(tmp_path / "absent.csv")
    (tmp_path / "empty.csv").write_text("")
    with pytest.raises(InputError, match="can't be read as CSV"):
        read_measurements(tmp_path / "empty.csv")


def test_the_only_engine_needs_no_choice_and_several_are_listed(tmp_path):
    one = write(tmp_path / "one.csv", "llama,h100,512,2,75.5,30.25,8")
    assert len(choose(read_measurements(one).rows)) == 1

    two = write(tmp_path / "two.csv", "llama,h100,512,2,75.5,30.25,8", "llama,h100,512,2,75.5,30.25,4")
    rows = read_measurements(two).rows
    with pytest.raises(InputError, match=r"fits 2 engines.*llama, h100, 4; llama, h100, 8"):
        choose(rows, model="llama")
    with pytest.raises(InputError, match=r"--hardware a100 fits 0 engines.*llama, h100, 4; llama, h100, 8"):
        choose(rows, hardware="a100")
    assert choose(rows, tensor_parallel=4)["tensor_parallel"].to_list() == [4]


def test_a_file_without_a_usable_row_says_so(tmp_path):
    with pytest.raises(InputError, match="no usable row"):
        choose(read_measurements(write(tmp_path / "m.csv", "llama,h100,0,2,75.5,30.25,8")).rows)


def test_the_public_measurements_have_twelve_engines(real_trace):
    read = read_measurements(real_trace("splitwise_perf_model.csv"))

    assert (len(read.rows), read.refused) == (1_260, {})
    with pytest.raises(InputError, match="fits 12 engines"):
        choose(read.rows)
