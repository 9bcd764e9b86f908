{{- define "tidegate.redisSecret" -}}
{{- .Values.redis.existingSecret | default (printf "%s-redis" (include "tidegate.name" .)) -}}
{{- end -}}

{{- define "tidegate.redisSecretKey" -}}
{{- ternary .Values.redis.secretKey "url" (not (empty .Values.redis.existingSecret)) -}}
{{- end -}}

{{- /* The URL that `hosts` and the rest make. (list $ "password, as it stands in a URL") */ -}}
{{- define "tidegate.redisUrl" -}}
{{- $redis := (index . 0).Values.redis -}}
{{- $password := index . 1 -}}
{{- ternary "rediss" "redis" $redis.tls.enabled }}{{ if eq $redis.kind "sentinel" }}+sentinel{{ end }}://
{{- if or $redis.user $password }}{{ $redis.user }}{{ if $password }}:{{ $password }}{{ end }}@{{ end -}}
{{- join "," $redis.hosts -}}
{{- if eq $redis.kind "sentinel" }}/{{ $redis.sentinelService }}{{ end -}}
/{{ $redis.database }}
{{- end -}}

{{- /* What the chart's own Secret holds; empty where it makes none, for the address holds no secret or is yours. */ -}}
{{- define "tidegate.redisOwnUrl" -}}
{{- if .Values.redis.url -}}
{{- .Values.redis.url -}}
{{- else if .Values.redis.password -}}
{{- include "tidegate.redisUrl" (list . (.Values.redis.password | urlquery | replace "+" "%20")) -}}
{{- end -}}
{{- end -}}

{{- /* (list $ "name of the chart's own Secret": the check before an upgrade has another one) */ -}}
{{- define "tidegate.redisEnv" -}}
{{- $secret := index . 1 -}}
{{- with index . 0 -}}
{{- if .Values.valkey.enabled -}}
- { name: TIDEGATE_REDIS_URL, value: "redis://{{ include "tidegate.name" . }}-valkey:6379/0" }
{{- else if or .Values.redis.existingSecret (include "tidegate.redisOwnUrl" .) -}}
- name: TIDEGATE_REDIS_URL
  valueFrom:
    secretKeyRef:
      name: {{ .Values.redis.existingSecret | default $secret }}
      key: {{ include "tidegate.redisSecretKey" . }}
{{- else if .Values.redis.passwordSecret.name -}}
- name: REDIS_PASSWORD
  valueFrom:
    secretKeyRef:
      name: {{ .Values.redis.passwordSecret.name }}
      key: {{ .Values.redis.passwordSecret.key }}
- name: TIDEGATE_REDIS_URL
  value: {{ include "tidegate.redisUrl" (list . "$(REDIS_PASSWORD)") | quote }}
{{- else -}}
- { name: TIDEGATE_REDIS_URL, value: {{ include "tidegate.redisUrl" (list . "") | quote }} }
{{- end }}
{{- with .Values.redis.sentinelPasswordSecret }}
{{- if .name }}
- name: TIDEGATE_REDIS_SENTINEL_PASSWORD
  valueFrom:
    secretKeyRef: { name: {{ .name }}, key: {{ .key }} }
{{- end }}
{{- end }}
{{- with .Values.redis.tls.caSecret }}
- { name: TIDEGATE_REDIS_CA_FILE, value: /etc/tidegate/redis-ca/ca.crt }
{{- end }}
{{- with .Values.redis.tls.clientSecret }}
- { name: TIDEGATE_REDIS_CLIENT_CERT_FILE, value: /etc/tidegate/redis-client/tls.crt }
- { name: TIDEGATE_REDIS_CLIENT_KEY_FILE, value: /etc/tidegate/redis-client/tls.key }
{{- end }}
{{- end }}
{{- end -}}

{{- define "tidegate.redisMounts" -}}
{{- if .Values.redis.tls.caSecret }}
- { name: redis-ca, mountPath: /etc/tidegate/redis-ca, readOnly: true }
{{- end }}
{{- if .Values.redis.tls.clientSecret }}
- { name: redis-client, mountPath: /etc/tidegate/redis-client, readOnly: true }
{{- end }}
{{- end -}}

{{- define "tidegate.redisVolumes" -}}
{{- with .Values.redis.tls.caSecret }}
- name: redis-ca
  secret: { secretName: {{ . }}, items: [{ key: {{ $.Values.redis.tls.caKey }}, path: ca.crt }] }
{{- end }}
{{- with .Values.redis.tls.clientSecret }}
- name: redis-client
  secret: { secretName: {{ . }} }
{{- end }}
{{- end -}}
