"""Event time: windows, the panes they are made of, and the operators that work on them."""
