"""AppWorld's interface in plain Python: our own world without the engine, for tests and quick runs."""
