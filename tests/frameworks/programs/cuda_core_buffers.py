"""cuda-core: buffers of the device's own pool until it refuses, streams, and the way back."""

import gc

from checks import MIB, check, end, figure, fills_twice, section, sees_the_card

import cuda.core
from cuda.bindings import driver
from cuda.core import Device

figure("version", cuda.core.__version__)
device = Device()
device.set_current()
stream = device.create_stream()


def take(size):
    return device.allocate(size, stream=stream)


def release():
    gc.collect()
    stream.sync()
    code, pool = driver.cuDeviceGetDefaultMemPool(0)
    assert code == 0, code
    assert driver.cuMemPoolTrimTo(pool, 0)[0] == 0


def sizes():
    code, _, total = driver.cuMemGetInfo()
    assert code == 0, code
    sees_the_card(cuMemGetInfo=total)


def out_of_memory():
    fills_twice("fills the card", take, Exception, release)


def buffers():
    buffer = take(16 * MIB)
    check("a buffer after the refusal", buffer.size == 16 * MIB and buffer.is_device_accessible)
    buffer.close(stream)


for part in (sizes, out_of_memory, buffers, sizes):
    with section(part.__name__):
        part()
end()
