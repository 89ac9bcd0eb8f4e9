"""Makes the Grafana dashboards: `python dashboards/make.py` writes overview.json and triage.json beside this file."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, NamedTuple

from grafana_foundation_sdk.builders import bargauge, stat, statetimeline, table, text, timeseries
from grafana_foundation_sdk.builders import common as common_builders
from grafana_foundation_sdk.builders import dashboard as builders
from grafana_foundation_sdk.builders import prometheus as queries
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models import common, dashboard, prometheus
from grafana_foundation_sdk.models import text as text_model

from promql import EACH, age_s, any_or_none, moved, now, or_zero, own, per_minute, quantile, since_s

BAR_PX: Final = 24  # at most: a bar is else as wide as the time between two samples, and a single one as its panel
COUNTED: Final = "1m"  # the least that a count is over; a few scrapes, so that each has its share

HERE: Final = Path(__file__).parent
SOURCE: Final = dashboard.DataSourceRef(type_val="prometheus", uid="${datasource}")

GREEN, YELLOW, ORANGE, RED, BLUE, GREY = "green", "yellow", "orange", "red", "blue", "text"

# What a colour means, everywhere: answered green, waiting blue, to be looked at yellow, failed for good orange, and red
# for what must never be.
STATE_COLOURS: Final = {
    "succeeded": GREEN, "recovered": "semi-dark-green", "pending": BLUE, "running": "light-blue", "parked": ORANGE,
    "replaying": "light-orange", "discarded": GREY, "forgotten": "#808080",
}  # fmt: skip
KIND_COLOURS: Final = {"ok": GREEN, "retryable": YELLOW, "permanent": ORANGE, "unknown": "purple"}

ORPHANS: Final = "orphaned:.*"
NONE: Final = "none"  # the series of 0 where there is nothing; no legend lists it
JOBS_A_MINUTE: Final = "suffix: jobs/min"
CALLS_A_MINUTE: Final = "suffix: calls/min"


class Query(NamedTuple):
    expr: str
    legend: str = ""
    exemplar: bool = False


class Panel(NamedTuple):
    """A panel before it is built. `width` is of 24, `height` in rows of 30 pixels."""

    title: str
    description: str
    make: Callable[[Panel], Any]
    queries: Sequence[Query]
    unit: str
    width: int = 8
    height: int = 8
    steps: Sequence[tuple[float | None, str]] = ((None, GREEN),)
    colours: Mapping[str, str] = MappingProxyType({})
    empty: str = "0"  # what is shown where there is nothing
    words: Mapping[str, tuple[str, str]] = MappingProxyType({})  # what is shown for a value, and in which colour
    many: bool = False  # series, so that the legend has room for their names alone


# --- kinds of panels -------------------------------------------------------------------------------------------------


def _finished(panel: Panel, builder: Any) -> Any:
    builder = (
        builder.title(panel.title)
        .description(panel.description)
        .datasource(SOURCE)
        .unit(panel.unit)
        .grid_pos(dashboard.GridPos(w=panel.width, h=panel.height))
        .no_value(panel.empty)
        .thresholds(
            builders.ThresholdsConfig()
            .mode(dashboard.ThresholdsMode.ABSOLUTE)
            .steps([dashboard.Threshold(value=value, color=colour) for value, colour in panel.steps])
        )
    )
    if panel.words:
        said = {
            value: dashboard.ValueMappingResult(text=word, color=colour, index=int(value))
            for value, (word, colour) in panel.words.items()
        }
        builder = builder.mappings([dashboard.ValueMap(options=said)])
    for name, colour in panel.colours.items():
        fixed = {"mode": "fixed", "fixedColor": colour}
        builder = builder.override_by_name(name, [dashboard.DynamicConfigValue(id_val="color", value=fixed)])
    return builder


def _without_none(builder: Any) -> Any:
    """Leave the series that stands for nothing out of legend and tooltip."""
    hidden = {"legend": True, "tooltip": True, "viz": True}
    return builder.override_by_name(NONE, [dashboard.DynamicConfigValue(id_val="custom.hideFrom", value=hidden)])


def number(panel: Panel) -> Any:
    """One number, coloured by its thresholds."""
    builder = (
        stat.Panel()
        .color_mode(common.BigValueColorMode.VALUE)
        .graph_mode(common.BigValueGraphMode.NONE)
        .color_scheme(builders.FieldColor().mode(dashboard.FieldColorModeId.THRESHOLDS))
        .reduce_options(common_builders.ReduceDataOptions().calcs(["lastNotNull"]))
        .decimals(0)
    )
    return _with_queries(panel, _finished(panel, builder), instant=True)


def lines(panel: Panel) -> Any:
    return _with_queries(panel, _without_none(_finished(panel, _curves(panel).fill_opacity(8))))


def stacked(panel: Panel) -> Any:
    """Areas on top of each other."""
    stacking = common_builders.StackingConfig().mode(common.StackingMode.NORMAL).group("A")
    return _with_queries(panel, _without_none(_finished(panel, _curves(panel).fill_opacity(40).stacking(stacking))))


def bars(panel: Panel) -> Any:
    """Counts in each interval, on top of each other."""
    stacking = common_builders.StackingConfig().mode(common.StackingMode.NORMAL).group("A")
    curves = _curves(panel).draw_style(common.GraphDrawStyle.BARS).bar_max_width(BAR_PX)
    builder = curves.fill_opacity(70).stacking(stacking).show_points(common.VisibilityMode.NEVER).decimals(0)
    return _with_queries(panel, _without_none(_finished(panel, builder)))


def ranking(panel: Panel) -> Any:
    """Bars from the largest down, of this moment."""
    builder = (
        bargauge.Panel()
        .orientation(common.VizOrientation.HORIZONTAL)
        .display_mode(common.BarGaugeDisplayMode.BASIC)
        .color_scheme(builders.FieldColor().mode(dashboard.FieldColorModeId.FIXED).fixed_color(ORANGE))
        .reduce_options(common_builders.ReduceDataOptions().calcs(["lastNotNull"]))
        .text(common_builders.VizTextDisplayOptions().title_size(14).value_size(16))
        .decimals(0)
    )
    return _with_queries(panel, _finished(panel, builder.min(0)), instant=True)


def switches(panel: Panel) -> Any:
    """What is on (1) and what is off (0), over time."""
    builder = statetimeline.Panel().merge_values(True).show_value(common.VisibilityMode.NEVER)
    return _with_queries(panel, _finished(panel, builder))


def _curves(panel: Panel) -> Any:
    legend = common_builders.VizLegendOptions().placement(common.LegendPlacement.BOTTOM).show_legend(True)
    if panel.many:
        legend = legend.display_mode(common.LegendDisplayMode.LIST)
    else:
        legend = legend.display_mode(common.LegendDisplayMode.TABLE).calcs(["lastNotNull", "max"])
    return (
        timeseries.Panel()
        .draw_style(common.GraphDrawStyle.LINE)
        .line_width(1)
        .min(0)
        .color_scheme(builders.FieldColor().mode(dashboard.FieldColorModeId.PALETTE_CLASSIC))
        .tooltip(
            common_builders.VizTooltipOptions().mode(common.TooltipDisplayMode.MULTI).sort(common.SortOrder.DESCENDING)
        )
        .legend(legend)
    )


def _with_queries(panel: Panel, builder: Any, *, instant: bool = False) -> Any:
    for index, query in enumerate(panel.queries):
        target = queries.Dataquery().expr(query.expr).ref_id(chr(ord("A") + index)).datasource(SOURCE)
        target = target.legend_format(query.legend or "__auto")
        target = target.instant() if instant else target.range()
        if EACH in query.expr:
            target = target.interval(COUNTED)
        builder = builder.with_target(target.exemplar(query.exemplar))
    return builder


# --- Overview --------------------------------------------------------------------------------------------------------

NUMBERS: Final = (
    Panel(
        "Parked now",
        "Jobs that failed and wait for a replay or a person. 0 is the aim; Triage has them by cause.",
        number, [Query(or_zero(now("parked_jobs")))], "short", 4, 4, ((None, GREEN), (1, ORANGE)),
    ),
    Panel(
        "Parked in 24 hours",
        "Jobs that a run parked in the last 24 hours, each counted once, whatever became of them since.",
        number, [Query(or_zero(moved("parked_jobs_parked_total", over="24h")))], "short", 4, 4,
        ((None, GREEN), (0.5, ORANGE)),
    ),
    Panel(
        "Oldest parked",
        "How long the job has been parked that waits longest. A day means that nobody looks.",
        number, [Query(or_zero(age_s("parked_oldest_parked_timestamp_seconds")))], "s", 4, 4,
        ((None, GREEN), (86_400, ORANGE)),
    ),
    Panel(
        "Pending",
        "Jobs that are accepted and not run yet. They are taken up by the next run or a worker.",
        number, [Query(or_zero(now("parked_ledger_jobs", state="pending")))], "short", 4, 4, ((None, BLUE),),
    ),
    Panel(
        "Oldest pending",
        "How long the job has been pending that waits longest. Hours mean that no run or worker takes it up.",
        number, [Query(or_zero(age_s("parked_oldest_pending_timestamp_seconds")))], "s", 4, 4,
        ((None, BLUE), (21_600, ORANGE)),
    ),
    Panel(
        "Unaccounted",
        "Jobs that were accepted and are in no state, or rows that differ from the counters. It must be 0: see the "
        "runbook if it isn't.",
        number, [Query(or_zero(now("parked_unaccounted_jobs")))], "short", 4, 4, ((None, GREEN), (1, RED)),
    ),
)  # fmt: skip

FLOW: Final = (
    Panel(
        "Accepted and answered",
        "Jobs a minute that were taken on, that were answered in their run, and that were answered by a replay.",
        lines,
        [
            Query(or_zero(per_minute("parked_jobs_accepted_total")), "accepted"),
            Query(or_zero(per_minute("parked_jobs_succeeded_total")), "succeeded", exemplar=True),
            Query(or_zero(per_minute("parked_jobs_recovered_total")), "recovered", exemplar=True),
        ],
        JOBS_A_MINUTE, 12, 8, colours={"accepted": BLUE, "succeeded": GREEN, "recovered": "semi-dark-green"},
    ),
    Panel(
        "Parked, by class",
        "Jobs that runs parked in each interval, by error class. A failed replay of a known job isn't among them.",
        bars,
        [
            Query(
                or_zero(moved("parked_jobs_parked_total", "error_class") + " > 0", error_class=NONE),
                "{{error_class}}", exemplar=True,
            )
        ],
        "short", 12, 8,
    ),
    Panel(
        "Jobs by state",
        "Where the jobs are that have no end yet, and those that are parked.",
        stacked,
        [Query(or_zero(now("parked_ledger_jobs", "state", state="pending|running|parked|replaying"), state="parked"),
               "{{state}}")],
        "short", 12, 8, colours=STATE_COLOURS,
    ),
    Panel(
        "Parked now, by reason",
        "What the jobs that are parked now failed of.",
        ranking, [Query(or_zero(f'sort_desc({now("parked_jobs", "reason")} > 0)', reason=NONE), "{{reason}}")],
        "short", 12, 8,
    ),
)  # fmt: skip

ON: Final = {"0": ("no", GREEN), "1": ("yes", ORANGE)}

CALLS: Final = (
    Panel(
        "Attempts by outcome",
        "Calls of the model a minute by how they ended: ok, retryable (may succeed later), permanent (can't), unknown.",
        stacked,
        [Query(or_zero(per_minute("parked_attempts_total", "kind"), kind="ok"), "{{kind}}", exemplar=True)],
        CALLS_A_MINUTE, 8, 8, colours=KIND_COLOURS,
    ),
    Panel(
        "Latency of answers",
        "How long calls took that were answered.",
        lines,
        [
            Query(quantile(share, "parked_attempt_duration_seconds", kind="ok"), name, exemplar=share == 0.5)
            for share, name in ((0.5, "half"), (0.95, "95 %"), (0.99, "99 %"))
        ],
        "s", 8, 8, empty="no answers in this time",
    ),
    Panel(
        "Tokens",
        "Tokens billed a minute: those of answers, and those of attempts that failed and brought nothing.",
        stacked,
        [
            Query(or_zero(per_minute("parked_tokens_total", kind="ok")), "of answers"),
            Query(or_zero(per_minute("parked_tokens_total", kind="!ok")), "of failures"),
        ],
        "short", 8, 8, colours={"of answers": GREEN, "of failures": ORANGE},
    ),
    Panel(
        "Why attempts failed",
        "Calls a minute that failed, by reason, those included that a later attempt has made up for.",
        stacked,
        [
            Query(
                or_zero(per_minute("parked_attempts_total", "reason", kind="!ok") + " > 0", reason=NONE), "{{reason}}"
            )
        ],
        CALLS_A_MINUTE, 8, 8, many=True,
    ),
    Panel(
        "Gates that are closed",
        "Models whose calls wait for a rate limit or an outage to end. No attempt is spent meanwhile.",
        switches,
        [Query(any_or_none("parked_gate_closed", "model, reason", model=NONE), "{{model}} {{reason}}")],
        "short", 8, 8, words=ON,
    ),
    Panel(
        "Pipelines that are paused",
        "Nothing of these is started: every job would meet the same fault. The reason says what to mend; the pause "
        "ends by itself when a job is answered again.",
        switches,
        [Query(any_or_none("parked_pipeline_paused", "pipeline, model, reason", pipeline=NONE),
               "{{pipeline}} {{model}} {{reason}}")],
        "short", 8, 8, words=ON,
    ),
)  # fmt: skip

MENDING: Final = (
    Panel(
        "Replays",
        "Parked jobs that replays have tried in each interval, by who started the replay and what came of it.",
        bars,
        [Query(or_zero(moved("parked_replayed_jobs_total", "trigger, result") + " > 0", trigger=NONE),
               "{{trigger}} {{result}}")],
        "short", 8, 8,
    ),
    Panel(
        "Orphans",
        "Jobs parked because the process that ran them died. `maybe_sent`: the call may have been made, and billed.",
        bars,
        [Query(or_zero(moved("parked_jobs_parked_total", "error_class", error_class=ORPHANS) + " > 0",
                       error_class=NONE), "{{error_class}}")],
        "short", 8, 8,
    ),
    Panel(
        "Processes",
        "Processes that may hold jobs: alive now, or declared lost in the last 24 hours.",
        lines, [Query(now("parked_owners", "state"), "{{state}}")], "short", 8, 8,
        colours={"alive": GREEN, "lost": ORANGE},
    ),
)  # fmt: skip

SIDECAR: Final = (
    Panel(
        "Ledger can be read",
        "Whether every sidecar could read its ledger for its last scrape. If not, nothing here is current.",
        number, [Query(own("parked_ledger_up", ""))], "short", 4, 6, ((None, RED), (1, GREEN)),
        empty="no sidecar", words={"0": ("no", RED), "1": ("yes", GREEN)},
    ),
    Panel(
        "Last audit",
        "How long ago the rows were last counted against the counters. The sidecar does it every minute.",
        number, [Query(since_s("parked_audit_timestamp_seconds"))], "s", 4, 6, ((None, GREEN), (600, ORANGE)),
        empty="no audit yet",
    ),
    Panel(
        "Tasks",
        "How long ago each scheduled task last succeeded.",
        lines, [Query(since_s("parked_task_last_success_timestamp_seconds", "task"), "{{task}}")], "s", 8, 6,
        empty="no task has run yet", many=True,
    ),
    Panel(
        "Reading the ledger for a scrape",
        "How long the sidecar took. It doesn't grow with the number of jobs.",
        lines, [Query("max by (instance) (parked_scrape_duration_seconds)", "{{instance}}")], "s", 8, 6,
    ),
)  # fmt: skip

# --- Triage ----------------------------------------------------------------------------------------------------------

CLASS: Final = {"error_class": "$error_class"}


# Names by which no command finds anything: what many have in common, and what was cut for being long.
NO_NAME: Final = "other|.{119}….{8}"


def with_command(expression: str) -> str:
    """The same series with the label `command`: what to type to see the causes of those jobs.

    A name that has a quote in it, or that is no name, is left out of the command, which then shows more than those.
    """
    for label, said, source, matching in (
        ("program", "$prefix parked causes", "", ".*"),
        ("where", "--pipeline='$1'", "pipeline", "([^']*)"),
        ("where", "", "pipeline", NO_NAME),
        ("what", "--class='$1'", "error_class", "(.*)"),
        ("what", "", "error_class", NO_NAME),
    ):
        expression = f'label_replace({expression}, "{label}", "{said}", "{source}", "{matching}")'
    joined = f'label_join({expression}, "command", " ", "program", "where", "what")'
    return f'label_replace({joined}, "command", "$1", "command", " *(.*)")'


PARKED_TABLE: Final = "pipeline, error_class, reason, model"


def to_be_dealt_with(panel: Panel) -> Any:
    """A row for each label set, largest first."""
    hidden = {"Time": True, "program": True, "where": True, "what": True}
    order = {
        name: index for index, name in enumerate(("pipeline", "error_class", "reason", "model", "Value", "command"))
    }
    organise = dashboard.DataTransformerConfig(
        id_val="organize",
        options={
            "excludeByName": hidden,
            "indexByName": order,
            "renameByName": {"Value": "jobs", "error_class": "class"},
        },
    )
    builder = (
        table.Panel()
        .with_transformation(organise)
        .sort_by([common_builders.TableSortByFieldState().display_name("jobs").desc(True)])
    )
    for name, pixels in (("class", 220), ("reason", 180), ("jobs", 80), ("command", 600)):
        builder = builder.override_by_name(name, [dashboard.DynamicConfigValue(id_val="custom.width", value=pixels)])
    builder = _finished(panel, builder)
    for index, query in enumerate(panel.queries):
        target = queries.Dataquery().expr(query.expr).ref_id(chr(ord("A") + index)).datasource(SOURCE)
        builder = builder.with_target(target.format(prometheus.PromQueryFormat.TABLE).instant())
    return builder


TRIAGE: Final = (
    Panel(
        "What is parked, and what to type",
        "Every pipeline, class, reason and model with parked jobs. The command shows their causes with an example, the "
        "remedy and the next command; the variable `prefix` says where it runs: kubectl exec deploy/sidecar --, say.",
        to_be_dealt_with, [Query(with_command(now("parked_jobs", PARKED_TABLE, **CLASS) + " > 0"))], "short", 24, 10,
    ),
    Panel(
        "Parked in each interval",
        "When it began. A point leads to the trace of a job that was parked then, where traces are sampled.",
        bars,
        [
            Query(
                or_zero(
                    moved("parked_jobs_parked_total", "pipeline, error_class", **CLASS) + " > 0",
                    pipeline=NONE,
                ),
                "{{pipeline}} {{error_class}}",
                exemplar=True,
            )
        ],
        "short", 12, 9,
    ),
    Panel(
        "Parked now",
        "Whether it is being dealt with: it falls as jobs are replayed or discarded.",
        lines,
        [Query(or_zero(now("parked_jobs", "pipeline, error_class", **CLASS), pipeline=NONE),
               "{{pipeline}} {{error_class}}", exemplar=False)],
        "short", 12, 9,
    ),
    Panel(
        "Parked longest",
        "How long the oldest job of each pipeline and class has been parked.",
        ranking,
        [
            Query(
                or_zero(
                    f"sort_desc({age_s('parked_oldest_parked_timestamp_seconds', 'pipeline, error_class', **CLASS)})",
                    pipeline=NONE,
                ),
                "{{pipeline}} {{error_class}}",
            )
        ],
        "s", 12, 8,
    ),
    Panel(
        "What became of them",
        "Parked jobs that were answered after all, that a replay tried in vain, and that a person put away.",
        bars,
        [
            Query(or_zero(moved("parked_jobs_recovered_total", **CLASS)), "recovered", exemplar=True),
            Query(or_zero(moved("parked_replayed_jobs_total", result="parked_again", **CLASS)), "in vain"),
            Query(or_zero(moved("parked_jobs_discarded_total", **CLASS)), "discarded"),
        ],
        "short", 12, 8, colours={"recovered": GREEN, "in vain": ORANGE, "discarded": GREY},
    ),
)  # fmt: skip

# The space before the closing mark: Markdown takes one off both ends, and so the one that an empty prefix leaves.
NEXT_STEPS: Final = """\
1. `${prefix} parked causes ` shows what is parked by cause, with an example, the remedy and the next command.
2. `${prefix} parked show JOB_ID ` shows one job: every attempt with time, reason, status and message.
3. Once the cause is mended: `${prefix} parked replay --class CLASS ` says what would run; `--apply` runs it.

