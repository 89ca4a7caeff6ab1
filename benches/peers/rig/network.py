"""The comparison between hosts: all libraries in turn on simulated networks (docs/netlab.md)."""
import json
import os
import shlex
import stat
import subprocess
import sys
import time
from statistics import median

from . import gloo, mpi, places, processes

BUILD = ["cargo", "build", "--release", "-p", "kolo-cli", "-p", "kolo-netlab", "-p", "kolo-benches", "--bins"]
# Share of the wire's bytes in full packets that is TCP payload.
PAYLOAD = 1448 / 1538
UNITS = {"K": 1e3, "M": 1e6, "G": 1e9}
# Seconds that the launchers and the network laboratory take beside the program.
START_SECONDS = 20


class Network:
    """A network in the form that `kolo-netlab run` takes, and the limits of its links."""

    def __init__(self, text, ranks_per_host):
        self.text, self.words, self.local = text, shlex.split(text), ranks_per_host
        self.hosts = int(self.option("--hosts", "2"))
        nics, rate = int(self.option("--nics", "1")), bits(self.option("--rate", "0"))
        cards = [rate] * nics
        for which, value in self.options("--nic-rate"):
            cards[which] = bits(value)
        hosts = [sum(cards) if all(cards) else 0] * self.hosts
        for name in ("--host-rate", "--host-up", "--host-down"):
            for which, value in self.options(name):
                hosts[which] = min(hosts[which] or float("inf"), bits(value) * nics)
        # Bytes per second of payload that the slowest host carries in each direction; 0 if there is no limit.
        self.rate = min(hosts) * PAYLOAD / 8
        self.delay = seconds(self.option("--delay", "0"))

    def option(self, name, otherwise):
        found = [after for word, after in zip(self.words, self.words[1:]) if word == name]
        found += [word[len(name) + 1:] for word in self.words if word.startswith(name + "=")]
        return found[-1] if found else otherwise

    def options(self, name):
        """Yields all values of the form HOST=VALUE."""
        for word, after in zip(self.words, self.words[1:]):
            if word == name:
                which, _, value = after.partition("=")
                yield int(which), value

    def limit_us(self, collective, size):
        """Returns the time of the bytes that must cross the slowest host's link, plus one delay. None if rates are
        unlimited."""
        if not self.rate:
            return None
        others = (self.hosts - 1) / self.hosts
        crossing = {"all_reduce": 2 * others, "all_gather": others, "reduce_scatter": others, "broadcast": 1,
                    "all_to_all": others * self.local, "barrier": 0}[collective]
        return (crossing * size / self.rate + self.delay) * 1e6

    def addresses(self):
        return [f"10.98.0.{host + 1}" for host in range(self.hosts)]


def bits(text):
    return float(text[:-1]) * UNITS[text[-1]] if text[-1:] in UNITS else float(text)


def seconds(text):
    for unit, factor in (("us", 1e-6), ("ms", 1e-3), ("s", 1)):
        if text.endswith(unit):
            return float(text[:-len(unit)]) * factor
    return float(text)


def contenders(chosen):
    """Returns, by name, the title and a function from a network to options of kolo-netlab, command and environment; and
    what is missing."""
    directory = chosen.kolo_dir.resolve()
    if any(not (directory / name).exists() for name in ("kolo", "kolo_bench", "kolo-netlab")):
        print(f"run: {' '.join(BUILD)}", file=sys.stderr)
        subprocess.run(BUILD, cwd=places.REPOSITORY, check=True)
    found = {"kolo": ("Kolo", lambda network: ([], [str(directory / "kolo_bench")], {"KOLO_JOB_SECRET": "comparison"}))}
    libraries, missing = mpi.find(chosen.peers_dir)
    shell = remote_shell(directory / "kolo-netlab")
    for library in libraries:
        launch = library.launch(1, "tcp")
        found[library.name] = (library.title, over_mpi(library.name, launch, shell))
    torch, absent = gloo.find(chosen.peers_dir)
    for library in torch:
        launch = library.launch(1, "tcp")
        program = [word for word in launch.command if not word.startswith("--")][:2]
        settings = {**launch.environment, "GLOO_SOCKET_IFNAME": "eth0"}
        found[library.name] = (library.title, lambda network, program=program, settings=settings: ([], program, settings))
    return found, missing | absent


def remote_shell(netlab):
    """Returns the program that launchers call in place of ssh: a single path, since some take no arguments with it."""
    places.BUILT.mkdir(parents=True, exist_ok=True)
    path = places.BUILT / "netlab_rsh"
    path.write_text(f'#!/bin/sh\nexec "{netlab}" rsh "$@"\n')
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return path


