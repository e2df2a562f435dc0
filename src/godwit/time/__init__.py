"""Time: durations, event time of an epoch, grids of panes, and calendar windows."""
