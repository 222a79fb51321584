"""Triton: compiles kernels and launches them, before and after memory was refused.

What a kernel computes is looked at only where the driver runs it; the simulated one does not.
"""

import gc
import os

from checks import check, end, equal, figure, fills_twice, section, sees_the_card

import torch
import triton
import triton.language as tl

SIZE = 1 << 16


@triton.jit
def add(one, other, result, size, BLOCK: tl.constexpr):
    places = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = places < size
    total = tl.load(one + places, mask=inside) + tl.load(other + places, mask=inside)
    tl.store(result + places, total, mask=inside)


def take(size):
    return torch.empty(size, dtype=torch.uint8, device="cuda")


def release():
    gc.collect()
    torch.cuda.empty_cache()


def launches(block):
    one, other = torch.rand(SIZE).cuda(), torch.rand(SIZE).cuda()
    result = torch.empty_like(one)
    kernel = add[(triton.cdiv(SIZE, block),)](one, other, result, SIZE, BLOCK=block)
    torch.cuda.synchronize()
    check(f"a kernel with blocks of {block} is compiled and launched", "cubin" in kernel.asm)
    if os.environ.get("KERNELS_COMPUTE"):
        equal("and computes", bool(torch.equal(result, one + other)), True)


def out_of_memory():
    fills_twice("fills the card", take, torch.cuda.OutOfMemoryError, release)


def sizes():
    sees_the_card(mem_get_info=torch.cuda.mem_get_info()[1])


figure("version", triton.__version__)
for part in (sizes, lambda: launches(1024), out_of_memory, lambda: launches(512), sizes):
    with section(getattr(part, "__name__", "launch")):
        part()
    release()
end()
