"""Plots of one collective and transport: a panel for each number of ranks, latency above, bus bandwidth below."""
import math
from html import escape

WIDTH, HEIGHT = 300, 210  # of a panel's plot area
LEFT, GAP, BETWEEN, BOTTOM = 68, 64, 40, 34
LEGEND_TOP, LEGEND_ROW, LEGEND_CELL = 32, 18, 90
# Colours that colour-blind readers can tell apart too (Okabe and Ito).
COLOURS = ["#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00", "#999999", "#8c510a", "#b3a100"]
KOLO = "#000000"
STYLE = ("text{font:12px sans-serif;fill:#333}.title{font-size:15px;font-weight:bold}.grid{stroke:#e4e4e4}"
         ".frame{fill:none;stroke:#999}.line{fill:none;stroke-linejoin:round}")


def draw(title, libraries, all_points):
    """Returns an SVG document, or nothing if there are too few sizes for lines."""
    ranks = sorted({point.ranks for point in all_points})
    if len({point.bytes for point in all_points}) < 2:
        return None
    peers = [name for name in libraries if name != "kolo"]
    colours = {name: COLOURS[index % len(COLOURS)] for index, name in enumerate(peers)} | {"kolo": KOLO}
    shown = [name for name in [*peers, "kolo"] if any(name in point.times for point in all_points)]
    width = LEFT + len(ranks) * (WIDTH + GAP)
    in_row = max((width - LEFT) // LEGEND_CELL, 1)
    top = LEGEND_TOP + -(-len(shown) // in_row) * LEGEND_ROW + 18
    height = top + 2 * HEIGHT + BETWEEN + BOTTOM
    out = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" '
           f'height="{height}" role="img">', f"<title>{escape(title)}</title><style>{STYLE}</style>",
           f'<rect width="{width}" height="{height}" fill="#fff"/>',
           f'<text class="title" x="{LEFT}" y="20">{escape(title)}</text>', legend(shown[::-1], colours, in_row)]
    measures = [("time", lambda point, name: point.times[name], human_micros),
                ("bus bandwidth", lambda point, name: point.bandwidth(name), human_rate)]
    for row, (label, value, human) in enumerate(measures):
        axis = Axis([value(point, name) for point in all_points for name in point.times])
        for column, number in enumerate(ranks):
            mine = sorted((point for point in all_points if point.ranks == number), key=lambda point: point.bytes)
            at = (LEFT + column * (WIDTH + GAP), top + row * (HEIGHT + BETWEEN))
            sizes = Axis([point.bytes for point in all_points])
            out.append(panel(at, f"{number} ranks: {label}", sizes, axis, human))
            out += [line(at, sizes, axis, [(point.bytes, value(point, name)) for point in mine if name in point.times],
                         colours[name], name == "kolo") for name in shown]
    return "\n".join([*filter(None, out), "</svg>", ""])


class Axis:
    """A logarithmic axis around some values; ends at whole powers of ten."""

    def __init__(self, values):
        self.low = math.floor(math.log10(min(values)) + 1e-9)
        self.high = max(math.ceil(math.log10(max(values)) - 1e-9), self.low + 1)

    def at(self, value):
        return (math.log10(value) - self.low) / (self.high - self.low)

    def ticks(self):
        return [10.0**power for power in range(self.low, self.high + 1)]


def panel(at, title, sizes, axis, human):
    x, y = at
    out = [f'<text x="{x}" y="{y - 6}">{escape(title)}</text>']
    for tick in axis.ticks():
        height = y + HEIGHT * (1 - axis.at(tick))
        out.append(f'<line class="grid" x1="{x}" x2="{x + WIDTH}" y1="{height:.1f}" y2="{height:.1f}"/>'
                   f'<text x="{x - 6}" y="{height + 4:.1f}" text-anchor="end">{human(tick)}</text>')
    for power in range(0, 40, 5):
        if 0 <= sizes.at(2**power) <= 1:
            across = x + WIDTH * sizes.at(2**power)
            out.append(f'<line class="grid" x1="{across:.1f}" x2="{across:.1f}" y1="{y}" y2="{y + HEIGHT}"/>'
                       f'<text x="{across:.1f}" y="{y + HEIGHT + 16}" text-anchor="middle">{human_size(power)}</text>')
    out.append(f'<rect class="frame" x="{x}" y="{y}" width="{WIDTH}" height="{HEIGHT}"/>')
    return "".join(out)


def line(at, sizes, axis, values, colour, bold):
    if not values:
        return ""
    x, y = at
    dots = [(x + WIDTH * sizes.at(size), y + HEIGHT * (1 - axis.at(value))) for size, value in values]
    path = " ".join(f"{across:.1f},{down:.1f}" for across, down in dots)
    marks = "".join(f'<circle cx="{across:.1f}" cy="{down:.1f}" r="{3 if bold else 2.2}" fill="{colour}"/>'
                    for across, down in dots)
    return (f'<polyline class="line" points="{path}" stroke="{colour}" stroke-width="{2.6 if bold else 1.4}"/>'
            f"{marks}")


def legend(names, colours, in_row):
    out = []
    for index, name in enumerate(names):
        x, y = LEFT + index % in_row * LEGEND_CELL, LEGEND_TOP + index // in_row * LEGEND_ROW
        out.append(f'<rect x="{x}" y="{y}" width="14" height="4" fill="{colours[name]}"/>'
                   f'<text x="{x + 19}" y="{y + 7}">{escape(name)}</text>')
    return "".join(out)


def human_micros(micros):
    if micros < 1e3:
        return f"{micros:g} µs"
    return f"{micros / 1e3:g} ms" if micros < 1e6 else f"{micros / 1e6:g} s"


def human_rate(gigabytes):
    for factor, unit in ((1, "GB/s"), (1e3, "MB/s"), (1e6, "kB/s"), (1e9, "B/s")):
        if gigabytes * factor >= 0.999 or unit == "B/s":
            return f"{gigabytes * factor:g} {unit}"


def human_size(power):
    return f"{2**(power % 10)} {['B', 'KiB', 'MiB', 'GiB'][power // 10]}"
