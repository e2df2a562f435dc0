"""`godwit reproduce`: redraw the papers' figures, and say where ours agree.

Start with `figure`: a script in ``experiments/paperN`` is one `Figure`.  `catalogue` finds them,
`running` runs one and keeps its result whole, `drawing` draws it, `gallery` writes the page.
"""
