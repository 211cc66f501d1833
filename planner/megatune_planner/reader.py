"""Reads a plan where it is served. Needs the standard library alone and imports nothing beside it: copy this file.

    reader = load("plan.json", target={"hardware": {...}, "toolchain": {...}}, deployment={"model": ..., ...})
    decision = reader.select("projection", "k=7168,n=6288", tokens)
    if decision is None:
        ...  # stock: what serves without a plan

``load`` checks the file, its digest, the gate (what the plan holds for) and its rules once, when the server starts, and
may raise there. ``select`` runs in every step: it costs less than a microsecond, never raises, and answers None, stock,
for whatever it does not know. It reads nothing but its arguments and what ``load`` was given, so ranks decide alike
where they loaded alike: compare ``agreement`` between all of them at start, and serve stock where it differs.

What is decided while a CUDA graph is captured is frozen in it. Leave ``context_tokens`` out there: contexts grow while
a graph is replayed, and the longest that the server admits then decides.
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
import re
from bisect import bisect_right
from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
from math import inf
from types import MappingProxyType
from typing import Any
from typing import NamedTuple

FORMAT = "megatune-plan"
SCHEMA_VERSION = 3
DIGEST_LENGTH = 16

_PARTS = """
H100 SXM 80GB | 2330 | h100 80gb hbm3, h100 sxm5 80gb, h100 sxm 80gb, h100 sxm5, h100 sxm, h100
H100 SXM 64GB | 2337 | h100 sxm5 64gb, h100 sxm 64gb, h100 sxm5, h100 sxm, h100
H100 SXM 96GB | 2338 | h100 sxm5 96gb, h100 sxm 96gb, h100 sxm5, h100 sxm, h100
H100 SXM 94GB | 2339 | h100 sxm5 94gb, h100 sxm 94gb, h100 sxm5, h100 sxm, h100
H100 PCIe | 2331 | h100 pcie, h100 pcie 80gb, h100 80gb pcie, h100
H100 NVL | 2321 | h100 nvl, h100 nvl 94gb, h100l 94gb, h100
GH200 96GB | 2342 | gh200 120gb, gh200 480gb, gh200 96gb, gh200
GH200 144GB | 2348 | gh200 144g hbm3e, gh200 144gb hbm3e, gh200 144gb, gh200
H200 SXM | 2335 | h200, h200 sxm, h200 sxm5, h200 sxm 141gb, h200 sxm5 141gb, h200 141gb hbm3e
H200 NVL | 233b | h200 nvl, h200 nvl 141gb
B200 | 2901 | b200, b200 sxm, b200 sxm6, b200 180gb, b200 sxm 180gb, b200 sxm6 180gb, hgx b200
GB200 | 2941 | gb200, hgx gb200, gb200 nvl72, gb200 nvl4
B300 SXM | 3182 | b300, b300 sxm6 ac, b300 sxm6, b300 sxm, b300 sxm 270gb, hgx b300
GB300 | 31c2 31c3 | gb300, gb300 nvl72
GB300 MaxQ | 31a1 | gb300 maxq, gb300 max q
"""
"""Hardware: its name, the PCI device ids that decide, and how drivers and runtimes spell it, which only helps where the
id is not known. Spellings are in small letters, without the vendor, with spaces for ``_``, ``-`` and ``/``. One that
several parts share names none of them. Sources: the PCI ID database, and the driver's list of products."""

PARTS: Mapping[str, tuple[tuple[str, ...], tuple[str, ...]]] = MappingProxyType(
    {
        name: (tuple(ids.split()), tuple(spellings.split(", ")))
        for name, ids, spellings in (line.split(" | ") for line in _PARTS.strip().splitlines())
    }
)
"""Device ids and spellings by the hardware's name."""

FAMILY_FILE_NAMES: Mapping[str, tuple[str, ...]] = MappingProxyType({"NVIDIA_H200": ("2335", "233b")})
"""Names that a runtime gives to files for a whole family: vLLM's tables call every H200 so, the NVL too."""

