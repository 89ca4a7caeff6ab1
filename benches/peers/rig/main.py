"""The whole comparison, from the command line to the page of results."""
import json
import os
import shutil
import signal
import sys
from statistics import median

from . import gloo, kolo, machine, markdown, mpi, network, oneccl, options, placement, places, processes, ratios, svg
from .namespace import Missing, Namespace
from .schedule import Schedule


def main(arguments=None):
    chosen = options.parse(arguments)
    chosen.out.mkdir(parents=True, exist_ok=True)
    records = chosen.out / "results.jsonl"
    if chosen.report:
        report(chosen, records)
        return 0
    if chosen.network:
        return 0 if network.compare(chosen) else 1
    libraries, missing = find_peers(chosen)
    if chosen.list:
        for library in libraries:
            print(f"{library.name:10} {library.title} ({', '.join(library.transports)})")
        for title, reason in missing.items():
            print(f"{'-':10} {title}: {reason}")
        return 0
    if not libraries:
        print("run: no peer is here; see setup.sh", file=sys.stderr)
        return 1
    measure(chosen, [kolo.find(chosen.kolo_dir.resolve(), chosen.mpi), *libraries], missing, records)
    report(chosen, records)
    return 0


def find_peers(chosen):
    """Returns the peers that can take part, and why others cannot. oneCCL may need Intel MPI, so it comes after the
    MPIs."""
    libraries, missing = mpi.find(chosen.peers_dir)
    for finder in () if chosen.mpi else (oneccl.find, gloo.find):
        found, absent = finder(chosen.peers_dir)
        libraries += found
        missing |= absent
    if chosen.peers:
        for name in set(chosen.peers) - {library.name for library in libraries}:
            missing[name] = "asked for, but not here"
        missing |= {library.title: "left out by --peers" for library in libraries if library.name not in chosen.peers}
        libraries = [library for library in libraries if library.name in chosen.peers]
    return libraries, missing


def measure(chosen, libraries, missing, records):
    processes.adopt_orphans()
    # SIGTERM acts as an interrupt: programs are ended too, and the table is written.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    prefix, shield = processes.shield(chosen.shield)
    above, _ = processes.shield("above") if chosen.shield == "realtime" else (prefix, shield)
    namespace = reno_namespace(chosen, missing)
    probe = placement.Probe(chosen.kolo_dir.resolve() / "flag_distance", above)
    if chosen.busy:
        probe = None  # it would see the busy processes, and wait for times without them
    elif probe.nanoseconds() is None:
        print(f"run: nobody sees whether the host moves the processors: {probe.problem}", file=sys.stderr)
    print(f"libraries: {', '.join(library.title for library in libraries)}; shield: {shield}", flush=True)
    meta = {"kind": "meta", "machine": machine.describe(), "shield": shield, "busy": chosen.busy, "missing": missing,
            "libraries": {library.name: library.title for library in libraries}}
    with open(records, "w") as file:

        def sink(record):
            file.write(json.dumps(record) + "\n")
            file.flush()

        sink(meta)
        completed = None
        try:
            completed = Schedule(chosen, libraries, prefix, sink, namespace, probe).run()
        except KeyboardInterrupt:
            print("run: interrupted; the table holds what there is", file=sys.stderr)
        finally:
            sink({"kind": "end", "complete": completed == chosen.rounds, "load_after": round(os.getloadavg()[0], 1)})


def reno_namespace(chosen, missing):
    """Returns the namespace for the peers, if one is requested. If there is none, its transport class is left out with
    a message."""
    if options.RENO not in chosen.transports:
        return None
    try:
        return Namespace()
    except Missing as why:
        print(f"run: {options.RENO} is left out: {why}", file=sys.stderr)
        missing[f"All peers over {options.RENO}"] = f"no network namespace: {why}"
        chosen.transports = [transport for transport in chosen.transports if transport != options.RENO]
        return None


def report(chosen, path):
    with open(path) as file:
        records = [json.loads(line) for line in file]
    of_kind = {kind: [record for record in records if record["kind"] == kind]
               for kind in ("meta", "point", "failure", "turn", "end")}
    of_kind["point"] = ratios.complete(records)
    if not of_kind["point"]:
        print("run: nothing was measured", file=sys.stderr)
        return
    meta = of_kind["meta"][0]
    shares = [record["foreign"] for record in of_kind["point"]]
    again = sum("again" in turn for turn in of_kind["turn"])
    meta |= {"rounds": max(turn["round"] for turn in of_kind["turn"] if "again" not in turn), "again": again,
             "complete": any(end["complete"] for end in of_kind["end"]),
             "load_after": of_kind["end"][-1]["load_after"] if of_kind["end"] else "an unknown one",
             "placement": placement.told(of_kind["point"]),
             "foreign_median": median(shares),
             "foreign_disturbed": sum(share > ratios.DISTURBED for share in shares) / len(shares)}
    found = ratios.points(of_kind["point"])
    write(chosen.out, meta, found, of_kind["failure"])
    for key, (value, count, lost) in ratios.means(found, "transport", "collective").items():
        print(f"{key[0]} {key[1]:15} {value:6.2f}  a peer is faster in {lost} of {count}")
    for (value, count, lost) in ratios.means(found).values():
        print(f"all {value:.2f}  a peer is faster in {lost} of {count}")
    print(f"table: {chosen.out / 'benchmarks.md'}")
    if chosen.publish:
        shutil.copy(chosen.out / "benchmarks.md", places.DOCS / "benchmarks.md")
        shutil.copytree(chosen.out / "benchmarks", places.DOCS / "benchmarks", dirs_exist_ok=True)


def write(out, meta, found, failures):
    """Writes the page, its plots, and the same figures for programs."""
    shutil.rmtree(out / "benchmarks", ignore_errors=True)
    (out / "benchmarks").mkdir()
    plots = {}
    for collective, transport in dict.fromkeys((point.collective, point.transport) for point in found):
        mine = [p for p in found if (p.collective, p.transport) == (collective, transport) and p.bytes]
        drawn = svg.draw(f"{collective}, {markdown.TRANSPORTS[transport]}", meta["libraries"], mine)
        if drawn:
            plots[collective, transport] = f"benchmarks/{collective}-{transport}.svg"
            (out / plots[collective, transport]).write_text(drawn)
    (out / "benchmarks.md").write_text(markdown.render(meta, found, failures, plots))
    rows = [{name: value for name, value in vars(point).items() if value == value} for point in found]
    lines = ",\n".join(json.dumps(row) for row in rows)
    (out / "benchmarks" / "points.json").write_text(
        f'{{"meta": {json.dumps(meta)},\n"points": [\n{lines}\n]}}\n')
