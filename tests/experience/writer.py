"""One writing process: `writer.py URL NUMBER COUNT` records one run of its own and evaluations all writers share."""

import sys

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
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
