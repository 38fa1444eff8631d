"""The results on a GPU as JSON data, as Markdown tables, and as a chart."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ..tables import number, table
from .device import Row

SHARE = "over a harmless one"
HEADLINE = "all kinds, 256 x 151,936"


def write(
    folder: Path,
    name: str,
    machine: Mapping[str, str],
    parts: Sequence[Mapping[str, Any]],
    rows: Sequence[Row],
) -> None:
    """Write all results so far; each file replaces its older version at once."""
    folder.mkdir(parents=True, exist_ok=True)
    data = {"machine": machine, "parts": parts, "rows": rows}
    _replace(folder / f"{name}.json", json.dumps(data, indent=1) + "\n")
    _replace(folder / f"{name}.md", markdown(machine, parts, rows))
    bars = [row for row in rows if row["table"] == "Every kind" and "device us" in row]
    if bars:
        draw(bars, f"{machine['card']}, commit {machine['commit']}", folder / f"{name}.png")


def _replace(path: Path, text: str) -> None:
    new = path.with_suffix(".new")
    new.write_text(text)
    new.replace(path)


def markdown(
    machine: Mapping[str, str], parts: Sequence[Mapping[str, Any]], rows: Sequence[Row]
) -> str:
    """Format the tables."""
    about = "; ".join(f"{key} {value}" for key, value in machine.items())
    lines = [
        "# On a GPU\n",
        f"Made by `make gpu`. All figures: {about}.\n",
        "*Device us*: from the first launch of a step to the end of its last kernel, by CUDA "
        "events, with all launches queued before. *Host us*: until all is launched. A contender "
        "that waits for the device has the wait in both. Of the payloads beside neighbours, the "
        "costliest are shown; the JSON file has all. *us by the bytes*: what the bytes that "
        "must move take at the measured bandwidth of a copy.\n",
        "## Parts\n",
        table(
            ["part", "status", "seconds", "note"],
            [
                [part["part"], part["status"], number(part["seconds"]), _last(part["note"])]
                for part in parts
            ],
        ),
    ]
    for title in dict.fromkeys(row["table"] for row in rows):
        own = [row for row in rows if row["table"] == title]
        if SHARE in own[0]:
            own = sorted(own, key=lambda row: row[SHARE], reverse=True)[:12]
        columns = [
            column for column in dict.fromkeys(c for row in own for c in row) if column != "table"
        ]
        cells = [[_cell(row.get(column)) for column in columns] for row in own]
        lines += [f"## {title}\n", table(columns, cells)]
    for row in [row for row in rows if row.get("case") == HEADLINE][:1]:
        lines += [
            "## For the README\n",
            f"Measured on an {machine['card']}: a step of {HEADLINE} takes "
            f"{number(row['device us'])} us on the device and {number(row['host us'])} us on the "
            f"host ({number(row['launches'] or 0)} launches).\n",
        ]
    return "\n".join(lines)


def _last(note: str) -> str:
    return note.splitlines()[-1].replace("|", "\\|") if note else ""


def _cell(value: Any) -> str:
    if value is None or value != value:
        return ""
    return number(value) if isinstance(value, float) else str(value).replace("|", "\\|")


def draw(rows: Sequence[Row], title: str, path: Path) -> None:
    """Draw the device's time of each kind and contender."""
    from matplotlib.figure import Figure

    rows = rows[::-1]
    figure = Figure(figsize=(9, 0.8 + 0.22 * len(rows)), layout="constrained")
    axes = figure.subplots()
    ours = [row["contender"] == "logitport" for row in rows]
    axes.barh(
        range(len(rows)),
        [row["device us"] for row in rows],
        color=["tab:blue" if own else "tab:gray" for own in ours],
    )
    axes.plot(
        [row["us by the bytes"] for row in rows], range(len(rows)), "k|", label="by the bytes"
    )
    axes.set_yticks(range(len(rows)), [f"{row['case']}: {row['contender']}" for row in rows])
    axes.set_xscale("log")
    axes.set_xlabel("device time of a step, us")
    axes.set_title(title)
    axes.legend()
    figure.savefig(path, dpi=110)
