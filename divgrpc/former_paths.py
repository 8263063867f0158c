"""Import paths of earlier releases: each is an alias of the module that has its names today."""

import sys
from collections.abc import Sequence
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Final

MODULES: Final = {
    "divgrpc.label_parameters": "divgrpc.parameters.predict",
    "divgrpc.label_plans": "divgrpc.labels.build_inputs",
    "divgrpc.thresholds": "divgrpc.evaluation.label_thresholds",
    "divgrpc.voting": "divgrpc.evaluation.label_votes",
    "divgrpc.warming": "divgrpc.warmup",
    "divgrpc_client.options": "divgrpc_client.messages.options",
}


class _Alias(Loader):
    """Load the module of today under a former path."""

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        module = import_module(MODULES[spec.name])
        self._spec = module.__spec__
        return module

    def exec_module(self, module: ModuleType) -> None:
        """Run nothing, since the module ran when it was imported; give it its own spec back."""
        module.__spec__ = self._spec


class _Finder(MetaPathFinder):
    """Find former paths; every other path is left to the finders before this one."""

    def find_spec(
        self, fullname: str, _path: Sequence[str] | None, _target: ModuleType | None = None
    ) -> ModuleSpec | None:
        return ModuleSpec(fullname, _Alias()) if fullname in MODULES else None


def install() -> None:
    """Let former paths import, after every path that exists."""
    if not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.append(_Finder())
