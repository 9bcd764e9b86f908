{{- define "tidegate.name" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 45 | trimSuffix "-" -}}
{{- else if contains .Chart.Name .Release.Name -}}
{{- .Release.Name | trunc 45 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name .Chart.Name | trunc 45 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{- /* Of one part of the release: (list $ "broker"). */ -}}
{{- define "tidegate.selector" -}}
app.kubernetes.io/name: {{ (index . 0).Chart.Name }}
app.kubernetes.io/instance: {{ (index . 0).Release.Name }}
app.kubernetes.io/component: {{ index . 1 }}
{{- end -}}

{{- define "tidegate.labels" -}}
{{ include "tidegate.selector" . }}
{{- with index . 0 }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{- with .Values.commonLabels }}
{{ toYaml . }}
{{- end }}
{{- end }}
{{- end -}}

{{- define "tidegate.workload" -}}
{{- if ne .Values.workload "auto" -}}
{{- .Values.workload -}}
{{- else -}}
{{- ternary "StatefulSet" "Deployment" (not (empty (include "tidegate.listenerIn" (list . "external")))) -}}
{{- end -}}
{{- end -}}

{{- define "tidegate.scaled" -}}
{{- if or .Values.autoscaling.enabled .Values.keda.enabled }}yes{{ end -}}
{{- end -}}

{{- /* The most brokers that there may be: Services for each pod are made ahead. */ -}}
{{- define "tidegate.brokersMax" -}}
{{- if .Values.autoscaling.enabled -}}
{{- .Values.autoscaling.maxReplicas -}}
{{- else if .Values.keda.enabled -}}
{{- .Values.keda.maxReplicas -}}
{{- else -}}
{{- .Values.replicaCount -}}
{{- end -}}
{{- end -}}

{{- define "tidegate.drainTimeoutSeconds" -}}
{{- $drain := .Values.drain -}}
{{- if kindIs "invalid" $drain.budgetSeconds }}{{ int $drain.timeoutSeconds }}{{ else }}{{ int $drain.budgetSeconds }}{{ end -}}
{{- end -}}

{{- define "tidegate.serviceAccount" -}}
{{- .Values.serviceAccount.name | default (ternary (include "tidegate.name" .) "default" .Values.serviceAccount.create) -}}
{{- end -}}

{{- define "tidegate.pipelineServiceAccount" -}}
{{- $own := printf "%s-pipeline" (include "tidegate.name" .) -}}
{{- .Values.pipeline.serviceAccount.name | default (ternary $own "default" .Values.pipeline.serviceAccount.create) -}}
{{- end -}}

{{- define "tidegate.adminSecret" -}}
{{- if .Values.admin.existingSecret -}}
{{- .Values.admin.existingSecret -}}
{{- else if or .Values.admin.operatorToken .Values.admin.operatorPassword .Values.admin.viewerToken -}}
{{- include "tidegate.name" . }}-admin
{{- end -}}
{{- end -}}

{{- /* Its keys, as JSON. */ -}}
{{- define "tidegate.adminKeys" -}}
{{- with .Values.admin -}}
{{- if .existingSecret -}}
{{- toJson .existingSecretKeys -}}
{{- else -}}
{{- $keys := list -}}
{{- if .operatorToken }}{{ $keys = append $keys "operator-token" }}{{ end -}}
{{- if .operatorPassword }}{{ $keys = append $keys "operator-password" }}{{ end -}}
{{- if .viewerToken }}{{ $keys = append $keys "viewer-token" }}{{ end -}}
{{- toJson $keys -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{- define "tidegate.tlsSecret" -}}
{{- if .Values.tls.existingSecret -}}
{{- .Values.tls.existingSecret -}}
{{- else if .Values.tls.certManager.enabled -}}
{{- include "tidegate.name" . }}-tls
{{- end -}}
{{- end -}}

{{- /* (list $ .Values.image) */ -}}
{{- define "tidegate.image" -}}
{{- $image := index . 1 -}}
{{- if $image.digest -}}
{{- printf "%s@%s" $image.repository $image.digest | quote -}}
{{- else -}}
{{- printf "%s:%s" $image.repository ($image.tag | default (index . 0).Chart.AppVersion) | quote -}}
{{- end -}}
{{- end -}}

{{- /* Where reading needs a token Prometheus shows it. */ -}}
{{- define "tidegate.scrapeToken" -}}
{{- $key := .Values.metrics.tokenKey | default (ternary "viewer-token" "" (not (empty .Values.admin.viewerToken))) -}}
{{- if $key -}}
authorization:
  credentials: { name: {{ include "tidegate.adminSecret" . }}, key: {{ $key }} }
{{- end -}}
{{- end -}}
