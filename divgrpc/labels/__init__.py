"""Labels of documents: a model of them trained, and every label scored with it.

    trained = train(documents, labels)
    prediction = trained.model.predict(queries, top_k=5)

`training` is where to begin to read.
"""

from divgrpc.labels.model import LabelModel
from divgrpc.labels.training import TrainedLabels, train

__all__ = ["LabelModel", "TrainedLabels", "train"]
