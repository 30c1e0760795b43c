"""Reads a result of guideway-bench with programs that are not ours: HdrHistogram's Python port and a validator of JSON
Schema. Ends with an error at the first figure that differs.

usage: readers.py RESULT SCHEMA [REPORT.json REPORT.csv]

With the exports of a report of that result, they have to hold what it holds.
"""

import csv
import json
import pathlib
import sys

from hdrh.histogram import HdrHistogram
from hdrh.log import HistogramLogReader
from jsonschema import Draft202012Validator

BOUNDS = (1, 3_600_000_000_000, 3)


def merged(log):
    all_intervals = HdrHistogram(*BOUNDS)
    reader = HistogramLogReader(str(log), HdrHistogram(*BOUNDS))
    while (interval := reader.get_next_interval_histogram()) is not None:
        all_intervals.add(interval)
    return all_intervals


def same(what, ours, theirs):
    if ours != theirs:
        sys.exit(f"{what}: {ours} is ours, {theirs} theirs")


def at_rank(histogram, rank):
    # Of the percentile that is exactly this sample's, so that no rounding chooses another.
    return histogram.get_value_at_percentile(100 * rank / histogram.get_total_count())


def check_table(path, histogram):
    below = 0
    with path.open() as lines:
        for row in csv.DictReader(lines):
            below += int(row["count"])
            same(f"{path.name}, sample {below}", int(row["value_ns"]), at_rank(histogram, below))
    same(f"{path.name}, samples", below, histogram.get_total_count())


def check_distribution(path, histogram):
    rows = [line.split() for line in path.read_text().splitlines()[2:] if not line.startswith("#")]
    for value, _, below, *_ in rows:
        # Three digits after the point of a microsecond: the last one is a nanosecond.
        same(f"{path.name}, sample {below}", value, f"{at_rank(histogram, int(below)) / 1000:.3f}")
    same(f"{path.name}, samples", int(rows[-1][2]), histogram.get_total_count())


def check_figures(name, figures, histogram):
    same(f"{name}, count", figures["count"], histogram.get_total_count())
    same(f"{name}, highest", figures["max"], histogram.get_max_value())
    # Ours is rounded to tenths.
    if abs(figures["mean"] - histogram.get_mean_value()) > 0.051:
        same(f"{name}, mean", figures["mean"], histogram.get_mean_value())
    for figure in figures["percentiles"]:
        thousandths = round(figure["percentile"] * 1000)
        samples = figures["count"] + figures["unanswered"]
        rank = -(-samples * thousandths // 100_000)
        if rank <= figures["count"]:
            same(f"{name}, p{figure['percentile']}", figure["value"], at_rank(histogram, rank))


def check_json(path, result, validator):
    [exported] = json.loads(path.read_text())
    same(f"{path.name}, fields", sorted(exported), ["comparisons", "reasons", "result", "verdict"])
    validator.validate(exported["result"])
    same(f"{path.name}, result", exported["result"], result)
    for comparison in exported["comparisons"]:
        for row in comparison["rows"]:
            if not 0 < row["low"] <= row["ratio"] <= row["high"]:
                sys.exit(f"{path.name}: no interval: {row}")


def check_csv(path, result):
    with path.open(newline="") as lines:
        rows = list(csv.DictReader(lines, strict=True))
    streams = ["round_trip", "round_trip_uncorrected", "forward", "lateness", "round_trip_stamped"]
    expected = [
        (one, stream, one["figures"] if trial is None else trial["figures"], trial)
        for one in result["series"]
        for stream in streams
        for trial in [None, *one["trials"]]
    ]
    same(f"{path.name}, rows", len(rows), len(expected))
    for row, (series, stream, figures, trial) in zip(rows, expected):
        name = f"{path.name}, {series['name']} {stream}"
        # A row that is too long has a column None, one that is too short a value None.
        if None in row or None in row.values():
            sys.exit(f"{name}: not as long as its head: {row}")
        same(name, row["series"], series["name"])
        same(name, row["stream"], stream.replace("_", "-"))
        same(name, row["round"], "all" if trial is None else str(trial["round"]))
        figures = figures[stream]
        same(f"{name}, count", int(row["count"]), figures["count"])
        same(f"{name}, mean", float(row["mean_ns"]), figures["mean"])
        for figure in figures["percentiles"]:
            column = row.get(f"p{figure['percentile']:g}_ns")
            if column is not None:
                value = figure["value"]
                same(f"{name}, p{figure['percentile']}", column, "" if value is None else str(value))


def main(directory, schema, *exports):
    result = json.loads((directory / "result.json").read_text())
    validator = Draft202012Validator(json.loads(schema.read_text()))
    validator.validate(result)
    if exports:
        check_json(exports[0], result, validator)
        check_csv(exports[1], result)
    logs = sorted(directory.glob("*.hlog"))
    same("files", sorted(result["files"]), [log.name for log in logs])
    series = {one["name"]: one for one in result["series"]}
    for log in logs:
        histogram = merged(log)
        name, stream, _ = log.name.split(".")
        check_figures(log.name, series[name]["figures"][stream.replace("-", "_")], histogram)
        check_table(log.with_suffix(".csv"), histogram)
        check_distribution(log.with_suffix(".hgrm"), histogram)
    print(f"{len(logs)} logs agree")


main(*map(pathlib.Path, sys.argv[1:]))
