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


def readable_json(value: Any, width: int = 120) -> str:
    """`value` as ASCII JSON for people, ending with a newline: keys in their order, what fits a line on one line.

    ValueError for NaN and Infinity.
    """
    return _laid_out(value, 0, 0, width) + "\n"


def _laid_out(value: Any, indent: int, before: int, width: int) -> str:
    """`value` where `before` characters stand on its line, further lines at `indent`."""
    flat = json.dumps(value, ensure_ascii=True, allow_nan=False)
    if not value or not isinstance(value, dict | list) or before + len(flat) + 1 <= width:
        return flat
    inner, pad = indent + 2, " " * (indent + 2)
    if isinstance(value, dict):
        heads = {json.dumps(key) + ": ": item for key, item in value.items()}
        parts = [head + _laid_out(item, inner, inner + len(head), width) for head, item in heads.items()]
        return "{\n" + ",\n".join(pad + part for part in parts) + "\n" + " " * indent + "}"
    parts = [_laid_out(item, inner, inner, width) for item in value]
    return "[\n" + ",\n".join(pad + part for part in parts) + "\n" + " " * indent + "]"


def identity(prefix: str, value: Any) -> str:
    """`prefix-` and 24 hex digits (96 bits) of the blake2b of `value`'s canonical JSON."""
    return f"{prefix}-{hashlib.blake2b(canonical_json(value).encode(), digest_size=12).hexdigest()}"
