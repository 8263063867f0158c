"""Labels: training of label models, prediction of labels, and label inputs of a build.

    trained = train(documents, labels)
    prediction = trained.model.predict(queries, top_k=5)

This folder holds LEML training (`training`), the model, and prediction with an index. It may import
search, hashing, parameters, storage, metrics, kernels and vectors, but not the builder, the engine
or `divgrpc.Index`.
"""

from divgrpc.labels.model import LabelModel
from divgrpc.labels.training import TrainedLabels, train

__all__ = ["LabelModel", "TrainedLabels", "train"]
