"""A simulator of the read path: fronts, their pools of workers, workers and builders."""
