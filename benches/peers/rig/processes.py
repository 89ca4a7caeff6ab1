"""Runs programs with a shield and a time limit, and leaves nothing behind."""
import ctypes
import os
import shutil
import signal
import subprocess
import time

PR_SET_CHILD_SUBREAPER = 36
SHIELDS = {"none": [], "nice": ["nice", "-n", "-20"], "realtime": ["chrt", "-r", "1"], "above": ["chrt", "-r", "2"]}


def adopt_orphans():
    """Makes processes whose launcher has died children of this process, which can then end them."""
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def shield(wanted):
    """Returns the command prefix for a shield, or none if it is not permitted, and a text about it."""
    prefix = SHIELDS[wanted]
    if not prefix:
        return [], "none"
    if shutil.which(prefix[0]):
        tried = subprocess.run([*prefix, "true"], capture_output=True, text=True)
        if tried.returncode == 0 and not tried.stderr:
            return prefix, " ".join(prefix)
    return [], f"none ({' '.join(prefix)} is not permitted)"


def run(command, environment, limit_seconds, busy=0):
    """Runs a command to its end or to the limit, beside `busy` processes that always want a processor. Returns the exit
    status (None if it ran out of time), output and errors."""
    beside = [subprocess.Popen(["sh", "-c", "while :; do :; done"], stdin=subprocess.DEVNULL) for _ in range(busy)]
    # The launchers' temporary files and sockets do not depend on the caller's directory names.
    process = subprocess.Popen(command, env={**os.environ, **environment}, stdin=subprocess.DEVNULL,
                               stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, errors="replace",
                               start_new_session=True)
    status = None
    try:
        output, errors = process.communicate(timeout=limit_seconds)
        status = process.returncode
    except subprocess.TimeoutExpired:
        end_descendants(signal.SIGTERM)
        try:
            output, errors = process.communicate(timeout=3)
        except subprocess.TimeoutExpired:
            end_descendants(signal.SIGKILL)
            output, errors = process.communicate()
    finally:
        end_descendants(signal.SIGKILL)
        for process in beside:
            process.wait()
    return status, output, errors


def end_descendants(how):
    """Sends a signal to all descendants of this process that still run."""
    for process in descendants():
        try:
            os.kill(process, how)
        except ProcessLookupError:
            pass
    time.sleep(0.02)
    try:
        # Reaps adopted orphans; the program itself is reaped through its own handle.
        while how == signal.SIGKILL and os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        pass


def descendants():
    parents = {}
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            try:
                with open(f"/proc/{entry}/stat") as stat:
                    # The name in brackets may contain anything; the fields after it cannot.
                    state, parent = stat.read().rpartition(")")[2].split()[:2]
            except OSError:
                continue
            if state != "Z":
                parents[int(entry)] = int(parent)
    found, frontier = [], [os.getpid()]
    while frontier:
        above = frontier.pop()
        below = [process for process, parent in parents.items() if parent == above]
        found += below
        frontier += below
    return found
