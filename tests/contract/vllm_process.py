"""One process of vLLM without a GPU: the released modules that decide, on stand-ins for all that they import.

A script that a test starts. It reads what the machine and the deployment are as JSON, loads vLLM's plugins with vLLM's
own code, builds a model as far as decisions go, and prints what vLLM's own functions answer before and after.
"""

from __future__ import annotations

import ctypes
import json
import logging
import sys
from importlib import import_module
from pathlib import Path
from types import ModuleType
from types import SimpleNamespace
from typing import Any

from stubs import install

KIMI = "vllm.models.kimi_k3.nvidia"
CUTEDSL = f"{KIMI}.specialized_decode.cutedsl"
GEMM = f"{KIMI}.low_latency_gemm"
MODEL = f"{KIMI}.model"
DECODE = f"{KIMI}.specialized_decode.runtime.decode"
REAL = (
    "vllm.plugins",
    "vllm.utils.math_utils",
    "vllm.model_executor.kernels.linear.cute_dsl.skinny_gemm",
    GEMM,
    DECODE,
    f"{KIMI}.specialized_decode.runtime.providers",
    f"{KIMI}.specialized_decode.runtime.prefetch",
    *(f"{CUTEDSL}.{name}" for name in ("common.policy", "oproj.prepared", "moe.tail_runtime", "moe.experts_runtime")),
    *(f"{CUTEDSL}.{name}" for name in ("moe.prepared", "moe.front", "kda.prepared")),
)
STUBBED = ("vllm", "torch", "cutlass", "cuda", "quack", "triton", "flashinfer")
TABLES = {"KIMI_K3_PROJECTIONS": (10, 3), "KIMI_K3_PROJECTIONS_SM100": (10, 0), "KIMI_K3_PROJECTIONS_SM90": (9, 0)}
TOKENS = range(1, 65)


class Nvml:
    """The driver's library, as far as it is asked."""

    def __init__(self, hardware: dict[str, Any], driver: str) -> None:
        self.hardware, self.driver = hardware, driver

    def __getattr__(self, name: str) -> Any:
        def call(*arguments: Any) -> int:
            if name == "nvmlSystemGetDriverVersion":
                arguments[0].value = self.driver.encode()
            if name == "nvmlDeviceGetPciInfo_v3":
                arguments[1]._obj.device_and_vendor = int(self.hardware["device_id"], 16) << 16 | 0x10DE
            if name == "nvmlDeviceGetNvLinkState":
                count = self.hardware["links"].removeprefix("nvlink-")
                arguments[2]._obj.value = arguments[1].value < (int(count) if count.isdigit() else 0)
            if name == "nvmlDeviceGetNvLinkRemoteDeviceType":
                arguments[2]._obj.value = 2  # a switch
            return 0

        return call


class Store:
    """What ranks write into and read from: this one's part, with what the others are said to have written.

    :param others: by rank, what it says of its change: ``same`` as this one, ``quiet`` from then on, ``elsewhere`` on
        another machine, a problem after ``refuses: ``, a statement, or None for a rank that never comes.
    """

    def __init__(self, others: dict[str, str | None]) -> None:
        self.kept: dict[str, bytes] = {}
        self.others = others

    def set(self, key: str, value: str) -> None:
        self.kept[key] = value.encode()
        place, step, _ = key.rsplit("/", 2)
        for rank, text in self.others.items():
            said = self.said(rank, step, value, text)
            if said is not None:
                self.kept[f"{place}/{step}/{rank}"] = said.encode()
            if step == "here" and text is not None and text.startswith("refuses: "):
                self.kept[f"{place}/all made"] = f"rank {rank}: {text.removeprefix('refuses: ')}".encode()

    def said(self, rank: str, step: str, value: str, text: str | None) -> str | None:
        if text is None or (text == "quiet" and step == "known"):
            return None
        if step == "here":
            machine, (domain, _, device) = json.loads(value)
            return json.dumps(["another" if text == "elsewhere" else machine, (domain, int(rank), device)])
        return text if step == "made" and text not in ("same", "quiet", "elsewhere") else value

    def get(self, key: str) -> bytes:
        return self.kept[key]

    def check(self, keys: list[str]) -> bool:
        return all(key in self.kept for key in keys)

    def compare_set(self, key: str, expected: str, desired: str) -> bytes:
        return self.kept.setdefault(key, desired.encode())


