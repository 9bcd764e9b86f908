{{- /* PodSecurity "restricted": what every pod of ours has. (list $ 10001) */ -}}
{{- define "tidegate.podSecurity" -}}
securityContext:
  runAsNonRoot: true
  runAsUser: {{ index . 1 }}
  runAsGroup: {{ index . 1 }}
  fsGroup: {{ index . 1 }}
  fsGroupChangePolicy: OnRootMismatch
  seccompProfile:
    type: RuntimeDefault
# A Service named tidegate would put TIDEGATE_PORT=tcp://... into the environment.
enableServiceLinks: false
{{- with index . 0 }}
{{- with .Values.imagePullSecrets }}
imagePullSecrets: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.priorityClassName }}
priorityClassName: {{ . }}
{{- end }}
{{- with .Values.nodeSelector }}
nodeSelector: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.tolerations }}
tolerations: {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}
{{- end -}}

{{- define "tidegate.containerSecurity" -}}
securityContext:
  allowPrivilegeEscalation: false
  readOnlyRootFilesystem: true
  capabilities:
    drop: [ALL]
{{- end -}}

{{- define "tidegate.podFields" -}}
- name: POD_NAME
  valueFrom: { fieldRef: { fieldPath: metadata.name } }
- name: POD_NAMESPACE
  valueFrom: { fieldRef: { fieldPath: metadata.namespace } }
- name: POD_IP
  valueFrom: { fieldRef: { fieldPath: status.podIP } }
{{- end -}}

{{- /* `settings` as variables. Large numbers are float64 to Helm. */ -}}
{{- define "tidegate.settings" -}}
{{- range $setting, $value := . }}
- name: TIDEGATE_{{ $setting | upper }}
  value: {{ ternary (printf "%.15g" (toString $value | float64)) (toString $value) (kindIs "float64" $value) | quote }}
{{- end }}
{{- end -}}
