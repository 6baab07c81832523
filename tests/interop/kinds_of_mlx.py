"""The rows of mlx-lm in the table of kinds of models: see `kinds_of_models`."""

from kinds_of_models import of_loader


def tests():
    return of_loader("mlx-lm")
