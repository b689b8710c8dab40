"""Prints what one of the project's own clients says at its end: a line of JSON."""

import json
import time

from percentiles import percentiles


class Report:
    """Counts requests, and what they took, from the moment it is made."""

    def __init__(self, seconds):
        self.took = []
        self.cpu = time.process_time()
        self.start = time.perf_counter()
        self.end = self.start + seconds

    def going(self):
        return time.perf_counter() < self.end

    def print(self):
        said = {
            "requests": len(self.took),
            "seconds": time.perf_counter() - self.start,
            "percentiles_us": {part: took * 1e6 for part, took in percentiles(self.took).items()},
            "cpu": time.process_time() - self.cpu,
        }
        print(json.dumps(said))
