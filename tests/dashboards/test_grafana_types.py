"""The dashboards hold against Grafana's own types (npm's `@grafana/schema`): no setting that Grafana doesn't know."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[2] / "dashboards"
NAMES = ("overview.json", "triage.json")
PACKAGES = Path(sys.prefix) / "grafana" / "node_modules"  # where `make test` has npm put them
BUILT_IN = "./node_modules/@grafana/schema/dist/types/raw/composable/{type}/panelcfg/x/types.gen"
WITH_CUSTOM_FIELDS = ("timeseries", "statetimeline")

# `L` takes the text of an enum for the enum, as it stands in JSON; `P` lets everything be left out.
HELPERS = """\
import type { Dashboard, Panel, RowPanel, FieldConfig } from '@grafana/schema';
type L<T> = T extends string ? `${T}` : T extends number | boolean | null | undefined ? T
  : T extends (infer U)[] ? L<U>[]
  : T extends object ? { [K in keyof T]: L<T[K]> } : T;
type P<T> = T extends (infer U)[] ? P<U>[] : T extends object ? { [K in keyof T]?: P<T[K]> } : T;
"""


@pytest.fixture
def complaints(tmp_path):
    """Returns a function that says what TypeScript has to say of a dashboard."""
    if not PACKAGES.exists():
        assert "CI" not in os.environ, f"no Grafana types in {PACKAGES}"
        pytest.skip("npm's @grafana/schema and typescript are not installed (make test does it, where npm is)")
    (tmp_path / "node_modules").symlink_to(PACKAGES)

    def complaints(dashboard):
        (tmp_path / "check.ts").write_text(as_typescript(dashboard))
        node = shutil.which("node")
        assert node is not None
        ran = subprocess.run(
            [node, str(PACKAGES / "typescript/bin/tsc"), "--noEmit", "--strict", "--skipLibCheck", "--moduleResolution",
             "bundler", "--module", "esnext", "--target", "esnext", "check.ts"],
            cwd=tmp_path, capture_output=True, text=True, timeout=60,
        )  # fmt: skip
        return ran.stdout + ran.stderr

    return complaints


def as_typescript(dashboard):
    """Each part of a dashboard as a constant of the type that Grafana gives it."""
    types = sorted({panel["type"].replace("-", "") for panel in dashboard["panels"]} - {"row"})
    lines = [HELPERS, *(f"import type * as {type} from '{BUILT_IN.format(type=type)}';" for type in types)]
    for number, panel in enumerate(dashboard["panels"]):
        type = panel["type"].replace("-", "")
        rest = {key: value for key, value in panel.items() if key not in ("options", "fieldConfig")}
        if type == "row":
            lines.append(f"export const p{number} = {json.dumps(panel)} satisfies P<L<RowPanel>>;")
            continue
        lines.append(f"export const p{number} = {json.dumps(rest)} satisfies P<L<Panel>>;")
        lines.append(f"export const o{number} = {json.dumps(panel.get('options', {}))} satisfies P<L<{type}.Options>>;")
        defaults = dict(panel.get("fieldConfig", {}).get("defaults", {}))
        custom = defaults.pop("custom", None)
        lines.append(f"export const f{number} = {json.dumps(defaults)} satisfies P<L<FieldConfig>>;")
        if custom and type in WITH_CUSTOM_FIELDS:
            lines.append(f"export const c{number} = {json.dumps(custom)} satisfies P<L<{type}.FieldConfig>>;")
    lines.append(f"export const all = {json.dumps(dashboard | {'panels': []})} satisfies P<L<Dashboard>>;")
    return "\n".join(lines)


@pytest.mark.parametrize("name", NAMES)
def test_grafana_knows_every_setting(complaints, name):
    assert complaints(json.loads((FOLDER / name).read_text(encoding="utf-8"))) == ""


def test_a_setting_that_grafana_does_not_know_is_named(complaints):
    dashboard = json.loads((FOLDER / "overview.json").read_text(encoding="utf-8"))
    dashboard["panels"][0]["options"]["colourMode"] = "value"
    dashboard["panels"][0]["fieldConfig"]["defaults"]["thresholds"]["mode"] = "absolut"

    said = complaints(dashboard)

    assert "colourMode" in said
    assert "absolut" in said
