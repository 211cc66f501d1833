"""Why a campaign takes up a config, where it was not a sampler that proposed it."""

from __future__ import annotations

BASELINE = "baseline"
CROSSOVER = "crossover"
FINALIST = "finalist"
INCUMBENT = "incumbent"
KNOWN = "known"
SHARED = "routing"
"""A finalist at another routing of the same shape and tokens, where plans choose over routings."""
PRIOR = "prior"
"""What others found best: tried, and trusted as little as any other config."""
