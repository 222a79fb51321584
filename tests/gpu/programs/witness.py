"""What the programs share: taking memory until it is refused, and saying what was seen."""

import ctypes
import importlib
import json
import sys

MIB = 1 << 20
LEFT_OUT = 77


def needs(name):
    """Imports a framework, or ends as left out."""
    try:
        return importlib.import_module(name)
    except Exception as error:
        print(f"{name} can't be imported ({type(error).__name__})", file=sys.stderr)
        sys.exit(LEFT_OUT)


def leave_out(reason):
    print(reason, file=sys.stderr)
    sys.exit(LEFT_OUT)


def memory_by_driver():
    """Free and total bytes of the first card by the driver's own word, in its primary context."""
    cuda = ctypes.CDLL("libcuda.so.1")
    context, device = ctypes.c_void_p(), ctypes.c_int()
    free, total = ctypes.c_size_t(), ctypes.c_size_t()
    for code in (
        cuda.cuInit(0),
        cuda.cuDeviceGet(ctypes.byref(device), 0),
        cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), device),
        cuda.cuCtxPushCurrent_v2(context),
        cuda.cuMemGetInfo_v2(ctypes.byref(free), ctypes.byref(total)),
        cuda.cuCtxPopCurrent_v2(ctypes.byref(context)),
        cuda.cuDevicePrimaryCtxRelease_v2(device),
    ):
        assert code == 0, f"the driver returned {code}"
    return free.value, total.value


def take_until_refused(take, refusal, piece=64 * MIB, most=200_000 * MIB):
    """Calls `take(bytes)` until it raises `refusal`; the things taken and the name of what was raised."""
    held = []
    while len(held) * piece < most:
        try:
            held.append(take(piece))
        except refusal as error:
            return held, type(error).__name__
    return held, None


def say(sees, held, refusal, piece=64 * MIB, remark=""):
    """The last line of a program."""
    said = {"sees": sees, "refused_at": held * piece, "refusal": refusal, "remark": remark}
    print(json.dumps(said))
