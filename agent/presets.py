"""Presets, named as the vendor's compiler modes are: ordinary schedules, and where every tuner starts.

o0: one op a section. o1: the usual patterns fused by rule. o3: a whole block as one section where it fits, kernel
looping, hardware launch; what the vendor ships. All three shard alike (a model must fit) and attend alike.
Numbers are left to the compiler's heuristics, but for o3's loop tiles, which the estimate chooses.
"""

from collections.abc import Iterable

from agent.evaluate import Measured, evaluate
from compiler.diagnostic import Code, Diagnostic
from compiler.errors import InputError, nearest
from compiler.ir.actions import ALL, Action, Axis, Cut, Fuse, Launch, Loop, Rewrite, Rule, SetLaunch, Shard, Tile
from compiler.ir.graph import Block, Graph, Op, Phase, Role
from compiler.ir.schedule import Schedule
from compiler.lower import lower_block
from compiler.pipeline import compile_schedule
from compiler.program import Program
from compiler.target import Target

PRESETS = ("o0", "o1", "o3")

#: Loop tiles that o3 tries where there are more tokens than that.
TILES = (16, 32, 64, 128, 256, 512, 1024, 2048, 4096)
#: o1's patterns: runs of op-name endings fused where they stand next to each other.
PATTERNS = (
    ("norm", "proj"),
    ("rope", "kv_append"),
    ("scores", "softmax", "values"),
    ("core", "kv_reduce"),
    ("gate_up_proj", "act"),
    ("gate_proj", "up_proj", "act"),
    ("experts_gate", "experts_up", "experts_act"),
    ("experts_gate_up", "experts_act"),
    ("router", "topk"),
    ("combine", "residual"),
    ("gates", "scan"),
    ("gates", "strength", "scan"),
    ("gates", "steps", "scan"),
    ("scan", "skip", "out_gate"),
    ("out_norm", "out_gate"),
    ("all_reduce", "residual"),
)


def preset(name: str, graph: Graph, target: Target) -> Schedule:
    """The preset `name` for `graph`; InputError for an unknown name."""
    if name not in PRESETS:
        raise InputError(
            f"preset {name!r}", f"unknown; {nearest(name, PRESETS)}".rstrip("; "), f"presets: {', '.join(PRESETS)}"
        )
    rewrites = [action for block in graph.blocks for action in _rewrites(block, graph)]
    ways = (True, False) if any(_splits_latents(block, graph) for block in graph.blocks) else (False,)
    made = []
    for split_latents in ways:
        shards = [action for block in graph.blocks for action in _shards(block, graph, split_latents)]
        schedule = _preset(name, [*rewrites, *shards], graph, target)
        made.append((_latency(graph, schedule, target), schedule))
    return min(made, key=lambda pair: pair[0])[1]


def _preset(name: str, base: list[Action], graph: Graph, target: Target) -> Schedule:
    if name == "o3":
        return _whole_blocks(base, graph, target)
    patterns = _patterns(graph, Schedule(tuple(base))) if name == "o1" else []
    return _tiled(Schedule((*base, *patterns)), graph, target)


def _latency(graph: Graph, schedule: Schedule, target: Target) -> float:
    """Estimated seconds of a step; infinite where the schedule does not compile."""
    result = evaluate(graph, schedule, target)
    return result.report.latency_s if isinstance(result, Measured) else float("inf")


def _rewrites(block: Block, graph: Graph) -> list[Action]:
    out: list[Action] = []
    if "attn.kv_b_proj" in block.op and graph.workload.phase is Phase.DECODE:
        out.append(Rewrite(block.kind, Rule.MLA_ABSORB))
    if "attn.scores" in block.op:
        out.append(Rewrite(block.kind, Rule.STREAMING_SOFTMAX))
        if _splits_latents(block, graph):
            out.append(Rewrite(block.kind, Rule.SPLIT_KV, graph.workload.sockets))
        kv, sockets = block.op["attn.scores"].size("kv_heads"), graph.workload.sockets
        ways = sockets // _ways(kv, sockets)
        rows = max(block.op[f"{part}.scores"].context for part in _attentions(block))
        if "kv_heads" in {d.name for d in block.op["attn.scores"].dims} and 1 < ways <= rows:
            out.append(Rewrite(block.kind, Rule.SPLIT_KV, ways))
    return out


