"""Generates Grafana's dashboards: `make dashboards` reads `panels/` and writes `dashboards/`.

Uses Grafana's own types (grafana-foundation-sdk), so that Grafana can read the result. An unknown key of a panel is an
error.
"""

import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml
from grafana_foundation_sdk.builders import common, prometheus, stat, timeseries
from grafana_foundation_sdk.builders import dashboard as grafana
from grafana_foundation_sdk.builders import table as table_builder
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models.common import (
    BigValueGraphMode,
    BigValueTextMode,
    DataSourceRef,
    GraphThresholdsStyleMode,
    LegendDisplayMode,
    LegendPlacement,
    SortOrder,
    StackingMode,
    TooltipDisplayMode,
    VisibilityMode,
)
from grafana_foundation_sdk.models.dashboard import (
    Dashboard,
    DashboardCursorSync,
    DashboardLinkType,
    DataTransformerConfig,
    Threshold,
    ThresholdsMode,
    VariableRefresh,
    VariableSort,
)
from grafana_foundation_sdk.models.prometheus import PromQueryFormat

FOLDER = Path(__file__).parent
OF_RUN = ' and on () (penstock_run_info{job="learner", run=~"$run"} or up{run=~"$run"})'
"""Part of a query that keeps the times in which a selected run was active, as one learner trains at a time.

The metric `up` has no label `run`, so it matches if all runs are selected: panels then have data without a learner.
"""
DATASOURCE = DataSourceRef(type_val="prometheus", uid="${datasource}")


def render() -> dict[str, str]:
    """Returns the JSON of every dashboard by file name."""
    described = {file.stem: yaml.safe_load(file.read_text()) for file in sorted((FOLDER / "panels").glob("*.yml"))}
    titles = {_uid(name): each["title"] for name, each in described.items()}
    encoder = JSONEncoder(indent=2, sort_keys=True)
    return {
        f"{name}.json": encoder.encode(_dashboard(_uid(name), titles, **each)) + "\n"
        for name, each in described.items()
    }


def _uid(name: str) -> str:
    return f"penstock-{name}"


def _panel_id(title: str) -> int:
    # Derived from the title, so that links to a panel survive changes to other panels.
    return zlib.crc32(title.encode()) & 0x7FFF_FFFF


