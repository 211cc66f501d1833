"""A launch of vLLM's kernel, rehearsed: what its own code on the host says of a config, with neither a GPU nor the DSL.

vLLM's function is called on operands that have a shape and no memory. It checks the config, makes the kernel, compiles
it, and launches it; compiling and launching are ours here and write down what they are given. So whether a config is
legal, its grid, its shared memory, whether the launch is programmatic and the kernel's parameters are vLLM's answers,
whichever version answers.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import MISSING
from dataclasses import dataclass
from dataclasses import fields
from dataclasses import is_dataclass
from functools import cache
from functools import lru_cache
from typing import Any

from megatune_kernels.errors import Unknown
from megatune_kernels.foreign import Foreign
from megatune_kernels.foreign import describe
from megatune_kernels.operator import Launch
from megatune_kernels.parameters import Field
from megatune_kernels.parameters import Parameter
from megatune_kernels.runtime_source import Runtime
from megatune_kernels.space import Params
from megatune_kernels.target import Architecture
from megatune_kernels.vllm_skinny_gemm import modules

WARP = 32
ELEMENT_BYTES = 2
FIELDS = ("num_rows", "block_size", "outputs_per_block", "k_unroll", "vector_width", "static_k")
"""Of vLLM's config, those that this adapter chooses. Others keep their defaults."""
HANDLED = ("grid", "block", "smem", "stream", "use_pdl", "cluster", "min_blocks_per_mp")
"""Of a launch, what is known to be carried out as vLLM would."""


class Platform:
    """What vLLM would find out of the GPU.

    It launches programmatically from compute capability 9 on, which every architecture has that kernels are built for.
    """

    def __init__(self, arch: Architecture | None = None) -> None:
        # "sm_103a" is compute capability 10.3.
        digits = re.sub(r"\D", "", arch.name) if arch is not None else "90"
        self._capability = (int(digits[:-1]), int(digits[-1]))

    def is_device_capability(self, capability: tuple[int, int]) -> bool:
        return tuple(capability) == self._capability

    def is_arch_support_pdl(self) -> bool:
        return self._capability[0] >= 9


class Operand:
    """A row-major BF16 matrix without memory.

    :param place: of its address among the operands' addresses.
    """

    is_cuda = True

    def __init__(self, shape: Sequence[int], place: int, dtype: Any, device: Any) -> None:
        self.shape = tuple(shape)
        self.place = place
        self.dtype = dtype
        self.device = device

    def dim(self) -> int:
        return len(self.shape)

    def stride(self, mode: int) -> int:
        return 1 if mode == 1 else self.shape[1]

    def is_contiguous(self) -> bool:
        return True

    def element_size(self) -> int:
        return ELEMENT_BYTES

    def data_ptr(self) -> int:
        return 0


@dataclass(frozen=True)
class Symbol:
    """A size or stride that the kernel is told when it is launched."""

    bits: int


@dataclass(frozen=True)
class Fake:
    """A tensor as the compiler knows it: sizes that are compiled in, and symbols."""

    shape: tuple[int | Symbol, ...]
    strides: tuple[int | Symbol, ...]


class Bf16:
    """The element type, as far as a copy atom asks."""

    width = 8 * ELEMENT_BYTES


class Atom:
    """A copy atom: an argument of the kernel that becomes 8 bytes which nobody reads."""


class _Launched:
    """What a kernel object gives when it is called on the host: the launch is yet to come."""

    def __init__(self, stage: Stage, arguments: tuple[Any, ...]) -> None:
        self._stage = stage
        self._arguments = arguments

    def launch(self, **how: Any) -> None:
        self._stage.arguments, self._stage.how = self._arguments, how
        self._stage.launches += 1


