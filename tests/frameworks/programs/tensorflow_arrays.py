"""TensorFlow: the memory that it gives itself, its out-of-memory error, and what comes after it.

TF_FORCE_GPU_ALLOW_GROWTH and TF_GPU_ALLOCATOR choose how it takes memory, before the program starts.
"""

import ctypes
import gc
import os
import re

from checks import CARD, MIB, check, end, equal, figure, fills_twice, in_mib, section, sees_the_card

import numpy
import tensorflow as tf
from tensorflow.python.client import device_lib

GROWS = os.environ.get("TF_FORCE_GPU_ALLOW_GROWTH") == "true"


def by_driver():
    """Free and total bytes by the driver's own word, in the context that TensorFlow has made."""
    cuda = ctypes.CDLL("libcuda.so.1")
    context, free, total = ctypes.c_void_p(), ctypes.c_size_t(), ctypes.c_size_t()
    for code in (
        cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0),
        cuda.cuCtxPushCurrent_v2(context),
        cuda.cuMemGetInfo_v2(ctypes.byref(free), ctypes.byref(total)),
        cuda.cuCtxPopCurrent_v2(ctypes.byref(context)),
        cuda.cuDevicePrimaryCtxRelease_v2(0),
    ):
        assert code == 0, f"the driver returned {code}"
    return free.value, total.value


def take(size):
    with tf.device("/GPU:0"):
        return tf.raw_ops.Empty(shape=[size], dtype=tf.uint8)


def sizes():
    sees_the_card(cuMemGetInfo=by_driver()[1])


def budget():
    own = [device for device in device_lib.list_local_devices() if device.device_type == "GPU"]
    equal("it finds one card", len(own), 1)
    figure("budget", own[0].memory_limit)
    seen = in_mib(own[0].memory_limit)
    check("the memory that it gives itself is within its card", CARD / 2 < own[0].memory_limit < CARD, seen)


def out_of_memory():
    text = fills_twice("fills the card", take, tf.errors.ResourceExhaustedError, gc.collect)
    check("the error names its allocator", re.search(r"allocator GPU_0_\w+", text) is not None, text[:160])


def copies():
    sent = numpy.arange(MIB, dtype=numpy.int32)
    with tf.device("/GPU:0"):
        on_card = tf.identity(tf.constant(sent))
    check("a tensor lies on the card", on_card.device.endswith("GPU:0"), on_card.device)
    equal("a tensor goes to the card and back", bool((on_card.numpy() == sent).all()), True)


figure("version", tf.__version__)
take(MIB)
for part in (sizes, budget, out_of_memory, copies, sizes):
    with section(part.__name__):
        part()
    gc.collect()
end()
