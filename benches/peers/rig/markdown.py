"""The table of results for people."""
import math
from collections import Counter

from .options import COLLECTIVES
from .ratios import geometric_mean, means

TRANSPORTS = {"shm": "shared memory", "tcp": "TCP on loopback",
              "tcp-reno": "TCP on loopback, the peers in a namespace with reno"}


def render(meta, all_points, failures, plots):
    compared = [point for point in all_points if not math.isnan(point.ratio)]
    parts = [HEAD, how(meta), summary(meta, compared), misses(meta, compared), processor_time(all_points),
             absent(meta, failures)]
    parts += [section(meta, collective, all_points, plots) for collective in COLLECTIVES]
    return "\n\n".join(part for part in parts if part) + "\n"


HEAD = """\
# Benchmarks

This page compares Kolo with other libraries, on one machine, in one run.
[`benches/peers/run --publish`](../benches/peers/README.md) writes the page and its plots; the method is described there. Run it on
your own machine: the figures below hold only for the machine on which they were taken."""


def how(meta):
    machine = meta["machine"]
    kind = "virtual processors" if machine["virtual"] else "processors"
    lines = [
        f"- Machine: {machine['processors']} {kind} ({machine['processor']}), {machine['memory_gib']} GiB, "
        f"Linux {machine['kernel']}; TCP congestion control of the system: {machine['tcp_congestion_control']}.",
        f"- Date {machine['date']}; {meta['rounds']} round{'s' * (meta['rounds'] != 1)}"
        f"{again(meta)}; shield: `{meta['shield']}`. "
        f"Load average {machine['load_before']} before and {meta['load_after']} after. {foreign(meta)}",
        f"- Libraries: {', '.join(meta['libraries'].values())}.",
    ]
    if meta.get("busy"):
        lines.append(f"- **Busy on purpose**: {meta['busy']} processes that always wanted a processor ran beside each program. "
                     "Each point is the mean of operations that lasted 1.5 s, and none was measured again.")
    if meta.get("placement"):
        lines.append(f"- {meta['placement']}")
    if not meta["complete"]:
        lines.append("- **This run was cut short.** Combinations of transport and ranks that some library had not "
                     "finished are left out.")
    if meta["rounds"] == 1:
        lines.append("- There was only one round: there is no spread, and ratios near 1 mean nothing.")
    return "\n".join(lines)


def again(meta):
    """Reports the programs that ran once more for comparable placement."""
    count = meta.get("again")
    return f", and {count} program{'s' * (count != 1)} measured again" if count else ""


def foreign(meta):
    return (f"Other processes used {meta['foreign_median']:.0%} of the machine during the median point, and more than 10 % "
            f"during {meta['foreign_disturbed']:.0%} of the points.")


def summary(meta, compared):
    if not compared:
        return "No point has both Kolo and a peer."
    text = ["## Summary", "",
            "Ratio = best peer's time / Kolo's time; if it is more than 1, Kolo is faster. The best peer is chosen for "
            "each point. The table has geometric means over the sizes, and in brackets the number of points in which a "
            "peer is faster / all points.", ""]
    ranks = sorted({point.ranks for point in compared})
    for transport, title in TRANSPORTS.items():
        mine = [point for point in compared if point.transport == transport]
        if not mine:
            continue
        cells, rows, columns = means(mine, "collective", "ranks"), means(mine, "collective"), means(mine, "ranks")
        text += [f"| {title} | {' | '.join(f'{number} ranks' for number in ranks)} | all |",
                 "|---|" + "---:|" * (len(ranks) + 1)]
        for collective in COLLECTIVES:
            if (collective,) in rows:
                line = [mean(cells.get((collective, number))) for number in ranks]
                text.append(f"| {collective} | {' | '.join(line)} | {mean(rows[collective,])} |")
        line = [mean(columns.get((number,))) for number in ranks]
        text += [f"| **all** | {' | '.join(line)} | **{mean(means(mine)[()])}** |", ""]
    leaders = Counter(point.best for point in compared)
    told = ", ".join(f"{meta['libraries'].get(name, name)} {count}" for name, count in leaders.most_common())
    value, count, lost = means(compared)[()]
    text.append(f"Over all {count} points the geometric mean is **{value:.2f}**; a peer is faster in {lost}. "
                f"Best peer, by number of points: {told}.")
    return "\n".join(text)


def mean(found):
    return f"{found[0]:.2f} ({found[2]}/{found[1]})" if found else ""


def misses(meta, compared):
    lost = sorted((point for point in compared if point.ratio < 1), key=lambda point: point.ratio)
    if not lost:
        return "## Where a peer is faster\n\nNowhere in this run."
    text = ["## Where a peer is faster", "",
            "Spread: the smallest and the largest ratio of a single round, each against the best peer of that round. If "
            "the spread of a point includes 1, the difference is within the noise of this machine.", "",
            "| transport | collective | ranks | size | Kolo | best peer | | ratio | spread |",
            "|---|---|---:|---:|---:|---:|---|---:|---:|"]
    text += [f"| {point.transport} | {point.collective} | {point.ranks} | {human_size(point)} "
             f"| {human_time(point.kolo)} | {human_time(point.times[point.best])} | {point.best} | {point.ratio:.2f}{'*' * (not point.alike)} "
             f"| {point.low:.2f}–{point.high:.2f} |" for point in lost]
    return "\n".join(text)


