"""Canonical JSON and content identity.

Two values are the same exactly when their canonical JSON is. An identity is `<prefix>-<hash>`; the prefix names the
kind of value and the version of its form, so that a change of form never collides with an old identity.
"""

import hashlib
import json
from typing import Any


def canonical_json(value: Any) -> str:
    """`value` as JSON with sorted keys, no spaces and no NaN or Infinity (ValueError if there is one)."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False)


def identity(prefix: str, value: Any) -> str:
    """`prefix-` and 24 hex digits (96 bits) of the blake2b of `value`'s canonical JSON."""
    return f"{prefix}-{hashlib.blake2b(canonical_json(value).encode(), digest_size=12).hexdigest()}"
