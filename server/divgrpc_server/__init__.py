"""The processes: supervisor, fronts, workers, builders."""
