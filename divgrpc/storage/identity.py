"""A generation as it is kept: which one it is, and what is taken where a caller names nothing."""

from pathlib import Path
from typing import Any, Final

from divgrpc.errors import UnfitIndexError
from divgrpc.parameters.predict import PredictParameters
from divgrpc.storage.defaults import updated
from divgrpc.storage.generations import Generation, IndexFolder
from divgrpc.storage.manifest import Manifest
from divgrpc.types import IndexInfo, Mode, QueryDefault

NO_LABELS: Final = "the index has no labels; Build takes them"


class KeptIndex:
    """What there is to say of an index without a look at its points."""

    def __init__(self, generation: Generation, name: str, folder: Path | None) -> None:
        """Take a generation; `folder` is that of the index, where it is kept in one."""
        self._manifest = generation.manifest
        self._name = name
        self._folder = folder
        # What calls take where their caller names nothing; see `set_default`, `set_threshold`.
        self.defaults = generation.defaults

    @property
    def info(self) -> IndexInfo:
        """What the index was asked to be, and what Build made of it."""
        return self._manifest.info(self._name, self.defaults)

    @property
    def manifest(self) -> Manifest:
        """What tells this generation from any other."""
        return self._manifest

    def set_default(self, default: QueryDefault | None) -> None:
        """Set what Query takes on this generation where the caller names nothing.

        What a query names itself goes before it. It is kept with the index, where that is in a
        folder, and whoever serves it there uses it at once. None takes it back. Raises
        `IndexChangedError` where another generation serves by now, and `BuildUnderWayError`.
        """
        self._keep(query=default)

    def set_threshold(self, threshold: float | None, mode: Mode = "embedding") -> None:
        """Set what `predict_labels` takes in a mode where the caller names no threshold.

        `divgrpc.evaluation.label_thresholds` chooses one. The threshold is kept as `set_default`
        keeps its settings. Raises what `set_default` raises; `InvalidArgumentError` for a threshold
        that is no number; `UnfitIndexError` where the index has no labels.
        """
        if self._manifest.labels is None:
            raise UnfitIndexError("mode", NO_LABELS)
        asked = PredictParameters(mode=mode, threshold=threshold)
        self._keep(thresholds={mode: asked.least})

    def _keep(self, **changes: Any) -> None:  # noqa: ANN401  # fields of `Defaults`
        if self._folder is None:
            self.defaults = updated(self.defaults, changes)
        else:
            self.defaults = IndexFolder(self._folder).set_defaults(self._manifest, **changes)

    @property
    def default(self) -> QueryDefault | None:
        """What `query` takes where its caller names nothing."""
        return self.defaults.query

    @property
    def generation(self) -> int:
        """The number of this build."""
        return self._manifest.generation

    @property
    def rows(self) -> int:
        """How many points there are."""
        return self._manifest.rows

    @property
    def dims(self) -> int:
        """How many dimensions they have."""
        return self._manifest.dims

    @property
    def widest_row(self) -> int:
        """How many numbers a point stores at most: all dimensions where points are dense."""
        return self._manifest.widest_row
