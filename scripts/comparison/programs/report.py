"""What a client of ours says at its end: a line of JSON."""

import json
import statistics
import time


class Report:
    """Counts requests from its making on, and what they took."""

    def __init__(self, seconds):
        self.took = []
        self.cpu = time.process_time()
        self.start = time.perf_counter()
        self.end = self.start + seconds

    def going(self):
        return time.perf_counter() < self.end

    def print(self):
        hundredths = statistics.quantiles(self.took, n=100)
        said = {
            "requests": len(self.took),
            "seconds": time.perf_counter() - self.start,
            "p50_us": hundredths[49] * 1e6,
            "p99_us": hundredths[98] * 1e6,
            "cpu": time.process_time() - self.cpu,
        }
        print(json.dumps(said))
