"""The operator ``router_front``: which experts a token goes to, and its way into their latent space."""

from megatune_kernels.router.operator import RouterFront

__all__ = ["RouterFront"]
