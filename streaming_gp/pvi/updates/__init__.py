"""Local update rules: how a client turns a cavity and its data into a factor."""
