"""ONNX Runtime: values on the card in its own arena, a session on the card as far as it goes, one on the host.

A session on the card begins with a handle of cuBLAS, which the simulated driver cannot give: that it is refused
there, and leaves nothing behind, is what can be seen. On a card, where `KERNELS_COMPUTE` is set, it must compute.
"""

import gc
import os

from checks import CARD_BY_NVML, MIB, card_by_nvml, check, end, equal, figure, fills_twice, section

import numpy
import onnxruntime
from onnx import TensorProto, helper
from onnxruntime import InferenceSession, OrtValue

NUMBERS = numpy.arange(MIB, dtype=numpy.float32)


def take(size):
    return OrtValue.ortvalue_from_shape_and_type([size], numpy.uint8, "cuda", 0)


def release():
    gc.collect()


def model():
    """One addition."""
    values = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [None]) for name in ("a", "b", "sum")]
    graph = helper.make_graph([helper.make_node("Add", ["a", "b"], ["sum"])], "addition", values[:2], values[2:])
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    return made.SerializeToString()


def adds(session):
    (result,) = session.run(None, {"a": NUMBERS, "b": NUMBERS})
    return bool((result == NUMBERS * 2).all())


def sizes():
    total = card_by_nvml()
    equal("sees the card's size: NVML", total, CARD_BY_NVML)
    figure("sees", total)


def copies():
    value = OrtValue.ortvalue_from_numpy(NUMBERS, "cuda", 0)
    equal("a value is on the card", value.device_name(), "cuda")
    equal("and comes back", bool((value.numpy() == NUMBERS).all()), True)


def out_of_memory():
    # ONNX Runtime raises a RuntimeError of Python whatever the reason, so its text must say the reason.
    text = fills_twice("fills the card", take, RuntimeError, release)
    check("the error speaks of memory", "Failed to allocate memory" in text, text)


def session_on_the_card():
    try:
        session = InferenceSession(model(), providers=["CUDAExecutionProvider"])
    except onnxruntime.capi.onnxruntime_pybind11_state.Fail as error:
        is_expected = "CUBLAS" in str(error) and not os.environ.get("KERNELS_COMPUTE")
        check("a session on the card is refused for want of cuBLAS, and for nothing else", is_expected, error)
        return
    equal("a session on the card", session.get_providers()[0], "CUDAExecutionProvider")
    if os.environ.get("KERNELS_COMPUTE"):
        equal("and computes", adds(session), True)


def session_on_the_host():
    session = InferenceSession(model(), providers=["CPUExecutionProvider"])
    equal("a session on the host", session.get_providers(), ["CPUExecutionProvider"])
    equal("computes", adds(session), True)


figure("version", onnxruntime.__version__)
check("knows the card's provider", "CUDAExecutionProvider" in onnxruntime.get_available_providers())
for part in (sizes, copies, out_of_memory, session_on_the_card, session_on_the_host, out_of_memory, sizes):
    with section(part.__name__):
        part()
    release()
end()
