"""Start workers by forks of a process that has imported everything: seconds in place of minutes.

``python -m examples.dynamo.warm MODULE`` reads a line of JSON for each worker: its arguments, its
environment and its log. It prints the process id. Each worker runs as if by ``python -m MODULE``.
vLLM's processes are forks, too, as they are on GPUs; on CPUs, they would import everything again.
"""

import json
import multiprocessing.context
import os
import runpy
import signal
import sys
from importlib import import_module

IMPORTED = (
    "logitport.adapters.vllm.processor",  # before the handlers, which are not wrapped yet
    "vllm.v1.engine.core",
    "vllm.v1.executor.multiproc_executor",
    "vllm.v1.worker.cpu_worker",
    "vllm.v1.worker.cpu_model_runner",
    "vllm.model_executor.models.llama",
)


def main(module: str) -> None:
    """Fork a worker for each line."""
    for each in (*IMPORTED, "dynamo.vllm.main" if module == "dynamo.vllm" else module):
        import_module(each)
    contexts = multiprocessing.context._concrete_contexts  # pyright: ignore
    contexts["spawn"] = contexts["fork"]
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nothing has to wait for the workers
    print("ready", flush=True)
    for line in sys.stdin:
        order = json.loads(line)
        if (pid := os.fork()) == 0:
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            os.setsid()
            log = os.open(order["log"], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
            os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
            os.dup2(log, 1)
            os.dup2(log, 2)
            os.environ.update(order["env"])
            sys.argv[1:] = order["arguments"]
            runpy.run_module(module, run_name="__main__", alter_sys=True)
            return
        print(pid, flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
