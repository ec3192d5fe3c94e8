"""Judges finished episodes. The only process that sees a task's ground truth, and no code of an agent runs in it.

Called as `PYTHON evaluate.py ROOT`; reads lines {"task_id", "experiment"} and answers each with
{"success", "passed", "total", "failures"} or {"error"}.
"""

import json
import os
import sys

os.environ["APPWORLD_ROOT"] = sys.argv[1]  # read when appworld is imported
ANSWERS = os.fdopen(os.dup(1), "w", buffering=1)
os.dup2(2, 1)  # the engine prints

from appworld import update_root  # noqa: E402
from appworld.apps.model_lib import CachedDBHandler  # noqa: E402
from appworld.evaluator import evaluate_task  # noqa: E402


def main() -> None:
    """Answers until the input ends."""
    update_root(sys.argv[1])
    ANSWERS.write('{"up": true}\n')
    for line in sys.stdin:
        request = json.loads(line)
        try:
            tests = evaluate_task(request["task_id"], request["experiment"], save_report=False)
            failures = [failure["requirement"] for failure in tests.failures]
            total = len(tests.passes) + len(failures)
            answer = {"success": bool(tests.success), "passed": len(tests.passes), "total": total, "failures": failures}
        except Exception as error:  # the edge of the process: the caller makes it an EnvError
            answer = {"error": f"{type(error).__name__}: {error}"}
        CachedDBHandler.reset()
        ANSWERS.write(json.dumps(answer) + "\n")


if __name__ == "__main__":
    main()
