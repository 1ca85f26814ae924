"""Charts as small SVG in the colours of the page that holds them."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Sequence
from xml.sax.saxutils import escape, quoteattr

from cutlass_aot.cli.output.report.collect import Span

_BINS = 14
_WIDTH, _HEIGHT = 360, 170
_LEFT, _RIGHT, _TOP, _BOTTOM = 24, 24, 20, 24
_LETTER, _GAP = 6.5, 10
"""Width of a letter of a label, and the least gap between two labels."""
_TIMELINE_STEPS = 2000
_OVERLAP_SECONDS = 0.1
"""A worker may begin its next kernel so long before its last one is reported: storing it takes a moment."""
_NAMED_SPANS = 600
"""Most spans that a timeline names under the mouse; of more, only the outline is drawn."""


def bar(part: float, whole: float) -> str:
    """A bar that fills ``part`` of ``whole``, as wide as its container."""
    share = 100 * part / whole if whole > 0 else 0.0
    return (
        '<svg class="bar" viewBox="0 0 100 6" preserveAspectRatio="none" aria-hidden="true">'
        f'<rect class="rest" width="100" height="6"/><rect width="{_number(share)}" height="6"/></svg>'
    )


def histogram(
    values: Sequence[float], marked: Sequence[bool], label: Callable[[float], str], least: float, title: str
) -> str:
    """Histogram of at least one value; those that are ``marked`` have the colour of warnings.

    ``label`` formats a value for the axis; a bin is at least ``least`` wide; ``title`` is for screen readers.
    Labels stand below the edges of bins. A bin of one whole number has its label below its middle.
    """
    step, first = _steps(min(values), max(values), least)
    whole = step == 1 and all(value == int(value) for value in values)
    count = max(1, math.floor((max(values) - first) / step + 1e-9) + 1)
    plain, warned = [0] * count, [0] * count
    for value, is_marked in zip(values, marked, strict=True):
        index = min(count - 1, math.floor((value - first) / step + 1e-9))
        (warned if is_marked else plain)[index] += 1
    most = max(a + b for a, b in zip(plain, warned, strict=True))
    width = (_WIDTH - _LEFT - _RIGHT) / max(count, 6)
    floor = _HEIGHT - _BOTTOM
    room = floor - _TOP
    parts = [
        f'<svg class="chart" viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" aria-label={quoteattr(title)}>',
        f'<line class="axis" x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{floor}" y2="{floor}"/>',
    ]
    for index in range(count):
        left, top = _LEFT + index * width, float(floor)
        total = plain[index] + warned[index]
        if not total:
            continue
        edges = label(first + index * step)
        edges += f": {total}" if whole else f" to {label(first + (index + 1) * step)}: {total}"
        parts.append(f"<g><title>{escape(edges)}</title>")
        for number, kind in ((plain[index], "plain"), (warned[index], "warn")):
            if number:
                height = max(1.5, room * number / most)
                top -= height
                parts.append(
                    f'<rect class="{kind}" x="{_number(left + 1)}" y="{_number(top)}" '
                    f'width="{_number(width - 2)}" height="{_number(height)}"/>'
                )
        middle = _number(left + width / 2)
        parts.append(f'<text x="{middle}" y="{_number(top - 4)}" text-anchor="middle">{total}</text></g>')
    shift = width / 2 if whole else 0
    for index in _labelled(
        round(first / step), [label(first + i * step) for i in range(count + (not whole))], width
    ):
        x = _number(_LEFT + index * width + shift)
        if not whole:
            parts.append(f'<line class="axis" x1="{x}" x2="{x}" y1="{floor}" y2="{floor + 4}"/>')
        parts.append(
            f'<text class="axis" x="{x}" y="{_HEIGHT - 8}" text-anchor="middle">'
            f"{escape(label(first + index * step))}</text>"
        )
    return "".join([*parts, "</svg>"])


def _labelled(first: int, labels: Sequence[str], width: float) -> range:
    """Indices of the labels that are shown: at round numbers, and as many as have room.

    ``first`` is the number of the first edge, counted in bins from 0, and ``width`` that of a bin.
    """
    room = _LETTER * max(map(len, labels)) + _GAP
    every = next(
        e
        for power in itertools.count()
        for e in (10**power, 2 * 10**power, 5 * 10**power)
        if e * width >= room
    )
    chosen = range(-first % every, len(labels), every)
    return chosen or range(1)


def timeline(spans: Sequence[Span], seconds: float) -> str:
    """When kernels were compiled, in as few rows as ran at once; ``spans`` are sorted by their beginnings."""
    lanes = _lanes(spans)
    height = 14 if len(lanes) <= 16 else 7
    scale = _TIMELINE_STEPS / seconds if seconds > 0 else 0.0
    named = len(spans) <= _NAMED_SPANS
    parts = [
        f'<svg class="timeline" viewBox="0 0 {_TIMELINE_STEPS} {len(lanes) * height}" '
        f'height="{len(lanes) * height}" preserveAspectRatio="none" role="img" '
        f'aria-label="kernels over time, {len(lanes)} at once">'
    ]
    for number, lane in enumerate(lanes):
        top = number * height
        parts.append(f'<rect class="rest" y="{top + 1}" width="{_TIMELINE_STEPS}" height="{height - 2}"/>')
        for failed, kind in ((False, "plain"), (True, "warn")):
            chosen = [span for span in lane if span.failed == failed]
            if named:
                parts += [_named(span, kind, scale, top + 1, height - 2) for span in chosen]
            elif chosen:
                outline = "".join(
                    f"M{left} {top + 1}h{right - left}v{height - 2}h{left - right}z"
                    for left, right in _merged(chosen, scale)
                )
                parts.append(f'<path class="{kind}" d="{outline}"/>')
    return "".join([*parts, "</svg>"])


def _named(span: Span, kind: str, scale: float, top: int, height: int) -> str:
    left = span.begin * scale
    # A gap between neighbours, unless the span is too narrow for one.
    width = max(1.5, (span.end - span.begin) * scale - 2)
    state = "failed after" if span.failed else ""
    text = f"{span.name}: {state} {span.end - span.begin:.2f} s".replace("  ", " ")
    return (
        f'<rect class="{kind}" x="{_number(left)}" y="{top}" width="{_number(width)}" height="{height}">'
        f"<title>{escape(text)}</title></rect>"
    )


def _merged(spans: Iterable[Span], scale: float) -> list[tuple[int, int]]:
    """Spans in whole steps; those that touch are joined."""
    merged: list[tuple[int, int]] = []
    for span in spans:
        left = min(_TIMELINE_STEPS - 1, int(span.begin * scale))
        right = min(_TIMELINE_STEPS, max(left + 1, int(span.end * scale)))
        if merged and left <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(right, merged[-1][1]))
        else:
            merged.append((left, right))
    return merged


def _lanes(spans: Iterable[Span]) -> list[list[Span]]:
    """Spans in as few rows as possible without overlap: each goes to the free row that was busy last."""
    lanes: list[list[Span]] = []
    for span in spans:
        free = [lane for lane in lanes if lane[-1].end <= span.begin + _OVERLAP_SECONDS]
        if free:
            max(free, key=lambda lane: lane[-1].end).append(span)
        else:
            lanes.append([span])
    return lanes


def _steps(low: float, high: float, least: float) -> tuple[float, float]:
    """A round width of bins, and where the first begins."""
    rough = max((high - low) / _BINS, least)
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(power * factor for factor in (1, 2, 5, 10) if power * factor >= rough * (1 - 1e-9))
    return step, math.floor(low / step + 1e-9) * step


def _number(value: float) -> str:
    return f"{value:.2f}".rstrip("0").rstrip(".")
