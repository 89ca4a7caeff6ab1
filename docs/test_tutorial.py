"""Runs the tutorial's own blocks, in their order: `python -m pytest -rs docs`.

Its two hosts are network namespaces of this machine, and `ssh` is a script that enters one. Blocks that install something are not run:
what they install is looked for instead.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "bindings" / "python" / "tests"))
from launchers import Hosts, kolo_run  # noqa: E402

PAGE = Path(__file__).resolve().parent / "tutorial.md"
LIMIT_SECONDS = 180

#: What a block prints, by its command or a part of it: as the page says.
PRINTS = {
    "kolo perf": "# Out of bounds values : 0 OK",
    "average.py": "[1.5 1.5 1.5]",
    "fit.py": "weights the same",
    "lost.py": "K0501: rank 1 is lost",
    "explain-error": "K0501",
}


def blocks() -> list[tuple[str, str, str]]:
    """Note before the block, language and text of each."""
    found = re.findall(r"(?:<!-- ([^>]*) -->\n)?```(\w+)\n(.*?)```", PAGE.read_text(), re.DOTALL)
    assert len(found) > 8 and all(language in ("sh", "python") for _, language, _ in found)
    return found


def commands() -> list[str]:
    return [line for _, language, text in blocks() if language == "sh" for line in text.strip().splitlines()]


def test_few_commands_until_two_hosts_are_verified():
    all_of_them = commands()
    verified = next(at for at, line in enumerate(all_of_them) if "--hosts" in line and "kolo perf" in line)
    assert verified + 1 <= 10, all_of_them[: verified + 1]


def run(block: str, folder: Path, path: str) -> tuple[int, str]:
    process = subprocess.Popen(
        ["bash", "-euc", block],
        cwd=folder,
        env={**{name: value for name, value in os.environ.items() if not name.startswith("KOLO_")}, "PATH": path},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        printed, _ = process.communicate(timeout=LIMIT_SECONDS)
        return process.returncode, printed
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        pytest.fail(f"{block}: not done after {LIMIT_SECONDS} s:\n{process.communicate()[0]}")


def tools(folder: Path) -> str:
    """A search path with this Python, the built `kolo`, and an `ssh` that enters the namespaces."""
    started = kolo_run(1)
    if started is None:
        pytest.skip("kolo has not been built (cargo build)")
    folder.mkdir()
    (folder / "kolo").symlink_to(started[0])
    return f"{folder}:{Path(sys.executable).parent}:{os.environ['PATH']}"


@pytest.fixture
def hosts(tmp_path):
    """Two hosts and the `ssh` that reaches them; none where namespaces are not permitted."""
    if Hosts.why_not() is not None:
        yield None
        return
    with Hosts(2) as net:
        # What `ip netns exec` mounts over /etc/hosts in each.
        folders = [Path("/etc/netns") / net.name(host) for host in range(2)]
        try:
            for folder in folders:
                folder.mkdir(parents=True)
                lines = [f"{net.address(host)} node{host}" for host in range(2)]
                (folder / "hosts").write_text("\n".join(["127.0.0.1 localhost", *lines]) + "\n")
            yield net
        finally:
            for folder in folders:
                shutil.rmtree(folder, ignore_errors=True)


def test_every_block(hosts, tmp_path):
    pytest.importorskip("kolo", reason="Kolo's Python package is not installed")
    torch = pytest.importorskip("torch", reason="torch is not installed")
    del torch
    bin_folder, folder = tmp_path / "bin", tmp_path / "work"
    path = tools(bin_folder)
    folder.mkdir()
    # The environment that the left-out blocks make. ssh has a PATH of its own, as sshd gives it.
    python = folder / "venv" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.write_text("#!/bin/sh\nPATH=" + shlex.quote(path) + ' exec python3 "$@"\n')
    python.chmod(0o755)
    if hosts is not None:
        namespaces = " ".join(f"node{host}={hosts.name(host)}" for host in range(2))
        ssh = bin_folder / "ssh"
        ssh.write_text(
            "#!/bin/bash\n# ssh [OPTION VALUE]... HOST COMMAND...\n"
            'while [[ $1 == -* ]]; do case $1 in -[oFpil]) shift 2 ;; *) shift ;; esac; done\n'
            f"host=$1; shift\nfor known in {namespaces}; do\n"
            '  [[ $known == "$host="* ]] && exec ip netns exec "${known#*=}" sh -c "PATH=/usr/sbin:/usr/bin:/sbin:/bin $*"\n'
            "done\necho \"no host $host\" >&2; exit 255\n"
        )
        ssh.chmod(0o755)
    left_out = 0
    for note, language, text in blocks():
        if note.startswith("file:"):
            (folder / note.split()[1]).write_text(text)
        elif note.startswith("installs"):
            continue
        elif "--hosts" in text and hosts is None:
            left_out += 1
        else:
            assert language == "sh", text
            code, printed = run(text, folder, path)
            assert (code != 0) == (note == "fails"), f"{text}exit code {code}:\n{printed}"
            wanted = [words for part, words in PRINTS.items() if part in text and not (part == "kolo perf" and "python" in text)]
            assert all(words in printed for words in wanted), f"{text}{printed}"
    if left_out:
        pytest.skip(f"{left_out} blocks for two hosts: {Hosts.why_not()}")
