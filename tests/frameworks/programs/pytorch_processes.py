"""PyTorch over several processes: DataLoader workers, and tensors that two processes share.

What the processes hold together must stay within the one limit; the driver's count, which is asked from
outside, says whether it did.
"""

import gc
import queue

from checks import CARD, MIB, PIECE, check, end, equal, figure, fill, in_mib, section

import torch
import torch.multiprocessing as mp
from torch.utils.data import DataLoader, Dataset

OutOfMemory = torch.cuda.OutOfMemoryError
SHARED = 64 * MIB
PATIENCE = 180


class Numbers(Dataset):
    """Samples of a kilobyte, made where the worker is asked for them."""

    def __init__(self, device):
        self.device = device

    def __len__(self):
        return 32

    def __getitem__(self, index):
        return torch.full((1024,), index, dtype=torch.uint8).to(self.device)


def take(size):
    return torch.empty(size, dtype=torch.uint8, device="cuda")


def loaded(method, device="cpu", pin=False):
    """The first byte of every sample, as it came over the card."""
    # Samples that are on the card already stay one by one: to put them together takes a kernel.
    size = 4 if device == "cpu" else None
    workers = DataLoader(
        Numbers(device), batch_size=size, num_workers=2, multiprocessing_context=method, pin_memory=pin
    )
    return [first for batch in workers for first in batch.cuda().cpu().view(-1, 1024)[:, 0].tolist()]


def fork_workers():
    equal("DataLoader workers by fork, pinned", loaded("fork", pin=True), list(range(32)))


def spawn_workers():
    equal("DataLoader workers by spawn", loaded("spawn"), list(range(32)))


def spawn_workers_on_the_card():
    equal("DataLoader workers by spawn, samples on the card", loaded("spawn", "cuda"), list(range(32)))


def child(to_child, to_parent):
    """Sees its parent's tensor, changes it, and fills what the parent left."""
    shared = to_child.get(timeout=PATIENCE)
    total = torch.cuda.mem_get_info()[1]
    seen = int(shared[0].cpu()), int(shared[-1].cpu())
    shared.copy_(torch.full((SHARED,), 9, dtype=torch.uint8))
    torch.cuda.synchronize()
    taken, error = fill(take, OutOfMemory)
    held, refused = len(taken) * PIECE, error is not None
    error = None
    to_parent.put((seen, total, held, refused))
    # It holds on until the parent has tried in its turn.
    to_child.get(timeout=PATIENCE)


def shared_tensor():
    context = mp.get_context("spawn")
    to_child, to_parent = context.Queue(), context.Queue()
    process = context.Process(target=child, args=(to_child, to_parent))
    process.start()
    tensor = torch.full((SHARED,), 7, dtype=torch.uint8).cuda()
    own = 4 * PIECE
    kept = take(own)
    to_child.put(tensor)
    try:
        seen, total, held, refused = to_parent.get(timeout=PATIENCE)
    except queue.Empty:
        process.terminate()
        raise TimeoutError("the child did not answer") from None
    equal("a child process sees its parent's tensor", seen, (7, 7))
    equal("a child process sees the same card", total, CARD)
    equal("what a child writes is there for its parent", int(tensor[SHARED // 2].cpu()), 9)
    check("a child process gets the framework's own out-of-memory error", refused)
    together = held + own + SHARED
    check("parent and child together hold no more than the card", CARD / 2 < together <= CARD, in_mib(together))
    figure("held", together)
    try:
        more = take(8 * PIECE)
    except OutOfMemory:
        check("what a child holds is not free for its parent", True)
    else:
        check("what a child holds is not free for its parent", False)
        del more
    to_child.put(None)
    process.join(PATIENCE)
    equal("the child process ends well", process.exitcode, 0)
    del kept, tensor
    gc.collect()
    torch.cuda.empty_cache()
    torch.cuda.ipc_collect()
    taken, error = fill(take, OutOfMemory)
    alone = len(taken) * PIECE
    check("what a child held is free when it has ended", error is not None and alone > together, in_mib(alone))
    error = None
    taken.clear()


def main():
    figure("version", torch.__version__)
    torch.cuda.init()
    figure("sees", torch.cuda.mem_get_info()[1])
    for part in (fork_workers, spawn_workers, spawn_workers_on_the_card, shared_tensor):
        with section(part.__name__):
            part()
        gc.collect()
        torch.cuda.empty_cache()
    end()


if __name__ == "__main__":
    main()
