"""The relatives of BERT, ViT, T5 and BART: the class, the capture door, and every key of a whole config."""

import json
from pathlib import Path
from typing import Any

import pytest

from compiler.errors import InputError
from compiler.frontend import Frontend, build, load_model, open_door
from compiler.frontend.compare import differences
from compiler.frontend.describe import describe_model
from compiler.frontend.encoder_relatives import ENCODER_RELATIVES
from compiler.frontend.encoder_rows import ENCODERS
from compiler.frontend.oracle import COUNTED, Level, checks
from compiler.ir.graph import Phase, Workload
from tests.frontend.test_encoders import CONFIGS, SIDES, TEXT

pytest.importorskip("torch")
pytest.importorskip("transformers")

SMALL: dict[str, dict[str, Any]] = {
    **dict.fromkeys(("roberta", "xlm-roberta", "camembert"), TEXT),
    "distilbert": {"dim": 64, "n_layers": 3, "n_heads": 4, "hidden_dim": 96, "vocab_size": 101}
    | {"max_position_embeddings": 48},
    **dict.fromkeys(("vit_msn", "deit"), CONFIGS["vit"]),
    **dict.fromkeys(("mt5", "umt5"), CONFIGS["t5"]),
    **dict.fromkeys(("mbart", "pegasus", "blenderbot", "blenderbot-small", "marian", "m2m_100"), SIDES),
}
VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    **{name: (name, {}) for name in SMALL},
    "deit_wide": ("deit", {"image_size": [40, 24], "qkv_bias": False, "id2label": {str(n): str(n) for n in range(7)}}),
    "mt5_plain": ("mt5", {"feed_forward_proj": "relu", "tie_word_embeddings": False}),
    "umt5_deep": ("umt5", {"num_decoder_layers": 4, "feed_forward_proj": "gated-silu", "tie_word_embeddings": False}),
    "marian_scaled": ("marian", {"scale_embedding": True, "decoder_attention_heads": 2, "decoder_ffn_dim": 32}),
    "pegasus_thin": ("pegasus", {"encoder_ffn_dim": 32, "encoder_attention_heads": 2, "activation_function": "relu"}),
}


def _write(folder: Path, values: dict[str, Any]) -> str:
    (folder / "config.json").write_text(json.dumps(values))
    return str(folder)


def _config(name: str) -> dict[str, Any]:
    base, more = VARIANTS[name]
    return {"model_type": base} | SMALL[base] | more


def test_every_relative_is_here() -> None:
    assert set(SMALL) == set(ENCODER_RELATIVES)


@pytest.mark.parametrize("name", VARIANTS)
def test_the_class_and_the_other_door(name: str, tmp_path: Path) -> None:
    model = _write(tmp_path, _config(name))
    spec, traced = load_model(model), open_door(model, Frontend.CAPTURE)
    for check in checks(lambda workload: build(spec, workload), model, COUNTED):
        assert check.equal, check
    assert spec.params == build(spec, Workload(Phase.PREFILL, 2, 40, 1)).weight_elements
    for phase in (Phase.PREFILL,) if spec.encodes else Phase:
        work = Workload(phase, 2, 40, 1, "bf16")
        ours, theirs = build(spec, work), traced.graph(work)
        assert differences(ours, theirs) == () and ours.sequence == theirs.sequence


@pytest.mark.parametrize("name", SMALL)
def test_by_class_default_and_described(name: str, tmp_path: Path) -> None:
    spec = load_model(name)
    (check,) = checks(lambda workload: build(spec, workload), name, (Level.PARAMS,))
    assert (check.equal, check.ours) == (True, spec.params)
    (tmp_path / "mine.py").write_text(describe_model(name))
    work = Workload(Phase.PREFILL, 2, 40, 1)
    assert build(load_model(f"{tmp_path}/mine.py:model"), work).id == build(spec, work).id


def test_biases_of_umt5_are_stored_in_every_layer(tmp_path: Path) -> None:
    graph = build(load_model(_write(tmp_path, _config("umt5"))), Workload(Phase.PREFILL, 1, 24, 1))
    keys = {t.key for b in graph.blocks for t in b.weights if "relative" in t.key}
    assert len(keys) == 2 and all("{layer}" in key for key in keys)


@pytest.mark.parametrize(
    ("name", "changes", "what"),
    [
        ("marian", {"share_encoder_decoder_embeddings": False}, "share_encoder_decoder_embeddings"),
        ("marian", {"decoder_vocab_size": 99}, "decoder_vocab_size: is 99"),
        ("distilbert", {"tie_word_embeddings": False}, "tie_word_embeddings"),
        ("deit", {"architectures": ["DeiTForImageClassificationWithTeacher"]}, "DeiTForImageClassificationWithTeacher"),
        ("roberta", {"architectures": ["RobertaForSequenceClassification"]}, "RobertaForSequenceClassification"),
        ("mbart", {"d_model": 62}, "d_model: is 62"),
        *(
            (name, {"tie_word_embeddings": False}, "tie_word_embeddings: is false")
            for name in ("mbart", "marian", "m2m_100")
        ),
    ],
)
def test_what_is_not_described_is_refused_by_name(
    tmp_path: Path, name: str, changes: dict[str, Any], what: str
) -> None:
    with pytest.raises(InputError, match=what):
        load_model(_write(tmp_path, _config(name) | changes))


def _whole(model_type: str) -> dict[str, Any]:
    """A config as transformers writes it, with every key of its class."""
    from transformers import CONFIG_MAPPING

    own = CONFIGS[model_type] if model_type in ENCODERS else SMALL[model_type]
    values = CONFIG_MAPPING[model_type](**own).to_dict()
    return {key: value for key, value in values.items() if value is not None} | {"model_type": model_type}


def class_params(folder: Path) -> int | None:
    """Parameters of the class for the config in `folder`; None where the class refuses it."""
    from compiler.frontend.capture.source import open_module

    try:
        return sum(parameter.numel() for parameter in open_module(str(folder)).module.parameters())
    except InputError:
        return None


@pytest.mark.parametrize("name", [*ENCODERS, *ENCODER_RELATIVES])
def test_any_key_of_a_whole_config_deleted_or_null(name: str, tmp_path: Path) -> None:
    """The parameters stay, or are those of the class for the same edited config, or the error names the key."""
    values = _whole(name)
    whole = load_model(_write(tmp_path, values)).params
    assert whole == class_params(tmp_path)
    named = 0
    for key in values:
        for edited in ({k: v for k, v in values.items() if k != key}, values | {key: None}):
            try:
                params = load_model(_write(tmp_path, edited)).params
            except InputError as error:
                assert key in str(error), (key, str(error))
                named += 1
            else:
                assert params == whole or params == class_params(tmp_path), key
    assert named >= 8  # sizes are never assumed