def _dashboard(
    uid: str,
    titles: Mapping[str, str],
    *,
    title: str,
    description: str,
    rows: Mapping[str, list[dict[str, Any]]],
    variables: Mapping[str, str] | None = None,
) -> Dashboard:
    builder = (
        grafana.Dashboard(title)
        .uid(uid)
        .description(description)
        .tags(["penstock"])
        .readonly()
        .tooltip(DashboardCursorSync.CROSSHAIR)
        .refresh("5s")
        .time("now-15m", "now")
        .timezone("browser")
        .with_variable(grafana.DatasourceVariable("datasource").label("Prometheus").type("prometheus"))
    )
    for name, query in (variables or {}).items():
        builder.with_variable(_variable(name, query))
    for other, other_title in titles.items():
        if other != uid:
            link = grafana.DashboardLink(other_title).type(DashboardLinkType.LINK).icon("dashboard")
            builder.link(link.url(f"/d/{other}").tooltip(other_title).keep_time(True))
    for row, panels in rows.items():
        builder.with_row(grafana.Row(row).id(_panel_id(f"row {row}")))
        # Four, three or two charts per line, so that no line has a gap.
        charts_a_line = next(count for count in (4, 3, 2, 1) if len(panels) % count == 0)
        for panel in panels:
            of_run = OF_RUN if "run" in (variables or {}) and not panel.pop("all_runs", False) else ""
            if "table" in panel:
                built: timeseries.Panel | stat.Panel | table_builder.Panel = _table(**panel)
            else:
                built = _number(of_run, **panel) if "number" in panel else _chart(of_run, **panel)
            if "chart" in panel:
                built.span(24 // charts_a_line)
            builder.with_panel(built)
    dashboard = builder.build()
    for shown in dashboard.links or []:
        # The default hides the links in a menu, and the SDK has no name for the alternative.
        shown.placement = None  # type: ignore[assignment]
    return dashboard


def _variable(name: str, query: str) -> grafana.QueryVariable:
    return (
        grafana.QueryVariable(name)
        .datasource(DATASOURCE)
        .query(query)
        .refresh(VariableRefresh.ON_TIME_RANGE_CHANGED)
        .sort(VariableSort.ALPHABETICAL_ASC)
        .multi(True)
        .include_all(True)
        .all_value(".*")
    )


def _chart(
    of_run: str,
    *,
    chart: str,
    description: str,
    unit: str,
    queries: Mapping[str, str],
    stacked: bool = False,
    limit: float | None = None,
    least: float | None = None,
    most: float | None = None,
) -> timeseries.Panel:
    """Builds a chart over time. `of_run` ends its queries; `limit` is a dashed line; `least`, `most` bound the axis."""
    legend = common.VizLegendOptions().display_mode(LegendDisplayMode.LIST).placement(LegendPlacement.BOTTOM)
    panel = (
        timeseries.Panel()
        .id(_panel_id(chart))
        .title(chart)
        .description(description)
        .datasource(DATASOURCE)
        .height(8)
        .unit(unit)
        .thresholds(_thresholds(limit))
        .line_width(1)
        .fill_opacity(30 if stacked else 5)
        .show_points(VisibilityMode.NEVER)
        .legend(legend.show_legend(True).calcs(["lastNotNull"]))
        .tooltip(common.VizTooltipOptions().mode(TooltipDisplayMode.MULTI).sort(SortOrder.DESCENDING))
    )
    if stacked:
        panel.stacking(common.StackingConfig().mode(StackingMode.NORMAL))
    if limit is not None:
        panel.thresholds_style(common.GraphThresholdsStyleConfig().mode(GraphThresholdsStyleMode.DASHED))
    if least is not None:
        panel.min(least)
    if most is not None:
        panel.max(most)
    for letter, (text, expression) in zip("ABCDEF", queries.items(), strict=False):
        panel.with_target(_query(letter, expression, of_run, text))
    return panel


def _number(
    of_run: str,
    *,
    number: str,
    description: str,
    unit: str,
    query: str,
    legend: str = "",
    name_only: bool = False,
    limit: float | None = None,
    red_below: float | None = None,
    wide: bool = False,
) -> stat.Panel:
    """Builds a panel with the latest value, a sixth of the screen wide; red from `limit` on.

    `legend` names the values, if there are several; with `name_only`, their names are all that is shown. With `wide`,
    it is a quarter of the screen wide, and higher.
    """
    shown = BigValueTextMode.NAME if name_only else BigValueTextMode.VALUE_AND_NAME
    thresholds = _thresholds(limit) if red_below is None else _thresholds(red_below, colors=("red", "green"))
    return (
        stat.Panel()
        .id(_panel_id(number))
        .title(number)
        .description(description)
        .datasource(DATASOURCE)
        .span(6 if wide else 4)
        .height(6 if wide else 4)
        .unit(unit)
        .thresholds(thresholds)
        .graph_mode(BigValueGraphMode.AREA)
        .reduce_options(common.ReduceDataOptions().calcs(["lastNotNull"]))
        .text_mode(shown if legend else BigValueTextMode.AUTO)
        .with_target(_query("A", query, of_run, legend or number))
    )


def _table(*, table: str, description: str, empty: str, columns: list[str], query: str) -> table_builder.Panel:
    """Builds a panel with one line for each series of a query now, half of the screen wide; else the text `empty`."""
    shown = {"include": {"names": columns}}
    return (
        table_builder.Panel()
        .id(_panel_id(table))
        .title(table)
        .description(description)
        .datasource(DATASOURCE)
        .span(12)
        .height(6)
        .unit("short")
        .no_value(empty)
        .with_transformation(DataTransformerConfig(id_val="filterFieldsByName", options=shown))
        .with_target(
            prometheus.Dataquery().ref_id("A").expr(query).legend_format(table).instant().format(PromQueryFormat.TABLE)
        )
    )


def _thresholds(limit: float | None, colors: tuple[str, str] = ("green", "red")) -> grafana.ThresholdsConfig:
    steps = [Threshold(value=None, color=colors[0])]
    if limit is not None:
        steps.append(Threshold(value=limit, color=colors[1]))
    return grafana.ThresholdsConfig().mode(ThresholdsMode.ABSOLUTE).steps(steps)


def _query(letter: str, expression: str, of_run: str, legend: str) -> prometheus.Dataquery:
    return (
        prometheus.Dataquery()
        .ref_id(letter)
        .expr(f"({expression.strip()}){of_run}" if of_run else expression.strip())
        .legend_format(legend)
        .range()
    )


if __name__ == "__main__":
    for name, text in render().items():
        (FOLDER / "dashboards" / name).write_text(text)
