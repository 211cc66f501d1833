"""What the documents say is there, is there."""

from __future__ import annotations

import re
import shlex
import tomllib
from pathlib import Path
from typing import Any

import pytest
import typer

from megatune_dashboard.command import app
from megatune_planner.context_errors import read_context_errors
from megatune_planner.serving.given import read_given
from megatune_tuner.campaign_file import parse_campaign

ROOT = Path(__file__).resolve().parents[2]
DOCUMENTS = ["README.md", "CONTRIBUTING.md", "CHANGELOG.md", "docs/architecture.md", "docs/measured.md"]
FOLDERS = ["", "kernels", "tuner", "planner", "db", "dashboard"]

document = pytest.mark.parametrize("document", [name for name in DOCUMENTS if (ROOT / name).exists()])


def blocks(document: str, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", (ROOT / document).read_text(), re.MULTILINE | re.DOTALL)


@document
def test_links_lead_somewhere(document: str) -> None:
    for target in re.findall(r"\]\(([^)]+)\)", (ROOT / document).read_text()):
        if "://" in target:
            continue
        path, _, anchor = target.partition("#")
        linked = (ROOT / document).parent / path if path else ROOT / document
        assert linked.exists(), target
        if anchor:
            headings = re.findall(r"^#+ (.*)$", linked.read_text(), re.MULTILINE)
            assert anchor in [heading.lower().replace(" ", "-") for heading in headings], target


@document
def test_files_that_are_named_exist(document: str) -> None:
    for name in re.findall(r"`((?:[a-z_]+/)+[a-z_.]*)`", (ROOT / document).read_text()):
        assert any((ROOT / folder / name).exists() for folder in FOLDERS), name


@document
def test_commands_that_are_shown_exist_with_their_options(document: str) -> None:
    for block in blocks(document, "sh"):
        for line in block.replace("\\\n", " ").splitlines():
            words = shlex.split(line, comments=True)
            if words[:1] != ["megatune"]:
                continue
            command: Any = typer.main.get_command(app)
            for word in words[1:]:
                if word.startswith("-"):
                    options = {name for parameter in command.params for name in parameter.opts} | {"--help"}
                    assert word.partition("=")[0] in options, line
                elif hasattr(command, "commands"):
                    assert word in command.commands, line
                    command = command.commands[word]


@document
def test_files_that_are_shown_are_valid(document: str, tmp_path: Path) -> None:
    for block in blocks(document, "toml"):
        if "given" in tomllib.loads(block):
            path = tmp_path / "given.toml"
            path.write_text(block)
            assert read_given(path).sources
        elif "errors" in tomllib.loads(block):
            path = tmp_path / "errors.toml"
            path.write_text(block)
            assert read_context_errors(path).errors
        else:
            assert parse_campaign(block).workloads()
