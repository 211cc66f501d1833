"""What holds for every file of the repository, whoever adds one."""

from __future__ import annotations

import ast
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = {
    "kernels": "megatune_kernels",
    "tuner": "megatune_tuner",
    "planner": "megatune_planner",
    "db": "megatune_db",
    "dashboard": "megatune_dashboard",
}
"""The import package of each folder."""

MODULES = sorted(path for folder, package in PACKAGES.items() for path in (ROOT / folder / package).rglob("*.py"))


@pytest.mark.parametrize(("folder", "package"), PACKAGES.items())
def test_a_folder_holds_one_package_and_is_none_itself(folder: str, package: str) -> None:
    # A top-level ``kernels`` would hide the package of that name which serving images have.
    assert not (ROOT / folder / "__init__.py").exists()
    assert [path.name for path in (ROOT / folder).iterdir() if (path / "__init__.py").exists()] == [package]
    assert (ROOT / folder / package / "py.typed").exists()


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(ROOT)))
def test_every_module_says_what_it_is_for(path: Path) -> None:
    tree = ast.parse(path.read_text())
    assert not tree.body or ast.get_docstring(tree), "a module that is not empty needs a docstring"


def test_the_arrows_point_one_way() -> None:
    done = subprocess.run(
        [sys.executable, "-c", "from importlinter.cli import lint_imports_command; lint_imports_command()"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "0 broken" in done.stdout


def test_every_entry_point_names_something_that_is_there() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    points = {**project["scripts"]}
    for group in project["entry-points"].values():
        points |= group
    for target in points.values():
        module, _, name = target.partition(":")
        path = ROOT / next(folder for folder, package in PACKAGES.items() if module.startswith(package))
        file = path / (module.replace(".", "/") + ".py")
        if not file.exists():
            file = path / module.replace(".", "/") / "__init__.py"
        assert file.exists(), target
        assert name in file.read_text(), target


def test_the_changelog_has_the_version() -> None:
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    assert f"## {version}" in (ROOT / "CHANGELOG.md").read_text()
