{{/* The image, by its digest or its tag. */}}
{{- define "nftproxy.image" -}}
{{- if .Values.image.digest -}}
{{ .Values.image.repository }}@{{ .Values.image.digest }}
{{- else -}}
{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end -}}
{{- end -}}

{{/* What the schema cannot say: values that contradict each other. */}}
{{- define "nftproxy.check" -}}
{{- $api := .Values.apiServer -}}
{{- if and $api.host $api.hostFrom -}}
{{- fail "apiServer.host and apiServer.hostFrom: set one of them" -}}
{{- end -}}
{{- if .Values.existingConfigMap -}}
{{- range $name := list "clusterCIDR" "configuration" -}}
{{- if index $.Values $name -}}
{{- fail (printf "%s has no effect with existingConfigMap=%s: set it in that ConfigMap, or set existingConfigMap=\"\"" $name $.Values.existingConfigMap) -}}
{{- end -}}
{{- end -}}
{{- if ne (join "," .Values.nodePortAddresses) "primary" -}}
{{- fail (printf "nodePortAddresses has no effect with existingConfigMap=%s: set it in that ConfigMap, or set existingConfigMap=\"\"" .Values.existingConfigMap) -}}
{{- end -}}
{{- else -}}
{{- if not (or $api.host $api.hostFrom) -}}
{{- fail "apiServer.host is not set: without the ConfigMap kube-proxy nftproxy needs an address of the API server that works without a service proxy" -}}
{{- end -}}
{{- end -}}
{{- range $name := list "apiVersion" "kind" "clusterCIDR" "nodePortAddresses" -}}
{{- if hasKey $.Values.configuration $name -}}
{{- fail (printf "configuration.%s: not here; clusterCIDR and nodePortAddresses are values of their own" $name) -}}
{{- end -}}
{{- end -}}
{{- end -}}
