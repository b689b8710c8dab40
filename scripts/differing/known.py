"""Differences that docs/limitations.md explains, each a line "| `id` | what |" below HEADING, and here how it shows.

A pattern is (id, step, native, library), and perhaps the mode and the reason (`compare.reason_of`): regular expressions that match
the whole of the first step that differs, without its actor, and its answers. Where a blocked step ended under the library, its answer
there says by which step instead of after which."""
import re

HEADING = "## What `scripts/differ` finds"
LINE = re.compile(r"^\| `([\w-]+)` \|", re.MULTILINE)
PATTERNS = [
    ("passed-after-the-peer-closed", r"pass .*", "1", "EOPNOTSUPP"),
    ("one-handler-without-restart", r"(recv|send) .*", r"blocked; .*", r"blocked; by signal of=\w sig=USR2: EINTR"),
    ("edge-again-after-return", r"epoll_wait .*", r".*", r".*", r".*", "again"),
    ("streamed-after-the-peer-closed", r"print .* how=fdopen2?", r"\d+", "failed"),
    ("streamed-after-the-peer-closed", r"aio .*", r"0 .*", "EOPNOTSUPP"),
    ("edges-in-one", r"epoll_wait .*", r".*", r".*", r".*", "merged"),
    ("one-of-several-events", r"epoll_wait .*", r".*", r".*", r".*", "picked"),
    ("a-set-looks-readable", r"poll .*", r".*", r".*", r".*", "nested"),
    ("reset-at-a-return-after-shutdown", r"shutdown .*", "0", "ENOTCONN", r".*", "shut"),
    ("kept-from-an-image", r".*", r".*", "EBADF", r".*", "exec"),
    ("replaced-at-exec", r"epoll_ctl .*", "0", "ENOENT", r".*", "exec"),
    ("more-is-not-held", r".*", r"blocked; .*", r"blocked; .*", r".*", "more"),
    ("more-is-not-held", r"send .*", r"\d+.*", "EPIPE|ECONNRESET", r".*", "more"),
    ("part-at-a-return", r"recv .*", r"\d+.*", r"\d+.*", r".*", "short"),
    ("peer-hears-of-user-timeout", r"send .*", r"\d+.*", "ECONNRESET", r".*", "timed"),
    ("peer-hears-of-user-timeout", r"(poll|epoll_wait) .*", r".*", r".*(err|hup).*", r".*", "timed"),
    ("peer-hears-of-user-timeout", r"(recv|drain) .*", r"\d+.*", "ECONNRESET", r".*", "timed"),
    ("ended-by-user-timeout", r"(recv|drain) .*", "0", "ENOTCONN", r".*", "timed"),
    ("urgent-behind-both-shutdowns", r"recv .*\boob\b.*", "ENOTCONN", "EINVAL"),
    ("urgent-behind-both-shutdowns", r"ioctl .*atmark", "1", "0"),
    ("killed-before-it-went-back", r"(recv|drain) .*", "ECONNRESET", r"0.*", "detach"),
]


def named(page):
    """The ids that the page explains."""
    return LINE.findall(page.partition(HEADING)[2].partition("\n## ")[0])


def mistakes(page):
    """Ids that only the page or only the patterns have."""
    return sorted(set(named(page)) ^ {pattern[0] for pattern in PATTERNS})


def name_of(difference):
    """The id of a known difference, or None. Bytes that are lost or wrong are never known."""
    if difference.bytes:
        return None
    answer = re.sub(r"after \d+:", lambda _: f"by {difference.ended_by}:", difference.library)
    for name, *patterns in PATTERNS:
        texts = zip(patterns, (difference.step.line(), difference.native, answer, difference.mode, difference.reason))
        if all(re.fullmatch(pattern, text) for pattern, text in texts):
            return name
    return None
