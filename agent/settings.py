"""What a command was asked to do: one frozen object, built in the CLI and passed down."""

from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field

from compiler.frontend.door import Frontend
from compiler.ir.graph import Phase, Workload

#: Tokens a sequence where nobody says how many.
DEFAULT_CONTEXT = 4096


class Settings(BaseModel):
    """Settings of an onboarding. Bounds are checked here; what depends on the target is checked against it."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    model: str
    sockets: int = Field(default=8, ge=1)
    phase: Phase = Phase.DECODE
    batch: int = Field(default=1, ge=1, le=65_536)
    context: int | None = Field(default=None, ge=1, le=16_777_216)  # None: nobody said
    target: str = "sn40l"
    weights: str = Field(default="auto", pattern="^(auto|bf16|fp8)$")
    evals: int = Field(default=300, ge=3, le=1_000_000)
    seed: int = Field(default=0, ge=0, le=2**63 - 1)
    store: str = "sqlite:///runs/experience.db"
    out: Path | None = None
    mtp: bool = False
    frontend: Frontend = Frontend.AUTO
    captures: Path | None = Field(default=None, exclude=True)  # where this machine keeps traces: no part of a run

    @property
    def workload(self) -> Workload:
        context = self.context or DEFAULT_CONTEXT
        return Workload(self.phase, self.batch, context, self.sockets, self.weights, self.mtp)
