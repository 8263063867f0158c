"""Trains label models, predicts labels, and checks the label inputs of a build.

    trained = train(documents, labels)
    prediction = trained.model.predict(queries, top_k=5)

The main modules are `training` (LEML, a label model of low rank), `model` (the label model), and
`prediction` (prediction with an index). The modules of this package may import search, hashing,
parameters, storage, metrics, kernels and vectors, but not the builder, the engine or
`divgrpc.Index`.
"""

from divgrpc.labels.model import LabelModel
from divgrpc.labels.training import TrainedLabels, train

__all__ = ["LabelModel", "TrainedLabels", "train"]
