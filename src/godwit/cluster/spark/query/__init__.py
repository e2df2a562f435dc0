"""What a user holds: a flow that starts, and its running query."""
