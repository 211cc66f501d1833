"""Why a campaign takes up a config, where it was not a sampler that proposed it."""

from __future__ import annotations

BASELINE = "baseline"
CROSSOVER = "crossover"
FINALIST = "finalist"
INCUMBENT = "incumbent"
KNOWN = "known"
PRIOR = "prior"
"""What others found best: tried, and trusted as little as any other config."""
