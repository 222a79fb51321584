{{/* The name of a part, such as (list . "agent"): apportion-agent where the release is called apportion. */}}
{{- define "apportion.name" -}}
{{- $release := (index . 0).Release.Name -}}
{{- $part := printf "apportion-%s" (index . 1) -}}
{{- if hasPrefix $release $part -}}
{{ $part }}
{{- else if contains $part $release -}}
{{ $release | trunc 63 | trimSuffix "-" }}
{{- else -}}
{{ printf "%s-%s" $release $part | trunc 63 | trimSuffix "-" }}
{{- end -}}
{{- end -}}

{{- define "apportion.selector" -}}
app.kubernetes.io/name: apportion-{{ index . 1 }}
app.kubernetes.io/instance: {{ (index . 0).Release.Name }}
{{- end -}}

{{- define "apportion.labels" -}}
{{ include "apportion.selector" . }}
app.kubernetes.io/part-of: apportion
app.kubernetes.io/version: {{ (index . 0).Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ (index . 0).Release.Service }}
{{- end -}}

{{- define "agent.name" -}}{{ include "apportion.name" (list . "agent") }}{{- end -}}
{{- define "agent.selector" -}}{{ include "apportion.selector" (list . "agent") }}{{- end -}}
{{- define "agent.labels" -}}{{ include "apportion.labels" (list . "agent") }}{{- end -}}

{{- define "agent.serviceAccount" -}}
{{ .Values.serviceAccount.name | default (include "agent.name" .) }}
{{- end -}}

{{/* An image by its digest, or else by a tag: (list .Values.image "1.2.3"). */}}
{{- define "apportion.image" -}}
{{- $image := index . 0 -}}
{{- with $image.digest -}}
{{ $image.repository }}@{{ . }}
{{- else -}}
{{ $image.repository }}:{{ index . 1 }}
{{- end -}}
{{- end -}}

{{- define "agent.image" -}}
{{ include "apportion.image" (list .Values.image (.Values.image.tag | default .Chart.AppVersion)) }}
{{- end -}}

{{/* Scheduler and webhook are one program. */}}
{{- define "scheduler.image" -}}
{{- $tag := .Values.scheduler.image.tag | default .Values.image.tag | default .Chart.AppVersion -}}
{{ include "apportion.image" (list .Values.scheduler.image $tag) }}
{{- end -}}

{{/* What the pods of scheduler and webhook have in common: (list . "webhook" .Values.webhook). */}}
{{- define "apportion.pod" -}}
{{- $root := index . 0 -}}
{{- $values := index . 2 -}}
serviceAccountName: {{ include "apportion.name" . }}
{{- with $values.priorityClassName }}
priorityClassName: {{ . }}
{{- end }}
{{- with $root.Values.imagePullSecrets }}
imagePullSecrets: {{- toYaml . | nindent 2 }}
{{- end }}
securityContext:
  runAsNonRoot: true
  {{- if not $root.Values.openshift.enabled }}
  # OpenShift assigns each namespace its own user ids.
  runAsUser: 65532
  runAsGroup: 65532
  {{- end }}
  seccompProfile:
    type: RuntimeDefault
{{- with $values.nodeSelector }}
nodeSelector: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with $values.affinity }}
affinity: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with $values.tolerations }}
tolerations: {{- toYaml . | nindent 2 }}
{{- end }}
topologySpreadConstraints:
  - maxSkew: 1
    topologyKey: kubernetes.io/hostname
    whenUnsatisfiable: ScheduleAnyway
    labelSelector:
      matchLabels: {{- include "apportion.selector" . | nindent 8 }}
{{- end -}}

{{/* And their containers. */}}
{{- define "apportion.container" -}}
{{- $root := index . 0 -}}
{{- $values := index . 2 -}}
image: {{ include "scheduler.image" $root }}
imagePullPolicy: {{ $root.Values.scheduler.image.pullPolicy | default $root.Values.image.pullPolicy }}
securityContext:
  allowPrivilegeEscalation: false
  readOnlyRootFilesystem: true
  capabilities:
    drop: [ALL]
resources: {{- toYaml $values.resources | nindent 2 }}
{{- with $root.Values.env }}
env: {{- toYaml . | nindent 2 }}
{{- end }}
{{- end -}}

{{/* A role bound to the account of a part: (list . "webhook" "ClusterRole"). */}}
{{- define "apportion.bound" -}}
{{- $root := index . 0 -}}
{{- $kind := index . 2 -}}
apiVersion: rbac.authorization.k8s.io/v1
kind: {{ $kind }}Binding
metadata:
  name: {{ include "apportion.name" . }}
  {{- if eq $kind "Role" }}
  namespace: {{ $root.Release.Namespace }}
  {{- end }}
  labels: {{- include "apportion.labels" . | nindent 4 }}
roleRef:
  apiGroup: rbac.authorization.k8s.io
  kind: {{ $kind }}
  name: {{ include "apportion.name" . }}
subjects:
  - kind: ServiceAccount
    name: {{ include "apportion.name" . }}
    namespace: {{ $root.Release.Namespace }}
{{- end -}}
