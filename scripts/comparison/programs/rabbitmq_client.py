"""A publisher and a consumer of a RabbitMQ queue in one process, a message on the way at a time, for a time."""

import sys
import time

import pika
from report import Report

MESSAGE = b"x" * 64


def channel():
    return pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", int(sys.argv[1]))).channel()


publisher, consumer = channel(), channel()
consumer.queue_declare("queue")
messages = consumer.consume("queue", auto_ack=True)
for _ in range(50):
    publisher.basic_publish("", "queue", MESSAGE)
    next(messages)
report = Report(float(sys.argv[2]))
while report.going():
    start = time.perf_counter()
    publisher.basic_publish("", "queue", MESSAGE)
    next(messages)
    report.took.append(time.perf_counter() - start)
report.print()
