"""Import paths of earlier releases, kept as aliases of the current modules."""

import sys
from collections.abc import Sequence
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Final

MODULES: Final = {
    "divgrpc.evaluation.label_grid": "divgrpc.evaluation.grid",
    "divgrpc.evaluation.label_thresholds": "divgrpc.evaluation.label_running",
    "divgrpc.evaluation.label_votes": "divgrpc.evaluation.label_running",
    "divgrpc.label_parameters": "divgrpc.parameters.predict",
    "divgrpc.label_plans": "divgrpc.labels.build_inputs",
    "divgrpc.thresholds": "divgrpc.evaluation.label_running",
    "divgrpc.voting": "divgrpc.evaluation.label_running",
    "divgrpc.warming": "divgrpc.warmup",
    "divgrpc_client.async_client": "divgrpc_client.client",
    "divgrpc_client.options": "divgrpc_client.messages.options",
}


class _Alias(Loader):
    """Loads the current module under a former path."""

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        module = import_module(MODULES[spec.name])
        self._spec = module.__spec__
        return module

    def exec_module(self, module: ModuleType) -> None:
        """Restore the current module's spec; `create_module` already executed the module."""
        module.__spec__ = self._spec


class _Finder(MetaPathFinder):
    """Finds the paths in `MODULES`, and leaves every other path to other finders."""

    def find_spec(
        self, fullname: str, _path: Sequence[str] | None, _target: ModuleType | None = None
    ) -> ModuleSpec | None:
        return ModuleSpec(fullname, _Alias()) if fullname in MODULES else None


def install() -> None:
    """Make the former paths importable, unless a real module exists at a former path."""
    if not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.append(_Finder())
