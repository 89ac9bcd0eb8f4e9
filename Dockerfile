# One image for both programs:
#
#     docker build -t parked .
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
RUN python -m venv /opt/pip \
    && python -m venv --without-pip /opt/parked \
    && /opt/pip/bin/python -m pip --python /opt/parked/bin/python install '.[encrypted,exporter,notify,postgres]'

FROM python:3.11-slim-bookworm
COPY --from=build /opt/parked /opt/parked
ENV PATH=/opt/parked/bin:$PATH PYTHONUNBUFFERED=1
# A fixed number, so that orchestrators can see that it isn't root, and other containers can share the ledger's files.
RUN install -d -o 10001 -g 10001 -m 0700 /data
USER 10001:10001
WORKDIR /data
CMD ["parked", "--help"]
