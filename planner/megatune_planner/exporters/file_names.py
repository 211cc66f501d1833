"""Parts of files' names that come from a plan, which somebody else may have made."""

from __future__ import annotations

import re

from megatune_kernels.errors import MegatuneError

_PART = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.()+-]*", re.ASCII)


def device(gpu: str) -> str:
    """The name of a GPU, spelled as a runtime spells it, if the name of a file can hold it.

    :raises MegatuneError: when it cannot.
    """
    if not _PART.fullmatch(gpu):
        raise MegatuneError(f"{gpu!r} is no name of a GPU that the name of a file could hold")
    return gpu
