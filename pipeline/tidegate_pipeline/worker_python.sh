#!/bin/sh
# The Python of a local run's workers. Spark puts its archive of PySpark before the installed package, which is the
# same: every process then compiles what it imports of it, 0.4 s of CPU. `session` says where this is used.
PYTHONPATH=${PYTHONPATH#*/pyspark.zip:}
PYTHONPATH=${PYTHONPATH#*/py4j-*-src.zip:}
export PYTHONPATH
exec "$WORKERS_PYTHON" "$@"
