"""Compiles the loops while a worker starts, so that no request waits for it."""

import logging
from threading import Thread

import numpy as np

from ....spec import DrySpec, NoLoopSpec, NoRepeatNgramSpec
from ..automaton import AutomatonBuilder
from ..automaton.folding import fold_together
from ..program import compile_specs
from ..warm_up import prepare
from .advance import Automata
from .editors import Edits
from .history_rules import HistoryRules
from .requests import Request

logger = logging.getLogger(__name__)


_thread: Thread | None = None
_is_ready = False


def compile_loops() -> None:
    """Begin to compile the loops, beside what else a worker does when it starts."""
    global _thread
    if _thread is None:
        _thread = Thread(target=run_loops, name="logitport-loops")
        _thread.start()


def wait_for_loops() -> None:
    """Wait until the loops are compiled."""
    global _is_ready
    if not _is_ready and _thread is not None:
        _thread.join()
        _is_ready = True


def run_loops() -> None:
    """Run each loop once on a little batch."""
    for _ in range(2):  # where machine code cannot be saved, it is there all the same
        try:
            _run()
            return
        except Exception as error:
            logger.warning("Loops cannot be compiled before the first request: %s", error)


def _run() -> None:
    builder = AutomatonBuilder()
    builder.edge(builder.free(), 1, builder.force(2))
    automaton = builder.build()
    request = Request([1, 0], [1], 0)
    request.index = 0
    automata = Automata()
    edits = Edits(automata, 4)
    program = compile_specs((NoLoopSpec(2), NoLoopSpec(2, then_token_ids=(2,))))
    together = (automaton, *program.automata)
    places = fold_together(together, request)
    automata.add(request, together, places)
    prompt, output = request.prompt_array(), request.output_array()
    every = NoRepeatNgramSpec(2), DrySpec(1.0), *program.loops
    edits.rules[request] = rules = HistoryRules(every, prompt, output, together)
    automata.advance()
    rules.follow(automata, 0)
    row = np.zeros(4, np.float32)
    edits.own = [(request, (np.zeros(1, np.int32), np.zeros(1, np.float32)))]
    edits.write(row, np.zeros(1, np.int64), 4)
    rules.cells(edits.scratch)
    edits.find_edited()
    prepare()
