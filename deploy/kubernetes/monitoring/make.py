"""Makes rules.yaml, the PrometheusRule, from dashboards/alerts.yml: `python deploy/kubernetes/monitoring/make.py`.

Kustomize can put a file into a ConfigMap, but not into a field of another resource.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

HERE: Final = Path(__file__).parent
ALERTS: Final = HERE.parents[2] / "dashboards/alerts.yml"
RULES: Final = HERE / "rules.yaml"

HEAD: Final = """\
# Made by make.py from dashboards/alerts.yml, a test compares; change it there.
apiVersion: monitoring.coreos.com/v1
kind: PrometheusRule
metadata:
  name: parked
spec:
"""


def rules(alerts: str) -> str:
    """The manifest, for the text of alerts.yml: its groups, two columns further right and without its first comment."""
    _, found, groups = alerts.partition("\ngroups:\n")
    if not found:
        raise SystemExit(f"{ALERTS} has no line `groups:`; look at what became of it")
    lines = [f"  {line}" if line else "" for line in ("groups:\n" + groups).splitlines()]
    return HEAD + "\n".join(lines) + "\n"


if __name__ == "__main__":
    RULES.write_text(rules(ALERTS.read_text("utf-8")), "utf-8")
