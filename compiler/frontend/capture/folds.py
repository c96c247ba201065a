"""Written-out forms of semantic operators, put back together before the axes are followed."""

from compiler.frontend.capture.ir import Capture


def folded(capture: Capture) -> Capture:
    """`capture` with every written-out norm as one node."""
    return capture
