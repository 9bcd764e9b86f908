{{- /* What no schema can say: two values that do not fit. Rendered first, by the workload. */ -}}
{{- define "tidegate.checks" -}}
{{- include "tidegate.checkRedis" . -}}
{{- include "tidegate.checkListeners" . -}}
{{- include "tidegate.checkPods" . -}}
{{- end -}}

{{- define "tidegate.checkRedis" -}}
{{- $redis := .Values.redis -}}
{{- $given := list -}}
{{- if $redis.url }}{{ $given = append $given "redis.url" }}{{ end -}}
{{- if $redis.existingSecret }}{{ $given = append $given "redis.existingSecret" }}{{ end -}}
{{- if $redis.hosts }}{{ $given = append $given "redis.hosts" }}{{ end -}}
{{- if .Values.valkey.enabled }}{{ $given = append $given "valkey.enabled" }}{{ end -}}
{{- if not $given -}}
{{- fail "brokers need a Redis or Valkey: set redis.url, redis.existingSecret or redis.hosts (valkey.enabled=true makes a small one, to try)" -}}
{{- else if gt (len $given) 1 -}}
{{- fail (printf "one Redis, please: %s are set" (join " and " $given)) -}}
{{- end -}}
{{- if and (or $redis.user $redis.password $redis.passwordSecret.name $redis.tls.enabled (ne $redis.kind "standalone")) (not $redis.hosts) -}}
{{- fail "redis.kind, redis.user, redis.password, redis.passwordSecret and redis.tls.enabled go with redis.hosts; in a URL they have their own place" -}}
{{- end -}}
{{- if and $redis.password $redis.passwordSecret.name -}}
{{- fail "redis.password or redis.passwordSecret, not both" -}}
{{- end -}}
{{- if and .Values.secretsAsFiles $redis.passwordSecret.name -}}
{{- fail "secretsAsFiles does not go with redis.passwordSecret, which the kubelet puts into a variable: use redis.existingSecret with the whole URL" -}}
{{- end -}}
{{- if and (eq $redis.kind "cluster") (ne (int $redis.database) 0) -}}
{{- fail "redis.kind=cluster has no redis.database but 0" -}}
{{- end -}}
{{- if and (gt (len $redis.hosts) 1) (eq $redis.kind "standalone") -}}
{{- fail "redis.kind=standalone has one host in redis.hosts: several are sentinels, or nodes of a cluster" -}}
{{- end -}}
{{- end -}}

{{- define "tidegate.checkListeners" -}}
{{- $ports := list (int .Values.admin.port) -}}
{{- $modes := dict "direct" list "single" list "external" list -}}
{{- range $name, $listener := .Values.listeners -}}
{{- if $listener -}}
{{- if has (int $listener.port) $ports -}}
{{- fail (printf "listeners.%s.port %d is taken, by another listener or admin.port" $name (int $listener.port)) -}}
{{- end -}}
{{- $ports = append $ports (int $listener.port) -}}
{{- $_ := set $modes $listener.mode (append (get $modes $listener.mode) $name) -}}
{{- if and (has $listener.protocol (list "SSL" "SASL_SSL")) (eq $listener.mode "direct") (eq (include "tidegate.workload" $) "Deployment") -}}
{{- fail (printf "listeners.%s: in direct mode clients of a Deployment get addresses of pods, which no certificate names: set workload=StatefulSet" $name) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- if eq (len $ports) 1 -}}
{{- fail "listeners: at least one" -}}
{{- end -}}
{{- range $mode := list "single" "external" -}}
{{- if gt (len (get $modes $mode)) 1 -}}
{{- fail (printf "one listener at most is %s, not %s" $mode (join " and " (get $modes $mode))) -}}
{{- end -}}
{{- end -}}
{{- if and $modes.single (ne .Values.single.service.type "ClusterIP") (not .Values.single.host) -}}
{{- fail (printf "single.host is the address that clients outside get: name the %s, and set it" .Values.single.service.type) -}}
{{- end -}}
{{- if $modes.external -}}
{{- if ne (include "tidegate.workload" .) "StatefulSet" -}}
{{- fail (printf "listeners.%s: external mode needs workload=StatefulSet (or auto), for the ordinal is the end of a pod's name" (first $modes.external)) -}}
{{- end -}}
{{- if and (not .Values.external.portStep) (not (contains "{ordinal}" .Values.external.hostTemplate)) (gt (int (include "tidegate.brokersMax" .)) 1) -}}
{{- fail "external: all brokers would have one address; hostTemplate needs {ordinal}, or portStep 1" -}}
{{- end -}}
{{- end -}}
{{- if and (include "tidegate.tls" .) (not (include "tidegate.tlsSecret" .)) -}}
{{- fail "a listener has TLS: set tls.existingSecret or tls.certManager.enabled" -}}
{{- end -}}
{{- if and .Values.tls.certManager.enabled (not .Values.tls.certManager.issuerRef.name) -}}
{{- fail "tls.certManager.issuerRef.name is missing" -}}
{{- end -}}
{{- end -}}

