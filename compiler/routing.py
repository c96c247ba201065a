"""Expected work of top-k routing, each token choosing its experts uniformly and independently (`uniform`).

Only +, -, * and / on floats and exact integers are used, so that the figures are the same on every machine.
"""

from functools import lru_cache
from math import comb


def power(base: float, exponent: int) -> float:
    """base ** exponent for exponent >= 0, by squaring (the C library's pow differs between machines)."""
    result = 1.0
    while exponent:
        if exponent & 1:
            result *= base
        base *= base
        exponent >>= 1
    return result


@lru_cache(maxsize=1024)
def expected_active(experts: int, top_k: int, tokens: int) -> float:
    """Expected distinct experts that `tokens` tokens reach: E (1 - (1 - k/E)^B)."""
    return experts * (1.0 - power(1.0 - top_k / experts, tokens))


@lru_cache(maxsize=1024)
def expected_loads(experts: int, top_k: int, tokens: int, tile: int) -> float:
    """Expected sum over experts of ceil(n_e / tile), n_e ~ Binomial(tokens, k/E): weight loads and row tiles.

    Summed outwards from the most likely n_e, relative to it, until the terms no longer count (below 1e-18).
    """
    if tile == 1 or top_k == experts:
        return float(experts * -(-tokens // tile)) if top_k == experts else float(tokens * top_k)
    odds = top_k / (experts - top_k)
    mode = min(tokens, (tokens + 1) * top_k // experts)
    mass, loads = 1.0, float(-(-mode // tile))
    for step in (1, -1):
        n, weight = mode, 1.0
        while weight > 1e-18 and 0 <= n + step <= tokens:
            weight *= (tokens - n) / (n + 1) * odds if step == 1 else n / (tokens - n + 1) / odds
            n += step
            mass += weight
            loads += weight * -(-n // tile)
    return experts * loads / mass


@lru_cache(maxsize=1024)
def expected_busiest(experts: int, active: int, groups: int) -> float:
    """Expected load of the fullest of `groups` equal groups when `active` distinct experts are drawn at random.

    Exact: P(max <= m) = [x^active] (sum_{j<=m} C(E/G, j) x^j)^G / C(E, active).
    """
    size = experts // groups
    if groups == 1 or active in (0, experts):
        return float(min(active, size)) if groups > 1 else float(active)
    total, whole = 0.0, comb(experts, active)
    for m in range(min(active, size)):
        ways = _power_coefficient([comb(size, j) for j in range(m + 1)], groups, active)
        total += 1.0 - ways * 10**12 // whole / 10**12
    return total


def _power_coefficient(poly: list[int], exponent: int, degree: int) -> int:
    """Coefficient of x^degree in poly ** exponent."""
    result, base = [1], poly
    while exponent:
        if exponent & 1:
            result = _multiply(result, base, degree)
        exponent >>= 1
        if exponent:
            base = _multiply(base, base, degree)
    return result[degree] if degree < len(result) else 0


def _multiply(a: list[int], b: list[int], degree: int) -> list[int]:
    out = [0] * min(degree + 1, len(a) + len(b) - 1)
    for i, x in enumerate(a):
        for j in range(min(len(b), len(out) - i)):
            out[i + j] += x * b[j]
    return out
