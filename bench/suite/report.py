# SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
"""From samples to rows with ratio, spread and verdict; as a table, as Markdown and as JSON."""

import json
import statistics

from .campaign import beside
from .figures import plain, with_unit
from .groups import DATAGRAMS, LESS_IS_BETTER, ONE_HOST, OVER_TCP

HEADERS = ("row", "uwarp", "min..max", "reference", "ratio", "min..max", "target", "verdict")
LEFT_ALIGNED = (0, 3, 6, 7)
SECTIONS = {  # name -> how its rows are measured
    OVER_TCP: "uwarp with `UWARP_SHM=0`, so that connections within the host stay on TCP.",
    ONE_HOST: "uwarp with `UWARP_SHM=1`, both ends on this host.",
    DATAGRAMS: "uwarp with `UWARP_PERSONA=roce`, over TCP with `UWARP_SHM=0`; datagrams count where they "
               "are received.",
}
BESIDE = {  # section -> kind of the contenders that are shown beside -> header
    OVER_TCP: {"ucx": "UCX tcp", "libfabric": "libfabric tcp", "check": "cross-checks"},
    ONE_HOST: {"uwarp": "uwarp over TCP", "ucx_memory": "UCX posix, cma"},
    DATAGRAMS: {"uwarp": "RC"},
}

FAILED = "failed"
NO_REFERENCE = "no reference"


def failed(result):
    """Whether nothing can be said of a row, or of its target."""
    return result["verdict"] in (FAILED, NO_REFERENCE)


def results(campaign):
    """One dictionary per row, in order."""
    return [_result(campaign, group, row) for group in campaign.groups for row in group.rows]


def _result(campaign, group, row):
    medians = campaign.medians(group)
    result = {"row": row.name, "section": row.section, "group": group.name, "unit": group.unit,
              "subject": row.subject,
              "references": row.references, "absolute_target": row.absolute}
    result["ratio_target"] = _limit(campaign, group, row)
    best = min if group.less_is_better else max
    references = [label for label in row.references if label in medians]
    result["reference"] = best(references, key=medians.get) if references else None
    samples = _samples(campaign, group, row.subject)
    if samples:
        result.update(median=medians[row.subject], min=min(samples), max=max(samples),
                      samples=len(samples))
    result["attempts"] = len(campaign.samples.get((group.name, row.subject), []))
    if samples and result["reference"]:
        result.update(_ratio(campaign, group, row, result["reference"], medians))
    result["beside"] = {label: {"kind": _kind(group, label), "median": medians[label]}
                        for label in beside(group, row) if label in medians}
    result["verdict"] = _verdict(result, group.less_is_better)
    if row.limit is not None and result["ratio_target"] is None and not failed(result):
        result["verdict"] = NO_REFERENCE  # what the target follows from was not measured
    if (group.name, row.subject) in campaign.not_offered:
        result["verdict"] = "not offered"
    return result


def _samples(campaign, group, label):
    return [f for f in campaign.samples.get((group.name, label), []) if f is not None]


def _kind(group, label):
    return next(each.kind for each in group.contenders if each.label == label)


def _ratios(campaign, group, subject, reference):
    """Of single rounds: a machine that is slow for a minute is so for both, while the medians of the
    two may come from different minutes."""
    both = zip(campaign.samples.get((group.name, subject), []),
               campaign.samples.get((group.name, reference), []))
    return [ours / theirs for ours, theirs in both if ours is not None and theirs]


def _limit(campaign, group, row):
    if not isinstance(row.limit, (list, tuple)):
        return row.limit
    ratios = _ratios(campaign, group, *row.limit)
    return statistics.median(ratios) if ratios else None


def _ratio(campaign, group, row, reference, medians):
    by_round = _ratios(campaign, group, row.subject, reference)
    if not by_round:
        return {}
    return {"ratio": statistics.median(by_round), "reference_median": medians[reference],
            "ratio_min": min(by_round), "ratio_max": max(by_round), "ratios": len(by_round)}


