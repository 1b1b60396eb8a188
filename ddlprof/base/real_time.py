"""The clocks of the standard library as they were before the script ran, as some scripts and tests replace them."""

from __future__ import annotations

import time as _time
from threading import Event


class time:
    """Used in place of the module `time`: the same functions under the same names."""

    perf_counter = staticmethod(_time.perf_counter)
    perf_counter_ns = staticmethod(_time.perf_counter_ns)
    process_time_ns = staticmethod(_time.process_time_ns)
    sleep = staticmethod(_time.sleep)
    thread_time_ns = staticmethod(_time.thread_time_ns)
    time_ns = staticmethod(_time.time_ns)
    wait = staticmethod(Event.wait)
