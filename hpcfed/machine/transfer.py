"""Tensors between a GPU and the host, beside what the GPU computes."""

import torch
from torch import Tensor


def locked(nbytes: int) -> int:
    """Bytes of the host's memory that torch takes to hold so many page-locked: the next power of
    two.
    """
    return 1 << (nbytes - 1).bit_length() if nbytes else 0


class Transfer:
    """Copies to the host's page-locked memory and back, on a stream of its own.

    For one thread in the background.

    Each call returns when its copy is there, so that any thread and stream may use it, and the
    original may go.
    """

    def __init__(self, device: torch.device):
        self.device, self.stream = device, torch.cuda.Stream(device)

    def down(self, tensor: Tensor) -> Tensor:
        """The tensor in the host's memory."""
        with torch.cuda.device(self.device):  # page-locking would else start on GPU 0
            return self.carry(tensor, torch.empty_like(tensor, device="cpu", pin_memory=True))

    def up(self, tensor: Tensor) -> Tensor:
        """The tensor on the GPU."""
        # a thread begins on GPU 0: leaving the stream would set it back there, with a context of
        # its own, which takes half a GB
        with torch.cuda.device(self.device):
            return self.carry(tensor, torch.empty_like(tensor, device=self.device))

    def carry(self, tensor: Tensor, to: Tensor) -> Tensor:
        # what computes the tensor, or last used the memory of `to`, was started on the stream on
        # which all is computed
        self.stream.wait_stream(torch.cuda.current_stream(self.device))
        with torch.cuda.stream(self.stream):
            to.copy_(tensor, non_blocking=True)
        self.stream.synchronize()
        return to
