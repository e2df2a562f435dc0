"""From the graph that a user's calls draw to a plan that runs.

`nodes` is the graph, `compilation` binds it to the types of its columns, `compiled` is the result:
components, operators, inputs and outputs. `explain` prints it.
"""
