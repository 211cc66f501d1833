"""Files of other projects: held against what their releases read and write, and taken in as what they are."""

from __future__ import annotations

import ast
import json
import os
import types
import zipfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import pytest
from typer.testing import CliRunner

from megatune_dashboard.command import app
from megatune_db import queries
from megatune_db.models import utc_now
from megatune_db.records import Measurement
from megatune_db.records import Provenance
from megatune_db.records import Regime
from megatune_db.records import Stage
from megatune_db.records import Status
from megatune_db.session import Database
from megatune_db.session import open_database
from megatune_db.store import add_measurements
from megatune_db.store import put_config
from megatune_db.store import put_target
from megatune_db.store import put_workload
from megatune_kernels.errors import MegatuneError
from megatune_kernels.errors import NothingMeasured
from megatune_kernels.operator import operator
from megatune_kernels.space import Config
from megatune_kernels.statistics import median_interval
from megatune_kernels.target import Hardware
from megatune_kernels.target import Target
from megatune_kernels.target import Toolchain
from megatune_kernels.target import architecture
from megatune_planner.drafting import draft_plan
from megatune_tuner.interchange.exporting import CACHE
from megatune_tuner.interchange.exporting import METADATA
from megatune_tuner.interchange.exporting import T4
from megatune_tuner.interchange.exporting import export_results
from megatune_tuner.interchange.importing import Place
from megatune_tuner.interchange.importing import import_priors
from megatune_tuner.interchange.importing import import_tuning
from megatune_tuner.interchange.importing import place_of
from megatune_tuner.interchange.kernel_tuner import read_cache
from megatune_tuner.interchange.kernel_tuner import read_t4
from megatune_tuner.interchange.tables import FLASHINFER
from megatune_tuner.interchange.tables import SGLANG_MOE
from megatune_tuner.interchange.tables import VLLM_MOE
from megatune_tuner.interchange.tables import flashinfer_cache
from megatune_tuner.interchange.tables import moe_table
from megatune_tuner.priors import nearest
from tests.contract.runtime_wheels import wheel

PROJECTION = operator("projection")
WORKLOAD = PROJECTION.workload({"k": 256, "n": 64}, 4)
TARGET = Target(
    Hardware("NVIDIA H200", "sm_90a", "2335", 132, 50 << 20, 140 << 30, "none"), Toolchain("580", "13.0", "4.8.1", "2")
)
READERS = {T4: read_t4, CACHE: read_cache}


def configs(variant: str) -> list[Config]:
    space = PROJECTION.space(WORKLOAD, architecture("sm_90a"))
    return [config for config in space.configs if config.variant == variant]


def measured(config: Config, us: float, status: Status = Status.OK) -> Measurement:
    samples = tuple(us + step / 64 for step in range(8)) if status is Status.OK else ()
    figures = median_interval(samples) if samples else None
    return Measurement(
        workload=WORKLOAD.digest,
        config=config.digest,
        target=TARGET.digest,
        regime=Regime(),
        stage=Stage.SEARCH,
        status=status,
        provenance=Provenance.MEASURED,
        session="one",
        measured_at=utc_now().replace(microsecond=0),
        samples_us=samples,
        median_us=figures.median if figures else None,
        low_us=figures.low if figures else None,
        high_us=figures.high if figures else None,
        reason="" if figures else f"it ended {status}",
        compile_s=0.5,
        measure_s=0.25,
    )


@pytest.fixture
def database(tmp_path: Path) -> Iterator[Database]:
    """Measurements of two variants and of cuBLAS; every status occurs."""
    simt, mma = configs("simt"), configs("mma")
    rows = [(config, measured(config, 5.0 + number)) for number, config in enumerate([*simt[:3], *mma[:2]])]
    failed = [status for status in Status if status is not Status.OK]
    rows += [(config, measured(config, 0.0, status)) for config, status in zip(simt[3:], failed, strict=False)]
    baseline = Config.of("cublas", {})
    rows.append((baseline, measured(baseline, 9.0)))
    with open_database(tmp_path / "mine.db") as opened:
        with opened.session() as session:
            stored = TARGET.to_dict()
            put_target(session, digest=TARGET.digest, hardware=stored["hardware"], toolchain=stored["toolchain"])
            put_workload(session, digest=WORKLOAD.digest, shape=WORKLOAD.shape, **WORKLOAD.to_dict())
            for config, _ in rows:
                put_config(
                    session, digest=config.digest, operator="projection", variant=config.variant, params=config.params
                )
            assert add_measurements(session, [row for _, row in rows]) == len(rows)
        yield opened