def prepare(asked: dict[str, Any], root: Path) -> None:
    install(STUBBED, REAL, root)
    torch = import_module("torch")
    hardware, toolchain = asked["target"]["hardware"], asked["target"]["toolchain"]
    major, minor = divmod(int(hardware["arch"].removeprefix("sm_").removesuffix("a")), 10)
    torch.__version__ = toolchain["torch"]
    torch.version = SimpleNamespace(cuda=toolchain["cuda"])
    properties = SimpleNamespace(
        name=hardware["gpu"],
        major=major,
        minor=minor,
        multi_processor_count=hardware["sms"],
        L2_cache_size=hardware["l2_bytes"],
        total_memory=hardware["memory_bytes"],
        uuid="0",
    )
    torch.cuda.current_device = lambda: 0
    torch.cuda.get_device_properties = lambda index: properties
    torch.cuda.mem_get_info = lambda index: (0, hardware["memory_bytes"])
    torch.cuda.is_current_stream_capturing = lambda: True
    ctypes.CDLL = lambda name: Nvml(hardware, toolchain["driver"])  # type: ignore[misc,assignment]
    platform = import_module("vllm.platforms").current_platform
    platform.is_device_capability = lambda capability: tuple(capability) == (major, minor)
    import_module("vllm.config").get_current_vllm_config_or_none = lambda: namespace(asked["config"])
    envs = import_module("vllm.envs")
    envs.VLLM_PLUGINS, envs.VLLM_BATCH_INVARIANT = asked.get("plugins"), False
    world = asked["world"]
    group = SimpleNamespace(world_size=world, rank=0, rank_in_group=0, ranks=list(range(world)), device_group=None)
    for name in ("vllm.distributed", "vllm.distributed.parallel_state"):
        import_module(name).get_tp_group = lambda: group
    store = Store(asked.get("others", {str(rank): "same" for rank in range(1, world)}))
    import_module("torch.distributed.distributed_c10d")._get_default_store = lambda: store


def namespace(value: Any) -> Any:
    if isinstance(value, dict) and not value.get("as_dict"):
        return SimpleNamespace(**{name: namespace(each) for name, each in value.items()})
    return value["value"] if isinstance(value, dict) else value


def projections(gemm: Any) -> dict[str, dict[str, dict[int, Any]]]:
    """What every table names by shape and tokens, in vLLM's own words."""
    return {
        name: {
            f"{n}x{k}": {tokens: said(gemm._build_plan(spec).get(tokens)) for tokens in TOKENS}
            for (n, k), spec in getattr(gemm, name).items()
        }
        for name in TABLES
    }


def said(call: Any) -> Any:
    if call is None:
        return None
    backend, config = call
    return backend if config is None else [getattr(config, name) for name in type(config).__dataclass_fields__]


def installed(gemm: Any, shapes: list[str]) -> dict[str, dict[int, Any]]:
    """What a layer of each shape will run by tokens, once vLLM has gone through the model."""
    linear = import_module("vllm.model_executor.layers.linear")

    def layer(n: int, k: int) -> Any:
        found = linear.LinearBase()
        found.quant_method = linear.UnquantizedLinearMethod()
        found.weight = SimpleNamespace(dim=lambda: 2, shape=(n, k))
        return found

    layers = {shape: layer(*map(int, shape.split("x"))) for shape in shapes}
    bf16 = import_module("torch").bfloat16
    enable = getattr(sys.modules.get(MODEL), "enable_kimi_k3_low_latency_gemm", gemm.enable_kimi_k3_low_latency_gemm)
    enable(SimpleNamespace(modules=lambda: list(layers.values())), bf16)
    return {
        shape: {tokens: said(getattr(found.quant_method, "_plan", {}).get(tokens)) for tokens in TOKENS}
        for shape, found in layers.items()
        if type(found.quant_method) is gemm.KimiK3LowLatencyLinearMethod
    }


