"""The checkpoint tensors each parameter of a class is loaded from, by transformers' own table of conversions.

Rules and headers of a checkpoint speak of these names; classes rename tensors and fuse them (all experts of a layer,
gate beside up).
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from compiler.frontend.capture.ir import Capture, Captured

#: Stands for {layer} while names are looked up, where patterns want a number that nothing else has.
_NUMBER = "907199254740"


def with_published(captured: Captured, module: Any) -> Captured:
    """`captured` with the checkpoint names of every weight whose name in the class is another."""
    names = _namer(module)
    if names is None:
        return captured

    def named(capture: Capture) -> Capture:
        weights = []
        for value in capture.weights:
            parts = names(value.key)
            weights.append(value if parts == (value.key,) else replace(value, parts=parts))
        return replace(capture, weights=tuple(weights))

    middle = None if captured.middle is None else named(captured.middle)
    before, after = named(captured.before), named(captured.after)
    return replace(captured, before=before, layers=tuple(map(named, captured.layers)), middle=middle, after=after)


def _namer(module: Any) -> Callable[[str], tuple[str, ...]] | None:
    """Key in the class -> checkpoint keys; None for a module that transformers has no table for.

    As transformers saves a model it did not load: prefixes are left as they are in the class.
    """
    from transformers import PreTrainedModel
    from transformers.conversion_mapping import get_model_conversion_mapping
    from transformers.core_model_loading import PrefixChange, WeightConverter

    if not isinstance(module, PreTrainedModel):
        return None
    steps = [
        step.reverse_transform()
        for step in reversed(get_model_conversion_mapping(module, add_legacy=False))
        if not isinstance(step, PrefixChange)
    ]
    converters = [step for step in steps if isinstance(step, WeightConverter)]
    renamings = [step for step in steps if not isinstance(step, WeightConverter)]

    def names(key: str) -> tuple[str, ...]:
        parts = _converted(converters, key.replace("{layer}", _NUMBER))
        for step in renamings:
            parts = tuple(step.rename_source_key(part)[0] for part in parts)
        return tuple(part.replace(_NUMBER, "{layer}").replace("*", "{expert}") for part in parts)

    return names


def _converted(converters: list[Any], key: str) -> tuple[str, ...]:
    """The tensors that the first conversion that knows `key` puts together to it."""
    for step in converters:
        renamed, matched = step.rename_source_key(key)
        if matched is not None:
            first, *others = step.target_patterns
            return (renamed, *(renamed.replace(first, other, 1) for other in others))
    return (key,)
