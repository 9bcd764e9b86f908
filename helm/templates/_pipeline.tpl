{{- /* What driver and executors have in common, after the container's name. (list $ "its kind") */ -}}
{{- define "tidegate.pipelineContainer" -}}
image: {{ include "tidegate.image" (list . .Values.pipeline.image) }}
imagePullPolicy: {{ .Values.pipeline.image.pullPolicy }}
env:
  {{- include "tidegate.podFields" . | nindent 2 }}
  {{- include "tidegate.redisEnv" (list . (include "tidegate.redisSecret" .)) | nindent 2 }}
  {{- with .Values.archive.path }}
  - { name: TIDEGATE_ARCHIVE_PATH, value: {{ . | quote }} }
  {{- end }}
  {{- with .Values.settings.key_prefix }}
  - { name: TIDEGATE_KEY_PREFIX, value: {{ . | quote }} }
  {{- end }}
  # The root is read-only: caches of Python and Spark.
  - { name: HOME, value: /tmp }
  {{- if .Values.pipeline.kubernetes.enabled }}
  - { name: TIDEGATE_PIPELINE_SPARK, value: {{ include "tidegate.sparkOnKubernetes" . | quote }} }
  {{- end }}
  {{- with .Values.pipeline.extraEnv }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
{{- with .Values.archive.credentialsSecret }}
envFrom:
  - secretRef: { name: {{ . }} }
{{- end }}
{{ include "tidegate.containerSecurity" . }}
volumeMounts:
  - { name: tmp, mountPath: /tmp }
  - { name: config, mountPath: /etc/tidegate/pipeline, readOnly: true }
  {{- include "tidegate.redisMounts" . | nindent 2 }}
  {{- if .Values.archive.existingClaim }}
  - { name: archive, mountPath: {{ .Values.archive.path }} }
  {{- end }}
{{- end -}}

{{- /* pipeline.toml. Numbers are float64 to Helm: 8.0 is not what Spark reads as a number of partitions. */ -}}
{{- define "tidegate.pipelineToml" -}}
{{- $config := deepCopy .Values.pipeline.config -}}
{{- include "tidegate.wholeNumbers" $config -}}
{{- toToml $config -}}
{{- end -}}

{{- define "tidegate.wholeNumbers" -}}
{{- range $key, $value := . -}}
{{- if kindIs "map" $value -}}
{{- include "tidegate.wholeNumbers" $value -}}
{{- else if and (kindIs "float64" $value) (eq (floor $value) $value) -}}
{{- $_ := set $ $key (int64 $value) -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{- define "tidegate.pipelineVolumes" -}}
volumes:
  - name: tmp
    emptyDir: {}
  - name: config
    configMap: { name: {{ include "tidegate.name" . }}-pipeline }
  {{- include "tidegate.redisVolumes" . | nindent 2 }}
  {{- with .Values.archive.existingClaim }}
  - name: archive
    persistentVolumeClaim: { claimName: {{ . }} }
  {{- end }}
{{- end -}}

{{- /* The driver is the job's pod; it makes its executors, which go with it. */ -}}
{{- define "tidegate.sparkOnKubernetes" -}}
{{- with .Values.pipeline.kubernetes -}}
{{- dict
  "spark.master" "k8s://https://kubernetes.default.svc"
  "spark.kubernetes.namespace" "$(POD_NAMESPACE)"
  "spark.kubernetes.driver.pod.name" "$(POD_NAME)"
  "spark.kubernetes.executor.podTemplateFile" "/etc/tidegate/pipeline/executor.yaml"
  "spark.kubernetes.container.image" (include "tidegate.image" (list $ $.Values.pipeline.image) | trimAll "\"")
  "spark.driver.host" "$(POD_IP)"
  "spark.driver.bindAddress" "$(POD_IP)"
  "spark.executor.instances" (toString .executors)
  "spark.executor.cores" (toString .cores)
  "spark.executor.memory" .memory
  "spark.executor.memoryOverhead" .memoryOverhead
  | toJson -}}
{{- end -}}
{{- end -}}

{{- /* (list $ "job" $job) */ -}}
{{- define "tidegate.pipelinePod" -}}
{{- $job := index . 2 -}}
{{- $named := index . 1 -}}
{{- with index . 0 -}}
metadata:
  labels:
    {{- include "tidegate.labels" (list . "pipeline") | nindent 4 }}
    tidegate/job: {{ $named }}
  annotations:
    checksum/config: {{ include (print .Template.BasePath "/pipeline-config.yaml") . | sha256sum }}
    checksum/secrets: {{ include (print .Template.BasePath "/secrets.yaml") . | sha256sum }}
spec:
  serviceAccountName: {{ include "tidegate.pipelineServiceAccount" . }}
  automountServiceAccountToken: {{ .Values.pipeline.kubernetes.enabled }}
  restartPolicy: {{ ternary "Never" "Always" (not (empty $job.schedule)) }}
  terminationGracePeriodSeconds: {{ .Values.pipeline.terminationGracePeriodSeconds }}
  {{- include "tidegate.podSecurity" (list . 10001) | nindent 2 }}
  containers:
    - name: pipeline
      args: {{ concat (list "pipeline") $job.arguments (list "--config" "/etc/tidegate/pipeline/pipeline.toml") | toJson }}
      resources: {{- toYaml .Values.pipeline.resources | nindent 8 }}
      {{- include "tidegate.pipelineContainer" . | nindent 6 }}
  {{- include "tidegate.pipelineVolumes" . | nindent 2 }}
{{- end -}}
{{- end -}}
