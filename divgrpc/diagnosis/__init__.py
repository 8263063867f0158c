"""Diagnoses whether points of a collection crowd, and what the defaults of queries do about it.

`survey` counts and measures, `findings` computes the shares and the effects, and `advice` judges
them. The package may import the engine and what is below it.
"""
