"""Tables of any kind: what their columns mean as numbers, and files of them, read in chunks."""
