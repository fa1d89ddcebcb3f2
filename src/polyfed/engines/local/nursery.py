"""A process that starts others: forked before a thread has begun, it can fork at any time, which its parent cannot.

A lock that another thread holds at the moment of a fork stays locked in the child for ever.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import time
import traceback
import warnings
from collections.abc import Callable
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from multiprocessing.reduction import recv_handle, send_handle
from typing import Any, Protocol

import torch

ENDS = signal.SIGINT, signal.SIGTERM  # the parent's to handle: it finishes a round, or ends us all
GRACE = 5.0  # seconds that a child has to end in
PROMPT = 10.0  # seconds that the nursery has to do anything in


class Serve(Protocol):
    """What a child does, until its pipe is closed."""

    def __call__(self, place: int, pipe: Connection) -> None: ...


class Nursery:
    """Starts children, each with a pipe to this process, and ends them.

    Args:
        serve: a child's life.
    """

    def __init__(self, serve: Serve) -> None:
        self._pipe, theirs = Pipe()  # sockets: file handles can be sent, too
        for stream in (sys.stdout, sys.stderr):
            stream.flush()  # or a child would write it again
        before = signal.pthread_sigmask(signal.SIG_BLOCK, ENDS)
        self._pid = os.fork()
        if not self._pid:
            _child(lambda: _live(serve, theirs, before), self._pipe)
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        theirs.close()

    def start(self, place: int) -> tuple[Connection, int]:
        """A new child: the pipe to it, and its process id. OSError or EOFError when there is no nursery left.

        Args:
            place: which child it is, as `serve` wants to know.
        """
        ours, theirs = Pipe()
        try:
            self._pipe.send(("start", place))
            send_handle(self._pipe, theirs.fileno(), self._pid)
            return ours, self._answer()
        finally:
            theirs.close()

    def end(self, pid: int, grace: float = 0.0) -> int:
        """A child's exit code: when it has ended by itself, or is killed.

        Args:
            pid: the child's process id.
            grace: seconds that it has to end by itself.
        """
        self._pipe.send(("end", pid, grace))
        return self._answer()

    def _answer(self) -> int:
        if not self._pipe.poll(PROMPT):
            raise EOFError
        return int(self._pipe.recv())

    def close(self) -> None:
        """The end: of children that are left, too, when they see that their pipes are closed."""
        self._pipe.close()
        if _waited(self._pid, GRACE + PROMPT) is None:
            kill(self._pid)
            _waited(self._pid, PROMPT)


def forked(many: int, named: str) -> int:
    """As many processes as are asked for; 1, with a warning, where forked ones could not train.

    Args:
        many: processes.
        named: the setting that asks for them.
    """
    if many == 1 or forks_train():
        return many
    said = "This process has trained before, on a machine with a GPU, and torch cannot train in processes that are "
    said += f"forked from it now: {named} = {many} is 1 in this run. Start it in a process of its own."
    warnings.warn(said, RuntimeWarning, stacklevel=3)
    return 1


def forks_train() -> bool:
    """Whether a process that is forked now can take gradients.

    On a machine with a GPU it cannot once this one has taken some, of whatever device: torch has started threads then.
    """
    if not hasattr(os, "fork") or not (torch.cuda.is_available() or torch.backends.mps.is_available()):
        return True
    ours, theirs = Pipe(duplex=False)
    before = signal.pthread_sigmask(signal.SIG_BLOCK, ENDS)
    pid = os.fork()
    if not pid:
        try:
            _take_a_gradient()
            theirs.send_bytes(b"1")
        finally:  # whatever comes: nothing of the parent's code
            os._exit(0)
    signal.pthread_sigmask(signal.SIG_SETMASK, before)
    theirs.close()
    try:
        return ours.poll(PROMPT) and ours.recv_bytes() == b"1"
    except EOFError:
        return False
    finally:
        ours.close()
        _ended(pid, 0.0)


def _take_a_gradient() -> None:
    x = torch.ones(1, requires_grad=True)
    torch.autograd.grad(x.sum(), x)


def kill(pid: int) -> None:
    """Kills a process, also one that is stopped.

    Args:
        pid: its process id.
    """
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


def _child(life: Callable[[], Any], *others: Connection) -> None:
    """What follows a fork: a life, and never a return into the parent's code."""
    code = 1
    try:
        for other in others:
            other.close()
        life()
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        with contextlib.suppress(Exception):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code)


def _live(serve: Serve, pipe: Connection, mask: Any) -> None:
    """The nursery's life: children are forked from it, and reaped by it, until the pipe is closed."""
    for number in ENDS:
        signal.signal(number, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_SETMASK, mask)
    children: set[int] = set()
    with contextlib.suppress(EOFError, OSError):
        while True:
            what, *about = pipe.recv()
            if what == "start":
                pid = _fork(serve, about[0], pipe)
                children.add(pid)
                pipe.send(pid)
            else:
                pipe.send(_ended(*about))
                children.discard(about[0])
    until = time.monotonic() + GRACE
    for pid in children:
        _ended(pid, until - time.monotonic())


def _fork(serve: Serve, place: int, pipe: Connection) -> int:
    theirs = Connection(recv_handle(pipe))
    pid = os.fork()
    if not pid:
        _child(lambda: serve(place, theirs), pipe)
    theirs.close()
    return pid


def _ended(pid: int, grace: float) -> int:
    code = _waited(pid, grace)
    if code is None:
        kill(pid)
        code = _waited(pid, PROMPT / 2)
    return -signal.SIGKILL if code is None else code


def _waited(pid: int, seconds: float) -> int | None:
    """The exit code of a child, or None while it lives; of one that somebody else has reaped, 0."""
    until = time.monotonic() + seconds
    while True:
        try:
            done, status = os.waitpid(pid, os.WNOHANG)
        except ChildProcessError:
            return 0
        if done:
            return os.waitstatus_to_exitcode(status)
        if time.monotonic() >= until:
            return None
        time.sleep(0.002)
