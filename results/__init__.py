"""Stored runs: append-only samples, scores, statistics and tables. They know neither tasks nor models."""
