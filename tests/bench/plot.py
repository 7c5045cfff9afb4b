"""Line charts as SVG that needs nothing else."""
import math
from xml.sax.saxutils import escape

WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 720, 400, 70, 170, 40, 50
COLOURS = ("#2563a8", "#d97a1e", "#2e8b57", "#a83254", "#6b4fa0", "#8a6d3b", "#1b1f24", "#4aa3c7")
INK, DIM, GRID = "#1b1f24", "#66707a", "#e4e8ec"
TICKS = 5


def text(x, y, anchor, s, colour=DIM, size=12):
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" font-size="{size}" fill="{colour}">{escape(s)}</text>'


class Axis:
    """Values onto pixels, on a straight or a logarithmic scale."""

    def __init__(self, values, low, high, log):
        self.log, self.low, self.high = log, low, high
        v = [self.scale(x) for x in values if x > 0 or not log]
        self.min, self.max = (min(v), max(v)) if log else (min(0, *v), max(v))
        if self.max <= self.min:
            self.max = self.min + 1

    def scale(self, x):
        return math.log10(x) if self.log else x

    def at(self, x):
        return self.low + (self.scale(x) - self.min) / (self.max - self.min) * (self.high - self.low)

    def ticks(self):
        for i in range(TICKS + 1):
            v = self.min + i * (self.max - self.min) / TICKS
            yield 10 ** v if self.log else v


def lines(path, title, x_label, y_label, series, log_x=False, log_y=False):
    """series: {name: [(x, y)]}; points that a logarithm cannot show are left out."""
    points = {name: [(x, y) for x, y in p if (x > 0 or not log_x) and (y > 0 or not log_y)] for name, p in series.items()}
    points = {name: p for name, p in points.items() if p}
    if not points:
        return
    xs = Axis([x for p in points.values() for x, _ in p], LEFT, WIDTH - RIGHT, log_x)
    ys = Axis([y for p in points.values() for _, y in p], HEIGHT - BOTTOM, TOP, log_y)
    out = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif">',
           f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>', text(LEFT, 22, "start", title, INK, 15),
           text((LEFT + WIDTH - RIGHT) / 2, HEIGHT - 10, "middle", x_label), text(8, TOP - 8, "start", y_label)]
    for v in ys.ticks():
        out.append(f'<line x1="{LEFT}" y1="{ys.at(v):.1f}" x2="{WIDTH - RIGHT}" y2="{ys.at(v):.1f}" stroke="{GRID}"/>')
        out.append(text(LEFT - 6, ys.at(v) + 4, "end", f"{v:.3g}"))
    for v in xs.ticks():
        out.append(text(xs.at(v), HEIGHT - BOTTOM + 18, "middle", f"{v:.3g}"))
    for i, (name, p) in enumerate(points.items()):
        colour = COLOURS[i % len(COLOURS)]
        path_points = " ".join(f"{xs.at(x):.1f},{ys.at(y):.1f}" for x, y in p)
        out.append(f'<polyline points="{path_points}" fill="none" stroke="{colour}" stroke-width="2"/>')
        out += [f'<circle cx="{xs.at(x):.1f}" cy="{ys.at(y):.1f}" r="3" fill="{colour}"/>' for x, y in p]
        out.append(text(WIDTH - RIGHT + 12, TOP + 14 + 18 * i, "start", name, colour))
    with open(path, "w") as f:
        f.write("\n".join(out) + "\n</svg>\n")
