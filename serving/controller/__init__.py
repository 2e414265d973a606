"""The admission rules: pure in-memory Python, clock passed in, no I/O."""