def _attentions(block: Block) -> tuple[str, ...]:
    """The parts of a block that attend: to the tokens of a sequence, to an encoder's output."""
    return tuple(part for part in ("attn", "cross") if f"{part}.scores" in block.op)


def _ways(size: int, sockets: int) -> int:
    """Most sockets that divide both `size` and the socket count."""
    return max(w for w in range(1, sockets + 1) if sockets % w == 0 and size % w == 0)


def _shards(block: Block, graph: Graph, split_latents: bool) -> list[Action]:
    """Tensor parallelism: heads (and, where there are more sockets than KV heads, the context), ffn, vocabulary."""
    sockets, kind = graph.workload.sockets, block.kind
    out: list[Action] = []
    if sockets == 1:
        return []
    names = {d.name for op in block.ops for d in op.dims}
    if "kv_heads" in names:
        for part in _attentions(block):
            out.extend(_head_shards(block, part, sockets))
    scored = {d.name for op in block.ops if op.name == "attn.scores" for d in op.dims}
    if "groups" in scored:
        out.extend(_grouped_shards(block, sockets))
    elif "heads" in scored:
        out.extend(_latent_shards(block, graph, split_latents))
    out.extend(_mixer_shards(block, sockets))
    out.extend(_indexer_shards(block, graph, split_latents))
    for dim in ("ffn", "shared_ffn"):
        if dim in names:
            out.append(Shard(kind, "ffn", dim, sockets, _pad(block, dim, sockets)))
    if "vocab" in names and "head.lm_head" in block.op:
        out.append(
            Shard(kind, "head.lm_head", "vocab", sockets, _even(block.op["head.lm_head"].size("vocab"), sockets))
        )
    if "mtp.proj" in block.op:
        out.append(Shard(kind, "mtp", "mtp_in", sockets, _even(block.op["mtp.proj"].size("mtp_in"), sockets)))
    if "embed.gather" in block.op:
        out.append(Shard(kind, "embed", "hidden", sockets, _even(block.op["embed.gather"].size("hidden"), sockets)))
    return out


def _head_shards(block: Block, part: str, sockets: int) -> list[Action]:
    """An attention by its KV heads, and where there are more sockets than those, by its context.

    An encoder's output is whole on every socket: each makes the keys and values of its share of the rows.
    """
    kind, q = block.kind, block.op[f"{part}.q_proj"]
    ways = _ways(q.size("kv_heads"), sockets)
    rest, group = sockets // ways, _ways(q.size("q_group"), sockets // ways)
    out: list[Action] = [Shard(kind, part, "kv_heads", ways)] if ways > 1 else []
    if 1 < rest <= block.op[f"{part}.scores"].context:
        made = [op for op in ("cross.k_proj", "cross.v_proj") if part == "cross" and op in block.op]
        out.extend(Shard(kind, op, "splits", rest) for op in (f"{part}.core", *made))
    if group > 1:
        out.extend(Shard(kind, f"{part}.{name}", "q_group", group) for name in ("q_proj", "o_proj"))
    return out


def _mixer_shards(block: Block, sockets: int) -> list[Action]:
    """A recurrent mixer by its heads: groups of them that share a key first, then inside a group; else by channels."""
    op = block.op.get("mixer.scan") or block.op.get("mixer.conv_u")
    out: list[Action] = []
    for dim in ("groups", "heads", "channels"):
        ways = _ways(op.size(dim), sockets) if op else 1
        if ways > 1:
            out.append(Shard(block.kind, "mixer", dim, ways))
            sockets //= ways
    return out


