"""Transfers of tensors between a GPU and the host, concurrent with the GPU's computation."""

import torch
from torch import Tensor


def locked(nbytes: int) -> int:
    """Return the bytes of page-locked memory that torch allocates for a tensor of these bytes.

    It is the next power of two.
    """
    return 1 << (nbytes - 1).bit_length() if nbytes else 0


class Transfer:
    """Copies to page-locked host memory and back, on a CUDA stream of its own.

    It is for one background thread. Each call returns when its copy is complete, so that any thread
    and stream may use the copy, and the original may be freed.
    """

    def __init__(self, device: torch.device):
        self.device, self.stream = device, torch.cuda.Stream(device)

    def down(self, tensor: Tensor) -> Tensor:
        """Return the tensor in the host's memory."""
        with torch.cuda.device(self.device):  # page-locking would else start on GPU 0
            return self.carry(tensor, torch.empty_like(tensor, device="cpu", pin_memory=True))

    def up(self, tensor: Tensor) -> Tensor:
        """Return the tensor on the GPU."""
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
