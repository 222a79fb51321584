"""PyTorch: the size of the card, its out-of-memory error, and its ways of taking memory.

Which allocator is at work is chosen by PYTORCH_ALLOC_CONF before the program starts.
"""

import gc
import re

from checks import CARD, MIB, PIECE, check, end, equal, figure, fill, fills_twice, in_mib, section, sees_the_card

import torch

# With this allocator PyTorch has no pools of memory, and the memory of its graphs is in no pool whose size it knows.
ASYNC = torch.cuda.get_allocator_backend() == "cudaMallocAsync"
OutOfMemory = torch.cuda.OutOfMemoryError


def take(size):
    return torch.empty(size, dtype=torch.uint8, device="cuda")


def release():
    gc.collect()
    torch.cuda.empty_cache()


def bytes_of(value, size=MIB):
    """Host memory with a pattern in it."""
    return (torch.arange(size, dtype=torch.int32) * 31 + value).to(torch.uint8)


def sizes():
    _, total = torch.cuda.mem_get_info()
    sees_the_card(
        mem_get_info=total, get_device_properties=torch.cuda.get_device_properties(0).total_memory
    )


def out_of_memory():
    text = fills_twice("fills the card", take, OutOfMemory, release)
    size = f"{CARD / 2**30:.2f} GiB"
    named = re.search(r"Device limit\s*: " + size, text) if ASYNC else f"total capacity of {size}" in text
    check("the error names the card's size", named, text[:300])
    try:
        take(CARD + MIB)
    except OutOfMemory:
        check("more than the card in one piece is refused", True)
    else:
        check("more than the card in one piece is refused", False)


def fraction():
    """A process may use only a part of what it sees."""
    torch.cuda.set_per_process_memory_fraction(0.5)
    try:
        taken, error = fill(take, OutOfMemory)
        held = len(taken) * PIECE
        check("a memory fraction of 0.5 holds", error is not None and held <= CARD / 2, in_mib(held))
        taken.clear()
    finally:
        error = None
        torch.cuda.set_per_process_memory_fraction(1.0)
        release()


def pools():
    pool = torch.cuda.MemPool()
    with torch.cuda.use_mem_pool(pool):
        inside = [take(32 * MIB) for _ in range(3)]
    outside = take(32 * MIB)
    check("a memory pool gives memory", inside[0].data_ptr() != outside.data_ptr())
    inside[0].copy_(bytes_of(1, 32 * MIB))
    equal("memory of a pool keeps what is in it", bool((inside[0].cpu() == bytes_of(1, 32 * MIB)).all()), True)
    del inside, outside, pool
    release()


def pinned():
    there = bytes_of(2, 16 * MIB).pin_memory()
    check("pinned memory is pinned", there.is_pinned())
    card = there.to("cuda", non_blocking=True)
    back = torch.empty_like(there, pin_memory=True)
    back.copy_(card, non_blocking=True)
    torch.cuda.synchronize()
    equal("pinned memory goes to the card and back", bool((back == there).all()), True)


def streams():
    one, other = torch.cuda.Stream(), torch.cuda.Stream()
    sent = bytes_of(3).pin_memory()
    start, done = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    with torch.cuda.stream(one):
        start.record()
        card = sent.to("cuda", non_blocking=True)
        done.record()
    other.wait_event(done)
    with torch.cuda.stream(other):
        back = card.to("cpu", non_blocking=True)
        card.record_stream(other)
    other.synchronize()
    equal("two streams with an event between them", bool((back == sent).all()), True)
    check("an event tells the time since another", start.elapsed_time(done) >= 0)


def graphs():
    source, target = torch.empty(MIB, dtype=torch.uint8, device="cuda"), take(MIB)
    source.copy_(bytes_of(4))
    torch.cuda.synchronize()
    before = torch.cuda.memory_reserved()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        # Memory that is taken during a capture comes from a pool of the graph's own.
        between = torch.empty_like(source)
        between.copy_(source)
        target.copy_(between)
    during = torch.cuda.memory_reserved()
    source.copy_(bytes_of(5))
    for _ in range(20):
        graph.replay()
    torch.cuda.synchronize()
    seen = f"{in_mib(before)} reserved before, {in_mib(during)} with it"
    check("a graph is captured with memory of its own, and replays", during > before, seen)
    equal("a replay works on new input", bool((target.cpu() == bytes_of(5)).all()), True)
    del between
    graph.reset()
    release()
    after = torch.cuda.memory_reserved()
    check("a graph's memory is given back with it", after <= before, in_mib(after))


def captured_refusal():
    """Memory is refused during a capture as it is elsewhere, and what comes after works."""
    graph, refused = torch.cuda.CUDAGraph(), False
    try:
        with torch.cuda.graph(graph):
            take(2 * CARD)
    except OutOfMemory:
        refused = True
    except RuntimeError as error:
        refused = "out of memory" in str(error)
    check("memory is refused during a capture", refused)
    del graph
    release()
    graphs()


def training():
    """Steps of an optimiser; without matrix products, which the simulated driver cannot run."""
    torch.manual_seed(1)
    weights = [torch.nn.Parameter(torch.randn(256, 1024, device="cuda")) for _ in range(8)]
    optimiser = torch.optim.AdamW(weights)
    before = None
    for step in range(5):
        optimiser.zero_grad()
        sum((weight * weight).sum() for weight in weights).backward()
        optimiser.step()
        if step == 1:
            before = torch.cuda.memory_reserved()
    check("training steps need no more and more memory", torch.cuda.memory_reserved() == before, before)


def statistics():
    held = take(64 * MIB)
    reserved, allocated = torch.cuda.memory_reserved(), torch.cuda.memory_allocated()
    free, total = torch.cuda.mem_get_info()
    seen = f"{in_mib(allocated)} allocated, {in_mib(reserved)} reserved, {in_mib(total - free)} used"
    check("what it allocated, reserved and used is in order", 64 * MIB <= allocated <= reserved <= total - free, seen)
    summary = torch.cuda.memory_summary()
    check("it prints its memory summary", "GPU reserved memory" in summary)
    del held


torch.cuda.init()
figure("version", torch.__version__)
WITH_POOLS = () if ASYNC else (pools, graphs, captured_refusal)
for part in (
    sizes,
    out_of_memory,
    fraction,
    pinned,
    streams,
    *WITH_POOLS,
    training,
    statistics,
    sizes,
):
    with section(part.__name__):
        part()
    release()
end()