SHARED_INPUTS = frozenset(
    ("operator", "shape", "dtype", "world", "routing", "tokens", "context_tokens", "max_context_tokens", "model")
) | {"execution", "features", "hardware", "toolchain", "links", "workspace_bytes"}
"""What rules may read: the same on all ranks, or compared between them at start."""

_RULES: Mapping[str, tuple[str, str]] = MappingProxyType(
    {
        "other_hardware": ("stock", ""),
        "other_toolchain": ("stock", ""),
        "other_deployment": ("stock", ""),
        "other_workload": ("stock", ""),
        "missing_link": ("stock", ""),
        "workspace_too_small": ("stock", "bytes"),
        "outside_tokens": ("stock", "tokens"),
        "stock_won": ("stock", "tokens"),
        "context_too_long": ("stock", "tokens"),
        "covered": ("band", ""),
        "otherwise": ("stock", ""),
    }
)
"""What each rule leads to, and the unit of its threshold."""

_MEND = "make it again with megatune plan"


class PlanError(ValueError):
    """The plan cannot be used: one line that says why. Serve stock, or stop and mend the file."""


class Decision(NamedTuple):
    """What to run instead of stock."""

    variant: str
    params: Mapping[str, Any]
    """Read-only."""
    config: str
    """Digest of variant and params."""
    workspace_bytes: int
    """Of every rank, beside the operands."""
    workspace_alignment_bytes: int
    """Of that memory's address."""
    alignment_bytes: int
    """Of every operand's address."""
    resident: bool
    """Whether all blocks have to be on the GPU at once."""
    measured: bool
    """Whether this config was measured at exactly these tokens; False where the plan predicts."""


class _Stock(NamedTuple):
    """Tokens for which a rule says stock, both ends included."""

    lo: int
    hi: float
    reason: str


class _Table(NamedTuple):
    """Decisions of one shape. The one at index i holds from ``starts[i - 1]`` up to below ``starts[i]``."""

    starts: tuple[int, ...]
    decisions: tuple[Decision | None, ...]
    reasons: tuple[str, ...]
    context: float
    """Longest context in tokens that the decisions hold for."""
    context_reason: str
    crossovers: tuple[Mapping[str, Any], ...]


