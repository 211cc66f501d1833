"""The operator ``experts``: the routed experts of a decode layer, from the latent and the routing to their sum."""

from megatune_kernels.experts.operator import Experts

__all__ = ["Experts"]
