import contextlib
from pathlib import Path

import numpy as np
import onnx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper

from models.graph import objection


def model(*nodes: onnx.NodeProto, initializers: tuple[onnx.TensorProto, ...] = ()) -> onnx.ModelProto:
    told = [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1])]
    given_back = [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1])]
    graph = helper.make_graph(list(nodes), "g", told, given_back, list(initializers))
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)])


def branches(inner: onnx.NodeProto) -> onnx.NodeProto:
    """A node that has another one in a branch of its own."""
    graph = helper.make_graph([inner], "b", [], [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1])])
    return helper.make_node("If", ["c"], ["y"], then_branch=graph, else_branch=graph)


CUSTOM = helper.make_node("Shell", ["x"], ["y"], domain="evil.example")


@pytest.mark.parametrize("nodes", [(CUSTOM,), (helper.make_node("Relu", ["x"], ["z"]), branches(CUSTOM))])
def test_an_operator_outside_the_standard_is_named_wherever_it_stands(nodes: tuple) -> None:
    assert "'Shell' of 'evil.example'" in str(objection(model(*nodes).SerializeToString()))


def test_an_operator_within_a_function_is_found() -> None:
    made = model(helper.make_node("Relu", ["x"], ["y"]))
    function = helper.make_function("", "F", ["x"], ["y"], [CUSTOM], [helper.make_opsetid("", 20)])
    made.functions.append(function)
    assert "'Shell'" in str(objection(made.SerializeToString()))


@pytest.mark.parametrize("where", ["initializer", "constant"])
def test_numbers_in_another_file_are_refused(where: str) -> None:
    tensor = numpy_helper.from_array(np.ones(1, np.float32), "w")
    onnx.external_data_helper.set_external_data(tensor, "../../../etc/passwd")
    tensor.ClearField("raw_data")
    if where == "initializer":
        made = model(helper.make_node("Add", ["x", "w"], ["y"]), initializers=(tensor,))
    else:
        made = model(branches(helper.make_node("Constant", [], ["y"], value=tensor)))
    assert "in another file" in str(objection(made.SerializeToString()))


def test_a_standard_graph_passes_trees_of_ai_onnx_ml_included() -> None:
    trees = helper.make_node("TreeEnsembleRegressor", ["x"], ["z"], domain="ai.onnx.ml")
    inside = numpy_helper.from_array(np.ones(1, np.float32), "w")
    made = model(trees, helper.make_node("Add", ["z", "w"], ["y"]), initializers=(inside,))
    assert objection(made.SerializeToString()) is None


def test_the_forecasters_own_graph_passes(bundle_folder: Path) -> None:
    assert objection((bundle_folder / "model.onnx").read_bytes()) is None


@given(st.binary(max_size=200))
def test_any_bytes_get_a_verdict_or_a_value_error(data: bytes) -> None:
    with contextlib.suppress(ValueError):
        assert objection(data) != ""


def test_graphs_nested_without_end_are_refused_and_do_not_exhaust_the_stack() -> None:
    inner = helper.make_node("Relu", ["x"], ["y"])
    for _ in range(30):
        inner = branches_of_one(inner)
    assert "within graphs" in str(objection(model(inner).SerializeToString()))


def branches_of_one(inner: onnx.NodeProto) -> onnx.NodeProto:
    graph = helper.make_graph([inner], "b", [], [])
    return helper.make_node("Loop", [], ["y"], body=graph)
