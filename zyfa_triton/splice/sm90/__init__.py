"""Decides how a loop of an sm_90a kernel becomes a recipe's PTX."""