def _verdict(result, less_is_better):
    if "median" not in result:
        return FAILED

    def good(value, limit):
        return value <= limit if less_is_better else value >= limit

    checks = []
    if result["ratio_target"] is not None:
        if "ratio" not in result:
            return NO_REFERENCE
        checks.append(good(result["ratio"], result["ratio_target"]))
    if result["absolute_target"] is not None:
        checks.append(good(result["median"], result["absolute_target"]))
    verdict = "" if not checks else "met" if all(checks) else "missed"
    behind = [label for label, each in result["beside"].items() if each["kind"] != "check"
              and each["median"] != result["median"] and not good(result["median"], each["median"])]
    return ", ".join(filter(None, [verdict, *(f"behind {label}" for label in behind)]))


def _target(result, unit):
    sign = "<=" if unit in LESS_IS_BETTER else ">="
    parts = []
    if result["ratio_target"] is not None:
        parts.append(f"{sign} {result['ratio_target']:.2f} x")
    if result["absolute_target"] is not None:
        parts.append(f"{sign} {with_unit(result['absolute_target'], unit)}")
    return ", ".join(parts)


def _of_rounds(count, result):
    """How many rounds a figure is of, if some of them failed."""
    return f" ({count} of {result['attempts']})" if count < result["attempts"] else ""


def _cells(result):
    unit = result["unit"]
    if "median" in result:
        ours = [with_unit(result["median"], unit) + _of_rounds(result["samples"], result),
                f"{plain(result['min'], unit)}..{plain(result['max'], unit)}"]
    else:
        ours = ["-", ""]
    reference = ratio = spread = ""
    if "ratio" in result:
        reference = f"{with_unit(result['reference_median'], unit)} {result['reference']}"
        ratio = f"{result['ratio']:.2f}" + _of_rounds(result["ratios"], result)
        spread = f"{result['ratio_min']:.2f}..{result['ratio_max']:.2f}"
    others = {kind: [] for kind in BESIDE[result["section"]]}
    for label, each in result["beside"].items():
        text = with_unit(each["median"], unit)
        others[each["kind"]].append(f"{label} {text}" if each["kind"] == "check" else text)
    return [result["row"], *ours, reference, ratio, spread, _target(result, unit),
            result["verdict"], *(", ".join(others[kind]) for kind in others)]


def _text_table(headers, lines, left):
    lines = [list(headers), *lines]
    widths = [max(len(line[column]) for line in lines) for column in range(len(headers))]
    return "\n".join(
        "  ".join(cell.ljust(width) if column in left else cell.rjust(width)
                  for column, (cell, width) in enumerate(zip(line, widths))).rstrip()
        for line in lines)


def _filled_columns(section, rows):
    """Headers, lines and left-aligned columns of the table of one section, without columns that are
    empty in every line: not each run has all contenders."""
    headers = [*HEADERS, *BESIDE[section].values()]
    lines = [_cells(row) for row in rows]
    kept = [column for column in range(len(headers)) if any(line[column] for line in lines)]
    left = {*LEFT_ALIGNED, *(headers.index(each) for kind, each in BESIDE[section].items()
                             if kind == "check")}
    return ([headers[column] for column in kept],
            [[line[column] for column in kept] for line in lines],
            [place for place, column in enumerate(kept) if column in left])


def _sections(rows):
    """Each section that has rows, how it is measured, and its table."""
    for section, how in SECTIONS.items():
        of_section = [row for row in rows if row["section"] == section]
        if of_section:
            yield section, how, _filled_columns(section, of_section)


def table(rows):
    """Aligned text."""
    return "\n\n".join(f"Rows {section}: {how}\n{_text_table(*columns)}"
                       for section, how, columns in _sections(rows))