def exported(database: Database, folder: Path, kind: str) -> list[Path]:
    with database.session() as session:
        return export_results(session, folder, kind, target=TARGET, regime=Regime())


def of_release(module: str, *names: str) -> dict[str, Any]:
    """Functions and classes of Kernel Tuner's release, without what its modules import."""
    with zipfile.ZipFile(wheel("kernel_tuner")) as archive:
        tree = ast.parse(archive.read(f"kernel_tuner/{module}.py"))
    wanted = [each for each in tree.body if getattr(each, "name", "") in names]
    assert {each.name for each in wanted if isinstance(each, ast.FunctionDef | ast.ClassDef)} == set(names)
    space: dict[str, Any] = {"json": json, "os": os, "np": np}
    exec(compile(ast.Module(wanted, []), module, "exec"), space)
    return space


def schema_of_release(name: str) -> Any:
    with zipfile.ZipFile(wheel("kernel_tuner")) as archive:
        return json.loads(archive.read(f"kernel_tuner/schema/T4/1.0.0/{name}-schema.json"))


UTIL = (
    "ErrorConfig",
    "InvalidConfig",
    "CompilationFailedConfig",
    "RuntimeFailedConfig",
    "NpEncoder",
    "correct_open_cache",
    "read_cache",
    "close_cache",
    "store_cache",
)


def test_results_are_of_kernel_tuners_schema(database: Database, tmp_path: Path) -> None:
    schema = schema_of_release("results")
    validator = jsonschema.Draft202012Validator(schema)
    *files, metadata = exported(database, tmp_path / "t4", T4)
    described = json.loads(metadata.read_text())
    jsonschema.Draft202012Validator(schema_of_release("metadata")).validate(described)
    assert described["metadata"]["hardware"]["hardware_description"][0]["gpu"] == "NVIDIA H200"
    assert "dsl==4.8.1" in described["metadata"]["environment"]["requirements"]
    assert [file.name for file in files] == [
        "projection_k=256,n=64_tokens=4_bf16_mma.t4.json",
        "projection_k=256,n=64_tokens=4_bf16_simt.t4.json",
    ]
    for file in files:
        document = json.loads(file.read_text())
        validator.validate(document)
        # The schema asks for little: a time that is no number is seen by it, too.
        broken = json.loads(file.read_text())
        broken["results"][0]["invalidity"] = "hang"
        assert list(validator.iter_errors(broken))
    results = json.loads(files[1].read_text())["results"]
    assert {each["invalidity"] for each in results} == {
        "correct",
        "constraints",
        "compile",
        "timeout",
        "correctness",
        "runtime",
    }
    best = min(
        (each for each in results if each["invalidity"] == "correct"), key=lambda each: each["times"]["runtimes"]
    )
    assert best["times"]["runtimes"][0] == pytest.approx(0.005)
    assert best["times"]["compilation_time"] == pytest.approx(500)
    assert best["measurements"][0]["unit"] == "ms"


def test_two_routings_are_two_files(database: Database, tmp_path: Path) -> None:
    routed = replace(WORKLOAD, routing="zipf/1.2")
    (config, *_) = configs("simt")
    with database.session() as session:
        put_workload(session, digest=routed.digest, shape=routed.shape, **routed.to_dict())
        add_measurements(session, [replace(measured(config, 7.0), workload=routed.digest)])
    files = [file for file in exported(database, tmp_path, T4) if "_simt" in file.name]
    assert {file.parent for file in files} == {tmp_path}
    times = [min(us for each in read_t4(file.read_text(), "x").entries for us in each.samples_us) for file in files]
    assert sorted(times) == [5.0, 7.0]


def test_kernel_tuner_reads_caches_and_goes_on_from_them(database: Database, tmp_path: Path) -> None:
    released = of_release("util", *UTIL)
    for file in exported(database, tmp_path / "caches", CACHE):
        before = json.loads(file.read_text())
        read = released["read_cache"](file, open_cache=False)
        names = read["tune_params_keys"]
        assert read["device_name"] == "NVIDIA H200"
        for key, entry in read["cache"].items():
            assert key == ",".join(str(entry[name]) for name in names)
            assert "__error__" in entry or entry["time"] == pytest.approx(np.mean(entry["times"]))
            assert {"compile_time", "verification_time", "benchmark_time"} <= entry.keys()
        # Kernel Tuner opens a cache by cutting off its end, appends to it, and closes it again.
        going = released["read_cache"](file)["cache"]
        params = dict.fromkeys(names, 0)
        released["store_cache"]("0,0", {**params, "time": 1.5}, file, going)
        ours = read_cache(file.read_text(), file.name)
        released["close_cache"](file)
        closed = json.loads(file.read_text())
        assert closed["cache"].pop("0,0") == {**params, "time": 1.5}
        assert closed == before
        # An open one is read as well.
        assert len(ours.entries) == len(before["cache"]) + 1