def processor_time(all_points):
    """Returns the processor time of all_reduce over TCP."""
    rows = [point for point in all_points
            if point.collective == "all_reduce" and point.transport != "shm" and "kolo" in point.processors]
    if not rows:
        return ""
    text = ["## Processor time", "",
            "CPU seconds of all ranks together, in user mode and in the kernel, per GB (10^9 bytes of the vector) "
            "all-reduced. Ratio = the smallest figure of a peer / Kolo's; if it is more than 1, Kolo needs less."]
    for transport, title in TRANSPORTS.items():
        mine = sorted((point for point in rows if point.transport == transport), key=lambda p: (p.ranks, p.bytes))
        if not mine:
            continue
        names = sorted({name for point in mine for name in point.processors} - {"kolo"})
        text += ["", f"| {title}: ranks | size | kolo | {' | '.join(names)} | ratio |",
                 "|---:|---:|" + "---:|" * (len(names) + 2)]
        for point in mine:
            costs = [point.processor_seconds(name) if name in point.processors else None for name in ["kolo", *names]]
            cells = ["" if cost is None else f"{cost:,.0f}" if cost >= 100 else f"{cost:.3g}" for cost in costs]
            ratio = "" if math.isnan(point.thrift) else f"{point.thrift:.2f}"
            text.append(f"| {point.ranks} | {human_size(point)} | {' | '.join(cells)} | {ratio} |")
        ratios = [point.thrift for point in mine if not math.isnan(point.thrift)]
        if ratios:
            text += ["", f"Geometric mean {geometric_mean(ratios):.2f}; a peer needs less in "
                         f"{sum(ratio < 1 for ratio in ratios)} of {len(ratios)}."]
    return "\n".join(text)


def absent(meta, failures):
    lines = [f"- {title}: {reason}." for title, reason in meta["missing"].items()]
    told = {}
    for failure in failures:
        where = f"{failure['ranks']} ranks, {failure['transport']}"
        if "collective" in failure:
            where += f", {failure['collective']}"
        told.setdefault((failure["library"], failure["reason"]), []).append(where)
    for (library, reason), places in told.items():
        places = list(dict.fromkeys(places))
        lines.append(f"- {library} ({'; '.join(places)}): {' '.join(reason.replace('|', ' ').split())}.")
    return "## What did not take part\n\n" + "\n".join(lines) if lines else ""


def section(meta, collective, all_points, plots):
    mine = [point for point in all_points if point.collective == collective]
    if not mine:
        return ""
    names = [name for name in meta["libraries"] if any(name in point.times for point in mine)]
    text = [f"## {collective}"]
    for transport, title in TRANSPORTS.items():
        rows = sorted((point for point in mine if point.transport == transport), key=lambda p: (p.ranks, p.bytes))
        if not rows:
            continue
        here = [name for name in names if any(name in point.times for point in rows)]
        text += ["", f"### {collective}, {title}", ""]
        if (collective, transport) in plots:
            text += [f"![Latency and bus bandwidth of {collective}, {title}]({plots[collective, transport]})", ""]
        text += [f"| ranks | size | {' | '.join(here)} | ratio | spread |",
                 "|---:|---:|" + "---:|" * (len(here) + 2)]
        for point in rows:
            cells = [cell(point, name) for name in here]
            ratio = "" if math.isnan(point.ratio) else f"{point.ratio:.2f}{'~' * point.disturbed}{'*' * (not point.alike)}"
            spread = "" if math.isnan(point.low) else f"{point.low:.2f}–{point.high:.2f}"
            text.append(f"| {point.ranks} | {human_size(point)} | {' | '.join(cells)} | {ratio} | {spread} |")
    if any(point.disturbed for point in mine):
        text += ["", "`~`: some library has no undisturbed round."]
    if not all(point.alike for point in mine):
        text += ["", "`*`: the placement of the processors was not the same for all libraries."]
    return "\n".join(text)


def cell(point, name):
    if name not in point.times:
        return ""
    text = human_time(point.times[name])
    return f"**{text}**" if point.times[name] == min(point.times.values()) else text


def human_size(point):
    return human_bytes(point.bytes) if point.bytes else "-"


def human_bytes(count):
    for unit in ("B", "KiB", "MiB"):
        if count < 1024 or unit == "MiB":
            return f"{count:g} {unit}"
        count /= 1024


def human_time(micros):
    if micros < 1e3:
        return f"{micros:.3g} µs"
    return f"{micros / 1e3:.3g} ms" if micros < 1e6 else f"{micros / 1e6:.3g} s"
