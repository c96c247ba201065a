"""Buffers in the banks of PMUs. Even and odd loop tiles lie in different banks: one is written while one is read."""

from compiler.target import Target


def pmus_of(nbytes: int, copies: int, target: Target) -> int:
    """PMUs of a buffer of its own. Even and odd loop tiles lie in different banks: one is written, one read."""
    bank = target.bank_bytes
    if copies < 2:
        return -(-nbytes // target.pmu_bytes)
    even, odd = even_odd(nbytes, copies)
    return -(-(-(-even // bank) - (-odd // bank)) // target.pmu_banks)


def even_odd(nbytes: int, copies: int) -> tuple[int, int]:
    """Bytes of a buffer's even loop tiles and of its odd ones."""
    if copies < 2:
        return nbytes, 0
    even = min(nbytes, -(-nbytes // copies) * ((copies + 1) // 2))
    return even, nbytes - even


def stripe_banks(nbytes: int, copies: int, pmus: int, target: Target) -> tuple[int, int]:
    """Banks of even and of odd loop tiles in each of `pmus` PMUs, where every PMU holds a share of each tile."""
    bank = pmus * target.bank_bytes
    even, odd = even_odd(nbytes, copies)
    return -(-even // bank), -(-odd // bank)


def stripes(nbytes: int, copies: int, pmus: int, target: Target) -> bool:
    """Whether each of `pmus` PMUs can hold a share of every loop tile."""
    return sum(stripe_banks(nbytes, copies, pmus, target)) <= target.pmu_banks
