"""The paper's table and figures, made again on data of today."""