The sidecar: ${sidecar}
"""


def next_steps() -> Any:
    return (
        text.Panel()
        .title("Next steps")
        .description("The three commands that lead from an alert to answers.")
        .grid_pos(dashboard.GridPos(w=24, h=5))
        .mode(text_model.TextMode.MARKDOWN)
        .content(NEXT_STEPS)
    )


# --- dashboards ------------------------------------------------------------------------------------------------------


def _variable(name: str, label: str, query: str) -> Any:
    every = dashboard.VariableOption(selected=True, text=["All"], value=["$__all"])
    return (
        builders.QueryVariable(name)
        .label(label)
        .datasource(SOURCE)
        .query(query)
        .refresh(dashboard.VariableRefresh.ON_TIME_RANGE_CHANGED)
        .sort(dashboard.VariableSort.ALPHABETICAL_ASC)
        .multi(True)
        .include_all(True)
        .all_value(".*")
        .current(every)
    )


def _dashboard(title: str, uid: str, description: str) -> Any:
    return (
        builders.Dashboard(title)
        .uid(uid)
        .description(description)
        .tags(["parked"])
        .editable()
        .refresh("30s")
        .time("now-24h", "now")
        .timezone("browser")
        .tooltip(dashboard.DashboardCursorSync.CROSSHAIR)
        .link(
            builders.DashboardLink("parked")
            .type(dashboard.DashboardLinkType.DASHBOARDS)
            .tags(["parked"])
            .include_vars(True)
            .keep_time(True)
        )
        .with_variable(builders.DatasourceVariable("datasource").label("Prometheus").type("prometheus"))
        .with_variable(_variable("ledger", "Ledger", "label_values(parked_ledger_jobs, ledger)"))
        .with_variable(
            _variable("pipeline", "Pipeline", 'label_values(parked_ledger_jobs{ledger=~"$ledger"}, pipeline)')
        )
    )


def overview() -> Any:
    made = _dashboard(
        "parked: overview", "parked-overview", "Is anything parked, pending, growing or old, and does it all add up?"
    )
    for title, panels in (
        ("", NUMBERS), ("Jobs", FLOW), ("Calls", CALLS), ("Replays and processes", MENDING), ("The sidecar", SIDECAR)
    ):  # fmt: skip
        if title:
            made = made.with_row(builders.Row(title))
        for panel in panels:
            made = made.with_panel(panel.make(panel))
    return made.build()


def triage() -> Any:
    classes = 'label_values(parked_jobs_parked_total{ledger=~"$ledger", pipeline=~"$pipeline"}, error_class)'
    made = (
        _dashboard("parked: triage", "parked-triage", "Which jobs are parked, why, and what to type.")
        .with_variable(_variable("error_class", "Class", classes))
        .with_variable(builders.TextBoxVariable("prefix").label("Commands run with").default_value(""))
        .with_variable(
            builders.TextBoxVariable("sidecar").label("Address of the sidecar").default_value("http://127.0.0.1:9465")
        )
        .with_panel(next_steps())
    )
    for panel in TRIAGE:
        made = made.with_panel(panel.make(panel))
    return made.build()


DASHBOARDS: Final = {"overview.json": overview, "triage.json": triage}


# What the library writes and Grafana's own types have no more: settings, and an id that says nothing.
OUTDATED: Final = frozenset({"auto", "auto_min", "auto_count", "footer", "style"})
NO_ID: Final = "00000000-0000-0000-0000-000000000000"


def as_json(made: Any) -> str:
    """A dashboard as it stands in its file; panels are numbered, so that links to one of them hold."""
    whole = _without_outdated(json.loads(JSONEncoder().encode(made)))
    panels = [panel | {"id": number} for number, panel in enumerate(whole["panels"], start=1)]
    return json.dumps(whole | {"panels": panels}, sort_keys=True, indent=2) + "\n"


def _without_outdated(value: Any) -> Any:
    if isinstance(value, dict):
        kept = {key: each for key, each in value.items() if key not in OUTDATED and each != NO_ID}
        return {key: _without_outdated(each) for key, each in kept.items()}
    return [_without_outdated(each) for each in value] if isinstance(value, list) else value


if __name__ == "__main__":
    for name, make in DASHBOARDS.items():
        (HERE / name).write_text(as_json(make()), encoding="utf-8")
