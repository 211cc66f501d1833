"""Dense decode projections: kernels, space and shapes."""

from megatune_kernels.projection.operator import Projection

__all__ = ["Projection"]