def over_mpi(name, launch, shell):
    launcher, program = launch.command[0], launch.command[-1]

    def start(network):
        environment = {key: launch.environment[key] for key in ("PATH", "LD_LIBRARY_PATH") if key in launch.environment}
        hosts, ranks = network.addresses(), network.hosts * network.local
        listed = ",".join(f"{host}:{network.local}" for host in hosts)
        if name.startswith("openmpi"):
            agent = "plm_rsh_agent" if name == "openmpi4" else "plm_ssh_agent"
            family = "--mca" if name == "openmpi4" else "--prtemca"
            words = ["--allow-run-as-root", "--host", listed, "-n", str(ranks), family, agent, str(shell),
                     "--bind-to", "none", "--mca", "mpi_yield_when_idle", "1", "--mca", "pml", "ob1",
                     "--mca", "btl_tcp_if_include", interfaces(network)]
        elif name == "intelmpi":
            environment.update(I_MPI_FABRICS="shm:ofi", FI_PROVIDER="tcp", FI_TCP_IFACE="eth0", I_MPI_PIN="0",
                               I_MPI_THREAD_YIELD="2", I_MPI_HYDRA_IFACE="eth0")
            words = ["-bootstrap", "ssh", "-bootstrap-exec", str(shell), "-hosts", ",".join(hosts),
                     "-ppn", str(network.local), "-n", str(ranks)]
        else:
            environment.update(FI_PROVIDER="tcp", FI_TCP_IFACE="eth0", MPIR_CVAR_CH4_NETMOD="ofi")
            words = ["-launcher", "ssh", "-launcher-exec", str(shell), "-iface", "eth0", "-hosts", listed, "-n", str(ranks)]
        return ["--only", "0"], [launcher, *words, program], environment

    return start


def interfaces(network):
    """Returns the list of interfaces: Open MPI uses only those that it is given."""
    return ",".join(f"eth{nic}" for nic in range(int(network.option("--nics", "1"))))


def compare(chosen):
    """Measures everything and writes the table; returns whether anything was measured."""
    found, missing = contenders(chosen)
    for name in chosen.peers or []:
        if name not in found:
            missing[name] = "asked for, but not here"
    if chosen.peers:
        found = {name: entry for name, entry in found.items() if name in [*chosen.peers, "kolo"]}
    if chosen.list:
        for name, (title, _) in found.items():
            print(f"{name:10} {title}")
        for title, reason in missing.items():
            print(f"{'-':10} {title}: {reason}")
        return True
    processes.adopt_orphans()
    networks = [Network(text, local) for text in chosen.network for local in chosen.ranks_per_host]
    times, failures = {}, {}
    with open(chosen.out / "network.jsonl", "w") as log:
        for number in range(chosen.rounds):
            for network in networks:
                # No library is always the first.
                names = list(found)[number % len(found):] + list(found)[:number % len(found)]
                for name in names:
                    measure(chosen, network, name, found[name][1], times, failures, log)
    page = render(networks, found, missing, times, failures, chosen.rounds)
    (chosen.out / "network.md").write_text(page)
    print(page)
    return bool(times)


def measure(chosen, network, name, start, times, failures, log):
    key = (network.text, network.local, name)
    if len(failures.get(key, [])) >= 2:
        return
    options, command, environment = start(network)
    bench = ["--collectives", ",".join(chosen.collectives), "--sizes", ",".join(map(str, chosen.sizes)),
             "--budget-ms", str(chosen.budget_ms)]
    words = [str(chosen.kolo_dir.resolve() / "kolo-netlab"), "run", *network.words,
             "--ranks-per-host", str(network.local), *options, "--", *command, *bench]
    began = time.monotonic()
    status, output, errors = processes.run(words, environment, chosen.timeout + START_SECONDS)
    points = [json.loads(line) for line in output.splitlines() if line.startswith("{") and line.endswith("}")]
    for point in points:
        times.setdefault((network.text, network.local, point["collective"], point["bytes"]), {}).setdefault(name, []).append(
            point["median_us"])
        log.write(json.dumps({"network": network.text, "ranks_per_host": network.local, "library": name, **point}) + "\n")
    log.flush()
    if status != 0:
        why = f"not done after {chosen.timeout:g} s" if status is None else f"exit status {status}"
        said = " / ".join(line.strip() for line in errors.splitlines()[-3:])[:300]
        failures.setdefault(key, []).append(f"{why}: {said}")
    print(f"{network.text} x {network.local}: {name}: {len(points)} points in {time.monotonic() - began:.0f} s", flush=True)


def render(networks, found, missing, times, failures, rounds):
    names = list(found)
    lines = ["# Between hosts", "",
             f"Microseconds, medians of {rounds} rounds in turn on the laboratory of docs/netlab.md. In brackets: the share of what "
             "the links permit. *Ratio* is the best peer's time over Kolo's.", "",
             f"Load of the machine at the end: {os.getloadavg()[0]:.1f}."]
    lines += [f"\n- {title}: {reason}" for title, reason in missing.items()]
    for network in networks:
        lines += ["", f"## {network.text}, {network.local} to a host", "",
                  "| call | bytes | limit | " + " | ".join(found[name][0] for name in names) + " | ratio |",
                  "| --- | ---: | ---: |" + " ---: |" * (len(names) + 1)]
        for (text, local, collective, size), by_name in times.items():
            if (text, local) != (network.text, network.local):
                continue
            limit = network.limit_us(collective, size)
            middle = {name: median(values) for name, values in by_name.items()}
            peers = [value for name, value in middle.items() if name != "kolo"]
            ratio = f"{min(peers) / middle['kolo']:.2f}" if peers and "kolo" in middle else ""
            cells = [cell(middle.get(name), limit) for name in names]
            bound = f"{limit:,.0f}" if limit else ""
            lines.append(f"| {collective} | {size} | {bound} | " + " | ".join(cells) + f" | {ratio} |")
        for (text, local, name), reasons in failures.items():
            if (text, local) == (network.text, network.local):
                lines.append(f"\n{found[name][0]} failed: {reasons[0]}")
    return "\n".join(lines) + "\n"


def cell(micros, limit):
    if micros is None:
        return ""
    return f"{micros:,.0f} ({limit / micros:.2f})" if limit else f"{micros:,.0f}"
