"""The process that drives one GPU: ``python -m megatune_tuner.workers.gpu FD NICE DEVICE``.

Imports torch and cuda.core. It knows nothing of campaigns and never sees the sampler; it may be killed at any moment.
"""

from __future__ import annotations

import sys
from functools import cache
from typing import Any

from megatune_tuner.workers.child import serve
from megatune_tuner.workers.gpu_messages import Describe
from megatune_tuner.workers.gpu_messages import Final
from megatune_tuner.workers.gpu_messages import Search
from megatune_tuner.workers.gpu_messages import Start


def main() -> None:
    from megatune_tuner.workers.gpu_timing import Bench

    bench = cache(Bench)
    index = int(sys.argv[3])

    def answer(message: Any) -> Any:
        match message:
            case Describe():
                return bench(index).device.target(), bench(index).copy_bytes_a_us()
            case Start():
                return bench(index).device.l2_bytes
            case Search(job):
                return bench(index).search(job)
            case Final(jobs, seed):
                return bench(index).final(jobs, seed)
        raise TypeError(f"not a message to the GPU worker: {message!r}")

    serve(answer)


if __name__ == "__main__":
    main()
