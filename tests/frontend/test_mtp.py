"""MTP modules: counted apart, built when asked for, never a missing layer."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from compiler.errors import InputError
from compiler.frontend import Frontend, build, load_model, open_door
from compiler.frontend.mtp import mtp_params
from compiler.ir.graph import Graph, Phase, Workload

WORK = Workload(Phase.DECODE, 2, 64, 1, "bf16")


def of(model: Path, mtp: bool, phase: Phase = Phase.DECODE) -> Graph:
    return build(load_model(str(model)), replace(WORK, mtp=mtp, phase=phase))


def test_deepseek_v3_is_published_with_685_billion_parameters(model_dir) -> None:
    """671 of the model and 14 of the module, with copies of embedding and head (DeepSeek-V3, README of the weights)."""
    spec = load_model(str(model_dir("DeepSeek-V3")))
    copies = 2 * spec.vocab * spec.hidden
    assert spec.params == 671_026_404_352
    assert round(mtp_params(spec) / 1e9, 1) == 11.6
    assert round((mtp_params(spec) + copies) / 1e9) == 13  # "14B": 11.5 of its own, 0.9 and 0.9 shared
    assert round((spec.params + mtp_params(spec) + copies) / 1e9, 1) == 684.5  # the size its files add up to


@pytest.mark.parametrize("phase", list(Phase))
@pytest.mark.parametrize("modules", [1, 3])
def test_modules_are_layers_behind_the_head(tmp_path: Path, deepseek, modules: int, phase: Phase) -> None:
    (tmp_path / "config.json").write_text(json.dumps(deepseek | {"num_nextn_predict_layers": modules}))
    spec, without, with_ = load_model(str(tmp_path)), of(tmp_path, False, phase), of(tmp_path, True, phase)
    assert without.weight_elements == spec.params
    assert with_.weight_elements == spec.params + mtp_params(spec)
    assert with_.sequence[: len(without.sequence)] == without.sequence
    tail = with_.sequence[len(without.sequence) :]
    last = spec.kinds[-1]
    suffixes = ["", "_2", "_3"][:modules]
    assert tail == tuple(k for s in suffixes for k in (f"mtp_embed{s}", last, f"mtp_head{s}", "sample"))
    layer = len(spec.layers)
    keys = {t.key for kind in tail for t in with_.block[kind].weights}
    assert {f"model.layers.{layer}.{name}.weight" for name in ("enorm", "hnorm", "eh_proj", "shared_head.norm")} <= keys
    # embedding and head are the model's own
    assert {"model.embed_tokens.weight", "lm_head.weight"} <= keys


def test_a_module_caches_and_works_like_a_layer(tmp_path: Path, deepseek) -> None:
    (tmp_path / "config.json").write_text(json.dumps(deepseek | {"num_nextn_predict_layers": 1}))
    spec, without, with_ = load_model(str(tmp_path)), of(tmp_path, False), of(tmp_path, True)
    layer = sum(t.nbytes for t in without.block[spec.kinds[-1]].stored)
    assert with_.kv_nbytes - without.kv_nbytes == layer > 0
    projection = 2 * WORK.tokens * 2 * spec.hidden * spec.hidden
    assert next(op.flops for op in with_.block["mtp_embed"].ops if op.name == "mtp.proj") == projection
    assert with_.id != without.id


def test_models_without_modules_say_so(tmp_path: Path, llama) -> None:
    (tmp_path / "config.json").write_text(json.dumps(llama))
    for frontend in (Frontend.SPEC, Frontend.CAPTURE):
        with pytest.raises(InputError, match="no MTP modules"):
            open_door(str(tmp_path), frontend).graph(replace(WORK, mtp=True))
