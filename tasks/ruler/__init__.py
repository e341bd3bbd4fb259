"""RULER: thirteen synthetic tasks at controlled token lengths."""
