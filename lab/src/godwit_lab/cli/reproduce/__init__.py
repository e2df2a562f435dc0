"""`godwit reproduce`: redraw the papers' figures, and say where ours agree.

Start with `figure`: scripts in ``experiments/paperN`` define figures.  `catalogue` finds them,
`running` runs one and keeps its result whole, `drawing` draws it, `gallery` writes the page.
"""
