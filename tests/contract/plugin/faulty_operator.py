"""An operator whose variants end in every status, registered as another package would register its own.

y = x + 1 over n floats; each variant but ``good`` goes wrong in its own way.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any

from megatune_kernels.artifact import artifact_key
from megatune_kernels.audit import audit
from megatune_kernels.errors import MegatuneError
from megatune_kernels.operator import Artifact
from megatune_kernels.operator import Cost
from megatune_kernels.operator import Launch
from megatune_kernels.operator import Operator
from megatune_kernels.operator import Workload
from megatune_kernels.space import Config
from megatune_kernels.space import Parameter
from megatune_kernels.space import Space
from megatune_kernels.space import Value
from megatune_kernels.space import VariantSpace
from megatune_kernels.target import Architecture

BLOCK = 256
BODIES = {
    "good": "y[i] = x[i] + 1.0f;",
    "wrong": "y[i] = x[i] + (i == 7 ? 2.0f : 1.0f);",
    "stale": "if (i != 7) y[i] = x[i] + 1.0f;",
    "crash": "*(volatile float*)(16) = y[i] = x[i] + 1.0f;",
    "hang": "volatile float* flag = y; y[i] = 0.0f; while (flag[i] == 0.0f) {} y[i] = x[i] + 1.0f;",
    "refused": "y[i] = x[i] + 1.0f;",
}
UNBUILDABLE = ("compile_error", "compile_timeout", "compile_crash", "unsafe")
SLEEP_S = 30.0
HOISTED = """
.visible .entry entry(.param .u64 y)
{
    ld.param.b64 %rd1, [y];
    ld.volatile.global.b32 %r1, [%rd1];
again:
    setp.eq.b32 %p1, %r1, 0;
    @%p1 bra again;
    ret;
}
"""
"""What a kernel that waits looks like when its load was moved out of the loop."""


class Faulty(Operator):
    name = "faulty"
    variants = (*BODIES, *UNBUILDABLE)
    baselines = ("torch",)

    def workloads(self, model: Any, parallel: Any, tokens: Sequence[int]) -> list[Workload]:
        return [self.workload({"n": 1 << 16}, count) for count in tokens]

    def workload(self, dims: Mapping[str, int], tokens: int, dtype: str = "fp32", world: int = 1) -> Workload:
        if sorted(dims) != ["n"]:
            raise MegatuneError("a faulty workload has the dim n")
        return Workload.of(self.name, dims, tokens, dtype=dtype)

    def space(self, workload: Workload, arch: Architecture) -> Space:
        unit = Parameter("unit", (1, 2), 1, "changes nothing")
        return Space(tuple(VariantSpace(variant, (unit,)) for variant in self.variants))

    def specialization(self, workload: Workload, config: Config) -> dict[str, Value]:
        return {"variant": config.variant}

    def compile(self, workload: Workload, config: Config, arch: Architecture) -> Artifact:
        if config.variant == "compile_error":
            raise RuntimeError("no such instruction")
        if config.variant == "compile_timeout":
            time.sleep(SLEEP_S)
        if config.variant == "compile_crash":
            os.abort()
        if config.variant == "unsafe":
            audit(HOISTED, b"")
        from cuda.core import Program
        from cuda.core import ProgramOptions

        source = f"""extern "C" __global__ void entry(const float* x, float* y, int n) {{
            int i = blockIdx.x * blockDim.x + threadIdx.x;
            if (i < n) {{ {BODIES[config.variant]} }}
        }}"""
        code = Program(source, "c++", ProgramOptions(arch=arch.name)).compile("cubin").code
        return Artifact(artifact_key(self, workload, config, arch), arch.name, "entry", bytes(code), 0, 0)

    def launch(self, workload: Workload, config: Config) -> Launch:
        block = 8 * BLOCK if config.variant == "refused" else BLOCK
        return Launch((-(-workload["n"] // BLOCK), 1, 1), (block, 1, 1), 0, scalars=(workload["n"],))

    def cost(self, workload: Workload, config: Config) -> Cost:
        return Cost(8 * workload["n"], 0, workload["n"])

    def rotating_bytes(self, workload: Workload) -> int:
        return 8 * workload["n"]

    def inputs(self, workload: Workload, copies: int, seed: int) -> _Buffers:
        return _Buffers(workload["n"], copies)

    def baseline(self, name: str, workload: Workload, inputs: _Buffers, copy: int) -> None:
        inputs.add(copy)


class _Buffers:
    def __init__(self, n: int, copies: int) -> None:
        import torch

        self.copies = copies
        self._x = torch.rand(copies, n, dtype=torch.float32, device="cuda")
        self._y = torch.empty_like(self._x)

    def pointers(self, copy: int) -> tuple[int, ...]:
        return self._x[copy].data_ptr(), self._y[copy].data_ptr()

    def refresh(self) -> None:
        self._x.uniform_()

    def poison(self) -> None:
        self._y.fill_(math.nan)

    def check(self) -> str:
        wrong = int((self._y != self._x + 1).sum().item())
        return f"{wrong} outputs differ" if wrong else ""

    def add(self, copy: int) -> None:
        import torch

        torch.add(self._x[copy], 1.0, out=self._y[copy])
