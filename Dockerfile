# syntax=docker/dockerfile:1
# CPU (default):  docker build -t reshift .
# NVIDIA GPUs:    docker build -t reshift:cuda --build-arg TORCH=cu130 .
# Server:         docker run --rm -p 127.0.0.1:8000:8000 -v "$PWD/runs:/data" -v "$PWD/tokens:/tokens:ro" reshift
# A command:      docker run --rm -v "$PWD:/data" reshift score bundle scans/ --out scores
FROM python:3.12-slim-bookworm AS build
ARG TORCH=cpu
ARG EXTRAS=features,dicom,report,serve
ENV PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1
RUN python -m venv /opt/reshift
ENV PATH=/opt/reshift/bin:$PATH
WORKDIR /src
COPY constraints.txt ./
# torch alone first: the largest layer stays cached while the code changes.
RUN version="$(sed -n 's/^torch==//p' constraints.txt)" \
 && pip install "torch==$version" --index-url "https://download.pytorch.org/whl/$TORCH"
COPY pyproject.toml README.md LICENSE MANIFEST.in CHANGELOG.md CITATION.cff ./
COPY src ./src
RUN sed '/^t\(orch\|riton\)==/d' constraints.txt > /tmp/constraints.txt \
 && pip install -c /tmp/constraints.txt ".[$EXTRAS]"

FROM python:3.12-slim-bookworm
COPY --from=build /opt/reshift /opt/reshift
ENV PATH=/opt/reshift/bin:$PATH PYTHONUNBUFFERED=1 RESHIFT_CACHE=/data/.cache
RUN useradd --create-home --uid 10001 reshift && install -d -o reshift -g reshift /data
USER 10001
WORKDIR /data
VOLUME /data
EXPOSE 8000
# Only for the server; a container that runs another command should be started with --no-healthcheck.
HEALTHCHECK --interval=30s --timeout=5s --start-period=60s \
  CMD ["python", "-c", "import urllib.request; urllib.request.urlopen('http://127.0.0.1:8000/health', timeout=4)"]
ENTRYPOINT ["reshift"]
# Any host but loopback needs a token: a file with a line 'NAME TOKEN' per user.
CMD ["serve", "--models", "/data", "--host", "0.0.0.0", "--port", "8000", "--token-file", "/tokens/tokens.txt"]
