"""Triton: compiles and launches a kernel under the limit, before and after memory was refused."""

import witness

torch = witness.needs("torch")
triton = witness.needs("triton")
tl = witness.needs("triton.language")
if not torch.cuda.is_available():
    witness.leave_out("torch sees no card")


@triton.jit
def add(one, other, result, size, BLOCK: tl.constexpr):
    places = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = places < size
    total = tl.load(one + places, mask=inside) + tl.load(other + places, mask=inside)
    tl.store(result + places, total, mask=inside)


def check():
    size = 1 << 20
    one, other = torch.rand(size, device="cuda"), torch.rand(size, device="cuda")
    result = torch.empty_like(one)
    add[(triton.cdiv(size, 1024),)](one, other, result, size, BLOCK=1024)
    assert torch.equal(result, one + other)


def take(size):
    return torch.empty(size, dtype=torch.uint8, device="cuda")


check()
_, total = torch.cuda.mem_get_info()
held, refusal = witness.take_until_refused(take, torch.cuda.OutOfMemoryError)
count = len(held)
held.clear()
torch.cuda.empty_cache()
check()
witness.say(total, count, refusal)
