"""The memory that the coordinator and all actors share, and their channels. tests/differ/differ.h has the same layout."""
import mmap
import os
import socket
import struct

ACTORS, STREAMS, PORTS, WAYS = 12, 64, 16, 4
MEMORY_FD, CHANNEL_FD, WAY_FD = 499, 500, 520
WORD = 8
STREAM = 7 * WORD
UNCHECKED = 4 * WORD
PIDS = STREAMS * STREAM + PORTS * WORD
TIDS = PIDS + ACTORS * WORD
NAPS = TIDS + ACTORS * WORD
SIZE = NAPS + ACTORS * WORD + ACTORS * 65 * WORD


class Memory:
    """The memory of one run. Each run makes it anew, so that no actor of an earlier run can write into it."""

    def __init__(self):
        file = os.memfd_create("differ", 0)
        os.ftruncate(file, SIZE)
        self.map = mmap.mmap(file, SIZE)
        os.dup2(file, MEMORY_FD, inheritable=True)
        os.close(file)
        self.channels = []
        for actor in range(ACTORS):
            ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            os.dup2(theirs.fileno(), CHANNEL_FD + actor, inheritable=True)
            theirs.close()
            ours.setblocking(False)
            self.channels.append(ours)
        for way in range(WAYS):
            for side, end in enumerate(socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)):
                os.dup2(end.fileno(), WAY_FD + 2 * way + side, inheritable=True)
                end.close()

    def word(self, at):
        return struct.unpack_from("<q", self.map, at)[0]

    def pid(self, actor):
        return self.word(PIDS + WORD * actor)

    def tid(self, actor):
        return self.word(TIDS + WORD * actor)

    def naps(self, actor):
        return self.word(NAPS + WORD * actor) != 0

    def leave_unchecked(self, stream):
        """Notes that the user of the stream was killed amid a call, so nobody knows how far the stream came."""
        struct.pack_into("<q", self.map, stream * STREAM + UNCHECKED, 1)

    def close(self):
        for channel in self.channels:
            channel.close()
        for file in [MEMORY_FD, *range(CHANNEL_FD, CHANNEL_FD + ACTORS), *range(WAY_FD, WAY_FD + 2 * WAYS)]:
            os.close(file)
        self.map.close()
