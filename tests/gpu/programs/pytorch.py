"""PyTorch: sees the limit, raises its own out-of-memory error there, and trains on afterwards."""

import witness

torch = witness.needs("torch")
if not torch.cuda.is_available():
    witness.leave_out("torch sees no card")

_, total = torch.cuda.mem_get_info()
by_properties = torch.cuda.get_device_properties(0).total_memory


def take(size):
    return torch.empty(size, dtype=torch.uint8, device="cuda")


held, refusal = witness.take_until_refused(take, torch.cuda.OutOfMemoryError)
count = len(held)
held.clear()
torch.cuda.empty_cache()

torch.manual_seed(1)
inputs = torch.randn(4096, 256, device="cuda")
wanted = inputs @ torch.randn(256, 1, device="cuda")
model = torch.nn.Linear(256, 1).cuda()
optimiser = torch.optim.Adam(model.parameters(), lr=0.05)
losses = []
for _ in range(200):
    loss = torch.nn.functional.mse_loss(model(inputs), wanted)
    optimiser.zero_grad()
    loss.backward()
    optimiser.step()
    losses.append(loss.item())
assert losses[-1] < losses[0] / 10, (losses[0], losses[-1])

same = "" if by_properties == total else f"properties say {by_properties // witness.MIB} MiB"
witness.say(total, count, refusal, remark=same)
