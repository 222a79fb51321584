"""PyTorch in three processes under one share: together they get it, and no more."""

import os

import witness

torch = witness.needs("torch")
CHILDREN = 2


def fill(rank, count, total):
    """Takes memory until it is refused, and holds it until all have been refused."""

    def take(size):
        return torch.empty(size, dtype=torch.uint8, device="cuda")

    held, refusal = witness.take_until_refused(take, torch.cuda.OutOfMemoryError)
    with count.get_lock():
        count.value += len(held)
    if refusal is None:
        os._exit(3)
    total.wait(40)


def main():
    if not torch.cuda.is_available():
        witness.leave_out("torch sees no card")
    import torch.multiprocessing as processes

    context = processes.get_context("spawn")
    count, meeting = context.Value("q", 0), context.Barrier(CHILDREN + 1)
    children = [context.Process(target=fill, args=(rank, count, meeting)) for rank in range(CHILDREN)]
    # Its own context comes first: the children leave no room for one.
    _, sees = torch.cuda.mem_get_info()
    for child in children:
        child.start()
    meeting.wait(50)
    for child in children:
        child.join()
    assert all(child.exitcode == 0 for child in children), [child.exitcode for child in children]
    numbers = torch.ones(1 << 20, device="cuda")
    assert float(numbers.sum()) == 1 << 20
    witness.say(sees, count.value, "OutOfMemoryError", remark=f"{CHILDREN + 1} processes")


if __name__ == "__main__":
    main()