class Reader:
    """A plan in memory. Immutable, and safe to share between threads.

    ``reason`` is empty where the plan holds for the target and the deployment; otherwise it says why every answer is
    stock. ``gate`` is what the plan holds for. ``agreement`` is a digest of every answer that ``select`` can give:
    ranks that have the same decide alike, whatever else differs between them.
    """

    def __init__(
        self,
        digest: str,
        tables: Mapping[tuple[Any, ...], _Table],
        reason: str,
        *,
        gate: Mapping[str, Any] | None = None,
        max_context_tokens: float = inf,
    ) -> None:
        self.digest = digest
        self.reason = reason
        self.gate: Mapping[str, Any] = MappingProxyType(dict(gate or {}))
        self._known: dict[tuple[Any, ...], _Table] = dict(tables)
        self._tables: dict[tuple[Any, ...], _Table] = {} if reason else self._known
        self._max_context = max_context_tokens
        self.agreement = self._agreement()

    def select(
        self,
        operator: str,
        shape: str,
        tokens: int,
        dtype: str = "bf16",
        world: int = 1,
        routing: str = "none",
        context_tokens: int | None = None,
    ) -> Decision | None:
        """The decision for one launch, or None for stock.

        ``shape`` is the operator's dims sorted by name, as ``shape_of`` spells them. ``context_tokens`` is the longest
        context of the step's requests, the same on every rank; None for the longest that the server admits. Never
        raises.
        """
        try:
            table = self._tables[operator, shape, dtype, world, routing]
            if (self._max_context if context_tokens is None else context_tokens) <= table.context:
                return table.decisions[bisect_right(table.starts, tokens)]
        except Exception:  # noqa: BLE001  (what an argument's own comparison raises is not known, e.g. a tensor's)
            pass
        return None

    def crossovers(
        self, operator: str, shape: str, dtype: str = "bf16", world: int = 1, routing: str = "none"
    ) -> tuple[Mapping[str, Any], ...]:
        """Where variants give way to one another at one shape, as the plan has it: with units, in tokens and bytes.

        They hold at this world and width alone. Empty where the plan does not hold. Not for the hot path.
        """
        table = self._tables.get((operator, shape, dtype, world, routing))
        return () if table is None else table.crossovers

    def explain(
        self,
        operator: str,
        shape: str,
        tokens: int,
        dtype: str = "bf16",
        world: int = 1,
        routing: str = "none",
        context_tokens: int | None = None,
    ) -> str:
        """One line: what ``select`` answers for the same arguments, and why. Not for the hot path."""
        if self.reason:
            return f"stock: {self.reason}"
        try:
            table = self._known.get((operator, shape, dtype, world, routing))
            if table is None:
                return f"stock: {self._missing(operator, shape, dtype, world, routing)}"
            index = bisect_right(table.starts, tokens)
            if not (self._max_context if context_tokens is None else context_tokens) <= table.context:
                return f"stock: contexts of more than {table.context} tokens: {table.context_reason}"
        except Exception as error:  # noqa: BLE001  (as select does)
            return f"stock: not a key of a plan: {' '.join(str(error).split())}"
        if index == 0:
            return f"stock: {tokens} tokens is not a decode step"
        decision = table.decisions[index]
        if decision is None:
            return f"stock: {table.reasons[index]}"
        params = "".join(f" {name}={value}" for name, value in decision.params.items())
        measured = "measured" if decision.measured else "predicted"
        return f"{decision.variant}{params}: {measured}, {table.reasons[index]}"

    def _missing(self, operator: str, shape: str, dtype: str, world: int, routing: str) -> str:
        if not any(key[0] == operator for key in self._known):
            return f"the plan has no operator {operator!r}"
        if not any(key[:2] == (operator, shape) for key in self._known):
            return f"the plan has no shape {shape!r} of {operator}"
        return f"the plan does not hold for dtype {dtype!r}, world {world!r}, routing {routing!r} of {operator} {shape}"

    def _agreement(self) -> str:
        answers = [
            (key, table.starts, [d and d.config for d in table.decisions], str(table.context))
            for key, table in sorted(self._tables.items())
        ]
        return _digest(_canonical([self.digest, str(self._max_context) if answers else "", answers]))


def shape_of(dims: Mapping[str, int]) -> str:
    """The key of a shape: dims in elements, sorted by name, e.g. ``k=7168,n=6288``."""
    return ",".join(f"{name}={dims[name]}" for name in sorted(dims))


