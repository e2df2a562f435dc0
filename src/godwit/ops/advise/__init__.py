"""`godwit advise`: stages of stateful operators in the event log of an ordinary Spark run."""
