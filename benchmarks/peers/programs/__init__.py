"""Programs of the engines, each run by the Python of its own environment, which has no Godwit."""
