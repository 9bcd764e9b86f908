{{- /* Name of the listener in a mode, if there is one. (list $ "external") */ -}}
{{- define "tidegate.listenerIn" -}}
{{- $found := "" -}}
{{- $mode := index . 1 -}}
{{- range $name, $listener := (index . 0).Values.listeners -}}
{{- if $listener }}{{ if eq $listener.mode $mode }}{{ $found = $name }}{{ end }}{{ end -}}
{{- end -}}
{{- $found -}}
{{- end -}}

{{- /* Whether any listener has TLS. */ -}}
{{- define "tidegate.tls" -}}
{{- range $listener := .Values.listeners }}{{ if $listener }}{{ if has $listener.protocol (list "SSL" "SASL_SSL") }}yes{{ end }}{{ end }}{{ end -}}
{{- end -}}

{{- /* host:port that clients of a listener get. (list $ $listener) */ -}}
{{- define "tidegate.advertised" -}}
{{- $listener := index . 1 -}}
{{- with index . 0 -}}
{{- $name := include "tidegate.name" . -}}
{{- if eq $listener.mode "external" -}}
{{- $external := .Values.external -}}
{{- $external.hostTemplate }}:{{ int ($external.portBase | default $listener.port) }}{{ if $external.portStep }}+{ordinal}{{ end }}
{{- else if eq $listener.mode "single" -}}
{{- .Values.single.host | default (printf "%s-bootstrap.$(POD_NAMESPACE).svc" $name) }}:{{ int (.Values.single.port | default $listener.port) }}
{{- else if eq (include "tidegate.workload" .) "StatefulSet" -}}
$(POD_NAME).{{ $name }}-headless.$(POD_NAMESPACE).svc:{{ int $listener.port }}
{{- else -}}
{{- ternary "[$(POD_IP)]" "$(POD_IP)" (eq .Values.ipFamily "IPv6") }}:{{ int $listener.port }}
{{- end -}}
{{- end -}}
{{- end -}}

{{- define "tidegate.listenerEnv" -}}
{{- $any := ternary "[::]" "0.0.0.0" (eq .Values.ipFamily "IPv6") -}}
{{- $bound := list -}}{{- $advertised := list -}}{{- $protocols := list -}}{{- $modes := list -}}
{{- range $name, $listener := .Values.listeners -}}
{{- if $listener -}}
{{- $name = upper $name -}}
{{- $bound = append $bound (printf "%s://%s:%d" $name $any (int $listener.port)) -}}
{{- $advertised = append $advertised (printf "%s://%s" $name (include "tidegate.advertised" (list $ $listener))) -}}
{{- $protocols = append $protocols (printf "%s:%s" $name $listener.protocol) -}}
{{- $modes = append $modes (printf "%s:%s" $name $listener.mode) -}}
{{- end -}}
{{- end -}}
- { name: TIDEGATE_LISTENERS, value: {{ join "," $bound | quote }} }
- { name: TIDEGATE_ADVERTISED_LISTENERS, value: {{ join "," $advertised | quote }} }
- { name: TIDEGATE_LISTENER_SECURITY_PROTOCOL_MAP, value: {{ join "," $protocols | quote }} }
- { name: TIDEGATE_ADDRESS_MODE, value: {{ join "," $modes | quote }} }
{{- if include "tidegate.tls" . }}
- { name: TIDEGATE_SSL_CERTIFICATE_FILE, value: /etc/tidegate/tls/tls.crt }
- { name: TIDEGATE_SSL_KEY_FILE, value: /etc/tidegate/tls/tls.key }
{{- if .Values.tls.clientCaSecret }}
- { name: TIDEGATE_SSL_CLIENT_CA_FILE, value: /etc/tidegate/client-ca/ca.crt }
{{- end }}
{{- end }}
{{- end -}}

{{- /* Every listener as a port of a Service. */ -}}
{{- define "tidegate.servicePorts" -}}
{{- range $name, $listener := .Values.listeners -}}
{{- if $listener }}
- { name: {{ $name }}, port: {{ int $listener.port }}, targetPort: {{ $name }} }
{{- end -}}
{{- end -}}
{{- end -}}
