"""How good answers are: objective J, h, recall, distinct items, and the precision of labels."""
