"""Loads single modules of another runtime without importing the runtime.

A kernel's module says ``import torch``, ``from vllm.platforms import current_platform`` and more, and needs little of
it to say which configs it takes or to be compiled. Here a module is executed on its own. What it imports is, in this
order: what the adapter gives in its place, a module of the same folder, loaded alike, a real module where the adapter
says so or the standard library has it, and else a ``StandIn``, which can be called, subclassed and looked into, and
does nothing.

Nothing of the runtime is copied; the digest of what was read is part of an artifact's key (``sources_digest``).
"""

from __future__ import annotations

import ast
import builtins
import hashlib
import linecache
import sys
from collections.abc import Callable
from collections.abc import Mapping
from collections.abc import Sequence
from functools import cache
from importlib import import_module
from types import ModuleType
from typing import Any

from megatune_kernels.canonical import digest
from megatune_kernels.errors import Unknown
from megatune_kernels.runtime_source import Runtime


class StandIn:
    """Something by its dotted name that nothing here needs: its attributes, what it returns and what it decorates."""

    def __init__(self, name: str, find: Callable[[str], Any]) -> None:
        self._name = name
        self._find = find

    def __getattr__(self, attribute: str) -> Any:
        if attribute.startswith("__") and attribute.endswith("__"):
            raise AttributeError(attribute)
        return self._find(f"{self._name}.{attribute}")

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        # A decorator gives back what it is applied to.
        if len(arguments) == 1 and not named and callable(arguments[0]) and not isinstance(arguments[0], StandIn):
            return arguments[0]
        return StandIn(f"{self._name}()", self._find)

    def __mro_entries__(self, bases: tuple[Any, ...]) -> tuple[Any, ...]:
        return ()

    def __repr__(self) -> str:
        return f"<stand-in for {self._name}>"


class Foreign:
    """Modules of one runtime, loaded on their own.

    :param folder: dotted name of the package whose modules are loaded where one of them imports another.
    :param given: what stands for modules or their names, by dotted name, e.g. ``{"torch.empty": …}``.
    :param real: packages that are imported as they are, beside the standard library.
    """

    def __init__(
        self, runtime: Runtime, folder: str, *, given: Mapping[str, Any] | None = None, real: Sequence[str] = ()
    ) -> None:
        self.runtime = runtime
        self._folder = folder
        self._given = dict(given or {})
        self._real = frozenset(real)
        self._modules: dict[str, ModuleType] = {}
        self._stand_ins: dict[str, StandIn] = {}

    def module(self, name: str) -> ModuleType:
        """The module of that dotted name, executed once.

        :raises Unknown: when the runtime has none, or it cannot be executed here.
        """
        if name not in self._modules:
            text = source_of(self.runtime, name)
            # Under a name of its own: nobody else finds it, and the same source has the same name in every process.
            mark = hashlib.sha256(text.encode()).hexdigest()[:16]
            module = ModuleType(f"_megatune_foreign_{mark}.{name.rpartition('.')[2]}")
            module.__file__ = str(self.runtime.place / path_of(name))
            module.__dict__["__builtins__"] = {**vars(builtins), "__import__": self._importer(name)}
            self._modules[name] = module
            # Dataclasses look their module up there, and compilers read a function's source through linecache.
            sys.modules[module.__name__] = module
            linecache.cache[module.__file__] = (len(text), None, text.splitlines(keepends=True), module.__file__)
            try:
                # It has its own imports from the future alone: the compiler reads annotations.
                exec(compile(text, module.__file__, "exec", dont_inherit=True), module.__dict__)
            except Exception as error:
                del self._modules[name]
                raise Unknown(f"{self._where(name)} cannot be loaded: {type(error).__name__}: {error}") from error
            finally:
                del sys.modules[module.__name__]
        return self._modules[name]

    def find(self, name: str) -> Any:
        """What a dotted name means to the modules that are loaded here."""
        if name in self._given:
            return self._given[name]
        if name.startswith(f"{self._folder}.") and self.runtime.read(path_of(name)) is not None:
            return self.module(name)
        top = name.partition(".")[0]
        inside = any(each.startswith(f"{name}.") for each in self._given)
        if not inside and (top in self._real or top in sys.stdlib_module_names):
            return _real(name)
        if name not in self._stand_ins:
            # Where only some names of a real package are given, the others are its own.
            self._stand_ins[name] = StandIn(name, self.find)
        return self._stand_ins[name]

    def need(self, module: str, name: str) -> Any:
        """A name of a module.

        :raises Unknown: when the module lacks it.
        """
        found = getattr(self.module(module), name, None)
        if found is None:
            raise Unknown(f"{self._where(module)} has no {name}, which Megatune needs: take a version that has it")
        return found

    def _importer(self, importer: str) -> Callable[..., Any]:
        def find(
            name: str, globals: Any = None, locals: Any = None, fromlist: Sequence[str] | None = None, level: int = 0
        ) -> Any:
            if level:
                package = importer.rsplit(".", level)[0]
                name = f"{package}.{name}" if name else package
            # "import a.b" binds a, and Python asks it for b.
            return self.find(name if fromlist else name.partition(".")[0])

        return find

    def _where(self, name: str) -> str:
        return f"{path_of(name)} of {describe(self.runtime)}"


def path_of(name: str) -> str:
    """Of a module, from the place of its runtime on."""
    return f"{name.replace('.', '/')}.py"


def describe(runtime: Runtime) -> str:
    """A runtime with its version and place."""
    return f"{runtime.name} {runtime.version or 'of no known version'} at {runtime.place}"


def source_of(runtime: Runtime, name: str) -> str:
    """The text of a module.

    :raises Unknown: when the runtime has no such file.
    """
    text = runtime.read(path_of(name))
    if text is None:
        raise Unknown(f"{describe(runtime)} has no {path_of(name)}: take a version that has this kernel")
    return text


@cache
def sources_digest(runtime: Runtime, modules: tuple[str, ...]) -> str:
    """Digest of the texts of modules, and of those beside them that they import, for keys and revisions.

    :raises Unknown: when the runtime lacks one, or one is no Python.
    """
    texts: dict[str, str] = {}
    waiting = list(modules)
    while waiting:
        name = waiting.pop()
        if name not in texts:
            texts[name] = source_of(runtime, name)
            waiting += [beside for beside in _beside(runtime, name, texts[name]) if beside not in texts]
    return digest({name: hashlib.sha256(text.encode()).hexdigest() for name, text in texts.items()})


def _beside(runtime: Runtime, name: str, text: str) -> list[str]:
    """Modules of the same folder that a module imports, wherever in it."""
    folder = name.rpartition(".")[0]
    try:
        nodes = list(ast.walk(ast.parse(text)))
    except SyntaxError as error:
        raise Unknown(f"{path_of(name)} of {describe(runtime)} cannot be loaded: SyntaxError: {error.msg}") from error
    found: list[str] = []
    for node in nodes:
        if isinstance(node, ast.Import):
            found += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            package = ".".join(name.split(".")[: -node.level]) if node.level else ""
            source = ".".join(part for part in (package, node.module) if part)
            found += [source, *(f"{source}.{alias.name}" for alias in node.names)]
    inside = [each for each in dict.fromkeys(found) if each.rpartition(".")[0] == folder]
    return [each for each in inside if runtime.read(path_of(each)) is not None]


def _real(name: str) -> Any:
    """The real module, or the attribute of one."""
    try:
        return import_module(name)
    except ImportError:
        parent, _, attribute = name.rpartition(".")
        if not parent:
            raise
        return getattr(import_module(parent), attribute)
