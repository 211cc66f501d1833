"""Sums over the ranks of a group: kernels, space and the protocol between ranks."""

from megatune_kernels.reduction.operator import Reduction

__all__ = ["Reduction"]
