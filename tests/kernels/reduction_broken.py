"""A kernel that waits in the way that a test asks for. Imports the DSL."""

# No postponed annotations: the DSL reads them.

from collections.abc import Callable
from typing import Any

import cutlass
from cutlass import Int64
from cutlass import Uint32
from cutlass import cute
from cutlass.cute.arch import inline_ptx

from megatune_kernels.target import Architecture


@cute.kernel
def _kernel(flag: Int64, body: cutlass.Constexpr) -> None:
    word = inline_ptx(body, write_only_types=[Uint32], read_only_args=[flag])
    inline_ptx("st.global.b32 [{$r0} + 128], {$r1};", read_only_args=[flag, word])


@cute.jit
def _launch(flag: Int64, stream: Any, body: cutlass.Constexpr) -> None:
    _kernel(flag, body).launch(grid=[1, 1, 1], block=[32, 1, 1], stream=stream)


def compiled(compile_for: Callable[..., Any], arch: Architecture, body: str) -> Any:
    return compile_for(arch, _launch, Int64(0), cute.runtime.make_fake_stream(), body)
