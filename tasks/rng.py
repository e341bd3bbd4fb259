"""Random numbers of a sample: a generator that depends on the sample's id and on nothing else.

Any subset, order, shard or resumed run therefore builds the same sample.
"""

from __future__ import annotations

import hashlib
import random


def sample_rng(sample_id: str) -> random.Random:
    """A generator seeded with the SHA-256 of `sample_id` (Python's own `hash` differs between processes)."""
    return random.Random(int.from_bytes(hashlib.sha256(sample_id.encode()).digest(), "big"))