def reductions(world: int) -> dict[str, list[int]]:
    return {
        name: sorted(import_module(f"{CUTEDSL}.{name}").twoshot_batches(world))
        for name in ("oproj.prepared", "moe.tail_runtime")
    }


def prefetches(world: int) -> dict[int, Any]:
    """What vLLM reads in its table: MiB of the next attention by tokens, with a carve-out where it has one."""
    module = import_module(f"{KIMI}.specialized_decode.runtime.prefetch")
    found: dict[int, Any] = module.batch_table(module.NEXT_ATTENTION.get(world, ""))
    return found


def steps(decode: Any) -> list[int]:
    """Tokens of the steps that the specialised decode takes while a graph is captured."""
    attention = SimpleNamespace(prefix="attention")
    layer = SimpleNamespace(layer_idx=0, is_moe_layer=False, self_attn=attention)
    backbone = SimpleNamespace(
        layers=[layer], start_layer=0, end_layer=1, embed_tokens=None, aux_hidden_state_layers=(), num_attn_res_blocks=1
    )
    config = SimpleNamespace(q=1, capture_sizes=tuple(TOKENS), max_context=4096, mla_core="auto", dcp=1)
    made = decode.SpecializedDecode

    def build(decoder: Any) -> None:
        decoder.feed_forward = {0: None}

    made.build_providers = build  # kernels and mailboxes need a GPU, and decide nothing
    decoder = made(backbone, config)
    metadata = SimpleNamespace(num_prefills=0)
    context = SimpleNamespace(cudagraph_runtime_mode=None, attn_metadata={"attention": metadata}, slot_mapping=None)
    decode.is_forward_context_available = lambda: True
    decode.get_forward_context = lambda: context
    taken = [t for t in TOKENS if decoder.plan(SimpleNamespace(shape=(t,)), None) is not None]
    assert decoder.plan(SimpleNamespace(shape=(1,)), object()) is None, "vLLM's own refusals hold as before"
    return taken


def main() -> None:
    asked = json.loads(sys.stdin.read())
    lines: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: lines.append(f"{record.levelname} {record.getMessage()}")  # type: ignore[method-assign]
    logging.getLogger("vllm").addHandler(handler)
    logging.getLogger("vllm").setLevel(logging.INFO)
    prepare(asked, Path(asked["root"]))
    if asked.get("early"):  # somebody imports the model before plugins are loaded
        model = sys.modules[MODEL] = ModuleType(MODEL)
        exec(f"from {GEMM} import enable_kimi_k3_low_latency_gemm", vars(model))
    plugins = import_module("vllm.plugins")
    plugins.load_general_plugins()
    plugins.plugins_loaded = False
    plugins.load_general_plugins()
    answer: dict[str, Any] = {}
    imported_early = sorted({GEMM, DECODE} & set(sys.modules))
    gemm = import_module(GEMM)
    answer["projections_before"] = projections(gemm)
    answer["installed"] = installed(gemm, asked.get("shapes", []))
    answer["installed_again"] = installed(gemm, asked.get("shapes", []))
    answer["projections"] = projections(gemm)
    decode = import_module(DECODE)
    answer["reductions_before"] = reductions(asked["world"])
    answer["prefetches_before"] = prefetches(asked["world"])
    answer["steps"] = steps(decode)
    answer["reductions"] = reductions(asked["world"])
    answer["prefetches"] = prefetches(asked["world"])
    answer["imported_early"] = imported_early
    package = sys.modules.get("megatune_vllm_plan")
    answer["status"] = package.status() if package is not None else None
    answer["log"] = lines
    print(json.dumps(answer))


main()