def test_what_kernel_tuner_writes_is_read(tmp_path: Path) -> None:
    util = of_release("util", *UTIL)
    released = of_release("file_utils", "get_configuration_validity2", "get_t4_results")
    released["util"] = types.SimpleNamespace(**util)
    released["output_file_schema"] = lambda _: ("1.0.0", {})
    tuned = {"block_size_x": [32, 64, 128]}
    timings = {"compile_time": 100.0, "benchmark_time": 20.0, "framework_time": 0, "strategy_time": 0}
    results = [
        {"block_size_x": 32, "time": 0.25, "times": [0.25, 0.26], "verification_time": 0, **timings},
        {"block_size_x": 64, "__error__": util["CompilationFailedConfig"](), "verification_time": 0, **timings},
        {"block_size_x": 128, "time": 0.5, "verification_time": 0, "timestamp": "2026-11-30 10:00:00+00:00", **timings},
    ]
    found = read_t4(json.dumps(released["get_t4_results"](results, tuned), cls=util["NpEncoder"]), "a.json")
    assert [entry.status for entry in found.entries] == [Status.OK, Status.COMPILE_ERROR, Status.OK]
    assert [entry.samples_us for entry in found.entries] == [(250.0, 260.0), (), (500.0,)]
    assert found.entries[0].compile_s == pytest.approx(0.1)
    assert found.about == {}

    cache = tmp_path / "cache.json"
    header = {"device_name": "A GPU", "kernel_name": "gemm", "problem_size": [1], "tune_params_keys": ["block_size_x"]}
    cache.write_text(json.dumps({**header, "tune_params": tuned, "objective": "time", "cache": {}}, indent="")[:-3])
    kept: dict[str, Any] = {}
    for result in results:
        util["store_cache"](str(result["block_size_x"]), result, cache, kept)
    opened = read_cache(cache.read_text(), "cache.json")
    util["close_cache"](cache)
    closed = read_cache(cache.read_text(), "cache.json")
    assert opened == closed
    assert (closed.device, closed.kernel) == ("A GPU", "gemm")
    assert [entry.samples_us for entry in closed.entries] == [(250.0, 260.0), (), (500.0,)]
    assert closed.entries[1].status is Status.COMPILE_ERROR


@pytest.mark.parametrize("kind", [T4, CACHE])
def test_what_was_written_comes_back_as_figures_of_others(database: Database, tmp_path: Path, kind: str) -> None:
    files = [file for file in exported(database, tmp_path / kind, kind) if file.name != METADATA]
    with open_database(tmp_path / "theirs.db") as other:
        for again in range(2):
            with other.session() as session:
                for file in files:
                    tuning = READERS[kind](file.read_text(), file.name)
                    done = import_tuning(session, tuning, kind, file.name, place_of(tuning.about))
                    assert (done.measurements > 0, done.priors) == (not again, 0)
        with database.session() as mine, other.session() as theirs:
            before = {row.measurement.config: row.measurement for row in rows(mine) if row.params}
            after = {row.measurement.config: row.measurement for row in rows(theirs)}
    assert before.keys() == after.keys()
    for digest, one in before.items():
        got = after[digest]
        assert got.provenance is Provenance.IMPORTED
        assert (got.workload, got.regime, got.status, got.reason) == (one.workload, one.regime, one.status, one.reason)
        assert got.samples_us == pytest.approx(one.samples_us, rel=1e-6)
        assert (got.compile_s, got.measured_at) == (pytest.approx(one.compile_s), one.measured_at)
        # Of a file that comes back, too, nobody here knows who measured it.
        assert got.target != one.target


def rows(session: Any) -> list[queries.ExportRow]:
    found = []
    for target in queries.targets(session):
        for provenance in (Provenance.MEASURED, Provenance.IMPORTED):
            found += queries.export_rows(session, target=target.digest, regime=Regime(), provenance=provenance)
    return found


