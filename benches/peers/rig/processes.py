"""Running a program: shielded, with a time limit, and with nothing left behind."""
import ctypes
import os
import shutil
import signal
import subprocess
import time

PR_SET_CHILD_SUBREAPER = 36
SHIELDS = {"none": [], "nice": ["nice", "-n", "-20"], "realtime": ["chrt", "-r", "1"], "above": ["chrt", "-r", "2"]}


def adopt_orphans():
    """Processes whose launcher has died become children of this one, which can then end them."""
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def shield(wanted):
    """The command prefix for a shield, or none where it is not permitted, and what to say about it."""
    prefix = SHIELDS[wanted]
    if not prefix:
        return [], "none"
    if shutil.which(prefix[0]):
        tried = subprocess.run([*prefix, "true"], capture_output=True, text=True)
        if tried.returncode == 0 and not tried.stderr:
            return prefix, " ".join(prefix)
    return [], f"none ({' '.join(prefix)} is not permitted)"


def run(command, environment, limit_seconds, busy=0):
    """Runs a command to its end or to the limit, beside so many processes that always want a processor. Returns exit status (None:
    out of time), output and errors."""
    beside = [subprocess.Popen(["sh", "-c", "while :; do :; done"], stdin=subprocess.DEVNULL) for _ in range(busy)]
    # Own temporary files and sockets of launchers do not depend on the caller's directory names.
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
    """Sends a signal to everything that was started from here and still runs."""
    for process in descendants():
        try:
            os.kill(process, how)
        except ProcessLookupError:
            pass
    time.sleep(0.02)
    try:
        # Orphans that were adopted; the program itself is reaped by its own handle.
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
                    # The name in brackets may hold anything; the fields after it do not.
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