def load(
    path_or_text: str | os.PathLike[str],
    *,
    target: Mapping[str, Any] | None,
    deployment: Mapping[str, Any] | None = None,
    workspace_bytes: int | None = None,
    key: str | bytes | None = None,
) -> Reader:
    """Read a plan and check it once.

    Where target or deployment are not what the plan's gate asks for, or do not say, every answer of the reader is
    stock, and ``reason`` says why. All ranks have to be given the same; see ``Reader.agreement``.

    :param path_or_text: path of a plan file, or its text (which begins with a brace).
    :param target: what serves, as ``{"hardware": {...}, "toolchain": {...}}``. Of the hardware: ``arch`` (``sm_90a``,
        ``sm_90`` or ``9.0``), ``sms``, ``memory_bytes``, ``device_id`` (PCI, hexadecimal) or, where that is not known,
        the GPU's name as ``gpu``, and ``links`` where ranks write into one another's memory. Of the toolchain: what the
        gate names. None where the caller vouches that the plan was made for this machine.
    :param deployment: ``model``, ``world`` (tensor-parallel ranks), ``dtype``, ``execution`` (``graph`` or ``eager``)
        and ``features`` (names of what is switched on); ``max_context_tokens`` where it is limited. None where the
        caller vouches.
    :param workspace_bytes: what every rank holds for its peers to write into; None where the caller allocates what
        the decisions ask for. A band whose config needs more is stock.
    :param key: the Ed25519 public key that must have signed the plan: 64 hexadecimal digits, 32 bytes, or PEM.
    :raises PlanError: when the file cannot be read, is no plan, has another schema version, was changed after its
        digest was taken, contradicts itself, or is not signed with the key that is given.
    """
    plan = _parse(path_or_text)
    content = plan["content"]
    if key is not None:
        _check_signature(plan.get("signature"), content, public_key(key))
    try:
        gate = content["gate"]
        rules = tuple(_checked(content["fallback"]))
        links = _links(target)
        tables = {
            (operator["name"], *_key(shape)): _table(operator["name"], shape, rules, workspace_bytes, links)
            for operator in content["operators"]
            for shape in operator["shapes"]
        }
        reason = _other_hardware(gate, target) or _other_toolchain(gate, target) or _other_deployment(gate, deployment)
        longest = (deployment or {}).get("max_context_tokens") or inf
        return Reader(plan["digest"], tables, reason, gate=gate, max_context_tokens=longest)
    except PlanError:
        raise
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise PlanError(f"not a plan of schema version {SCHEMA_VERSION}: {error!r}: {_MEND}") from None


def device_ids_of(name: str) -> tuple[str, ...]:
    """PCI device ids of all parts that go by this name, e.g. ``NVIDIA-H200-SXM``; empty for an unknown name."""
    if name in FAMILY_FILE_NAMES:
        return FAMILY_FILE_NAMES[name]
    spelled = " ".join(re.split(r"[\s_/-]+", name.strip().lower()))
    spelled = spelled.removeprefix("nvidia ").removesuffix(" tensor core gpu")
    return tuple(id_ for ids, spellings in PARTS.values() if spelled in spellings for id_ in ids)


def device_ids_like(device_id: str) -> tuple[str, ...]:
    """The ids of the same hardware, this one among them."""
    return next((ids for ids, _ in PARTS.values() if device_id in ids), (device_id,))


def part_of(device_id: str) -> str:
    """The hardware's name, e.g. ``H200 SXM``; empty for an id that is not in the table."""
    return next((name for name, (ids, _) in PARTS.items() if device_id in ids), "")


def device_id_of(value: str | int) -> str:
    """A PCI device id as plans spell it: ``2335``, ``0x2335``, and NVML's word ``0x233510DE`` are the same.

    :raises ValueError: when it is no hexadecimal number.
    """
    number = value if isinstance(value, int) else int(value, 16)
    return f"{number >> 16 if number > 0xFFFF else number:04x}"


def signed_bytes(content: Mapping[str, Any]) -> bytes:
    """What a signature of a plan is over: the format, its version, and all of the content."""
    return f"{FORMAT} {SCHEMA_VERSION}\n{_canonical(content)}".encode()


def _canonical(value: Any) -> str:
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=True)


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:DIGEST_LENGTH]


def _parse(path_or_text: str | os.PathLike[str]) -> dict[str, Any]:
    text = os.fspath(path_or_text)
    if not text.lstrip().startswith("{"):
        try:
            with open(text, encoding="utf-8") as file:  # noqa: PTH123  (an embedded file stays plain)
                text = file.read()
        except (OSError, ValueError) as error:
            raise PlanError(f"cannot read the plan: {getattr(error, 'strerror', None) or error}") from None
    try:
        plan = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise PlanError(f"the plan is not JSON: {error}") from None
    if not isinstance(plan, dict) or plan.get("format") != FORMAT:
        raise PlanError(f"not a plan: the field 'format' is not {FORMAT!r}")
    version = plan.get("schema_version")
    if version != SCHEMA_VERSION:
        older = isinstance(version, int) and version < SCHEMA_VERSION
        raise PlanError(
            f"the plan has schema version {version!r}, this reader knows {SCHEMA_VERSION}: "
            + (_MEND if older else "copy the reader that was exported with the plan")
        )
    if not isinstance(plan.get("content"), dict):
        raise PlanError("not a plan: it has no content")
    if plan.get("digest") != _digest(_canonical(plan["content"])):
        raise PlanError("the plan was changed after its digest was taken: export it again")
    return plan


