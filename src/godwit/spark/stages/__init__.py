"""One epoch as Spark jobs: source side, exchanges, lanes, and copies in the background."""
