"""Planners of the papers and what these compare with; `registry` describes them."""
