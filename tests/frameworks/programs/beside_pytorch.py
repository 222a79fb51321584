"""PyTorch beside another framework on the same card: it fills its own and leaves the other's alone."""

from checks import CARD, PIECE, check, end, figure, fill, in_mib, leave, meet, section, sees_the_card

import torch


def take(size):
    return torch.empty(size, dtype=torch.uint8, device="cuda")


def main():
    figure("version", torch.__version__)
    torch.cuda.init()
    sees_the_card(mem_get_info=torch.cuda.mem_get_info()[1])
    meet("started")
    taken, error = fill(take, torch.cuda.OutOfMemoryError)
    held = len(taken) * PIECE
    meet("filled")
    check("fills its card beside the other", error is not None and CARD / 2 < held <= CARD, in_mib(held))
    figure("held", held)
    if error is not None:
        figure("error", f"{type(error).__module__}.{type(error).__qualname__}")
    error = None
    # The other is still full: what this one frees is its own again, and no more than that.
    taken.clear()
    torch.cuda.empty_cache()
    taken, error = fill(take, torch.cuda.OutOfMemoryError)
    again = len(taken) * PIECE
    check("goes on beside the other, with as much as before", abs(again - held) <= 2 * PIECE, in_mib(again))
    meet("tried again")


with section("beside another"):
    try:
        main()
    finally:
        leave()
end()
