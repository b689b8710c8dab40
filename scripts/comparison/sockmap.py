"""Loads eBPF sockmap: the kernel hands what one end sends to the other end's receive queue, past TCP.

One program notes every loopback connection of a cgroup in a hash of sockets, by its ports. The other program runs for
each send, looks up the other end there and passes the message to that end. Both are written here in the kernel's
instructions, so they need no compiler and no library.
"""

import ctypes
import os
import pathlib
import struct
import time

LOOPBACK = struct.unpack("=I", bytes((127, 0, 0, 1)))[0]
SYSCALL = 321  # bpf, x86-64
MAP_CREATE, MAP_LOOKUP, PROG_LOAD, PROG_ATTACH = 0, 1, 5, 8
ARRAY, SOCKHASH = 2, 18
SOCK_OPS, SK_MSG = 13, 16
ATTACH_SOCK_OPS, ATTACH_MSG_VERDICT = 3, 7
HELPER_LOOKUP, HELPER_SOCK_HASH_UPDATE, HELPER_MSG_REDIRECT_HASH = 1, 70, 71
# Offsets of the fields: struct bpf_sock_ops, struct sk_msg_md.
OPS = {"op": 0, "remote_ip4": 24, "remote_port": 64, "local_port": 68}
MSG = {"remote_port": 60, "local_port": 64}
ACTIVE_ESTABLISHED, PASSIVE_ESTABLISHED = 4, 5


class Refused(Exception):
    """Says in a line what the machine does not allow."""


def instruction(code, to=0, source=0, offset=0, value=0):
    return struct.pack("=BBhi", code, source << 4 | to, offset, value)


def load(to, source, offset):
    return instruction(0x61, to, source, offset)


def store(offset, source):
    return instruction(0x63, 10, source, offset)


def move(to, source):
    return instruction(0xBF, to, source)


def constant(to, value):
    return instruction(0xB7, to, value=value)


def add(to, value):
    return instruction(0x07, to, value=value)


def network_order(register):
    return instruction(0xDC, register, value=32)


def address_of_map(to, descriptor):
    return instruction(0x18, to, 1, value=descriptor) + instruction(0)


def call(helper):
    return instruction(0x85, value=helper)


def unless_equal(register, value, skip):
    return instruction(0x55, register, offset=skip, value=value)


def if_equal(register, value, skip):
    return instruction(0x15, register, offset=skip, value=value)


END = constant(0, 1) + instruction(0x95)


def ports(fields, near, far):
    """Puts the ports of the socket that r6 is about on the stack, and their address into r3."""
    return b"".join(
        (
            load(2, 6, fields["local_port"]),
            store(near, 2),
            load(2, 6, fields["remote_port"]),
            network_order(2),
            store(far, 2),
            move(3, 10),
            add(3, -8),
        )
    )


