"""Runs a function as soon as the engine itself has imported a module.

The overlay imports nothing of the engine's on its own: that would cost every process seconds, and might touch the GPU
in one that is about to fork.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType

logger = logging.getLogger("vllm.megatune_plan")

Callback = Callable[[ModuleType], None]


class _Watcher(MetaPathFinder):
    """First on the path of finders: lets the others find, and has the loader tell when it is done."""

    def __init__(self) -> None:
        self.waiting: dict[str, Callback] = {}

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        callback = self.waiting.get(fullname)
        if callback is None:
            return None
        for finder in sys.meta_path:
            find = None if finder is self else getattr(finder, "find_spec", None)
            spec: ModuleSpec | None = None if find is None else find(fullname, path, target)
            if spec is not None:
                try:
                    self._tell(spec, callback)
                except Exception as error:  # noqa: BLE001  (a loader of a kind that takes no other method)
                    logger.warning("megatune plan: %s is loaded unseen, and stays as it is: %s", fullname, error)
                return spec
        return None

    def _tell(self, spec: ModuleSpec, callback: Callback) -> None:
        loader = spec.loader
        if loader is None:
            return
        execute = loader.exec_module

        def execute_and_tell(module: ModuleType) -> None:
            execute(module)
            # Some finders give one loader to many modules.
            if module.__name__ == spec.name:
                callback(module)

        loader.exec_module = execute_and_tell  # type: ignore[method-assign]


_WATCHER = _Watcher()


def after_import(name: str, callback: Callback) -> None:
    """Call back with the module once it is imported; at once where it is already."""
    module = sys.modules.get(name)
    if module is not None:
        callback(module)
        return
    _WATCHER.waiting[name] = callback
    if _WATCHER not in sys.meta_path:
        sys.meta_path.insert(0, _WATCHER)
