# One image for both programs; docs/containers.md tells how it is run:
#
#     make image
#     docker run --rm -v "$PWD:/data" --user "$(id -u):$(id -g)" -e GEMINI_API_KEY parked parked run jobs.jsonl
#     docker run --rm -v "$PWD:/data" --user "$(id -u):$(id -g)" --network host parked parked-exporter
#
# All programs of one SQLite ledger run as one user; without --user it is the one below.

FROM python:3.11-slim-bookworm AS build
WORKDIR /src
COPY pyproject.toml constraints.txt README.md LICENSE ./
COPY runner runner
COPY exporter exporter
# The pip of one environment fills the other, so that none is in the image.
ENV PIP_CONSTRAINT=constraints.txt PIP_BUILD_CONSTRAINT=constraints.txt PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1
# Bytecode stays in, since nothing can be compiled where the file system is read-only; tests of dependencies don't.
RUN python -m venv /opt/pip \
    && python -m venv --without-pip /opt/parked \
    && /opt/pip/bin/python -m pip --python /opt/parked/bin/python install --progress-bar off '.[encrypted,exporter,notify,postgres]' \
    && find /opt/parked -type d -name tests -prune -exec rm -r {} +
# What the label says is what is in it.
ARG VERSION=unreleased
RUN test "$VERSION" = unreleased || test "$(/opt/parked/bin/parked --version)" = "parked $VERSION"

FROM python:3.11-slim-bookworm
# The base's own pip has nothing to install here. The number of the user is fixed, so that orchestrators can see that it
# isn't root, and other containers can share the ledger's files. A volume that begins empty takes the folder's owner.
RUN rm -rf /usr/local/bin/pip* /usr/local/lib/python3.*/site-packages/pip* \
    && install -d -o 10001 -g 10001 -m 0755 /data
COPY --from=build /opt/parked /opt/parked
ENV PATH=/opt/parked/bin:$PATH PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1
USER 10001:10001
WORKDIR /data
# Asks the sidecar, where that is what runs; of any other command it only says that it lives.
HEALTHCHECK --interval=15s --timeout=5s --start-period=15s CMD ["python", "-m", "parked_exporter.healthcheck"]
CMD ["parked", "--help"]
# Last, so that another version or commit doesn't build the rest anew.
ARG VERSION=unreleased
ARG REVISION=
LABEL org.opencontainers.image.title="parked" \
      org.opencontainers.image.description="Runs Gemini jobs, parks what failed, shows it to Prometheus: the commands parked and parked-exporter" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="$VERSION" \
      org.opencontainers.image.revision="$REVISION"