def _key(shape: Mapping[str, Any]) -> tuple[Any, ...]:
    return (shape["shape"], shape["dtype"], shape["world"], shape["routing"])


# The gate.


def _other_hardware(gate: Mapping[str, Any], target: Mapping[str, Any] | None) -> str:
    """Why the machine is not the gate's hardware; empty where it is, or where the caller vouches for it."""
    if target is None:
        return ""
    here = target.get("hardware")
    if not isinstance(here, Mapping):
        return "the target does not say its hardware"
    arch = here.get("arch")
    if _capability(arch) != _capability(gate["arch"]):
        return f"the plan holds for hardware.arch {gate['arch']!r}, here it is {arch!r}"
    if here.get("sms") != gate["sms"]:
        return f"the plan holds for hardware.sms {gate['sms']!r}, here it is {here.get('sms')!r}"
    memory, lo, hi = here.get("memory_bytes"), gate["memory_bytes_lo"], gate["memory_bytes_hi"]
    if not isinstance(memory, int) or not lo <= memory <= hi:
        return f"the plan holds for hardware.memory_bytes from {lo} to {hi}, here it is {memory!r}"
    return _other_device(gate, here.get("device_id"), here.get("gpu"))


def _other_device(gate: Mapping[str, Any], device_id: Any, name: Any) -> str:
    ids, known = gate["device_ids"], " or ".join(gate["device_ids"])
    if device_id is not None:
        try:
            found = device_id_of(device_id)
        except (TypeError, ValueError):
            found = device_id
        return "" if found in ids else f"the plan holds for hardware.device_id {known}, here it is {device_id!r}"
    if not isinstance(name, str):
        return "the target says neither hardware.device_id nor hardware.gpu"
    called = device_ids_of(name)
    if called and set(called) <= set(ids):
        return ""
    if set(called) & set(ids):
        return f"hardware.gpu {name!r} may be {' or '.join(called)}, the plan holds for {known}: say hardware.device_id"
    return f"the plan holds for {gate['part']} ({known}), and hardware.gpu {name!r} is no name of it"


def _capability(arch: Any) -> str:
    """``90`` for ``sm_90a``, ``sm_90``, ``9.0`` and (9, 0)."""
    if isinstance(arch, Sequence) and not isinstance(arch, str):
        return "".join(map(str, arch))
    return re.sub(r"^sm_?|[af]$|\.", "", str(arch))


def _other_toolchain(gate: Mapping[str, Any], target: Mapping[str, Any] | None) -> str:
    if target is None:
        return ""
    here = target.get("toolchain")
    for name, value in gate["toolchain"].items():
        actual = here.get(name) if isinstance(here, Mapping) else None
        if actual != value:
            return f"the plan was measured with toolchain.{name} {value!r}, here it is {actual!r}"
    return ""


def _other_deployment(gate: Mapping[str, Any], here: Mapping[str, Any] | None) -> str:
    if here is None:
        return ""
    model, features = here.get("model"), here.get("features")
    if gate["model"] is not None and (not isinstance(model, str) or _model(model) != _model(gate["model"])):
        return f"the plan holds for the model {gate['model']!r}, here it is {model!r}"
    if gate["worlds"] and here.get("world") not in gate["worlds"]:
        return f"the plan holds for a world of {_or(gate['worlds'])}, here it is {here.get('world')!r}"
    if here.get("dtype") not in gate["dtypes"]:
        return f"the plan holds for dtype {_or(gate['dtypes'])}, here it is {here.get('dtype')!r}"
    if here.get("execution") != gate["execution"]:
        return f"the plan holds for execution {gate['execution']!r}, here it is {here.get('execution')!r}"
    if not isinstance(features, list | tuple | set | frozenset):
        return "the deployment does not say its features: an empty list where none is switched on"
    refused = sorted(str(each) for each in features if each not in gate["features"])
    if refused:
        return f"the plan was not measured with {', '.join(refused)}"
    longest = here.get("max_context_tokens")
    if longest is not None and (not isinstance(longest, int) or longest < 1):
        return f"the deployment's max_context_tokens is a number of tokens, not {longest!r}"
    return ""