{{- define "tidegate.checkPods" -}}
{{- if and .Values.autoscaling.enabled .Values.keda.enabled -}}
{{- fail "autoscaling or keda, not both: two scalers would fight over one workload" -}}
{{- end -}}
{{- range $scaler := list "autoscaling" "keda" -}}
{{- $given := index $.Values $scaler -}}
{{- if and $given.enabled (gt (int $given.minReplicas) (int $given.maxReplicas)) -}}
{{- fail (printf "%s.minReplicas %d is above maxReplicas %d" $scaler (int $given.minReplicas) (int $given.maxReplicas)) -}}
{{- end -}}
{{- end -}}
{{- if and (include "tidegate.scaled" .) (not (dig "requests" "cpu" "" .Values.resources)) -}}
{{- fail "scaling by CPU is per cent of resources.requests.cpu, which is missing" -}}
{{- end -}}
{{- if and (not (int .Values.updateStrategy.maxUnavailable)) (not (int .Values.updateStrategy.maxSurge)) -}}
{{- fail "updateStrategy: maxUnavailable or maxSurge must be above 0, or nothing could ever be replaced" -}}
{{- end -}}
{{- $notice := int .Values.drain.noticeSeconds -}}
{{- $timeout := include "tidegate.drainTimeoutSeconds" . | int -}}
{{- if gt (mul $notice 4) $timeout -}}
{{- fail (printf "drain.noticeSeconds %d is more than a quarter of drain.timeoutSeconds %d, and brokers would cut it" $notice $timeout) -}}
{{- end -}}
{{- with .Values.drain.terminationGracePeriodSeconds -}}
{{- if lt (int .) (add $timeout 6 | int) -}}
{{- fail (printf "drain.terminationGracePeriodSeconds %d would kill a broker that drains: timeoutSeconds %d + 6 to close is %d" (int .) $timeout (add $timeout 6)) -}}
{{- end -}}
{{- end -}}
{{- if and .Values.metrics.serviceMonitor.enabled .Values.metrics.podMonitor.enabled -}}
{{- fail "metrics.serviceMonitor or metrics.podMonitor, not both: each broker would be scraped twice" -}}
{{- end -}}
{{- if and .Values.metrics.tokenKey (not .Values.admin.existingSecret) -}}
{{- fail "metrics.tokenKey is a key of admin.existingSecret, which is not set" -}}
{{- end -}}
{{- if and .Values.ingress.enabled (not .Values.ingress.hosts) -}}
{{- fail "ingress.hosts is missing" -}}
{{- end -}}
{{- if and .Values.archive.existingClaim (not (hasPrefix "/" .Values.archive.path)) -}}
{{- fail "archive.existingClaim is mounted at archive.path, which must be a folder then" -}}
{{- end -}}
{{- if and .Values.pipeline.enabled (hasPrefix "/" (dig "checkpoint" "path" "" .Values.pipeline.config)) (not .Values.archive.existingClaim) -}}
{{- fail "pipeline.config.checkpoint.path is a folder, which must outlive pods: set archive.existingClaim (a ReadWriteMany claim), or an object store's address" -}}
{{- end -}}
{{- end -}}
