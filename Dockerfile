# syntax=docker/dockerfile:1
# What it is built on: anything of Debian's kind with Python 3.11 or newer as python3. `make image` makes one by itself.
ARG PYTHON_IMAGE=python:3.11.13-slim-bookworm@sha256:86adf8dbadc3d6e82ee5dd2c74bec2e1c2467cdad47886280501df722372d2e1

# -- pip and the wheel's builder, in a virtual environment that stays behind
FROM ${PYTHON_IMAGE} AS tools
ARG SOURCE_DATE_EPOCH=1580601600
ENV SOURCE_DATE_EPOCH=$SOURCE_DATE_EPOCH PYTHONHASHSEED=0 PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_CACHE_DIR=1
WORKDIR /src
# hadolint ignore=DL3008
RUN if ! python3 -c 'import ensurepip' 2>/dev/null; then \
      apt-get update && apt-get install --yes --no-install-recommends python3-venv && rm -rf /var/lib/apt/lists/*; \
    fi
COPY constraints.txt ./
COPY requirements requirements
RUN --mount=type=secret,id=pip.conf,target=/etc/pip.conf \
    python3 -m venv /opt/tools \
    && /opt/tools/bin/pip install --require-hashes --only-binary :all: --requirement requirements/build.txt
COPY pyproject.toml README.md LICENSE ./
COPY broker broker
COPY pipeline pipeline
COPY redis_scripts redis_scripts
RUN /opt/tools/bin/pip wheel --no-deps --no-build-isolation --wheel-dir /dist . ./pipeline

# -- the broker's environment; EXTRAS are further ones of pyproject.toml that requirements/ has, with commas
FROM tools AS environment
ARG EXTRAS=
RUN --mount=type=secret,id=pip.conf,target=/etc/pip.conf \
    python3 -m venv --without-pip /opt/tidegate \
    && pip="/opt/tools/bin/pip --python /opt/tidegate/bin/python install --no-compile" \
    && for set in broker $(IFS=,; echo $EXTRAS); do \
         $pip --require-hashes --only-binary :all: --requirement "requirements/$set.txt" || exit 1; \
       done \
    && $pip --no-deps /dist/tidegate-*.whl \
    && python3 -m compileall -q -f --invalidation-mode unchecked-hash /opt/tidegate/lib \
    && find /opt/tidegate -exec touch --no-dereference --date="@$SOURCE_DATE_EPOCH" {} +

# -- the pipeline's: both wheels, with Spark, which PyPI has as source only: its wheel is made by the tools above
FROM tools AS environment-pipeline
RUN --mount=type=secret,id=pip.conf,target=/etc/pip.conf \
    python3 -m venv --without-pip /opt/tidegate \
    && /opt/tools/bin/pip wheel --require-hashes --only-binary :all: --no-binary pyspark --no-build-isolation --no-deps \
         --wheel-dir /wheels --requirement requirements/pipeline.txt \
    && /opt/tools/bin/pip --python /opt/tidegate/bin/python install --no-compile --no-index --no-deps \
         /wheels/*.whl /dist/tidegate-*.whl /dist/tidegate_pipeline-*.whl \
    && /opt/tools/bin/pip --python /opt/tidegate/bin/python check \
    && rm -r /wheels \
    && python3 -m compileall -q -f --invalidation-mode unchecked-hash /opt/tidegate/lib \
    && ln -s bin/tidegate /opt/tidegate/tidegate-command.py \
    && mkdir /opt/spark \
    && ln -s /opt/tidegate/lib/python3*/site-packages/pyspark/* /opt/spark/ \
    && find /opt/tidegate /opt/spark -exec touch --no-dereference --date="@$SOURCE_DATE_EPOCH" {} +

# -- the pipeline: driver and executors of Spark, `docker build --target pipeline`
FROM ${PYTHON_IMAGE} AS pipeline
ARG VERSION=0.1.0
ARG REVISION=
LABEL org.opencontainers.image.title="Tidegate pipeline" \
      org.opencontainers.image.description="Spark jobs over Tidegate's topics and the history of its groups" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}" \
      org.opencontainers.image.licenses="Apache-2.0"
# Java's package links a manual, for which slim images have no folder.
# hadolint ignore=DL3008
RUN mkdir -p /usr/share/man/man1 \
    && apt-get update \
    && apt-get install --yes --no-install-recommends default-jre-headless procps tini \
    && rm -rf /var/lib/apt/lists/* /var/log/* /var/cache/* \
    && echo 'tidegate:x:10001:' >> /etc/group \
    && echo 'tidegate:x:10001:10001::/home/tidegate:/usr/sbin/nologin' >> /etc/passwd \
    && install -d -o 10001 -g 10001 /home/tidegate /archive
COPY --from=environment-pipeline /opt/tidegate /opt/tidegate
COPY --from=environment-pipeline /opt/spark /opt/spark
COPY kubernetes/entrypoint.sh /opt/entrypoint.sh
ENV PATH=/opt/tidegate/bin:/opt/spark/bin:$PATH \
    SPARK_HOME=/opt/spark \
    PYSPARK_PYTHON=/opt/tidegate/bin/python \
    PYTHONUNBUFFERED=1 \
    TIDEGATE_PIPELINE_LOG_PATH=-
USER 10001:10001
WORKDIR /tmp
ENTRYPOINT ["tini", "--", "/opt/entrypoint.sh"]
CMD ["pipeline", "--help"]

# -- the broker: no pip, no compiler, no root, nothing that it writes
FROM ${PYTHON_IMAGE} AS broker
ARG VERSION=0.1.0
ARG REVISION=
LABEL org.opencontainers.image.title="Tidegate" \
      org.opencontainers.image.description="Kafka-protocol brokers that keep everything in Redis" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}" \
      org.opencontainers.image.licenses="Apache-2.0"
# The official Python images come without compiled modules, which a read-only root would compile at every start.
# The folders are for volumes, which take their owner from here.
RUN if python3 -m pip --version >/dev/null 2>&1; then \
      python3 -m pip uninstall --yes --root-user-action=ignore pip setuptools wheel; \
    fi \
    && PYTHONHASHSEED=0 python3 -m compileall -q -f --invalidation-mode unchecked-hash \
         -x '/(test|idlelib|lib2to3|ensurepip|site-packages|dist-packages)/' \
         "$(python3 -c 'import sysconfig; print(sysconfig.get_path("stdlib"))')" \
    && echo 'tidegate:x:10001:' >> /etc/group \
    && echo 'tidegate:x:10001:10001::/nonexistent:/usr/sbin/nologin' >> /etc/passwd \
    && install -d -o 10001 -g 10001 /archive /certificates /secrets
COPY --from=environment /opt/tidegate /opt/tidegate
ENV PATH=/opt/tidegate/bin:$PATH \
    PYTHONUNBUFFERED=1 \
    PYTHONDONTWRITEBYTECODE=1 \
    TIDEGATE_HOST=0.0.0.0 \
    TIDEGATE_ADMIN_HOST=0.0.0.0 \
    TIDEGATE_LOG_FORMAT=json
USER 10001:10001
EXPOSE 9092 8080
# Clients get TIDEGATE_ADVERTISED_LISTENERS: set it, because they cannot connect to 0.0.0.0.
HEALTHCHECK --interval=5s --timeout=3s --start-period=20s --retries=3 \
    CMD ["python", "-ISc", "import os, sys, http.client as h; c = h.HTTPConnection('127.0.0.1', int(os.environ.get('TIDEGATE_ADMIN_PORT', 8080)), timeout=2); c.request('GET', '/health/ready'); sys.exit(c.getresponse().status != 200)"]
STOPSIGNAL SIGTERM
ENTRYPOINT ["tidegate"]
CMD ["serve"]
