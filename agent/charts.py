"""The geometry of the report's charts. Numbers in, SVG or shares of a bar out; words and colours are the template's."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil, floor, log10

from markupsafe import Markup, escape

from agent.words import seconds

WIDTH, HEIGHT = 860, 320
LEFT, RIGHT, TOP, BOTTOM = 74, 150, 14, 40
LABEL_GAP = 16.0


@dataclass(frozen=True, slots=True)
class Level:
    """A horizontal line of the curve chart: `style` is a CSS class."""

    name: str
    latency_s: float
    style: str


@dataclass(frozen=True, slots=True)
class Segment:
    """A part of a stacked bar: `share` of the longest bar, 0 to 1."""

    name: str
    seconds: float
    share: float

    @property
    def words(self) -> str:
        return f"{self.name} {seconds(self.seconds)}"


@dataclass(frozen=True, slots=True)
class Frame:
    """Scales of the curve chart: evaluations to x, seconds to y."""

    count: int
    low: float
    high: float

    def x(self, done: float) -> float:
        return LEFT + (WIDTH - LEFT - RIGHT) * done / max(1, self.count)

    def y(self, latency_s: float) -> float:
        return TOP + (HEIGHT - TOP - BOTTOM) * (self.high - latency_s) / (self.high - self.low)


def segments(parts: Sequence[tuple[str, float]], longest_s: float) -> tuple[Segment, ...]:
    """A stacked bar of (name, seconds) where a bar of `longest_s` fills the width; parts of no time are left out."""
    return tuple(Segment(name, s, s / longest_s) for name, s in parts if s > 0)


def best_so_far(latencies: Sequence[float | None]) -> list[float | None]:
    """The least latency up to and including each evaluation; None before the first that was measured."""
    out: list[float | None] = []
    best: float | None = None
    for latency in latencies:
        if latency is not None and (best is None or latency < best):
            best = latency
        out.append(best)
    return out


def curve(latencies: Sequence[float | None], levels: Sequence[Level]) -> Markup:
    """The best-so-far curve as SVG with a dot for each measured evaluation and a line for each level.

    The scale holds the levels and the end of the curve; slower evaluations are left out (`outside_scale` counts them).
    """
    best = best_so_far(latencies)
    frame = frame_of(latencies, levels)
    parts = [_grid(frame), _dots(frame, latencies), _steps(frame, best), _levels(frame, levels, best)]
    rect = f'<rect x="{LEFT}" y="{TOP}" width="{WIDTH - LEFT - RIGHT}" height="{HEIGHT - TOP - BOTTOM}"/>'
    clip = f'<clipPath id="plot">{rect}</clipPath>'
    name = f"Best latency so far over {len(latencies)} evaluations"
    head = f'<svg class="curve" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{escape(name)}">'
    return Markup("".join([head, f"<defs>{clip}</defs>", *parts, "</svg>"]))  # numbers and escaped words only


def frame_of(latencies: Sequence[float | None], levels: Sequence[Level]) -> Frame:
    """Scales that hold the levels and the best latency, with a margin above and below."""
    known = [level.latency_s for level in levels] + [s for s in best_so_far(latencies)[-1:] if s is not None]
    low, high = min(known), max(known)
    margin = (high - low or high) * 0.12
    return Frame(len(latencies), max(0.0, low - margin), high + margin)


def outside_scale(latencies: Sequence[float | None], levels: Sequence[Level]) -> int:
    """How many measured evaluations the curve leaves out because they are slower than its scale."""
    high = frame_of(latencies, levels).high
    return sum(1 for s in latencies if s is not None and s > high)


def ticks(low: float, high: float, wanted: int = 5) -> list[float]:
    """Round numbers (1, 2, 2.5 or 5 times a power of ten) within [low, high], about `wanted` of them."""
    rough = (high - low) / wanted
    power = 10.0 ** floor(log10(rough))
    step = next(m * power for m in (1, 2, 2.5, 5, 10) if m * power >= rough)
    return [i * step for i in range(ceil(low / step), floor(high / step) + 1)]


def _grid(frame: Frame) -> str:
    out = []
    for value in ticks(frame.low, frame.high):
        y = frame.y(value)
        out.append(f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>')
        out.append(_text("axis", LEFT - 8, y + 4, _tick(value, frame.high), "end"))
    for value in ticks(0, max(1, frame.count)):
        if value == int(value):
            out.append(_text("axis", frame.x(value), HEIGHT - 20, str(int(value)), "middle"))
    out.append(_text("axis", (LEFT + WIDTH - RIGHT) / 2, HEIGHT - 3, "evaluations", "middle"))
    return "".join(out)


def _text(style: str, x: float, y: float, words: str, anchor: str = "start") -> str:
    return f'<text class="{style}" x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(words)}</text>'


def _tick(value: float, high: float) -> str:
    for scale, unit in ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs")):
        if high >= scale:
            return f"{value / scale:.4g} {unit}"
    return f"{value / 1e-9:.4g} ns"


def _dots(frame: Frame, latencies: Sequence[float | None]) -> str:
    return "".join(
        f'<circle class="dot" cx="{frame.x(i + 1):.1f}" cy="{frame.y(s):.1f}" r="2"/>'
        for i, s in enumerate(latencies)
        if s is not None and s <= frame.high
    )


def _steps(frame: Frame, best: Sequence[float | None]) -> str:
    points: list[str] = []
    before: float | None = None
    for i, s in enumerate(best):
        if s is None or (s == before and i < len(best) - 1):
            continue
        x = frame.x(i + 1)
        y = max(-1e4, frame.y(s))
        points.append(f"M{x:.1f} {y:.1f}" if before is None else f"H{x:.1f}V{y:.1f}")
        before = s
    return f'<path class="best" clip-path="url(#plot)" d="{"".join(points)}"/>'


def _levels(frame: Frame, levels: Sequence[Level], best: Sequence[float | None]) -> str:
    out, labels = [], []
    for level in levels:
        y = frame.y(level.latency_s)
        out.append(f'<line class="level {level.style}" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>')
        labels.append((y, level.name, level.latency_s, level.style))
    if best and best[-1] is not None:
        labels.append((frame.y(best[-1]), "best", best[-1], "l-best"))
    for y, (_, name, latency, style) in zip(
        spread([label[0] for label in sorted(labels)]), sorted(labels), strict=True
    ):
        out.append(_text(f"label {style}", WIDTH - RIGHT + 8, y + 4, f"{name} {seconds(latency)}"))
    return "".join(out)


def spread(places: Sequence[float], gap: float = LABEL_GAP) -> list[float]:
    """Ascending `places` moved apart to at least `gap`, within the plot as long as they fit."""
    out: list[float] = []
    for place in places:
        out.append(max(place, out[-1] + gap) if out else place)
    limit = float(HEIGHT - BOTTOM)
    for i in range(len(out) - 1, -1, -1):
        out[i] = min(out[i], limit)
        limit = out[i] - gap
    return out
