"""One writing process: `writer.py URL NUMBER COUNT` records COUNT runs of its own with evaluations all writers share.

It says `ready` and waits for a line, so that all writers open the database at the same moment.
"""

import sys

import alembic.command  # noqa: F401  before the start, so that the migrations meet too
from experience_samples import graph, measured, method, run_of

from agent.experience.store import Store
from compiler.target import load_target


def main(url: str, number: int, count: int) -> None:
    target, g = load_target("sn40l"), graph()
    with Store.open(url) as store:
        for step in range(count):
            own = measured(g.id, 1000 * (number + 1) + step, method(target), 1e-3 * (number + 1) + 1e-6 * step)
            shared = measured(g.id, step, method(target), 1e-2)
            run, trials = run_of([shared, own], f"run-{number}-{step}", f"key-{number}")
            store.record_run(run, trials, [shared, own], g, target)


if __name__ == "__main__":
    print("ready", flush=True)
    sys.stdin.readline()
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
