"""Godwit beside other engines, over the same files, in one run."""
