"""How long a training step of PyTorch takes: two layers of a transformer, with its optimiser."""

import json
import sys
import time

import witness

torch = witness.needs("torch")
if not torch.cuda.is_available():
    witness.leave_out("torch sees no card")

SECONDS = float(sys.argv[1]) if len(sys.argv) > 1 else 2.0
torch.manual_seed(1)
layer = torch.nn.TransformerEncoderLayer(512, 8, 2048, dropout=0.0, batch_first=True)
model = torch.nn.TransformerEncoder(layer, 2).cuda()
optimiser = torch.optim.AdamW(model.parameters(), lr=1e-4)
inputs = torch.randn(16, 128, 512, device="cuda")


def step():
    """Forward, backward and the optimiser."""
    optimiser.zero_grad(set_to_none=True)
    with torch.autocast("cuda", dtype=torch.bfloat16):
        loss = model(inputs).square().mean()
    loss.backward()
    optimiser.step()


def timed(work, seconds):
    """The median of single runs, in nanoseconds."""
    samples, end = [], time.perf_counter() + seconds
    while time.perf_counter() < end:
        begun = time.perf_counter()
        work()
        torch.cuda.synchronize()
        samples.append((time.perf_counter() - begun) * 1e9)
    return sorted(samples)[len(samples) // 2]


def uncached():
    """Memory that comes from the driver and not from PyTorch's cache."""
    torch.cuda.empty_cache()
    torch.empty(64 << 20, dtype=torch.uint8, device="cuda")


for _ in range(10):
    step()
torch.cuda.synchronize()
print(json.dumps({"training step": timed(step, SECONDS), "64 MiB past the cache": timed(uncached, SECONDS / 4)}))
