"""Label predictions of napkinXC and PECOS, by an interpreter that has them installed.

PECOS needs an older numpy than divgrpc. Another interpreter therefore runs this file as a program,
which must not import divgrpc. Both libraries run with default settings, on all cores, with rows of
unit length. napkinXC is trained as a tree of labels (PLT) and as one classifier for each label
(BR). PECOS is trained as XR-Linear on a tree of labels, which are clustered by the features of
their documents.
"""

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt
from scipy import sparse

NAMES: Final = ("napkinXC PLT", "napkinXC BR", "PECOS XR-Linear")
_TOP_K: Final = 5
# A scipy sparse array or a dense array; scipy has no type hints.
Csr: TypeAlias = Any
# The same type as in `divgrpc.types`, which the other interpreter cannot import.
IntArray: TypeAlias = npt.NDArray[np.int64]
Predict: TypeAlias = Callable[[Csr], IntArray]
Train: TypeAlias = Callable[[], Predict]
_SEED: Final = 0


@dataclass(frozen=True)
class Rival:
    """Labels (nq, 5) that a library predicts, padded with -1, and the seconds of both phases.

    If the library predicted no labels, `absent` says why.
    """

    name: str
    labels: IntArray | None = None
    training: float = 0.0
    prediction: float = 0.0
    absent: str = ""


def ask(python: Path, documents: Csr, labels: Csr, tests: Csr) -> Iterator[Rival]:
    """Train each library on documents and labels in its own process, and return its predictions."""
    with tempfile.TemporaryDirectory(prefix="divgrpc-rivals-") as temporary:
        folder = Path(temporary)
        for file, rows in (("documents", documents), ("labels", labels), ("asked", tests)):
            sparse.save_npz(folder / f"{file}.npz", sparse.csr_matrix(rows), compressed=False)
        for name in NAMES:
            # `-I` isolates the process, so that no module of this folder shadows a module of the
            # library.
            ran = subprocess.run(
                (str(python), "-I", __file__, str(folder), name),
                capture_output=True,
                text=True,
                check=False,
            )
            if ran.returncode:
                yield Rival(
                    name, absent=(ran.stderr.splitlines() or ["it failed without a message"])[-1]
                )
                continue
            seconds = json.loads((folder / "seconds.json").read_text())
            yield Rival(name, np.load(folder / "found.npy"), **seconds)


def _main(folder: Path, name: str) -> None:
    rows, labels, tests = (
        sparse.csr_matrix(sparse.load_npz(folder / f"{file}.npz"))
        for file in ("documents", "labels", "asked")
    )
    make = _pecos if name.startswith("PECOS") else _napkinxc
    train = make(name, folder, _unit(rows), labels)
    begin = time.perf_counter()
    predict = train()
    end = time.perf_counter()
    picks = predict(_unit(tests))
    seconds = {"training": end - begin, "prediction": time.perf_counter() - end}
    np.save(folder / "found.npy", picks)
    (folder / "seconds.json").write_text(json.dumps(seconds))


def _napkinxc(name: str, folder: Path, rows: Csr, labels: Csr) -> Train:
    from napkinxc.models import BR, PLT

    label_lists = [row.tolist() for row in np.split(labels.indices, labels.indptr[1:-1])]

    def train() -> Predict:
        kind = PLT if name.endswith("PLT") else BR
        model = kind(str(folder / "model"), seed=_SEED)
        model.fit(rows, label_lists)

        def predict(tests: Csr) -> IntArray:
            picks = np.full((tests.shape[0], _TOP_K), -1)
            for row, row_labels in enumerate(model.predict(tests, top_k=_TOP_K)):
                picks[row, : len(row_labels)] = row_labels
            return picks

        return predict

    return train


def _pecos(_: str, __: Path, rows: Csr, labels: Csr) -> Train:
    from pecos.xmc import Indexer, LabelEmbeddingFactory
    from pecos.xmc.xlinear.model import XLinearModel

    def train() -> Predict:
        features = LabelEmbeddingFactory.create(labels, rows, method="pifa")
        model = XLinearModel.train(rows, labels, C=Indexer.gen(features, seed=_SEED))

        def predict(tests: Csr) -> IntArray:
            scores = sparse.csr_matrix(model.predict(tests, only_topk=_TOP_K))
            picks = np.full((tests.shape[0], _TOP_K), -1)
            for row in range(tests.shape[0]):
                row_labels = slice(scores.indptr[row], scores.indptr[row + 1])
                order = np.argsort(-scores.data[row_labels], kind="stable")
                picks[row, : len(order)] = scores.indices[row_labels][order]
            return picks

        return predict

    return train


def _unit(rows: Csr) -> Csr:
    lengths = np.sqrt(np.asarray(rows.multiply(rows).sum(axis=1)).ravel())
    lengths[lengths == 0] = 1
    unit = sparse.csr_matrix(sparse.diags(1 / lengths) @ rows, dtype=np.float32)
    unit.sort_indices()
    return unit


if __name__ == "__main__":
    _main(Path(sys.argv[1]), sys.argv[2])
