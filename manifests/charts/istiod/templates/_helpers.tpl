{{/* The suffix of a revision: empty for the default one. */}}
{{- define "istiod.suffix" -}}
{{- if and .Values.revision (ne .Values.revision "default") }}-{{ .Values.revision }}{{ end -}}
{{- end }}

{{/* The name of everything in the control plane's own namespace. */}}
{{- define "istiod.name" -}}
istiod{{ include "istiod.suffix" . }}
{{- end }}

{{/* The name of everything that belongs to no namespace. */}}
{{- define "istiod.clusterName" -}}
istiod-clusterrole{{ include "istiod.suffix" . }}-{{ .Release.Namespace }}
{{- end }}

{{/* Another one for revisions: the default Service must not select their pods. */}}
{{- define "istiod.role" -}}
{{- if include "istiod.suffix" . }}istiod{{ else }}pilot{{ end -}}
{{- end }}

{{/* What selects the pods. */}}
{{- define "istiod.selector" -}}
app: istiod
{{- if include "istiod.suffix" . }}
istio.io/rev: {{ .Values.revision | quote }}
{{- else }}
istio: pilot
{{- end }}
{{- end }}

{{/* Labels of every object. */}}
{{- define "istiod.labels" -}}
app: istiod
app.kubernetes.io/instance: {{ .Release.Name | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service | quote }}
app.kubernetes.io/name: istiod
app.kubernetes.io/part-of: istio
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
istio: {{ include "istiod.role" . }}
istio.io/rev: {{ .Values.revision | default "default" | quote }}
release: {{ .Release.Name | quote }}
{{- end }}
