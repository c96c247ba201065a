"""Laws that no report may break, checked after every simulation. Breaking one is our fault and raises."""

from compiler.target import Target
from simulator.report import Report

_SLACK = 1e-9  # floating-point rounding of sums


class SimulatorFault(AssertionError):
    """A simulated figure breaks a physical law: a fault of the simulator, never a win and never a bad proposal."""


def check(report: Report, target: Target, flops: int) -> None:
    """Raise SimulatorFault, naming the law, if `report` beats its bound, a bandwidth, the peak or a capacity."""
    t = report.latency_s
    compulsory = report.bound.memory_s * (target.hbm_bytes_per_s + target.ddr_bytes_per_s)  # a socket's share of all
    sustained = target.hbm_bytes_per_s * max(target.hbm_efficiency, target.kv_stream_efficiency)
    laws = (
        ("latency is below the proven bound", t, report.bound.latency_s),
        ("HBM moves bytes faster than it sustains", t, (report.hbm_read_bytes + report.hbm_write_bytes) / sustained),
        ("DDR moves bytes faster than its peak", t, report.ddr_read_bytes / target.ddr_bytes_per_s),
        ("links move bytes faster than their peak", t, report.link_bytes / target.link_bytes_per_s),
        ("units compute faster than their peak", t, flops / target.peak_flops),
        ("fewer bytes are read than the model must read", report.hbm_read_bytes + report.ddr_read_bytes, compulsory),
        ("SRAM holds more than there is", target.sram_bytes, report.sram_peak_bytes),
        ("more PCUs are used than there are", target.pcus, report.pcus_peak),
        ("HBM holds more than there is", target.hbm_bytes, report.memory_hbm_bytes),
        ("DDR holds more than there is", target.ddr_bytes, report.memory_ddr_bytes),
    )
    for law, have, need in laws:
        if have < need * (1 - _SLACK):
            raise SimulatorFault(f"{law}: {have!r} < {need!r} (program {report.program_id})")
    for section in report.sections:
        spent = sum(seconds for _, seconds in section.breakdown_s)
        if abs(spent - section.latency_s) > 1e-6 * t:
            raise SimulatorFault(f"{section.name}: causes sum to {spent!r}, not to its time {section.latency_s!r}")
    total = sum(seconds for _, seconds in report.breakdown_s)
    if abs(total - t) > 1e-6 * t:
        raise SimulatorFault(f"the breakdown sums to {total!r}, not to the latency {t!r} (program {report.program_id})")
