"""Artifacts: compiled without a GPU, kept under keys that fail closed."""

from __future__ import annotations

import multiprocessing
import re
from pathlib import Path

import pytest

from megatune_kernels.artifact import PACKAGE
from megatune_kernels.artifact import ArtifactStore
from megatune_kernels.artifact import _borrowed
from megatune_kernels.artifact import artifact_key
from megatune_kernels.artifact import compiler
from megatune_kernels.artifact import resources
from megatune_kernels.audit import disassembled
from megatune_kernels.errors import MegatuneError
from megatune_kernels.operator import Artifact
from megatune_kernels.operator import Workload
from megatune_kernels.operator import operator
from megatune_kernels.projection.operator import Projection
from megatune_kernels.space import Config
from megatune_kernels.space import Value
from megatune_kernels.target import ARCHITECTURES
from megatune_kernels.target import architecture

SM90 = architecture("sm_90a")
WORKLOAD = Projection().workload({"n": 256, "k": 1024}, 4)


def defaults(workload: Workload = WORKLOAD) -> dict[str, Config]:
    return {config.variant: config for config in Projection().space(workload, SM90).defaults()}


@pytest.fixture(scope="session")
def _dsl() -> None:
    pytest.importorskip("cutlass", reason="nvidia-cutlass-dsl is not installed")


