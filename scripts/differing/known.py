"""Knows the differences that docs/limitations.md explains, each on a line "| `id` | what |" below HEADING, and how each
shows.

A pattern is (id, step, native, library), and perhaps a reason (reasons.py): regular expressions that match the whole of
the first step that differs, without its actor, and its answers. Where a blocked step ended under the library, a
pattern's answer says which step ended it (`by STEP`) instead of `after NUMBER`."""
import re

HEADING = "## What `scripts/differ` finds"
LINE = re.compile(r"^\| `([\w-]+)` \|", re.MULTILINE)
PATTERNS = [
    ("passed-after-the-peer-closed", r"pass .*", "1", "EOPNOTSUPP"),
    ("one-handler-without-restart", r"(recv|send|rstream|wstream|drain|exchange) .*", r"blocked; .*", r"blocked; by signal of=\w sig=USR2: EINTR.*"),
    ("one-handler-without-restart", r"(recv|send|rstream|wstream|drain) .*", r"blocked; .*", r"blocked; by .*: EINTR.*", "async"),
    ("edge-again-after-return", r"epoll_wait .*", r".*", r".*", "again"),
    ("streamed-after-the-peer-closed", r"print .* how=fdopen2?", r"\d+", "failed"),
    ("streamed-after-the-peer-closed", r"aio .*", r"0 .*", "EOPNOTSUPP"),
    ("streamed-after-the-peer-closed", r"send .*", "EPIPE", "ECONNRESET", "printed"),
    ("streamed-after-the-peer-closed", r"(recv|drain) .*", r"0.*", "ECONNRESET|EPIPE", "printed"),
    ("streamed-after-the-peer-closed", r"(poll|epoll_wait) .*", r".*hup.*", r".*err.*", "printed"),
    ("edges-in-one", r"epoll_wait .*", r".*", r".*", "merged"),
    ("one-of-several-events", r"epoll_wait .*", r".*", r".*", "picked"),
    ("a-set-looks-readable", r"poll .*", r".*", r".*", "nested"),
    ("reset-at-a-return-after-shutdown", r"shutdown .*", "0", "ENOTCONN", "shut"),
    ("reset-at-a-return-after-shutdown", r"(poll|epoll_wait) .*", r".*hup.*", r".*hup.*err.*|.*err.*hup.*", "shut"),
    ("reset-at-a-return-after-shutdown", r"send .*", r"\d+.*", "EPIPE", "shut"),
    ("reset-at-a-return-after-shutdown", r"send .*", "EPIPE", "ECONNRESET", "shut"),
    ("kept-from-an-image", r"(recv|drain|rstream) .*", r".*", "ECONNRESET.*", "exec"),
    ("kept-from-an-image", r"(send|wstream) .*", r".*", r"(ECONNRESET|EPIPE).*", "exec"),
    ("kept-from-an-image", r"(poll|epoll_wait) .*", r".*", r".*(err|hup).*", "exec"),
    ("kept-from-an-image", r"(shutdown|name) .*", r"0.*", "ENOTCONN", "exec"),
    ("kept-from-an-image", r"state .*", r"0 [1458]", "0 7", "exec"),
    ("kept-from-an-image", r"get .*\bopt=error\b.*", "0 0", r"0 (104|32)", "exec"),
    ("replaced-at-exec", r"epoll_ctl .*", "0", "ENOENT", "exec"),
    ("replaced-at-exec", r"epoll_ctl .*", "EEXIST", "0", "exec"),
    ("replaced-at-exec", r"(poll|epoll_wait) .*", r".*(err|hup).*", r".*", "exec"),
    ("replaced-at-exec", r"(recv|drain) .*", "ECONNRESET", r"0.*", "exec"),
    ("replaced-at-exec", r"send .*", r"ECONNRESET|EPIPE", r"\d+.*", "exec"),
    ("waits-before-an-image", r"(spawn|exec) .*", "0", r"blocked; .*: 0"),
    ("more-is-not-held", r".*", r"blocked; .*", r"blocked; .*", "more"),
    ("more-is-not-held", r"send .*", r"\d+.*", "EPIPE|ECONNRESET", "more"),
    ("part-at-a-return", r"recv .*", r"\d+.*", r"\d+.*", "short"),
    ("part-at-a-return", r"recv .*", r"blocked; .*: \d+.*", r"\d+.*", "below"),
    ("full-at-a-return", r"(print|aio|pass) .*", r"\d+", r"blocked; .*|EOPNOTSUPP|failed", "full"),
    ("peer-hears-of-user-timeout", r"send .*", r"\d+.*|EPIPE", "ECONNRESET", "timed"),
    ("peer-hears-of-user-timeout", r"bad .*", "EFAULT", "ECONNRESET", "timed"),
    ("peer-hears-of-user-timeout", r"(poll|epoll_wait) .*", r".*", r".*(err|hup).*", "timed"),
    ("peer-hears-of-user-timeout", r"(recv|drain) .*", r"\d+.*", "ECONNRESET", "timed"),
    ("peer-hears-of-user-timeout", r"(recv|drain) .*", "ECONNRESET", "EAGAIN", "timed"),
    ("peer-hears-of-user-timeout", r"shutdown .*", "0", "ENOTCONN", "timed"),
    ("peer-hears-of-user-timeout", r"name .*", r"0 .*", "ENOTCONN", "timed"),
    ("peer-hears-of-user-timeout", r"state .*", "0 1", "0 7", "timed"),
    ("peer-hears-of-user-timeout", r"get .*\bopt=error\b.*", "0 0", "0 104", "timed"),
    ("ended-by-user-timeout", r"(recv|drain) .*", r"0( flags \d+)?", "ENOTCONN", "timed"),
    ("urgent-behind-both-shutdowns", r"recv .*\boob\b.*", "ENOTCONN", "EINVAL", "urgent"),
    ("urgent-behind-both-shutdowns", r"ioctl .*atmark", "1", "0", "urgent"),
    ("urgent-behind-both-shutdowns", r"poll .*", r".*", r".*", "urgent"),
    ("urgent-behind-both-shutdowns", r"signals", r".*\burg\b.*", r".*", "urgent"),
    ("killed-before-it-went-back", r"(recv|drain) .*", "ECONNRESET", r"\d+.*", "killed"),
    ("killed-before-it-went-back", r"wstream .*", "ECONNRESET.*", r"EPIPE.*", "killed"),
    ("killed-before-it-went-back", r"send .*", "ECONNRESET", "EPIPE", "killed"),
    ("killed-before-it-went-back", r"recv .*\bhow=recvmmsg\b.*", "ECONNRESET", "EPIPE", "killed"),
    ("killed-before-it-went-back", r"shutdown .*", "ENOTCONN", "0", "killed"),
    ("killed-before-it-went-back", r"(poll|epoll_wait) .*", r".*err.*", r".*", "killed"),
    ("room-behind-the-last-byte", r"send .*", r"\d+.*", r"blocked; .*|EAGAIN|\d+", "filled"),
    ("room-behind-the-last-byte", r"send .*", r"blocked; .*: \d+", r"blocked; .*: EINTR", "filled"),
    ("room-behind-the-last-byte", r"timeout .*", r"\d+ \d+", r"\d+ (ETIMEDOUT|EAGAIN)", "filled"),
    ("reset-behind-a-full-window", r"(recv|drain|rstream) .*", "ECONNRESET.*", r"\d+.*", "filled", "ended"),
    ("reset-behind-a-full-window", r"rstream .*", "ECONNRESET.*", r"\d+.*", "reset"),
    ("reset-behind-a-full-window", r"send .*", "ECONNRESET", r"EPIPE|\d+", "filled", "ended"),
    ("reset-behind-a-full-window", r"(poll|epoll_wait) .*", r".*hup.*", r".*hup.*", "filled", "ended"),
    ("reset-behind-the-end", r"(poll|epoll_wait) .*", r".*[ :+]hup.*", r"(?!.*[ :+]hup).*", "reset", "shutboth"),
    ("room-told-late", r"(poll|epoll_wait) .*", r".*", r".*(out|w).*", "filled"),
    ("a-set-in-two-processes", r"(epoll_ctl|epoll_wait|poll) .*", r".*", r".*", "divided"),
    ("a-set-in-two-processes", r"(wstream|rstream|exchange) .*", r".*", r".*", "divided"),
    ("ended-under-a-call", r"(recv|rstream|drain) .*", r"blocked; never|EAGAIN", r"(blocked; .*: )?0( read \d+)?", "closing"),
    ("ended-under-a-call", r"(recv|rstream|drain) .*", r"blocked; .*", r"blocked; .*: EBADF", "closing"),
    ("ended-under-a-call", r"(poll|epoll_wait) .*", r".*", r".*hup.*", "closing"),
    ("ended-under-a-call", r"poll .*", r"blocked; .*\bnval\b.*", r"blocked; .*\bnval\b.*", "closing"),
    ("a-number-for-a-moment", r"(listen|connect|accept|dup|epoll_create|take) .*", r"\d+( .*)?", r"\d+( .*)?", "threads"),
    ("looks-behind-what-it-looked-at", r"recv .*\bpeek,waitall\b.*", r"blocked; .*", r"naps; .*", "looking"),
    ("passed-and-taken", r"epoll_ctl .*", "EEXIST", "0", "taken"),
    ("passed-and-taken", r"(poll|epoll_wait) .*", r".*err.*", r".*hup.*", "taken"),
    ("edge-of-room", r"epoll_wait .*", r".*", r".*", "room"),
    ("edge-of-room", r"epoll_wait .*", r".*", r".*", "acked"),
    ("whole-through-a-stop", r"recv .*\bwaitall\b.*", r"blocked; .*: \d+", r"blocked; (never|.*: \d+)", "stopped"),
    ("killed-behind-both-shutdowns", r"send .*", "EPIPE", r"\d+", "shutkilled"),
    ("killed-behind-both-shutdowns", r"(poll|epoll_wait) .*", r".*hup.*", r".*", "shutkilled"),
    ("killed-behind-both-shutdowns", r"name .*", "ENOTCONN", r"0 .*", "shutkilled"),
    ("killed-behind-both-shutdowns", r"state .*", r"0 7", r"0 \d+", "shutkilled"),
    ("detached-behind-the-end", r"send .*", "ECONNRESET", "EPIPE", "detached"),
    ("detached-behind-the-end", r"(recv|drain) .*", r"0( flags \d+)?", "ECONNRESET", "detached"),
    ("detached-behind-the-end", r"(poll|epoll_wait) .*", r".*", r".*err.*", "detached"),
    ("looks-for-the-end", r"(poll|epoll_wait) .*", r"blocked; .*", r"naps; .*", "looking", "shut-in"),
    ("looks-behind-unread-bytes", r".*", r"blocked; .*", r"naps; .*", "looking"),
    ("closed-here-and-open-elsewhere", r"(poll|epoll_wait) .*", r".*", r".*", "orphaned"),
    ("asleep-below-low-water", r"recv .*", r"blocked; .*", r"blocked; by send .*", "lowat"),
]


def named(page):
    """Gives the ids that the page explains."""
    return LINE.findall(page.partition(HEADING)[2].partition("\n## ")[0])


def mistakes(page):
    """Gives the ids that only the page or only the patterns have."""
    return sorted(set(named(page)) ^ {pattern[0] for pattern in PATTERNS})


def name_of(difference):
    """Gives the id of a known difference, or None. Lost or wrong bytes are never a known difference."""
    if difference.bytes:
        return None
    answer = re.sub(r"after \d+:", lambda _: f"by {difference.ended_by}:", difference.library)
    texts = (difference.step.line(), difference.native, answer)
    for name, step, native, library, *reason in PATTERNS:
        matches = all(re.fullmatch(pattern, text) for pattern, text in zip((step, native, library), texts))
        if matches and set(reason) <= difference.reasons:
            return name
    return None
