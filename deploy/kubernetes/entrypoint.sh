#!/bin/sh
# An executor if Spark asks for one, as it does with the first argument; else any command, such as the driver's.
#
# The variables are those that Spark on Kubernetes sets in the pods of executors.
set -eu

if [ "${1:-}" != executor ]; then exec tini -s -- "$@"; fi

# Options of the JVM come one a variable, numbered from 0, and may have blanks in them.
set --
number=0
while option=$(printenv "SPARK_JAVA_OPT_$number"); do
  set -- "$@" "$option"
  number=$((number + 1))
done

exec tini -s -- "${JAVA_HOME:+$JAVA_HOME/bin/}java" "$@" \
  "-Xms$SPARK_EXECUTOR_MEMORY" "-Xmx$SPARK_EXECUTOR_MEMORY" \
  -cp "${SPARK_EXTRA_CLASSPATH:+$SPARK_EXTRA_CLASSPATH:}${SPARK_HOME}/jars/*" \
  org.apache.spark.scheduler.cluster.k8s.KubernetesExecutorBackend \
  --driver-url "$SPARK_DRIVER_URL" \
  --executor-id "$SPARK_EXECUTOR_ID" \
  --cores "$SPARK_EXECUTOR_CORES" \
  --app-id "$SPARK_APPLICATION_ID" \
  --hostname "$SPARK_EXECUTOR_POD_IP" \
  --resourceProfileId "$SPARK_RESOURCE_PROFILE_ID" \
  --podName "$SPARK_EXECUTOR_POD_NAME"
