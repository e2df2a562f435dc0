"""What two cores cannot show: simulated runs, and how far the simulator is from real ones."""