def noting(sockets):
    """Puts the socket of a loopback connection into the hash as soon as it is established."""
    body = (
        ports(OPS, -8, -4) + move(1, 6) + address_of_map(2, sockets) + constant(4, 0) + call(HELPER_SOCK_HASH_UPDATE)
    )
    body = load(2, 6, OPS["remote_ip4"]) + unless_equal(2, LOOPBACK, len(body) // 8) + body
    return b"".join(
        (
            move(6, 1),
            load(2, 6, OPS["op"]),
            if_equal(2, ACTIVE_ESTABLISHED, 1),
            unless_equal(2, PASSIVE_ESTABLISHED, len(body) // 8),
            body,
            END,
        )
    )


def handing_over(sockets, counter):
    """Passes a message to the socket with the ports the other way round. If there is no such socket, the message goes
    over TCP as ever."""
    count = instruction(0x7B, 0, 1, 0)
    return b"".join(
        (
            move(6, 1),
            ports(MSG, -4, -8),
            address_of_map(2, sockets),
            constant(4, 1),  # BPF_F_INGRESS
            call(HELPER_MSG_REDIRECT_HASH),
            if_equal(0, 0, 9),
            instruction(0x62, 10, offset=-12),
            move(2, 10),
            add(2, -12),
            address_of_map(1, counter),
            call(HELPER_LOOKUP),
            if_equal(0, 0, 2),
            constant(1, 1),
            instruction(0xDB, 0, 1),  # a message more
            END,
        )
    )


def bpf(command, attributes, what):
    buffer = ctypes.create_string_buffer(attributes, 128)
    libc = ctypes.CDLL(None, use_errno=True)
    done = libc.syscall(SYSCALL, command, buffer, 128)
    if done < 0:
        raise Refused(f"{what}: {os.strerror(ctypes.get_errno())}")
    return done


def pointer(buffer):
    return ctypes.addressof(buffer)


def create_map(kind, key, value, entries, what):
    return bpf(MAP_CREATE, struct.pack("=IIII", kind, key, value, entries), what)


def load_program(kind, code, attach, what):
    instructions, license, log = (ctypes.create_string_buffer(one) for one in (code, b"GPL\0", bytes(65536)))
    attributes = struct.pack(
        "=IIQQIIQII16sII",
        kind,
        len(code) // 8,
        pointer(instructions),
        pointer(license),
        1,
        65536,
        pointer(log),
        0,
        0,
        b"",
        0,
        attach,
    )
    try:
        return bpf(PROG_LOAD, attributes, what)
    except Refused as why:
        raise Refused(f"{why} {log.value.decode()}".strip()) from None


def cgroup_root():
    for line in pathlib.Path("/proc/mounts").read_text().splitlines():
        _, where, kind, *_ = line.split()
        if kind == "cgroup2":
            return pathlib.Path(where)
    raise Refused("no cgroup v2 is mounted")


class Sockmap:
    """The programs, in force for a cgroup of their own until this is closed."""

    def __init__(self):
        self.descriptors = []
        self.cgroup = cgroup_root() / f"sanshim-compare-{os.getpid()}"
        try:
            self.cgroup.mkdir()
        except OSError as why:
            raise Refused(f"making a cgroup: {why.strerror}") from None
        try:
            self.attach()
        except Refused:
            self.close()
            raise

    def attach(self):
        sockets = self.keep(create_map(SOCKHASH, 8, 4, 65536, "a BPF map of sockets (BPF_MAP_TYPE_SOCKHASH)"))
        self.counter = self.keep(create_map(ARRAY, 4, 8, 1, "a BPF map"))
        note = self.keep(load_program(SOCK_OPS, noting(sockets), ATTACH_SOCK_OPS, "a BPF_PROG_TYPE_SOCK_OPS program"))
        hand = self.keep(
            load_program(
                SK_MSG, handing_over(sockets, self.counter), ATTACH_MSG_VERDICT, "a BPF_PROG_TYPE_SK_MSG program"
            )
        )
        bpf(PROG_ATTACH, struct.pack("=IIII", sockets, hand, ATTACH_MSG_VERDICT, 0), "BPF_SK_MSG_VERDICT on a map")
        cgroup = self.keep(os.open(self.cgroup, os.O_RDONLY | os.O_DIRECTORY))
        bpf(PROG_ATTACH, struct.pack("=IIII", cgroup, note, ATTACH_SOCK_OPS, 0), "BPF_CGROUP_SOCK_OPS on a cgroup")

    def keep(self, descriptor):
        self.descriptors.append(descriptor)
        return descriptor

    def messages(self):
        """Gives the number of messages that sockmap has handed over."""
        key, value = ctypes.create_string_buffer(4), ctypes.create_string_buffer(8)
        bpf(MAP_LOOKUP, struct.pack("=IIQQQ", self.counter, 0, pointer(key), pointer(value), 0), "reading a BPF map")
        return struct.unpack("=Q", value.raw)[0]

    def command(self, command):
        """Gives the same command for a process of the cgroup."""
        return ["sh", "-c", f'echo $$ >{self.cgroup}/cgroup.procs && exec "$@"', "sh", *map(str, command)]

    def close(self):
        for descriptor in self.descriptors[::-1]:
            os.close(descriptor)
        self.descriptors.clear()
        # A killed process is in its cgroup until it is gone.
        for _ in range(200):
            try:
                return self.cgroup.rmdir()
            except OSError:
                time.sleep(0.01)
