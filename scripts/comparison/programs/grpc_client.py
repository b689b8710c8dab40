"""One call after the other on a gRPC channel, for a time."""

import sys
import time

import grpc
from report import Report

REQUEST = b"x" * 64

with grpc.insecure_channel(sys.argv[1]) as channel:
    say = channel.unary_unary("/Echo/Say")
    for _ in range(200):
        say(REQUEST, timeout=10)
    report = Report(float(sys.argv[2]))
    while report.going():
        start = time.perf_counter()
        say(REQUEST, timeout=10)
        report.took.append(time.perf_counter() - start)
    report.print()
