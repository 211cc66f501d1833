"""Stands in for what a runtime's modules import and a machine without a GPU cannot have.

That is torch, CUDA, the DSL, Triton, and those modules of the runtime itself that need them to do more than define
names. Nothing that is stubbed decides anything in a test; the modules that do are the released ones, and the test names
them.

A stub is a class whose attributes are stubs. It can be a base, a decorator, an annotation or a default.
"""

from __future__ import annotations

import sys
from collections.abc import Collection
from collections.abc import Sequence
from importlib.abc import Loader
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any


class _Meta(type):
    def __getattr__(cls, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        found = stub(f"{cls.__name__}.{name}")
        setattr(cls, name, found)
        return found

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        if cls.__dict__.get("_is_stub") and len(args) == 1 and not kwargs and callable(args[0]):
            return args[0]  # a decorator
        return super().__call__(*args, **kwargs)

    def __getitem__(cls, item: Any) -> Any:
        return cls

    def __or__(cls, other: Any) -> Any:
        return cls

    __ror__ = __or__


def stub(name: str) -> Any:
    def take(self: Any, *args: Any, **kwargs: Any) -> None:
        pass

    def give(self: Any, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return stub(name)

    return _Meta(name, (), {"_is_stub": True, "__init__": take, "__getattr__": give, "__call__": lambda *_, **__: None})


class _StubModule(ModuleType):
    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        found = stub(f"{self.__name__}.{name}")
        setattr(self, name, found)
        return found


class Stubs(MetaPathFinder, Loader):
    """Finds a stub for every module below ``tops``, but for those that are ``real``."""

    def __init__(self, tops: Collection[str], real: Collection[str], root: Path) -> None:
        self.tops = tops
        self.real = real
        self.root = root

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname.partition(".")[0] not in self.tops or fullname in self.real:
            return None
        return ModuleSpec(fullname, self, is_package=True)

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        module = _StubModule(spec.name)
        module.__path__ = [str(self.root / spec.name.replace(".", "/"))]
        return module

    def exec_module(self, module: ModuleType) -> None:
        pass


def install(tops: Collection[str], real: Collection[str], root: Path) -> None:
    """From now on imports give stubs. For a process that does nothing else."""
    sys.meta_path.insert(0, Stubs(tops, real, root))
