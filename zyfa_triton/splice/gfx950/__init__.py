"""Decides how a loop of a gfx950 kernel becomes a recipe's assembly."""
