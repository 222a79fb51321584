"""JAX: what it preallocates, its out-of-memory error, and whether it goes on.

Arrays come from the host: to compile anything XLA wants a handle of cuDNN, whose own copy of the CUDA runtime finds no
driver in the simulated one. The allocator is chosen before the program starts, by JAX's own variables:
XLA_PYTHON_CLIENT_PREALLOCATE, XLA_PYTHON_CLIENT_MEM_FRACTION and XLA_PYTHON_CLIENT_ALLOCATOR.
"""

import ctypes
import gc
import os

from checks import CARD, MIB, PIECE, check, end, equal, figure, fills_twice, in_mib, is_part, section, sees_the_card

import jax
import jax.numpy as jnp
import numpy

ALLOCATOR = os.environ.get("XLA_PYTHON_CLIENT_ALLOCATOR", "default")
PREALLOCATES = os.environ.get("XLA_PYTHON_CLIENT_PREALLOCATE", "true") == "true"
FRACTION = float(os.environ.get("XLA_PYTHON_CLIENT_MEM_FRACTION", "0.75"))


def by_driver():
    """Free and total bytes by the driver's own word, in the context that JAX has made."""
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
    return jax.device_put(zeros[:size], card).block_until_ready()


def sizes():
    sees_the_card(cuMemGetInfo=by_driver()[1])


def budget():
    """JAX gives itself a part of the card: three quarters, unless it is told another."""
    limit = (card.memory_stats() or {}).get("bytes_limit")
    if ALLOCATOR == "platform":
        check("it keeps no pool and may use the whole card", limit in (None, CARD), limit)
        return
    if limit is None and ALLOCATOR == "vmm":
        return  # This one does not say it.
    figure("budget", limit)
    check(f"its pool is {FRACTION:g} of the card", is_part(limit, FRACTION), limit)


def preallocation():
    free, total = by_driver()
    pool = int(CARD * FRACTION)
    used = total - free
    if ALLOCATOR == "default" and PREALLOCATES:
        check("it takes its pool at once", used >= pool, f"{in_mib(used)} used")
    elif ALLOCATOR == "platform" or not PREALLOCATES:
        check("it does not take its pool at once", used < pool, f"{in_mib(used)} used")


def out_of_memory():
    # The driver's own allocator grows beyond what it took at once.
    most = 1.0 if ALLOCATOR in ("platform", "cuda_async") else FRACTION
    text = fills_twice("fills the card", take, jax.errors.JaxRuntimeError, gc.collect, least=FRACTION / 2, most=most)
    check("the error says that memory is exhausted", text.startswith("RESOURCE_EXHAUSTED"), text[:120])


def copies():
    sent = numpy.arange(MIB, dtype=numpy.int32)
    on_card = jax.device_put(sent, card)
    equal("an array goes to the card and back", bool((numpy.asarray(on_card) == sent).all()), True)


def compiled():
    if not os.environ.get("KERNELS_COMPUTE"):
        return
    step = jax.jit(lambda number: jnp.sin(number) * 2 + number.sum())
    result = step(jnp.ones(1 << 16, dtype=jnp.float32, device=card)).block_until_ready()
    equal("a compiled function runs", result.shape, (1 << 16,))


figure("version", jax.__version__)
card = jax.devices("gpu")[0]
zeros = numpy.zeros(PIECE, dtype=numpy.uint8)
jax.device_put(numpy.zeros(1), card).block_until_ready()
for part in (sizes, budget, preallocation, out_of_memory, copies, compiled, sizes):
    with section(part.__name__):
        part()
    gc.collect()
end()
