"""Laboratory of Godwit: a simulator, the planners of five papers, and their figures."""
