"""vLLM: the memory that its worker finds for the KV cache, with nothing said of how much it may use.

The functions are vLLM's own, from its wheel: `MemorySnapshot` and `request_memory` as the worker calls them when it
starts, then `Worker.determine_available_memory`. Around them stand the parts that need a model and matrix products,
which the simulated driver cannot run: the weights are an allocation, and the profile run is one that takes and frees
what activations would. The size that comes out is allocated, as vLLM does next.
"""

import gc
from types import SimpleNamespace

from checks import CARD, MIB, check, end, figure, in_mib, leave, meet, section, sees_the_card

import torch
import vllm
from vllm.config import CacheConfig
from vllm.config.compilation import CUDAGraphMode
from vllm.utils.mem_utils import MemorySnapshot
from vllm.v1.worker.gpu_worker import Worker
from vllm.v1.worker.utils import request_memory

WEIGHTS = 1024 * MIB
ACTIVATIONS = 512 * MIB


def take(size):
    return torch.empty(size, dtype=torch.uint8, device="cuda")


class ModelRunner:
    """In the place of the one that loads a model and runs it."""

    def __init__(self):
        self.weights = take(WEIGHTS)
        self.model_memory_usage = WEIGHTS

    def profile_run(self, randomize_inputs=True):
        activations = take(ACTIVATIONS)
        torch.cuda.synchronize()
        del activations


def worker():
    """A worker as `init_device` leaves it, and after the model was loaded."""
    made = Worker.__new__(Worker)
    made.device = torch.device("cuda:0")
    made.cache_config = CacheConfig()
    made.model_config = SimpleNamespace(multimodal_config=None)
    made.parallel_config = SimpleNamespace(_api_process_count=1)
    made.vllm_config = SimpleNamespace(
        compilation_config=SimpleNamespace(cudagraph_mode=CUDAGraphMode.NONE)
    )
    gc.collect()
    torch.cuda.empty_cache()
    made.init_snapshot = MemorySnapshot(device=made.device)
    made.requested_memory = request_memory(made.init_snapshot, made.cache_config)
    made.model_runner = ModelRunner()
    return made


def main():
    figure("version", vllm.__version__)
    torch.cuda.init()
    sees_the_card(mem_get_info=torch.cuda.mem_get_info()[1])
    # Both take their first look when both have a context, and both load before either profiles.
    meet("started")
    engine = worker()
    meet("loaded")
    size = engine.determine_available_memory()
    meet("profiled")
    figure("budget", size)
    share = size / CARD
    check("the KV cache that it finds is positive", size > 0, in_mib(size))
    check("it is what is left of its own card", 0.6 < share < 0.92, f"{in_mib(size)}, {share:.2f} of the card")
    cache = take(max(size, 0))
    meet("allocated")
    figure("held", WEIGHTS + size)
    check("it can allocate that while the other holds its own", cache.numel() == size)


with section("vLLM starts"):
    try:
        main()
    finally:
        leave()
end()
