"""A serving configuration of vLLM: YAML for ``vllm serve --config`` and a file of environment variables.

Each value has its reason and its evidence as a comment. Flags are those that the released wheel's own parser adds,
which ``megatune check`` looks up in any other version.
"""

from __future__ import annotations

import ast
import json
from collections.abc import Iterator
from collections.abc import Sequence
from dataclasses import dataclass

from megatune_planner.exporters.base import Exporter
from megatune_planner.exporters.installed import ANY
from megatune_planner.exporters.installed import Takes
from megatune_planner.exporters.installed import Wanted
from megatune_planner.exporters.measured import require_shown
from megatune_planner.plan import Plan
from megatune_planner.serving.configuration import UNDECIDED
from megatune_planner.serving.configuration import Served
from megatune_planner.serving.configuration import Setting
from megatune_planner.serving.configuration import arguments
from megatune_planner.serving.configuration import environment

YAML_FILE = "vllm-config.yaml"
ENVIRONMENT_FILE = "vllm-config.env"

FLAGS = (
    "additional-config",
    "compilation-config",
    "decode-context-parallel-size",
    "dtype",
    "enable-chunked-prefill",
    "enable-prefix-caching",
    "gpu-memory-utilization",
    "long-prefill-token-threshold",
    "max-model-len",
    "max-num-batched-tokens",
    "max-num-seqs",
    "model",
    "nnodes",
    "tensor-parallel-size",
)
"""Everything that is ever written."""


@dataclass(frozen=True)
class AddsFlags(Wanted):
    """A function that adds these flags to a parser, each by its full name."""

    flags: tuple[str, ...]
    """Without their dashes."""

    def problem(self, name: str, node: ast.AST) -> str:
        if not isinstance(node, ast.FunctionDef):
            return f"has a {name} that is no function"
        missing = sorted(set(self.flags) - flags_in(node))
        return f"has a {name} without {', '.join(f'--{flag}' for flag in missing)}" if missing else ""


def flags_in(node: ast.AST) -> set[str]:
    """The flags that a function adds to parsers, without their dashes."""
    return {
        argument.value[2:]
        for call in ast.walk(node)
        if isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute) and call.func.attr == "add_argument"
        for argument in call.args
        if isinstance(argument, ast.Constant) and isinstance(argument.value, str) and argument.value[:2] == "--"
    }


class VllmConfig(Exporter):
    """``vllm-config.yaml`` and ``vllm-config.env``."""

    name = "vllm-config"
    what = "serving configuration of vLLM 0.33.0: YAML for vllm serve --config, and its environment"
    runtime = "vllm"
    runtime_version = "0.33.0"
    relies_on = {  # noqa: RUF012  (nothing writes to it)
        "vllm/engine/arg_utils.py": {"EngineArgs.add_cli_args": AddsFlags(FLAGS)},
        "vllm/utils/argparse_utils.py": {"FlexibleArgumentParser.load_config_file": Takes(("self", "file_path"))},
        "vllm/config/compilation.py": {
            "CompilationConfig.cudagraph_capture_sizes": ANY,
            "CompilationConfig.max_cudagraph_capture_size": ANY,
            "CompilationConfig.cudagraph_mode": ANY,
            "CompilationConfig.pass_config": ANY,
            "PassConfig.fi_allreduce_fusion_max_size_mb": ANY,
            "PassConfig.fuse_allreduce_rms": ANY,
            "CUDAGraphMode.FULL_AND_PIECEWISE": ANY,
            "CUDAGraphMode.NONE": ANY,
        },
    }

    def files(self, plan: Plan) -> dict[str, str]:
        return configuration_files(plan, None)


class ServedVllmConfig(VllmConfig):
    """The same for a service level."""

    def __init__(self, served: Served) -> None:
        self.served = served

    def files(self, plan: Plan) -> dict[str, str]:
        return configuration_files(plan, self.served)


def configuration_files(plan: Plan, served: Served | None) -> dict[str, str]:
    """Text by file name.

    :raises MegatuneError: when the plan does not say for how many ranks it is, or holds what no hardware has shown.
    """
    require_shown(plan, VllmConfig.name)
    return {
        YAML_FILE: "\n".join(_yaml(plan, list(arguments(plan, served)))) + "\n",
        ENVIRONMENT_FILE: "\n".join(_environment(plan, list(environment(plan, served)))) + "\n",
    }


def _head(plan: Plan, use: str) -> Iterator[str]:
    content = plan.content
    yield f"# {_line(content.name)}: plan {plan.digest} for {_line(content.gate.part)}, {content.regime}"
    yield f"# {use}"
    yield f"# left to vLLM: {UNDECIDED}"


def _yaml(plan: Plan, settings: Sequence[Setting]) -> Iterator[str]:
    """Values are JSON, which YAML reads; keys of one flag stay together."""
    yield from _head(plan, f"vllm serve --config {YAML_FILE}, with {ENVIRONMENT_FILE} in its environment")
    open_: tuple[str, ...] = ()
    for setting in sorted(settings, key=lambda each: _order(each, settings)):
        *parents, name = setting.path
        common = 0
        while common < min(len(open_), len(parents)) and open_[common] == parents[common]:
            common += 1
        for depth in range(common, len(parents)):
            yield f"{'  ' * depth}{parents[depth]}:"
        open_ = tuple(parents)
        pad = "  " * len(parents)
        yield from (f"{pad}# {line}" for line in _comments(setting))
        yield f"{pad}{name}: {json.dumps(setting.value, allow_nan=False)}"


def _order(setting: Setting, settings: Sequence[Setting]) -> tuple[int, int, int]:
    """By the first setting of the flag; inside, those that open a further level come last."""
    first = next(index for index, each in enumerate(settings) if each.path[0] == setting.path[0])
    return (first, len(setting.path), settings.index(setting))


def _environment(plan: Plan, settings: Sequence[Setting]) -> Iterator[str]:
    """As ``docker run --env-file`` and ``EnvironmentFile=`` of systemd read it."""
    yield from _head(plan, f"environment of vllm serve --config {YAML_FILE}")
    if not settings:
        yield "# the plan decides no variable"
    for setting in settings:
        yield from (f"# {line}" for line in _comments(setting))
        yield f"{setting.path[0]}={setting.value}"


def _comments(setting: Setting) -> Iterator[str]:
    yield _line(setting.reason)
    if setting.evidence:
        yield f"evidence: {_line(setting.evidence)}"


def _line(text: str) -> str:
    """On one line: a comment ends with its line, and a name may hold anything."""
    return " ".join("".join(letter if letter.isprintable() else " " for letter in text).split())