class Stage:
    """vLLM's modules with everything around them replaced; it remembers the last launch."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self.arguments: tuple[Any, ...] = ()
        self.how: dict[str, Any] = {}
        self.launches = 0
        self._fakes: dict[int, Fake] = {}
        self._foreign = Foreign(
            runtime,
            modules.FOLDER,
            given={
                "torch.empty": self._empty,
                "vllm.platforms.current_platform": Platform(),
                "quack.compile_utils.make_fake_tensor": _fake,
                "cutlass.BFloat16": Bf16,
                "cutlass.cute.sym_int": lambda **_: Symbol(32),
                "cutlass.cute.sym_int64": lambda **_: Symbol(64),
                "cutlass.cute.compile": self._compile,
                "cutlass.cute.kernel": self._kernel,
                "cutlass.cute.jit": lambda function: function,
                "cutlass.cute.size": lambda tensor, mode: tensor.shape[mode[0]],
                "cutlass.cute.ceil_div": lambda value, by: -(-value // by),
                "cutlass.cute.make_copy_atom": lambda *_, **__: Atom(),
                "cutlass.cute.arch.WARP_SIZE": WARP,
            },
        )
        self.config_class = self._foreign.need(modules.HOST, "SkinnyGemmConfig")
        self._gemm_class = self._foreign.need(modules.HOST, "ShapeDynamicSkinnyGemm")
        self._foreign.need(modules.KERNEL, "CuteSkinnyGemm")
        _check_fields(runtime, self.config_class)

    def config(self, params: Params, tokens: int, k: int) -> Any:
        """vLLM's config of ours."""
        return self.config_class(**fields_of(params, tokens, k))

    def starts_with(self, tokens: int, n: int, k: int) -> dict[str, Any]:
        """The config that vLLM's own rule of thumb takes where nobody names one; empty where it has no such rule."""
        choose = getattr(self._gemm_class, "_config", None)
        try:
            chosen = choose(tokens, n, k) if choose is not None else None
        except Exception:  # noqa: BLE001  (a rule for other shapes)
            return {}
        return {name: getattr(chosen, name) for name in FIELDS if hasattr(chosen, name)}

    def run(self, config: Any, tokens: int, n: int, k: int) -> Launch:
        """Rehearse one launch.

        :raises ValueError: in vLLM's words, for a config that it refuses at this shape.
        :raises Unknown: when vLLM does something that this adapter does not know.
        """
        self.how, self.launches = {}, 0
        bf16, device = self._foreign.find("torch.bfloat16"), object()
        x, w = Operand((tokens, k), 0, bf16, device), Operand((n, k), 1, bf16, device)
        try:
            self._gemm_class()(x, w, config)
        except (ValueError, Unknown):
            raise
        except Exception as error:
            raise Unknown(
                f"{modules.HOST} of {describe(self._runtime)} does what Megatune does not know: "
                f"{type(error).__name__}: {error}"
            ) from error
        unknown = [name for name in self.how if name not in HANDLED]
        if unknown or not self.how:
            what = f"is launched with {', '.join(unknown)}" if unknown else "is not launched"
            raise Unknown(f"the kernel of {describe(self._runtime)} {what}: Megatune cannot do alike")
        if self.launches != 1:
            raise Unknown(
                f"{describe(self._runtime)} launches {self.launches} kernels for one config, Megatune knows of 1"
            )
        return Launch(
            grid=_three(self.how["grid"]),
            block=_three(self.how["block"]),
            cluster=_three(self.how.get("cluster") or (1, 1, 1)),
            shared_bytes=int(self.how.get("smem", 0)),
            programmatic=bool(self.how.get("use_pdl", False)),
            parameters=tuple(self._parameter(argument) for argument in self.arguments),
        )

    def _empty(self, shape: Sequence[int], *, dtype: Any, device: Any) -> Operand:
        return Operand(shape, 2, dtype, device)

    def _compile(self, kernel: Any, *arguments: Any, options: str = "") -> Any:
        """Stands for ``cute.compile``: what it gives is called with operands in the places of the fake tensors."""

        def compiled(*operands: Any) -> None:
            pairs = zip(arguments, operands, strict=True)
            self._fakes = {id(operand): fake for fake, operand in pairs if isinstance(fake, Fake)}
            # Later operands than the first of their kind are the same one: the residual is the output.
            kernel(*operands)

        return compiled

    def _kernel(self, function: Any) -> Any:
        return lambda kernel, *arguments: _Launched(self, arguments)

    def _parameter(self, argument: Any) -> Parameter:
        if isinstance(argument, Operand) and id(argument) in self._fakes:
            fake = self._fakes[id(argument)]
            pairs = list(zip(argument.shape, fake.shape, strict=True))
            if any(not isinstance(known, Symbol) and known != size for size, known in pairs):
                raise Unknown(
                    f"{describe(self._runtime)} compiles a kernel for {fake.shape} and runs it on {argument.shape}"
                )
            sizes = [Field("int32", size) for size, known in pairs if isinstance(known, Symbol)]
            strides = [
                Field("int64", argument.stride(mode))
                for mode, known in enumerate(fake.strides)
                if isinstance(known, Symbol)
            ]
            return Parameter((Field("pointer", argument.place), *sizes, *strides))
        if isinstance(argument, Atom):
            return Parameter((Field("hidden"),))
        if type(argument) is int:
            return Parameter((Field("int32", argument),))
        raise Unknown(f"the kernel of {describe(self._runtime)} takes {argument!r}, which Megatune cannot pass")


def fields_of(params: Params, tokens: int, k: int) -> dict[str, Any]:
    """vLLM's fields of a config of ours, which holds for any tokens and says whether K is compiled in."""
    return {**params, "num_rows": tokens, "static_k": k if params["static_k"] else None}


@cache
def stage(runtime: Runtime) -> Stage:
    """:raises Unknown: when vLLM's kernel is not as this adapter knows it."""
    return Stage(runtime)


@lru_cache(maxsize=1 << 14)
def rehearse(runtime: Runtime, items: tuple[tuple[str, Any], ...], tokens: int, n: int, k: int) -> Launch | str:
    """The rehearsed launch of a config, or in vLLM's words why it refuses it.

    :param items: of the config.
    :raises Unknown: as ``Stage.run``.
    """
    here = stage(runtime)
    try:
        return here.run(here.config(dict(items), tokens, k), tokens, n, k)
    except ValueError as error:
        return str(error)


def _fake(_: Any, shape: Sequence[int | Symbol], divisibility: int = 1, leading_dim: int = -1) -> Fake:
    """Stands for quack's function of this name: strides are symbols of 64 bits, but for that of the leading mode."""
    leading = leading_dim % len(shape)
    return Fake(tuple(shape), tuple(1 if mode == leading else Symbol(64) for mode in range(len(shape))))


def _check_fields(runtime: Runtime, config_class: Any) -> None:
    if not is_dataclass(config_class):
        raise Unknown(f"SkinnyGemmConfig of {describe(runtime)} is no dataclass: Megatune does not know its fields")
    there = {field.name: field for field in fields(config_class)}
    lacks = [name for name in FIELDS if name not in there]
    new = [
        name
        for name, field in there.items()
        if name not in FIELDS and field.default is MISSING and field.default_factory is MISSING
    ]
    if lacks or new:
        what = [f"lacks {', '.join(lacks)}"] if lacks else []
        what += [f"has {', '.join(new)} without a default, which Megatune does not know"] if new else []
        raise Unknown(
            f"SkinnyGemmConfig of {describe(runtime)} {' and '.join(what)}: "
            f"name another version in {modules.ENVIRONMENT}"
        )


def _three(extents: Sequence[int]) -> tuple[int, int, int]:
    x, y, z = (int(extent) for extent in extents)
    return x, y, z
