"""Weight prefetch into the L2 while the memory bus idles: chains, kernels and space."""

from megatune_kernels.prefetch.operator import Prefetch

__all__ = ["Prefetch"]