def _model(name: str) -> str:
    """Without its owner or folder, in small letters."""
    return name.rstrip("/").rsplit("/", 1)[-1].lower().replace("_", "-")


def _or(values: Sequence[Any]) -> str:
    return " or ".join(map(str, values))


# Rules and bands.


def _checked(rules: Sequence[Mapping[str, Any]]) -> Iterator[Mapping[str, Any]]:
    """The rules, each of a known kind, over what ranks share, and with the unit of its threshold."""
    for rule in rules:
        when = rule["when"]
        if when not in _RULES:
            raise PlanError(f"the plan has an unknown rule {when!r}: copy the reader that was exported with the plan")
        then, unit = _RULES[when]
        if rule["then"] != then:
            raise PlanError(f"the rule {when} leads to {then}, not to {rule['then']!r}: {_MEND}")
        if rule.get("unit", "") != unit:
            raise PlanError(f"the threshold of the rule {when} is in {unit}, and it says {rule.get('unit')!r}: {_MEND}")
        local = [name for name in rule["inputs"] if name not in SHARED_INPUTS]
        if local:
            raise PlanError(
                f"the rule {when} reads {local[0]!r}, which ranks do not share: those that decide unlike wait for one "
                f"another for ever: {_MEND}"
            )
        yield rule
    last = [rule["when"] for rule in rules][-1:]
    if last != ["otherwise"]:
        raise PlanError(f"the last fallback rule must be 'otherwise', and stock: {_MEND}")


def _table(
    operator: str,
    shape: Mapping[str, Any],
    rules: Sequence[Mapping[str, Any]],
    workspace_bytes: int | None,
    links: str | None,
) -> _Table:
    """What bands decide, and stock where a rule says so, cut at measured tokens so that each piece says which it is."""
    stock: list[_Stock] = []
    context, context_reason = inf, ""
    for rule in rules:
        when = rule["when"]
        if when in ("covered", "otherwise"):  # the first that holds decides: what follows never does
            if when == "otherwise":
                stock.append(_Stock(1, inf, rule["reason"]))
            break
        if when == "missing_link" and shape["world"] in rule["worlds"] and links not in (None, rule["links"]):
            stock.append(_Stock(1, inf, f"ranks reach one another over {links!r}, measured was {rule['links']!r}"))
        if (operator, *_key(shape)) != (rule.get("operator"), *(rule.get(name) for name in _SHAPE_KEY)):
            continue
        if when == "outside_tokens":
            stock.append(_Stock(1, rule["below"] - 1, rule["reason"]))
            stock.append(_Stock(rule["above"] + 1, inf, rule["reason"]))
        elif when == "stock_won":
            stock.append(_Stock(rule["tokens_lo"], rule["tokens_hi"], rule["reason"]))
        elif when == "context_too_long" and rule["above"] < context:
            context, context_reason = rule["above"], rule["reason"]
    starts: list[int] = []
    decisions: list[Decision | None] = [None]
    reasons = [""]
    for band in _tiled(shape):
        fitting = _fitting(band, workspace_bytes)
        lo, hi = band["tokens_lo"], inf if band["tokens_hi"] is None else band["tokens_hi"]
        measured = {point["tokens"] for point in band["points"]}
        cuts = {lo, *measured, *(tokens + 1 for tokens in measured)}
        cuts |= {each.lo for each in stock} | {int(each.hi) + 1 for each in stock if each.hi < inf}
        for start in sorted(cut for cut in cuts if lo <= cut <= hi):
            ruled = next((each for each in stock if each.lo <= start <= each.hi), None)
            starts.append(start)
            decisions.append(None if ruled else _decision(fitting["decision"], start in measured))
            # A band that is stock anyway says better why.
            reasons.append(ruled.reason if ruled and fitting["decision"]["kind"] != "stock" else fitting["reason"])
    crossovers = tuple(map(_with_units, shape["crossovers"]))
    return _Table(tuple(starts), tuple(decisions), tuple(reasons), context, context_reason, crossovers)


