"""Label models: training, label prediction, and the inputs of a build that concern labels.

    trained = train(documents, labels)
    prediction = trained.model.predict(queries, top_k=5)

Lives here: LEML training (`training`), the model, and prediction with an index. May import search,
hashing, parameters, storage, metrics, kernels and vectors. May not import the builder, the engine
or `divgrpc.Index`.
"""

from divgrpc.labels.model import LabelModel
from divgrpc.labels.training import TrainedLabels, train

__all__ = ["LabelModel", "TrainedLabels", "train"]
