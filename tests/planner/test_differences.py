from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.hazmat.primitives.serialization import NoEncryption
from cryptography.hazmat.primitives.serialization import PrivateFormat
from plan_examples import BASELINES
from plan_examples import CUBLAS
from plan_examples import REGIME
from plan_examples import TARGET
from plan_examples import Case
from plan_examples import fill
from plan_examples import mma
from plan_examples import simt
from typer.testing import CliRunner

from megatune_db.records import Stage
from megatune_db.session import open_database
from megatune_kernels.errors import MegatuneError
from megatune_kernels.operator import Workload
from megatune_kernels.space import Config
from megatune_kernels.target import Target
from megatune_planner.commands import app
from megatune_planner.differences import difference
from megatune_planner.plan import Plan
from megatune_planner.planning import Options
from megatune_planner.planning import make_plan
from megatune_planner.step_difference import step_differences

DIMS = {"n": 1536, "k": 7168}
Times = dict[int, dict[Config, float]]


def made(folder: Path, name: str, times: Times, *, target: Target = TARGET, **rest: Any) -> Plan:
    """The plan of a shape with these times in µs, by tokens and config."""
    cases = [
        Case(Workload.of("projection", rest.get("dims", DIMS), tokens), config, us, Stage.FINAL, f"finals {tokens}")
        for tokens, configs in times.items()
        for config, us in configs.items()
    ]
    options = Options(traffic=rest.get("traffic", {}))
    with open_database(folder / f"{name}.db") as database, database.session() as session:
        fill(session, cases, target)
        return make_plan(
            session,
            name=name,
            target=target.digest,
            regime=REGIME,
            baselines=BASELINES,
            options=options,
            parent=rest.get("parent"),
            features=rest.get("features", ()),
        )


OLD: Times = {
    1: {CUBLAS: 10.0, simt(): 8.0},
    2: {CUBLAS: 10.0, simt(): 8.0},
    4: {CUBLAS: 10.0, simt(): 9.0},
    8: {CUBLAS: 10.0, simt(): 11.0},
}
NEW: Times = {
    1: {CUBLAS: 10.0, simt(): 8.0},
    2: {CUBLAS: 10.0, simt(): 8.0, mma(): 9.0},
    4: {CUBLAS: 10.0, simt(): 9.0, mma(): 6.0},
    8: {CUBLAS: 10.0, simt(): 11.0, mma(): 5.0},
}


def test_bands_that_change_and_what_that_does(tmp_path: Path) -> None:
    before = made(tmp_path, "old", OLD)
    after = made(tmp_path, "new", NEW, parent=before.digest)
    found = difference(before, after)
    assert (found.lineage, found.comparable, found.gate, found.unknown) == ("child", True, ("max_tokens: 4 to 8",), 0)
    (shape,) = found.shapes
    assert shape.presence == "both"
    first, second = shape.changes
    assert (first.tokens_lo, first.tokens_hi, first.before.kind, first.after.kind) == (3, 4, "config", "config")
    assert (first.before.variant, first.after.variant) == ("simt", "mma")  # type: ignore[union-attr]
    assert [(e.tokens, e.before_us, e.after_us, e.basis) for e in first.effects] == [(4, 9.0, 6.0, "same")]
    assert (second.tokens_lo, second.tokens_hi, second.before.kind, second.after.kind) == (5, 8, "stock", "config")
    assert [(e.tokens, e.before_us, e.after_us, e.basis) for e in second.effects] == [(8, 10.0, 5.0, "same")]
    assert [point.tokens for point in shape.points] == [1, 2, 4, 8]
    assert shape.before_us == pytest.approx((8 + 8 + 9 + 10) / 4)
    assert shape.after_us == pytest.approx((8 + 8 + 6 + 5) / 4)
    assert found.ratio == pytest.approx((6 / 9 * 5 / 10) ** 0.25)
    back = difference(after, before)
    assert back.lineage == "parent"
    assert back.ratio == pytest.approx(1 / found.ratio)


def test_traffic_weighs_the_steps(tmp_path: Path) -> None:
    before = made(tmp_path, "old", OLD)
    (shape,) = difference(before, made(tmp_path, "new", NEW, traffic={1: 1, 7: 3})).shapes
    assert shape.before_us == pytest.approx((8 + 3 * 10) / 4)
    assert shape.after_us == pytest.approx((8 + 3 * 5) / 4)