_SHAPE_KEY = ("shape", "dtype", "world", "routing")


def _tiled(shape: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """The bands, which cover every number of tokens from 1 on once."""
    name, end = shape["shape"], 0.0
    for band in shape["bands"]:
        lo, hi = band["tokens_lo"], inf if band["tokens_hi"] is None else band["tokens_hi"]
        if hi < lo:
            raise PlanError(f"a band of {name} is reversed: it begins at {lo} tokens and ends at {hi}: {_MEND}")
        if lo <= end:
            raise PlanError(
                f"bands of {name} overlap: one begins at {lo} tokens, the one before ends at {end}: {_MEND}"
            )
        if lo != end + 1:
            raise PlanError(f"bands of {name} leave a gap: {end:.0f} tokens, then {lo}: {_MEND}")
        yield band
        end = hi
    if end != inf:
        raise PlanError(f"bands of {name} have no last one, without an end: {_MEND}")


def _with_units(crossover: Mapping[str, Any]) -> Mapping[str, Any]:
    """The crossover, read-only. A limit without its unit is worse than none: tokens, bytes and elements look alike."""
    traffic = crossover["traffic"]
    if crossover.get("unit") != "tokens" or (traffic is not None and traffic.get("unit") != "bytes"):
        raise PlanError(f"a crossover of {crossover['below']} and {crossover['above']} is in an unknown unit: {_MEND}")
    return MappingProxyType({**crossover, "traffic": None if traffic is None else MappingProxyType(dict(traffic))})


def _links(target: Mapping[str, Any] | None) -> str | None:
    """How the ranks reach one another; None where the caller vouches for it."""
    if target is None:
        return None
    hardware = target.get("hardware")
    return str(hardware.get("links", "unknown")) if isinstance(hardware, Mapping) else "unknown"


def _fitting(band: Mapping[str, Any], workspace_bytes: int | None) -> Mapping[str, Any]:
    """The band, or the same as stock where its config needs more memory than there is."""
    needed = band["decision"].get("workspace_bytes", 0)
    if workspace_bytes is None or needed <= workspace_bytes:
        return band
    reason = f"{band['decision']['variant']} needs {needed} bytes of workspace, and there are {workspace_bytes}"
    return {**band, "decision": {"kind": "stock"}, "reason": reason}


def _decision(decision: Mapping[str, Any], measured: bool) -> Decision | None:
    if decision["kind"] == "stock":
        return None
    return Decision(
        decision["variant"],
        MappingProxyType(dict(decision["params"])),
        decision["config"],
        decision["workspace_bytes"],
        decision["workspace_alignment_bytes"],
        decision["alignment_bytes"],
        decision["resident"],
        measured,
    )


# Signatures: Ed25519, RFC 8032. No secret is handled here, so that nothing has to take the same time for all inputs.

_PRIME = 2**255 - 19
_ORDER = 2**252 + 27742317777372353535851937790883648493
_D = -121665 * pow(121666, -1, _PRIME) % _PRIME
_ROOT = pow(2, (_PRIME - 1) // 4, _PRIME)
_DER_PREFIX = bytes.fromhex("302a300506032b6570032100")
"""Of a public key of this kind in PEM, RFC 8410."""

_Point = tuple[int, int, int, int]
"""Extended homogeneous coordinates: X, Y, Z, T with x = X/Z, y = Y/Z, x y = T/Z."""


def verify_ed25519(key: bytes, signature: bytes, message: bytes) -> bool:
    """Whether the signature of the message was made with the private half of this public key."""
    point = _decompressed(key)
    scalar = int.from_bytes(signature[32:], "little")
    if point is None or len(signature) != 64 or scalar >= _ORDER:
        return False
    challenge = int.from_bytes(hashlib.sha512(signature[:32] + key + message).digest(), "little") % _ORDER
    x, y, z, t = point
    found = _sum(_times(scalar, _BASE), _times(challenge, (_PRIME - x, y, z, _PRIME - t)))
    return _compressed(found) == signature[:32]


def public_key(key: str | bytes) -> bytes:
    """The 32 bytes of an Ed25519 public key: 64 hexadecimal digits, 32 bytes, or PEM.

    :raises PlanError: when it is none.
    """
    if isinstance(key, bytes):
        found = key
    else:
        body = "".join(line for line in key.strip().splitlines() if not line.startswith("-----"))
        try:
            found = bytes.fromhex(body) if "-----" not in key else base64.b64decode(body, validate=True)
        except ValueError:
            found = b""
        if len(found) == 32 + len(_DER_PREFIX) and found.startswith(_DER_PREFIX):
            found = found[len(_DER_PREFIX) :]
    if len(found) != 32 or _decompressed(found) is None:
        raise PlanError("not an Ed25519 public key: give its 64 hexadecimal digits, or its PEM")
    return found


def _check_signature(signature: Any, content: Mapping[str, Any], key: bytes) -> None:
    if signature is None:
        raise PlanError("the plan is not signed, and a key is given: sign it with megatune sign")
    value = signature.get("value") if isinstance(signature, dict) else None
    try:
        found = bytes.fromhex(value or "")
    except (TypeError, ValueError):
        found = b""
    if not verify_ed25519(key, found, signed_bytes(content)):
        raise PlanError(
            "the plan is not signed with the key that is given: get the plan, or the key, from who signed it"
        )


def _sum(a: _Point, b: _Point) -> _Point:
    """RFC 8032, 5.1.4; complete, so that it doubles as well."""
    p = (a[1] - a[0]) * (b[1] - b[0]) % _PRIME
    q = (a[1] + a[0]) * (b[1] + b[0]) % _PRIME
    r = 2 * a[3] * b[3] * _D % _PRIME
    s = 2 * a[2] * b[2] % _PRIME
    e, f, g, h = q - p, s - r, s + r, q + p
    return (e * f % _PRIME, g * h % _PRIME, f * g % _PRIME, e * h % _PRIME)


def _times(scalar: int, point: _Point) -> _Point:
    found: _Point = (0, 1, 1, 0)
    for bit in bin(scalar)[2:]:
        found = _sum(found, found)
        if bit == "1":
            found = _sum(found, point)
    return found


def _decompressed(data: bytes) -> _Point | None:
    """RFC 8032, 5.1.3; None for what is no point, or not its one encoding."""
    if len(data) != 32:
        return None
    number = int.from_bytes(data, "little")
    y, odd = number % 2**255, number >> 255
    if y >= _PRIME:
        return None
    square = (y * y - 1) * pow(_D * y * y + 1, -1, _PRIME) % _PRIME
    x = pow(square, (_PRIME + 3) // 8, _PRIME)
    if (x * x - square) % _PRIME:
        x = x * _ROOT % _PRIME
    if (x * x - square) % _PRIME or (x == 0 and odd):
        return None
    x = _PRIME - x if x % 2 != odd else x
    return (x, y, 1, x * y % _PRIME)


def _compressed(point: _Point) -> bytes:
    inverse = pow(point[2], -1, _PRIME)
    x, y = point[0] * inverse % _PRIME, point[1] * inverse % _PRIME
    return (y | (x % 2) << 255).to_bytes(32, "little")


_BASE: _Point = _decompressed(bytes.fromhex("58" + 31 * "66")) or (0, 1, 1, 0)
"""The base point: y = 4/5, x even."""