def test_what_others_measured_decides_no_plan(database: Database, tmp_path: Path) -> None:
    (file,) = [each for each in exported(database, tmp_path / "t4", T4) if "simt" in each.name]
    with database.session() as session:
        honest = draft_plan(session, name="mine")
    tuning = read_t4(file.read_text(), file.name)
    # A thousand times as fast as anything that was measured here, and of a config that was not.
    boast = configs("simt")[20]
    entry = replace(tuning.entries[0], params=boast.params, samples_us=(0.005,) * 8)
    with database.session() as session:
        done = import_tuning(session, replace(tuning, entries=(entry,)), T4, file.name, place_of(tuning.about))
        assert done.measurements == 1
        assert queries.imported_configs(session, WORKLOAD.digest, 8) == [(boast.variant, boast.params)]
        again = draft_plan(session, name="mine")
    assert again.content.operators == honest.content.operators
    assert again.content.target == honest.content.target
    with open_database(tmp_path / "theirs.db") as other, other.session() as session:
        import_tuning(session, replace(tuning, entries=(entry,)), T4, file.name, place_of(tuning.about))
        with pytest.raises(NothingMeasured, match="of provenance measured or replayed"):
            draft_plan(session, name="theirs")


def test_a_config_without_a_time_is_kept_as_one_to_try(database: Database) -> None:
    result = {
        "configuration": configs("simt")[0].params,
        "times": {"runtimes": []},
        "invalidity": "correct",
        "correctness": 1,
        "objectives": ["GFLOP/s"],
        "measurements": [{"name": "GFLOP/s", "value": 900.0, "unit": ""}],
    }
    told = {**result, "measurements": [{"name": "time", "value": 2.5, "unit": "us"}]}
    tuning = read_t4(json.dumps({"results": [result, {**told, "configuration": configs("simt")[1].params}]}), "x.json")
    assert [entry.samples_us for entry in tuning.entries] == [(), (2.5,)]
    with database.session() as session:
        done = import_tuning(session, tuning, T4, "x.json", Place(WORKLOAD, "simt"))
    assert (done.measurements, done.priors, dict(done.reasons)) == (1, 1, {"the file tells no time of it": 1})


def test_what_is_no_config_here_is_kept_with_its_reason(database: Database) -> None:
    text = json.dumps(
        {
            "results": [
                {
                    "configuration": params,
                    "times": {"runtimes": [0.1]},
                    "invalidity": "correct",
                    "correctness": 1,
                }
                for params in ({"block_size_x": 32}, configs("simt")[0].params, {**configs("simt")[1].params, "pdl": 1})
            ]
        }
    )
    tuning = read_t4(text, "foreign.json")
    with database.session() as session:
        unsaid = import_tuning(session, tuning, T4, "foreign.json", place_of(tuning.about))
        assert (unsaid.measurements, unsaid.priors) == (0, 3)
        assert list(unsaid.reasons) == ["nobody said what it is of: give --operator, --shape and --tokens"]
        done = import_tuning(session, tuning, T4, "foreign.json", Place(WORKLOAD, "simt"))
        # The third has 1 for true.
        assert (done.measurements, done.priors) == (2, 1)
        (reason,) = done.reasons
        assert reason.startswith("no config of projection: ")
        assert "block_size_x: not a parameter of simt" in reason or "missing" in reason
        kept = queries.priors(session, [T4])[-1]
        assert (kept.tokens, kept.reason, kept.entry["params"]) == (4, reason, {"block_size_x": 32})
        assert len(queries.imported_configs(session, WORKLOAD.digest, 8)) == 2
        other = import_tuning(session, tuning, T4, "foreign.json", Place(WORKLOAD, None))
        assert list(other.reasons) == ["nobody said of which variant of projection; allowed: simt, mma"]


def unpacked(name: str, folder: Path, wanted: str) -> list[Path]:
    with zipfile.ZipFile(wheel(name)) as archive:
        members = [each for each in archive.namelist() if wanted in each and not each.endswith("/")]
        return [Path(archive.extract(member, folder)) for member in members]


