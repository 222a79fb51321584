"""JAX: takes its share of what it sees as free, is refused beyond, and computes afterwards."""

import witness

jax = witness.needs("jax")
try:
    card = jax.devices("gpu")[0]
except RuntimeError:
    witness.leave_out("jax sees no card")

import jax.numpy as jnp
import numpy

first = jax.device_put(numpy.ones(1024, dtype=numpy.float32), card).block_until_ready()
statistics = card.memory_stats() or {}


def take(size):
    return jnp.zeros(size, dtype=jnp.uint8, device=card).block_until_ready()


held, refusal = witness.take_until_refused(take, jax.errors.JaxRuntimeError)
count = len(held)
held.clear()

product = jax.jit(lambda one, other: one @ other)
ones = jnp.ones((512, 512), dtype=jnp.float32, device=card)
assert float(product(ones, ones)[0, 0]) == 512.0
assert float(first.sum()) == 1024.0

# JAX does not say how large the card is; the driver does, in the context that JAX has made.
_, total = witness.memory_by_driver()
pool = statistics.get("bytes_limit")
remark = f"its pool is {pool // witness.MIB} MiB" if pool else ""
witness.say(total, count, refusal, remark=remark)
