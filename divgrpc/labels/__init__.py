"""Trains label models, predicts labels, and checks the label inputs of a build.

    trained = train(documents, labels)
    prediction = trained.model.predict(queries, top_k=5)

This package contains LEML training (`training`), the label model (`model`), and prediction with an
index (`prediction`). The modules of this package may import search, hashing, parameters, storage,
metrics, kernels and vectors, but not the builder, the engine or `divgrpc.Index`.
"""

from divgrpc.labels.model import LabelModel
from divgrpc.labels.training import TrainedLabels, train

__all__ = ["LabelModel", "TrainedLabels", "train"]