@pytest.mark.parametrize(
    ("name", "kind", "wanted", "place", "tokens"),
    [
        (
            "vllm",
            VLLM_MOE,
            "E=128,N=768,device_name=NVIDIA_H200,dtype=fp8_w8a8,block_shape=[128,128].json",
            {"E": 128, "N": 768, "device_name": "NVIDIA_H200", "dtype": "fp8_w8a8", "block_shape": [128, 128]},
            1,
        ),
        (
            "sglang",
            SGLANG_MOE,
            "triton_3_7_1/E=128,N=704,device_name=NVIDIA_B300_SXM6_AC_down.json",
            {"E": 128, "N": 704, "device_name": "NVIDIA_B300_SXM6_AC", "down": True, "triton_version": "3.7.1"},
            1,
        ),
        (
            "sglang",
            SGLANG_MOE,
            "E=161,N=192,device_name=NVIDIA_GB300,dtype=fp8_w8a8,per_channel_quant=True.json",
            {"E": 161, "N": 192, "device_name": "NVIDIA_GB300", "dtype": "fp8_w8a8", "per_channel_quant": True},
            None,
        ),
    ],
)
def test_released_fused_moe_tables_are_read(
    tmp_path: Path, name: str, kind: str, wanted: str, place: dict[str, Any], tokens: int | None
) -> None:
    (file,) = unpacked(name, tmp_path, wanted)
    found = moe_table(file, kind)
    assert len(found) > 4
    assert {key: found[0].place[key] for key in place} == place
    assert found[0].place.keys() - place.keys() <= {"triton_version"}
    assert tokens is None or found[0].tokens == tokens
    assert all(prior.entry["BLOCK_SIZE_M"] >= 16 and (prior.tokens or 0) >= 1 for prior in found)
    # The nearest row of the table, as the runtime looks it up.
    assert [prior.tokens for prior in nearest(found, 3)] == [
        min((p.tokens or 0 for p in found), key=lambda t: abs(t - 3))
    ]


def test_released_flashinfer_tables_and_caches_are_read(tmp_path: Path, database: Database) -> None:
    (file,) = unpacked("flashinfer_python", tmp_path, "v0_1_trtllm_fused_moe_NVIDIA_B200.py")
    found = flashinfer_cache(file)
    assert len(found) > 20
    first = found[0]
    assert (first.place["operation"], first.place["runner"]) == ("trtllm::fused_moe::gemm1", "MoERunner")
    assert first.place["shapes"][0][0] == [1, 3584]
    assert first.entry == {"runner": 0, "tactic": 5}
    cache = tmp_path / "cache.json"
    stored = {
        "_metadata": {"gpu": "NVIDIA B200", "flashinfer_version": "0.7.4"},
        "_records": {"mnnvl": {"8,7168": {"route": "ll"}}},
        "('fp8_gemm', 'CutlassRunner', ((1, 7168), (512, 7168)))": ["CutlassRunner", [128, [0, 5]], ["cold"], {}],
        "_generation": "0" * 64,
    }
    cache.write_text(json.dumps(stored))
    entry, record = flashinfer_cache(cache)
    assert entry.place == {
        "gpu": "NVIDIA B200",
        "flashinfer_version": "0.7.4",
        "operation": "fp8_gemm",
        "runner": "CutlassRunner",
        "shapes": [[[1, 7168], [512, 7168]]],
    }
    assert entry.entry == {"runner": "CutlassRunner", "tactic": [128, [0, 5]]}
    assert (record.place["namespace"], record.entry) == ("mnnvl", {"route": "ll"})
    with database.session() as session:
        done = import_priors(session, [*found, entry, record])
        assert (done.measurements, done.priors) == (0, len(found) + 2)
        assert dict(done.reasons) == {f"no operator here reads {FLASHINFER}": len(found) + 2}
        assert import_priors(session, found).priors == 0
        assert {row.reason for row in queries.priors(session)} == {f"no operator here reads {FLASHINFER}"}


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.json", "{}", "is not named as fused-MoE tables are"),
        ("E=1,N=2,device_name=X.json", "[]", "is not a table: it holds a list"),
        ("E=1,N=2,device_name=X.json", "{", "is not JSON"),
        ("E=1,N=2,device_name=X.json", "{}", "without rows"),
        ("E=1,N=2,device_name=X.json", '{"many": {"BLOCK_SIZE_M": 16}}', "'many' is not a number of tokens"),
        ("E=1,N=2,device_name=X.json", '{"99999999999": {"BLOCK_SIZE_M": 16}}', "is not a number of tokens"),
        ("E=1,N=2,device_name=X.json", '{"1":' * 50_000, "is not JSON"),
    ],
)
def test_a_table_that_is_none_is_one_line(tmp_path: Path, name: str, content: str, message: str) -> None:
    (tmp_path / name).write_text(content)
    with pytest.raises(MegatuneError, match=message) as caught:
        moe_table(tmp_path / name, VLLM_MOE)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "content", ['{"_metadata": [1]}', '{"_records": [1]}', '{"_records": {"n": [1]}}', '{"a": 1}', "[" * 50_000]
)
def test_a_cache_of_flashinfers_that_is_none_is_one_line(tmp_path: Path, content: str) -> None:
    (tmp_path / "cache.json").write_text(content)
    with pytest.raises(MegatuneError) as caught:
        flashinfer_cache(tmp_path / "cache.json")
    assert "\n" not in str(caught.value)


