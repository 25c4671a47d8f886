{{/*
Manifests of deploy/, as copies in files/, made into the objects of this release. Nothing else in the chart prints an
object that deploy/ has.
*/}}

{{/* Prints all objects of a file. Of: root, path. */}}
{{- define "vmlet.file" -}}
{{- $root := .root }}
{{- $path := .path }}
{{- $text := $root.Files.Get $path | replace "vmlet-system" $root.Release.Namespace }}
{{- range $document := splitList "\n---\n" $text }}
{{- $object := fromYaml $document }}
{{- if $object.Error }}{{ fail (printf "%s: %s" $path $object.Error) }}{{ end }}
{{- include "vmlet.object" (dict "root" $root "object" $object) }}
{{- end }}
{{- end }}

{{/* Prints an object of deploy/, unless the values leave it out. Of: root, object. */}}
{{- define "vmlet.object" -}}
{{- $of := . }}
{{- $kind := .object.kind }}
{{- $metadata := .object.metadata }}
{{- if ne (include "vmlet.left-out" $of) "true" }}
{{- $_ := set $metadata "labels" (merge (dict "app.kubernetes.io/part-of" "vmlet") ($metadata.labels | default dict)) }}
{{- if has $kind (include "vmlet.namespaced" . | splitList " ") }}
{{- $_ := set $metadata "namespace" .root.Release.Namespace }}
{{- end }}
{{- if has $kind (list "DaemonSet" "Deployment") }}
{{- $_ := include "vmlet.workload" $of }}
{{- else if eq $kind "ServiceAccount" }}
{{- $_ := include "vmlet.pull-secrets" (dict "root" .root "object" .object) }}
{{- else if eq $kind "RuntimeClass" }}
{{- $_ := include "vmlet.runtime-class" $of }}
{{- else if eq $kind "NetworkPolicy" }}
{{- $_ := include "vmlet.network-policy" $of }}
{{- else if eq $kind "PodMonitor" }}
{{- $_ := set $metadata "labels" (merge (dict) .root.Values.monitoring.labels $metadata.labels) }}
{{- end }}
---
{{ toYaml .object }}
{{ end }}
{{- end }}

{{/* Kinds of deploy/ whose objects belong to a namespace. */}}
{{- define "vmlet.namespaced" -}}
ConfigMap DaemonSet Deployment NetworkPolicy PodMonitor Role RoleBinding ServiceAccount
{{- end }}

{{/* "true" for an object that the values leave out. Of: root, object. */}}
{{- define "vmlet.left-out" -}}
{{- $values := .root.Values }}
{{- $kind := .object.kind }}
{{- $name := .object.metadata.name }}
{{- if eq $kind "NetworkPolicy" }}
{{- not $values.networkPolicies.enabled }}
{{- else if and (eq $kind "ClusterRoleBinding") (eq $name "vmlet-cluster-images") }}
{{- not $values.clusterImages.readableByAll }}
{{- else if and (eq $kind "PodMonitor") (eq $name "vmlet-nodes") }}
{{- not $values.monitoring.nodeMetrics.enabled }}
{{- else }}
{{- false }}
{{- end }}
{{- end }}

{{/* Of: root, object. */}}
{{- define "vmlet.pull-secrets" -}}
{{- $secrets := list }}
{{- range .root.Values.imagePullSecrets }}
{{- $secrets = append $secrets (dict "name" .) }}
{{- end }}
{{- if $secrets }}
{{- $_ := set .object "imagePullSecrets" $secrets }}
{{- end }}
{{- end }}

{{/* Software emulation needs more memory: 96Mi for QEMU, and 256Mi for the code that it translates (docs/pods.md). */}}
{{- define "vmlet.runtime-class" -}}
{{- $values := .root.Values }}
{{- $overhead := .object.overhead.podFixed }}
{{- if eq $values.runtimeClass.accelerator "tcg" }}
{{- $_ := set $overhead "memory" "352Mi" }}
{{- end }}
{{- range $resource, $amount := $values.runtimeClass.overhead }}
{{- if $amount }}
{{- $_ := set $overhead $resource (toString $amount) }}
{{- end }}
{{- end }}
{{- $scheduling := .object.scheduling }}
{{- $_ := set $scheduling "nodeSelector" (merge (dict) $scheduling.nodeSelector $values.nodeSelector) }}
{{- with $values.runtimeClass.tolerations }}
{{- $_ := set $scheduling "tolerations" . }}
{{- end }}
{{- end }}

{{/* Of: root, object. */}}
{{- define "vmlet.network-policy" -}}
{{- $from := list }}
{{- range .root.Values.monitoring.namespaces }}
{{- $labels := dict "kubernetes.io/metadata.name" . }}
{{- $from = append $from (dict "namespaceSelector" (dict "matchLabels" $labels)) }}
{{- end }}
{{- range .object.spec.ingress }}
{{- $_ := set . "from" $from }}
{{- end }}
{{- if not $from }}
{{- $_ := set .object.spec "ingress" list }}
{{- end }}
{{- end }}
