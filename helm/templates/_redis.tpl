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
{{- ternary "rediss" "redis" $redis.tls.enabled }}{{ if ne $redis.kind "standalone" }}+{{ $redis.kind }}{{ end }}://
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

{{- /* (list $ "name of the chart's own Secret": the check before an upgrade has another one); what is not in `secretFiles` */ -}}
{{- define "tidegate.redisEnv" -}}
{{- $secret := index . 1 -}}
{{- $asFiles := gt (len .) 2 -}}
{{- with index . 0 -}}
{{- if .Values.valkey.enabled -}}
- { name: TIDEGATE_REDIS_URL, value: "redis://{{ include "tidegate.name" . }}-valkey:6379/0" }
{{- else if and $asFiles (or .Values.redis.existingSecret (include "tidegate.redisOwnUrl" .)) -}}
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
{{- if and .name (not $asFiles) }}
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

{{- /* Where Redis is, as `to` of a NetworkPolicy; empty where only its name is known. */ -}}
{{- define "tidegate.redisPeers" -}}
{{- if .Values.networkPolicy.egress.redis -}}
{{- toYaml .Values.networkPolicy.egress.redis -}}
{{- else if .Values.valkey.enabled -}}
- podSelector:
    matchLabels: {{- include "tidegate.selector" (list . "valkey") | nindent 6 }}
{{- else if eq .Values.redis.kind "standalone" -}}
{{- range .Values.redis.hosts -}}
{{- $host := regexReplaceAll ":[0-9]+$" . "" -}}
{{- if regexMatch "^[0-9]+([.][0-9]+){3}$" $host -}}
- ipBlock: { cidr: {{ $host }}/32 }
{{- end -}}
{{- end -}}
{{- end -}}
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

{{- /* `secretsAsFiles`: the sources of one projected volume, whose files are called as variables. */ -}}
{{- define "tidegate.secretFiles" -}}
{{- if and (not .Values.valkey.enabled) (or .Values.redis.existingSecret (include "tidegate.redisOwnUrl" .)) }}
- secret:
    name: {{ include "tidegate.redisSecret" . }}
    items: [{ key: {{ include "tidegate.redisSecretKey" . }}, path: TIDEGATE_REDIS_URL }]
{{- end }}
{{- with .Values.redis.sentinelPasswordSecret }}
{{- if .name }}
- secret:
    name: {{ .name }}
    items: [{ key: {{ .key }}, path: TIDEGATE_REDIS_SENTINEL_PASSWORD }]
{{- end }}
{{- end }}
{{- with include "tidegate.adminSecret" . }}
- secret:
    name: {{ . }}
    items:
      {{- range $key := include "tidegate.adminKeys" $ | fromJsonArray }}
      - { key: {{ $key }}, path: TIDEGATE_ADMIN_{{ $key | upper | replace "-" "_" }} }
      {{- end }}
{{- end }}
{{- end -}}
