{{- define "labels" -}}
app.kubernetes.io/name: agent-tts
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}
{{- define "metadata" -}}
labels:
  {{- include "labels" . | nindent 2 }}
  app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
  app.kubernetes.io/managed-by: {{ .Release.Service }}
{{- end }}
{{- define "node" -}}
{{ include "labels" . }}
app.kubernetes.io/component: node
{{- end }}
{{- define "haproxy" -}}
{{ include "labels" . }}
app.kubernetes.io/component: haproxy
{{- end }}
{{- define "name" -}}
{{ .Release.Name | trunc 50 | trimSuffix "-" }}
{{- end }}
{{- define "grace" -}}
{{/* The drain, what is still played over WebRTC, and the pause before it. */ -}}
{{ add .Values.node.drainSeconds 20 }}
{{- end }}
{{- define "slots" -}}
{{- .Values.node.slots | default (ternary 256 "" (gt (int .Values.node.gpus) 0)) }}
{{- end }}
{{- define "claim" -}}
{{ .Values.cache.existingClaim | default (printf "%s-cache" (include "name" .)) }}
{{- end }}
{{- define "security" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities: {drop: [ALL]}
{{- end }}