def _times(micro):
    return (["operation", "ns", "min..max"],
            [[each["name"], f"{each['median_ns']:.1f}",
              f"{each['min_ns']:.1f}..{each['max_ns']:.1f}"] for each in micro["times"]])


def _instructions(micro):
    return (["post and poll of one", "instructions", "recorded"],
            [[name, str(each["count"]), str(each["recorded"] or "")]
             for name, each in micro["instructions"].items()])


def micro_table(micro):
    return "\n\n".join(_text_table(*part, left=(0,))
                       for part in (_times(micro), _instructions(micro)))


def _markdown_table(headers, lines, left=LEFT_ALIGNED):
    rule = ["---" if column in left else "---:" for column in range(len(headers))]
    return "\n".join("| " + " | ".join(line) + " |" for line in [headers, rule, *lines])


def summary(rows):
    met = sum(row["verdict"].startswith("met") for row in rows)
    missed = sum(row["verdict"].startswith("missed") for row in rows)
    return f"{met} targets met, {missed} missed, {sum(map(failed, rows))} rows failed"


def _failures(failures):
    """What failed at least once, and the first line that it said."""
    if not failures:
        return []
    lines = [f"- {group}: {label}: `{(text.strip().splitlines() or ['?'])[0].replace('`', '')}`"
             for (group, label), text in failures.items()]
    return ["Failed in at least one round:", "", *lines, ""]


def conditions_line(conditions):
    return (f"{conditions['cpus']} processors ({conditions['cpu_model']}), kernel "
            f"{conditions['kernel']}, congestion control {conditions['congestion']}, "
            f"CRC {'on' if conditions['crc'] else 'as negotiated by default'}, "
            f"medians of {conditions['rounds']} rounds"
            + (f", commit {conditions['commit']}" if conditions.get("commit") else ""))


def markdown(rows, conditions, plots, micro, failures):
    parts = ["# Results of bench/run", "",
             "Written by `bench/run`; what the rows mean: [performance.md](../performance.md).", "",
             conditions_line(conditions) + f". {summary(rows)}.", "", *_markdown_sections(rows),
             *_failures(failures)]
    for name in plots:
        parts += [f"![{name.removesuffix('.svg').replace('_', ' ')}]({name})", ""]
    if micro:
        parts += ["## Parts of the engine alone", "",
                  _markdown_table(*_times(micro), left=(0,)), "",
                  _markdown_table(*_instructions(micro), left=(0,)), ""]
    return "\n".join(parts)


def _markdown_sections(rows):
    parts = []
    for section, how, columns in _sections(rows):
        parts += [f"## Rows {section}", "", how, "", _markdown_table(*columns), ""]
    return parts


def _measured(campaign):
    """All samples, and what failed."""
    groups = [{"name": group.name, "unit": group.unit, "link": group.link,
               "samples": {each.label: campaign.samples.get((group.name, each.label), [])
                           for each in group.contenders}}
              for group in campaign.groups]
    failures = {f"{group}: {label}": text for (group, label), text in campaign.failures.items()}
    return {"groups": groups, "failures": failures}


def to_json(campaign, rows, conditions, micro):
    measured = _measured(campaign)
    return json.dumps({"conditions": conditions, "rows": rows, **measured, "micro": micro},
                      indent=2) + "\n"


def sections_markdown(title, introduction, measured):
    """`measured`: (name, conditions, campaign, rows) of each section."""
    parts = [f"# {title}", "", introduction, ""]
    for name, facts, campaign, rows in measured:
        parts += [f"## {name}", "", f"{conditions_line(facts)}. {summary(rows)}.", "",
                  _markdown_table(*_filled_columns(OVER_TCP, rows)), "",
                  *_failures(campaign.failures)]
    return "\n".join(parts)


def sections_json(measured):
    return json.dumps([{"part": name, "conditions": facts, "rows": rows, **_measured(campaign)}
                       for name, facts, campaign, rows in measured], indent=2) + "\n"