def test_the_same_plan_changes_nothing(tmp_path: Path) -> None:
    before = made(tmp_path, "old", OLD)
    found = difference(before, before)
    assert (found.lineage, found.ratio, found.unknown) == ("same", 1.0, 0)
    assert [shape.changes for shape in found.shapes] == [()]


def test_each_plans_own_figures_where_one_has_not_both(tmp_path: Path) -> None:
    """The first plan's config was not measured again; without its tokens nothing is known of it."""
    before = made(tmp_path, "old", {1: {CUBLAS: 10.0, simt(): 8.0}, 4: {CUBLAS: 10.0, simt(): 8.0}})
    after = made(tmp_path, "new", {4: {CUBLAS: 10.0, mma(): 6.0}, 8: {CUBLAS: 10.0, mma(): 6.0}})
    found = difference(before, after)
    (shape,) = found.shapes
    effects = {point.tokens: (point.before_us, point.after_us, point.basis) for point in shape.points}
    assert effects[4] == (8.0, 6.0, "own")
    assert effects[1] == (8.0, 10.0, "same")  # the second plan says stock there, and the first measured that
    assert effects[8] == (10.0, 6.0, "same")
    assert found.unknown == 0


def test_figures_of_two_targets_are_not_compared(tmp_path: Path) -> None:
    other = replace(
        TARGET, hardware=replace(TARGET.hardware, device_id="2901", arch="sm_100a", sms=148, gpu="NVIDIA B200")
    )
    before = made(tmp_path, "old", OLD)
    after = made(tmp_path, "new", {4: {CUBLAS: 7.0, mma(): 3.0}}, target=other, features=("lora",))
    found = difference(before, after)
    assert not found.comparable
    assert {line.split(":")[0] for line in found.gate} == {
        "part",
        "arch",
        "sms",
        "device_ids",
        "features",
    }
    assert found.unknown == 3
    assert (found.ratio, found.before_us, found.after_us) == (None, None, None)


def test_a_shape_that_only_one_plan_has_is_stock_in_the_other(tmp_path: Path) -> None:
    before = made(tmp_path, "old", OLD, dims={"n": 2304, "k": 1536})
    after = made(tmp_path, "new", NEW)
    found = difference(before, after)
    assert {(shape.shape, shape.presence) for shape in found.shapes} == {
        ("k=7168,n=1536", "after"),
        ("k=1536,n=2304", "before"),
    }
    gained, lost = found.shapes
    assert gained.before_us == 10.0
    assert lost.after_us == 10.0
    assert all(
        effect.basis == "same" for shape in found.shapes for change in shape.changes for effect in change.effects
    )


Run = Callable[..., str]


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("MEGATUNE_DB", raising=False)

    def run(*arguments: str) -> str:
        result = CliRunner().invoke(app, arguments)
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            raise result.exception
        assert result.exit_code == 0, result.output
        return result.stdout

    return run


def test_the_effect_on_a_step_is_the_sum_of_its_launches(tmp_path: Path) -> None:
    """Of Kimi K3 at 8 ranks 1536x7168 is launched once an MLA layer (24) and once an expert layer (92)."""
    before, after = made(tmp_path, "old", OLD), made(tmp_path, "new", NEW)
    (found,) = step_differences(before, after, "Kimi-K3")
    assert (found.model, found.ranks, found.provenance) == ("Kimi-K3", 8, "predicted")
    assert {"mla_gate", "shared_gate_up"} <= set(found.parts)
    assert {"attention", "reduction 7168", "host"} <= set(found.missing)
    changes = {step.tokens: step.change_us for step in found.steps}
    # As far apart as the ends of both intervals, which are 0.4 % of the medians wide on either side.
    for tokens, old, new in ((1, 8.0, 8.0), (4, 9.0, 6.0), (8, 10.0, 5.0)):
        change, width = (24 + 92) * (new - old), (24 + 92) * 0.004 * (new + old)
        wide = width if new != old else 0.0
        assert changes[tokens] == pytest.approx((change - wide, change + wide))
    other = replace(TARGET, toolchain=replace(TARGET.toolchain, driver="590.00"))
    assert step_differences(before, made(tmp_path, "other", NEW, target=other), "Kimi-K3") == ()
    assert step_differences(before, after, "GLM-5") == ()
    with pytest.raises(MegatuneError, match="nothing"):
        step_differences(before, after, "nothing")