def _indexer_shards(block: Block, graph: Graph, split_latents: bool) -> list[Action]:
    """An indexer scores a share of the cached rows on each socket, and projects a share of its queries.

    split_latents: attention reads a share of the rows too, those that its socket selects among its own.
    """
    if "attn.index_scores" not in block.op:
        return []
    sockets = graph.workload.sockets
    heads = _ways(block.op["attn.index_q_proj"].size("index_heads"), sockets)
    rows = ("cached", _ways(block.op["attn.index_scores"].size("cached"), sockets))
    if _splits_latents(block, graph):
        rows = ("splits", sockets)
    parts = [("attn.index_q_proj", "index_heads", heads), ("attn.index_q_rope", "index_heads", heads)]
    parts.append(("attn.index_scores", *rows))
    if split_latents and _splits_latents(block, graph):
        parts.append(("attn.select", *rows))
    return [Shard(block.kind, part, dim, ways) for part, dim, ways in parts if ways > 1]


def _grouped_shards(block: Block, sockets: int) -> list[Action]:
    """Attention over compressed rows by the groups of its output projection, then by heads inside a group; every socket
    keeps the whole cache, and projects a share of what is compressed."""
    scores = block.op["attn.scores"]
    groups = _ways(scores.size("groups"), sockets)
    parts = [("groups", groups), ("heads", _ways(scores.size("heads"), sockets // groups))]
    for op in block.ops:
        parts += [(d.name, _ways(d.size, sockets)) for d in op.dims if d.name.endswith("_series")]
    return [Shard(block.kind, "attn", dim, ways) for dim, ways in dict(parts).items() if ways > 1]


def _latent_shards(block: Block, graph: Graph, split_latents: bool) -> list[Action]:
    """Latent attention has one cached row for all heads: either its heads are split, and every socket keeps the whole
    cache, or the context is, and partial results of all heads meet."""
    ways = _ways(block.op["attn.scores"].size("heads"), graph.workload.sockets)
    if not (split_latents and _splits_latents(block, graph)):
        return [Shard(block.kind, "attn", "heads", ways)] if ways > 1 else []
    query = "attn.q_proj" if "attn.q_proj" in block.op else "attn.q_b_proj"
    by_heads = (query, "attn.k_absorb", "attn.v_absorb", "attn.o_proj") if ways > 1 else ()
    core = Shard(block.kind, "attn.core", "splits", graph.workload.sockets)
    return [core, *(Shard(block.kind, op, "heads", ways) for op in by_heads)]


def _splits_latents(block: Block, graph: Graph) -> bool:
    absorbed = "attn.kv_b_proj" in block.op and graph.workload.phase is Phase.DECODE
    return absorbed and 1 < graph.workload.sockets <= block.op["attn.scores"].size("context")


def _even(size: int, ways: int) -> int:
    return 0 if size % ways == 0 else 1


def _pad(block: Block, dim: str, ways: int) -> int:
    """Padding that keeps whole scale blocks in a shard of `dim`; 0 where it divides evenly."""
    ops: list[Op] = [op for op in block.ops if any(d.name == dim for d in op.dims)]
    size = ops[0].size(dim)
    group = max(
        (
            max(t.dtype.group, t.dtype.rows)
            for op in ops
            for t in (block.tensor[i] for i in op.inputs)
            if t.role is Role.WEIGHT and any(d.name == dim for d in t.dims)
        ),
        default=1,
    )
    if size % ways == 0 and size // ways % group == 0:
        return 0
    return group


def _patterns(graph: Graph, base: Schedule) -> list[Action]:
    out: list[Action] = []
    for block in graph.blocks:
        ops = [op.name for op in lower_block(block, base, graph.workload.sockets).ops]
        i = 0
        while i < len(ops):
            match = next((p for p in PATTERNS if _matches(ops[i : i + len(p)], p)), None)
            if match:
                out.append(Fuse(block.kind, f"{ops[i]}..{ops[i + len(match) - 1]}"))
            i += len(match) if match else 1
    return out


def _matches(names: list[str], pattern: tuple[str, ...]) -> bool:
    return len(names) == len(pattern) and all(n.endswith(p) for n, p in zip(names, pattern, strict=True))


def _whole_blocks(base: list[Action], graph: Graph, target: Target) -> Schedule:
    """Whole blocks fused and looped, a block cut only where it does not fit.

    Loop tiles, and whether a period of several kinds is looped, are what the estimate likes best: one tile for all
    kinds first, then kind by kind.
    """
    loops = {Loop("+".join(body)): len(body) for body, times in graph.runs if times > 1}
    fused = Schedule((*base, *(Fuse(b.kind, "all") for b in graph.blocks), *loops, SetLaunch(Launch.HARDWARE)))
    tokens = {b.kind: max(op.size("tokens") for op in b.ops) for b in graph.blocks}
    sizes = tuple(n for n in TILES if n < graph.workload.tokens)
    periods = tuple(loop for loop, kinds in loops.items() if kinds > 1)
    uniform = [tuple(Tile(k, Axis.TOKENS, n) for k in tokens if n < tokens[k]) for n in sizes]
    options = [(gone, tiles) for gone in dict.fromkeys(((), periods)) for tiles in ((), *uniform)]

    def made(gone: tuple[Loop, ...], tiles: Iterable[Action]) -> tuple[float, Schedule]:
        schedule = _fit(fused.without(*gone).with_actions(*tiles), graph, target)
        return _latency(graph, schedule, target), schedule

    best, at = (float("inf"), fused), options[0]
    for option in options:
        found = made(*option)
        if found[0] < best[0] or best[0] == float("inf"):
            best, at = found, option
    tiles = {a.block: a for a in at[1]}
    for kind in tokens:
        for tile in (Tile(kind, Axis.TOKENS, n) for n in sizes if n < tokens[kind]):
            found = made(at[0], {**tiles, kind: tile}.values())
            if found[0] < best[0]:
                best, tiles = found, {**tiles, kind: tile}
    return best[1]


def _tiled(schedule: Schedule, graph: Graph, target: Target) -> Schedule:
    """`schedule`, with the largest loop tile for all blocks under which it fits, where it does not as it is."""
    tiles = (Tile(ALL, Axis.TOKENS, n) for n in reversed(TILES) if n < graph.workload.tokens)
    candidates = (schedule, *(schedule.with_actions(tile) for tile in tiles))
    return next((s for s in candidates if isinstance(compile_schedule(graph, s, target), Program)), schedule)


def _fit(schedule: Schedule, graph: Graph, target: Target) -> Schedule:
    """`schedule`, its sections cut in the middle until they fit, a loop that is too large dropped."""
    for _ in range(24):
        result = compile_schedule(graph, schedule, target)
        if isinstance(result, Program):
            break
        smaller = _smaller(schedule, result)
        if smaller is None:
            break
        schedule = smaller
    return schedule


def _smaller(schedule: Schedule, diagnostics: tuple[Diagnostic, ...]) -> Schedule | None:
    """One step towards fitting, None where there is none to take."""
    for d in diagnostics:
        if d.code not in (Code.SECTION_OVER_SRAM, Code.SECTION_OVER_PCUS):
            continue
        if d.subject.startswith("loop "):
            return schedule.without(Loop(d.subject.removeprefix("loop ")))
        kind = d.subject.split("[")[0]
        cut = next((lever.split()[-1] for lever in d.levers if lever.startswith("cut ")), "")
        if cut:
            loops = [a for a in schedule.actions if isinstance(a, Loop) and kind in a.block.split("+")]
            return schedule.without(*loops).with_actions(Cut(kind, cut))
    return None
