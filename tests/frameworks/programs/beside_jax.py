"""JAX beside another framework on the same card: it takes three quarters of its own card, not of the whole."""

import gc

from checks import CARD, PIECE, card_by_nvml, check, end, equal, figure, fill, in_mib, is_part, leave, meet, section
from checks import CARD_BY_NVML

import jax
import numpy


def main():
    figure("version", jax.__version__)
    card = jax.devices("gpu")[0]
    zeros = numpy.zeros(PIECE, dtype=numpy.uint8)

    def take(size):
        return jax.device_put(zeros[:size], card).block_until_ready()

    jax.device_put(numpy.zeros(1), card).block_until_ready()
    equal("sees the card's size: NVML", card_by_nvml(), CARD_BY_NVML)
    pool = card.memory_stats()["bytes_limit"]
    figure("sees", card_by_nvml())
    figure("budget", pool)
    check("its pool is 0.75 of the card", is_part(pool, 0.75), pool)
    meet("started")
    taken, error = fill(take, jax.errors.JaxRuntimeError)
    held = len(taken) * PIECE
    meet("filled")
    check("fills its pool beside the other", error is not None and CARD / 3 < held <= pool, in_mib(held))
    figure("held", held)
    if error is not None:
        figure("error", f"{type(error).__module__}.{type(error).__qualname__}")
    error = None
    taken.clear()
    gc.collect()
    taken, error = fill(take, jax.errors.JaxRuntimeError)
    again = len(taken) * PIECE
    check("goes on beside the other, with as much as before", abs(again - held) <= 2 * PIECE, in_mib(again))
    meet("tried again")


with section("beside another"):
    try:
        main()
    finally:
        leave()
end()
