"""Two ranks of one PyTorch job (`torchrun`, gloo) on one card: they fill it together and go on."""

import gc
import os

from checks import CARD, PIECE, check, end, equal, figure, fill, in_mib, section

import torch
import torch.distributed as dist

OutOfMemory = torch.cuda.OutOfMemoryError


def take(size):
    return torch.empty(size, dtype=torch.uint8, device="cuda")


def everyones(value):
    """A number of each rank, by rank."""
    values = [torch.zeros(1, dtype=torch.int64) for _ in range(dist.get_world_size())]
    dist.all_gather(values, torch.tensor([value], dtype=torch.int64))
    return [int(each) for each in values]


def release():
    gc.collect()
    torch.cuda.empty_cache()
    dist.barrier()


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    # A line of output is a check; only the first rank speaks, for both.
    speaks = rank == 0
    torch.cuda.set_device(0)
    totals = everyones(torch.cuda.mem_get_info()[1])
    dist.barrier()
    taken, error = fill(take, OutOfMemory)
    refused = everyones(int(error is not None))
    held = everyones(len(taken) * PIECE)
    named = "" if error is None else f"{type(error).__module__}.{type(error).__qualname__}"
    dist.barrier()
    error = None
    taken.clear()
    release()
    again = []
    for turn in range(dist.get_world_size()):
        if turn == rank:
            taken, error = fill(take, OutOfMemory)
            again.append(len(taken) * PIECE)
            error = None
            taken.clear()
        release()
    again = everyones(again[0])
    summed = torch.full((1024,), rank + 1.0).cuda().cpu()
    dist.all_reduce(summed)
    if speaks:
        figure("version", torch.__version__)
        figure("sees", totals[0])
        figure("held", sum(held))
        figure("error", named)
        equal("both ranks see the card", totals, [CARD] * 2)
        equal("both ranks get the framework's own out-of-memory error", refused, [1, 1])
        check("both ranks together hold no more than the card", CARD / 3 < sum(held) <= CARD, in_mib(sum(held)))
        each = ", ".join(map(in_mib, again))
        check("each rank alone then gets what both had", min(again) >= sum(held) - 4 * PIECE, each)
        equal("a sum over both ranks", float(summed[0]), 3.0)
        end()
    dist.destroy_process_group()


with section(f"rank {os.environ.get('RANK')}"):
    main()