def test_the_command_prints_a_table_and_json(run: Run, tmp_path: Path) -> None:
    before = made(tmp_path, "old", OLD)
    after = made(tmp_path, "new", NEW, parent=before.digest, features=("lora",))
    for name, plan in (("old", before), ("new", after)):
        (tmp_path / f"{name}.json").write_text(plan.to_json(), encoding="utf-8")
    printed = run("diff", "old.json", "new.json")
    for part in (before.digest, after.digest, "which replaces it", "3-4", "5-8", "stock", "mma", "-33.3 %", "-50.0 %"):
        assert part in printed
    assert "holds for another features: none to lora" in printed
    assert "1 of 1 shapes change" in printed
    assert "one launch of each shape: 8.75 to 6.75 µs; -24.0 % (geometric mean" in printed
    found = json.loads(run("diff", "old.json", "new.json", "--json", "--model", "Kimi-K3"))
    steps = found.pop("steps")
    assert found == difference(before, after).model_dump(mode="json")
    assert steps == [each.model_dump(mode="json") for each in step_differences(before, after, "Kimi-K3")] != []
    assert "A decode step of Kimi-K3 on 8 ranks, predicted from " in run(
        "diff", "old.json", "new.json", "--model", "Kimi-K3"
    )
    assert "0 of 1 shapes change" in run("diff", "old.json", "old.json")
    with pytest.raises(MegatuneError, match=r"cannot read the plan nowhere\.json"):
        run("diff", "old.json", "nowhere.json")


def test_a_plan_that_was_edited_by_hand_has_no_difference(run: Run, tmp_path: Path) -> None:
    text = made(tmp_path, "old", OLD).to_json()
    (tmp_path / "old.json").write_text(text, encoding="utf-8")
    (tmp_path / "edited.json").write_text(text.replace('"tokens_hi":4', '"tokens_hi":5'), encoding="utf-8")
    with pytest.raises(MegatuneError, match=r"edited\.json: the plan was changed after its digest was taken"):
        run("diff", "old.json", "edited.json")


def test_signing_by_command(run: Run, tmp_path: Path) -> None:
    plan = made(tmp_path, "old", OLD)
    key = Ed25519PrivateKey.generate()
    (tmp_path / "plan.json").write_text(plan.to_json(), encoding="utf-8")
    (tmp_path / "key.pem").write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    public = key.public_key().public_bytes_raw().hex()
    with pytest.raises(MegatuneError, match="not signed, and a key is given"):
        run("show", "plan.json", "--public-key", public)
    assert public in run("sign", "plan.json", "--key", "key.pem", "--out", "signed.json")
    assert Plan.load(tmp_path / "plan.json").signature is None
    said = json.loads(run("sign", "plan.json", "--key", "key.pem", "--json"))
    assert said == {"plan": plan.digest, "key": public, "file": "plan.json"}
    assert (tmp_path / "plan.json").read_text() == (tmp_path / "signed.json").read_text()
    assert f"signed by  {public}" in run("show", "plan.json", "--public-key", public)
    with pytest.raises(MegatuneError, match="cannot read the private key nowhere"):
        run("sign", "plan.json", "--key", "nowhere")
    with pytest.raises(MegatuneError, match="there is no file kimi to write the signature into: name one with --out"):
        run("sign", "kimi", "--key", "key.pem")


def test_a_plan_says_what_it_replaces(run: Run, tmp_path: Path) -> None:
    cases = [
        Case(Workload.of("projection", DIMS, tokens), config, us, Stage.FINAL, f"finals {tokens}")
        for tokens, configs in NEW.items()
        for config, us in configs.items()
    ]
    with open_database(tmp_path / "megatune.db") as database, database.session() as session:
        fill(session, cases)
    run("plan", "--name", "first")
    run("plan", "--name", "next", "--parent", "first", "--model", "moonshotai/kimi-k3", "--accept", "lora")
    first, following = Plan.load(tmp_path / "first.json"), Plan.load(tmp_path / "next.json")
    assert (first.content.parent, following.content.parent) == (None, first.digest)
    assert (following.content.gate.model, following.content.gate.features) == ("Kimi-K3", ("lora",))
    shown = run("show", "next.json")
    assert f"replaces   {first.digest}" in shown
    assert "H200 SXM (sm_90a, 132 SMs, device 2335); Kimi-K3" in shown
    for arguments, says in (
        (("--parent", "nowhere"), "no plan of that name or digest"),
        (("--model", "Kimi-K33"), "Kimi-K3"),
        (("--accept", "magic"), "no such feature: 'magic'"),
    ):
        with pytest.raises(MegatuneError, match=says):
            run("plan", "--name", "bad", *arguments)
    assert not (tmp_path / "bad.json").exists()
