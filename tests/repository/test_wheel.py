"""The wheel that users install."""

from __future__ import annotations

import subprocess
import sys
import venv
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    run(sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", str(folder))
    (built,) = folder.glob("*.whl")
    return built


def run(*command: str, cwd: Path = ROOT) -> str:
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_it_holds_the_five_packages_and_their_data(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    assert {name.partition("/")[0] for name in names if ".dist-info/" not in name} == {
        "megatune_dashboard",
        "megatune_db",
        "megatune_kernels",
        "megatune_planner",
        "megatune_tuner",
    }
    assert "megatune_kernels/models/catalogue.json" in names
    assert "megatune_tuner/data/campaigns/quickstart.toml" in names
    assert any(name.endswith("/licenses/LICENSE") for name in names)
    assert not [name for name in names if "/tests/" in name or name.endswith(".pyc")]


@pytest.mark.timeout(900)
def test_it_installs_beside_the_package_named_kernels(wheel: Path, tmp_path: Path) -> None:
    venv.create(tmp_path / "venv")
    python = str(tmp_path / "venv/bin/python")
    # What nobody imports here need not be compiled, nor another pip be installed.
    options = ["--quiet", "--disable-pip-version-check", "--no-compile"]
    run(sys.executable, "-m", "pip", "--python", python, "install", *options, str(wheel), "kernels")
    found = run(
        python,
        "-c",
        "import kernels, megatune_kernels.models, megatune_dashboard.command as command\n"
        "print(kernels.__file__, megatune_kernels.__file__, command.__file__, len(megatune_kernels.models.models()))",
        cwd=tmp_path,
    ).split()
    assert all(path.startswith(str(tmp_path)) for path in found[:3])
    assert int(found[3]) >= 36
    assert "megatune" in run(str(tmp_path / "venv/bin/megatune"), "--help", cwd=tmp_path)
