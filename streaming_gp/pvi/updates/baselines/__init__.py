"""Rules of the methods that PVI is compared with."""
