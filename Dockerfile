# syntax=docker/dockerfile:1
ARG PYTHON_IMAGE=python:3.11-slim

# -- build: the wheel and what it needs, in a virtual environment of its own
FROM ${PYTHON_IMAGE} AS build
ENV PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_CACHE_DIR=1
WORKDIR /src
RUN python -m venv /opt/tidegate
COPY constraints.txt pyproject.toml README.md LICENSE ./
COPY broker broker
COPY pipeline pipeline
COPY redis_scripts redis_scripts
RUN /opt/tidegate/bin/pip install --constraint constraints.txt . \
    && /opt/tidegate/bin/python -m compileall -q /opt/tidegate/lib \
    && /opt/tidegate/bin/pip uninstall --yes pip

# -- what runs: no pip, no compiler, no root
FROM ${PYTHON_IMAGE}
LABEL org.opencontainers.image.title="Tidegate" \
      org.opencontainers.image.description="Kafka-protocol brokers that keep everything in Redis" \
      org.opencontainers.image.licenses="Apache-2.0"
RUN groupadd --system --gid 10001 tidegate \
    && useradd --system --uid 10001 --gid 10001 --no-create-home --shell /usr/sbin/nologin tidegate \
    && python -m pip uninstall --yes --root-user-action=ignore pip setuptools wheel
COPY --from=build /opt/tidegate /opt/tidegate
ENV PATH=/opt/tidegate/bin:$PATH \
    PYTHONUNBUFFERED=1 \
    PYTHONDONTWRITEBYTECODE=1 \
    TIDEGATE_HOST=0.0.0.0 \
    TIDEGATE_ADMIN_HOST=0.0.0.0 \
    TIDEGATE_LOG_FORMAT=json
USER 10001:10001
EXPOSE 9092 8080
# Clients are told TIDEGATE_ADVERTISED_HOST: set it, for 0.0.0.0 means nothing to them.
HEALTHCHECK --interval=5s --timeout=3s --start-period=20s --retries=3 \
    CMD ["python", "-c", "import os, urllib.request as r; r.build_opener(r.ProxyHandler({})).open('http://127.0.0.1:' + os.environ.get('TIDEGATE_ADMIN_PORT', '8080') + '/health/ready', timeout=2)"]
STOPSIGNAL SIGTERM
ENTRYPOINT ["tidegate"]
CMD ["serve"]
