"""Local updates that draw from the tilted distribution."""