def t4_of(**result: Any) -> str:
    one = {"configuration": {"a": 1}, "invalidity": "correct", "times": {"runtimes": [1.0]}, **result}
    return json.dumps({"results": [one]})


def test_figures_that_cannot_be_are_left_out() -> None:
    times = {"runtimes": [1.0], "compilation_time": float("inf"), "benchmark": float("nan")}
    (entry,) = read_t4(t4_of(times=times, timestamp="0001-01-01T00:00:00+14:00"), "x.json").entries
    assert (entry.compile_s, entry.measure_s, entry.measured_at) == (0.0, 0.0, None)


def test_a_name_that_is_no_text_is_kept_as_text(tmp_path: Path, database: Database) -> None:
    file = tmp_path / "E=1,N=2,device_name=\udcff.json"
    file.write_text('\ufeff{"1": {"BLOCK_SIZE_M": 16}}', encoding="utf-8")
    with database.session() as session:
        assert import_priors(session, moe_table(file, VLLM_MOE)).priors == 1


@pytest.mark.parametrize(
    "text",
    [
        *("", "[]", "{}", '{"results": [{}]}', '{"results": 7}', '{"cache": {}}', "[" * 50_000),
        *(t4_of(times={"runtimes": [us]}) for us in (-1, float("nan"), 1e39, 10**400)),
    ],
)
def test_a_file_that_is_none_of_kernel_tuners_is_one_line(text: str) -> None:
    for kind, read in READERS.items():
        with pytest.raises(MegatuneError, match=r"^x.json is no ") as caught:
            read(text, "x.json")
        assert "\n" not in str(caught.value), kind


def run(*arguments: str | Path) -> Any:
    return CliRunner(env={"COLUMNS": "200"}).invoke(app, list(map(str, arguments)))


def test_the_commands(database: Database, tmp_path: Path) -> None:
    mine, theirs = tmp_path / "mine.db", tmp_path / "theirs.db"
    assert "3 files written" in run("export-results", "--db", mine, "--format", "t4", "--out", tmp_path / "o").stdout
    files = sorted((tmp_path / "o").glob("*.t4.json"))
    done = run("import", *files, "--format", "t4", "--db", theirs)
    assert done.stdout == "12 measurements and 0 configs without figures are new\n"
    assert run("import", *files, "--format", "t4", "--db", theirs).stdout.endswith("are new, 12 were there\n")
    report = json.loads(run("import", "--format", "published", "--db", theirs, "--json").stdout)
    assert report["measurements"] > 1000
    (tmp_path / "moe").mkdir()
    (tmp_path / "moe" / "E=8,N=64,device_name=NVIDIA_H200.json").write_text('{"16": {"BLOCK_SIZE_M": 16}}')
    found = run("import", tmp_path / "moe", "--format", "vllm-moe-table", "--db", theirs)
    assert found.stdout.splitlines()[0] == "0 measurements and 1 configs without figures are new"
    for arguments, message in (
        (("import", "--format", "t4"), "name the files to import as t4"),
        (("import", tmp_path / "no", "--format", "t4"), "cannot read"),
        (("import", tmp_path / "o", "--format", "vllm-moe-table"), "has no E=*.json in it"),
        (("import", files[0], "--format", "t4", "--operator", "projection"), "--operator needs --shape and --tokens"),
        (("import", files[0], "--format", "kernel-tuner-cache"), "is no cache of Kernel Tuner: it has no"),
    ):
        failed = run(*arguments, "--db", theirs)
        assert failed.exit_code == 2
        assert message in failed.stderr
        assert len(failed.stderr.splitlines()) == 1
    nothing = run("export-results", "--db", theirs, "--format", "t4", "--out", tmp_path / "p")
    assert (nothing.exit_code, "has nothing of provenance measured" in nothing.stderr) == (3, True)


def test_a_file_that_says_wrongly_what_it_is_of_is_one_line() -> None:
    assert place_of({}) is None
    with pytest.raises(MegatuneError, match=r"^what the file says of itself cannot be read: 'dims'$"):
        place_of({"operator": "projection"})