@pytest.mark.usefixtures("_dsl")
class TestWithDsl:
    @pytest.mark.parametrize("arch", sorted(ARCHITECTURES))
    @pytest.mark.parametrize("variant", ["simt", "mma"])
    def test_every_variant_compiles_for_every_architecture(self, arch: str, variant: str) -> None:
        artifact = Projection().compile(WORKLOAD, defaults()[variant], architecture(arch))
        assert artifact.arch == arch
        assert artifact.cubin.startswith(b"\x7fELF")
        assert artifact.entry.encode() in artifact.cubin
        assert 16 <= artifact.registers <= 255
        assert artifact.local_bytes == 0

    def test_compiling_leaves_no_files(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.chdir(tmp_path)
        Projection().compile(WORKLOAD, defaults()["mma"], SM90)
        assert list(tmp_path.iterdir()) == []

    def test_programmatic_launch_loads_weights_before_it_waits_and_activations_after(self) -> None:
        for variant, load in (("simt", "LDG"), ("mma", "LDGSTS")):
            config = Config.of(variant, {**defaults()[variant].params, "pdl": True})
            listing = disassembled(Projection().compile(WORKLOAD, config, SM90).cubin)
            found = [match.group() for match in re.finditer(rf"\b({load}|ACQBULK|PREEXIT)\b", listing)]
            wait = found.index("ACQBULK")
            assert found[0] == "PREEXIT"
            assert load in found[1:wait]
            assert load in found[wait:]

    def test_the_key_covers_all_that_the_code_depends_on(self) -> None:
        config = defaults()["mma"]
        key = artifact_key(Projection(), WORKLOAD, config, SM90)
        assert key == artifact_key(Projection(), WORKLOAD.at(5), config, SM90)
        others = [
            artifact_key(Projection(), WORKLOAD.at(9), config, SM90),
            artifact_key(Projection(), WORKLOAD, config, architecture("sm_100a")),
            artifact_key(Projection(), WORKLOAD, Config.of("mma", {**config.params, "pdl": False}), SM90),
            artifact_key(Projection(), WORKLOAD, defaults()["simt"], SM90),
        ]
        assert len({key, *others}) == 5

    def test_what_cannot_be_fingerprinted_raises(self) -> None:
        class Vague(Projection):
            def specialization(self, workload: Workload, config: Config) -> dict[str, Value]:
                return {"what": object()}  # type: ignore[dict-item]

        with pytest.raises(MegatuneError, match="not canonical"):
            artifact_key(Vague(), WORKLOAD, defaults()["mma"], SM90)

    def test_many_processes_compile_a_cold_key_once(self, tmp_path: Path) -> None:
        context = multiprocessing.get_context("spawn")
        with context.Pool(3) as pool:
            keys = pool.starmap(_compile_counted, [(tmp_path, defaults()["mma"])] * 3)
        assert len(set(keys)) == 1
        assert (tmp_path / "compiled").read_text() == "x"


class _Counted(Projection):
    log: Path

    def compile(self, workload: Workload, config: Config, arch: object) -> Artifact:
        with self.log.open("a") as file:
            file.write("x")
        return super().compile(workload, config, SM90)


def _compile_counted(folder: Path, config: Config) -> str:
    counted = _Counted()
    counted.log = folder / "compiled"
    return ArtifactStore(folder / "store").get_or_compile(counted, WORKLOAD, config, SM90).key


def test_a_store_gives_back_what_was_put_or_nothing(tmp_path: Path) -> None:
    store = ArtifactStore(tmp_path)
    artifact = Artifact("ab12", "sm_90a", "entry", b"\x7fELF code", 40, 0)
    assert store.get("ab12") is None
    store.put(artifact)
    assert store.get("ab12") == artifact
    (tmp_path / "ab" / "ab12.cubin").write_bytes(b"\x7fELF c0de")
    assert store.get("ab12") is None


@pytest.mark.parametrize("damage", ["", "[]", '"text"', "7", "{}"])
def test_damaged_facts_of_an_artifact_are_as_if_it_was_never_built(tmp_path: Path, damage: str) -> None:
    store = ArtifactStore(tmp_path)
    store.put(Artifact("ab12", "sm_90a", "entry", b"\x7fELF code", 40, 0))
    (tmp_path / "ab" / "ab12.json").write_text(damage)
    assert store.get("ab12") is None


def test_the_revision_covers_what_is_borrowed_of_other_operators(tmp_path: Path) -> None:
    mine = tmp_path / "mine"
    mine.mkdir()
    (mine / "kernel.py").write_text(
        "from megatune_kernels.operator import Workload\n"
        "from megatune_kernels.projection import mma\n"
        "from megatune_kernels.reduction.device import send\n"
    )
    # What mma imports in turn is part of the code too; what all operators share is not.
    assert sorted(_borrowed(mine.glob("*.py"), mine)) == [
        *(f"projection/{name}.py" for name in ("device", "epilogue", "geometry", "mma")),
        *(f"reduction/{name}.py" for name in ("device", "geometry")),
    ]
    assert _borrowed((PACKAGE / "reduction").glob("*.py"), PACKAGE / "reduction") == {}
    (mine / "kernel.py").write_text("import megatune_kernels.projection.geometry as geometry\n")
    assert list(_borrowed(mine.glob("*.py"), mine)) == ["projection/geometry.py"]
    # What a package gives under its own name is made of what it imports.
    (mine / "kernel.py").write_text("from megatune_kernels.reduction import Reduction\n")
    assert {"reduction/__init__.py", "reduction/operator.py"} <= set(_borrowed(mine.glob("*.py"), mine))


def test_an_artifact_under_another_key_is_not_given_out(tmp_path: Path) -> None:
    store = ArtifactStore(tmp_path)
    store.put(Artifact("ab12", "sm_90a", "entry", b"\x7fELF code", 40, 0))
    for ending in ("json", "cubin"):
        (tmp_path / "ab" / f"ab12.{ending}").rename(tmp_path / "ab" / f"ab34.{ending}")
    assert store.get("ab34") is None


def test_resources_of_an_empty_elf_are_none() -> None:
    header = bytearray(64)
    header[0x28:0x30] = (64).to_bytes(8, "little")
    header[0x3A:0x40] = (64).to_bytes(2, "little") + (1).to_bytes(2, "little") + (0).to_bytes(2, "little")
    assert resources(bytes(header) + bytes(64) + b"\0") == (0, 0)


def test_without_the_dsl_the_error_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    compiler.cache_clear()
    monkeypatch.setattr("megatune_kernels.artifact.DSL", "no-such-package")
    with pytest.raises(MegatuneError, match=r"pip install 'megatune\[gpu\]'"):
        artifact_key(operator("projection"), WORKLOAD, defaults()["mma"], SM90)
