"""OpenSSH's regress tests with the programs that are installed: Debian's package of them. Those with a server that listens; some of those whose
client starts `sshd -i` behind a pipe; and some of these once more with a server that listens instead. A server that listens hands each connection to
another image of itself, where it stays on TCP; so those are run with one that does not, too. Left out: keys and configuration alone, and other
projects' clients."""
import pathlib

import scripted
import sources
from suite import Suite

FOLDER = pathlib.Path("/usr/lib/openssh/regress")
LISTENING = """
brokenkeys cfgmatch cfgmatchlisten connect connect-uri dynamic-forward forward-control forwarding key-options keyscan login-timeout multiplex
reconfigure reexec sftp-chroot sftp-uri
""".split()
BEHIND_PIPES = """
banner broken-pipe connect-privsep envpass exit-status-signal forcecommand localcommand proto-mismatch proto-version proxy-connect scp scp-uri
sftp-batch sftp-cmds stderr-after-eof yes-head
""".split()
FROM_PIPES_TO_TCP = "exit-status exit-status-signal localcommand stderr-after-eof stderr-data transfer yes-head".split()
# What every test starts with, then starts a server, and its client finds that one.
LISTEN = r"sed -i -e '/echo proxycommand/d' -e 's/^\. \$SCRIPT$/start_sshd; . $SCRIPT/' test-exec.sh"
# A login runs what the user's own shell does at its start, however long that takes.
NO_STARTUP_FILES = "for file in ~root/.bashrc ~root/.zshenv; do [ ! -e $file ] || mount --bind /dev/null $file; done"
ENVIRONMENT = {
    "TEST_SHELL": "sh",
    "TEST_SSH_SSH": "/usr/bin/ssh",
    "TEST_SSH_SFTPSERVER": "/usr/lib/openssh/sftp-server",
    "TEST_SSH_IPV6": "yes",
    "TEST_SSH_ECC": "yes",
    "TEST_SSH_UNSAFE_PERMISSIONS": "1",
}


class OpenSSH(Suite):
    name = "openssh"
    title = "OpenSSH"
    forks = True

    def prepare(self, place):
        sources.install(place, "openssh-tests", "openssh-server", "openssh-client", "openssh-sftp-server", "openssl")
        forking = place / "sshd-forking"
        forking.write_text('#!/bin/sh\nexec /usr/sbin/sshd -r "$@"\n')
        forking.chmod(0o755)

    def version(self, place):
        return sources.installed("openssh-tests")

    def units(self, place, short):
        forking = place / "sshd-forking"
        programs = [(test, test, "/usr/sbin/sshd", ":") for test in LISTENING + BEHIND_PIPES]
        programs += [(f"{test} without exec", test, forking, ":") for test in LISTENING if test != "reexec"]
        programs += [(f"{test} over TCP", test, forking, LISTEN) for test in FROM_PIPES_TO_TCP]
        return [
            scripted.unit(
                name,
                ["sh", "./test-exec.sh", FOLDER, FOLDER / f"{test}.sh"],
                setup=f"mkdir -p /run/sshd; {NO_STARTUP_FILES}; {change}",
                cwd=FOLDER,
                env=ENVIRONMENT | {"TEST_SSH_SSHD": str(sshd)},
                stall=120,
                limit=300,
            )
            for name, test, sshd, change in programs
        ]


SUITE = OpenSSH()
