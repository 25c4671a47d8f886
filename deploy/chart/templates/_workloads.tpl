{{/* DaemonSets and Deployments: images, places, resources, settings. */}}

{{/* Of: root, object. */}}
{{- define "vmlet.workload" -}}
{{- $values := .root.Values }}
{{- $name := .object.metadata.name }}
{{- $spec := .object.spec }}
{{- $pod := $spec.template.spec }}
{{- $labels := $values.nodeSelector }}
{{- $tolerations := $values.tolerations }}
{{- $resources := dict }}
{{- if eq $name "vmlet-node" }}
{{- $resources = $values.node.resources }}
{{- $_ := set $spec.updateStrategy.rollingUpdate "maxUnavailable" $values.node.maxUnavailable }}
{{- $_ := include "vmlet.node-paths" (dict "root" .root "pod" $pod) }}
{{- $_ := include "vmlet.node-proxy" (dict "root" .root "pod" $pod) }}
{{- else if eq $name "vmlet-agent" }}
{{- $resources = dict "agent" $values.agent.resources }}
{{- $_ := set $spec.updateStrategy.rollingUpdate "maxUnavailable" $values.agent.maxUnavailable }}
{{- $_ := include "vmlet.agent-env" (dict "root" .root "pod" $pod) }}
{{- else if eq $name "vmlet-controller" }}
{{- $resources = dict "controller" $values.controller.resources }}
{{- $labels = $values.controller.nodeSelector }}
{{- $tolerations = $values.controller.tolerations }}
{{- $_ := set $spec "replicas" $values.controller.replicas }}
{{- end }}
{{- $_ := set $pod "nodeSelector" (merge (dict) $pod.nodeSelector $labels) }}
{{- if $tolerations }}
{{- $_ := set $pod "tolerations" $tolerations }}
{{- else }}
{{- $_ := unset $pod "tolerations" }}
{{- end }}
{{- range concat ($pod.initContainers | default list) $pod.containers }}
{{- $_ := include "vmlet.container" (dict "root" $.root "container" . "resources" $resources) }}
{{- end }}
{{- range $pod.volumes }}
{{- if .configMap }}
{{- $_ := set .configMap "name" (include "vmlet.settings-name" (dict "root" $.root "name" .configMap.name)) }}
{{- end }}
{{- end }}
{{- end }}

{{/* Of: root, container, resources by container. */}}
{{- define "vmlet.container" -}}
{{- $values := .root.Values }}
{{- $parts := dict "localhost/vmlet-node" "" "localhost/vmlet-controller" "controller" "localhost/vmlet-agent" "agent" }}
{{- if hasKey $parts .container.image }}
{{- $_ := set .container "image" (include "vmlet.image" (dict "root" .root "part" (get $parts .container.image))) }}
{{- if $values.image.pullPolicy }}
{{- $_ := set .container "imagePullPolicy" $values.image.pullPolicy }}
{{- end }}
{{- else if hasPrefix "quay.io/brancz/kube-rbac-proxy:" .container.image }}
{{- $_ := set .container "image" (include "vmlet.image-name" $values.monitoring.nodeMetrics.image) }}
{{- else }}
{{- fail (printf "no value names the image %s" .container.image) }}
{{- end }}
{{- with get .resources .container.name }}
{{- $_ := set $.container "resources" . }}
{{- end }}
{{- end }}

{{/* An image with our programs: that of nodes, or of a part with a program of its own. Of: root, part. */}}
{{- define "vmlet.image" -}}
{{- $values := .root.Values.image }}
{{- $image := merge (dict) $values }}
{{- if .part }}
{{- $own := get $values .part | default dict }}
{{- $repository := printf "vmlet-%s" .part }}
{{- $folder := dir ($values.repository | default "") }}
{{- if ne $folder "." }}{{ $repository = printf "%s/%s" $folder $repository }}{{ end }}
{{- $image = merge (dict) (pick $values "registry" "tag") (dict "repository" ($own.repository | default $repository) "digest" $own.digest) }}
{{- if and $own.digest $values.tag (not $values.digest) }}
{{- fail (printf "image.%s.digest pins an image, and image.digest is empty beside image.tag: the values of a release pin its images. Set the digests of all images, or all to \"\"" .part) }}
{{- end }}
{{- end }}
{{- if not (or $image.tag $image.digest) }}
{{- $_ := set $image "tag" .root.Chart.AppVersion }}
{{- end }}
{{- include "vmlet.image-name" $image }}
{{- end }}

{{/* Of: registry, repository, tag, digest. */}}
{{- define "vmlet.image-name" -}}
{{- $name := .repository }}
{{- if .registry }}{{ $name = printf "%s/%s" .registry .repository }}{{ end }}
{{- if or (hasPrefix "vmlet.dev/" $name) (hasPrefix "virtlet.cloud/" $name) }}
{{- fail (printf "image %s: vmlet-criproxy sends images below vmlet.dev/ and virtlet.cloud/ to Vmlet, and this one belongs to the node's other runtime: choose another registry" $name) }}
{{- end }}
{{- if .tag }}{{ $name = printf "%s:%s" $name .tag }}{{ end }}
{{- if .digest }}{{ $name = printf "%s@%s" $name .digest }}{{ end }}
{{- $name }}
{{- end }}

{{/* Proxies for the daemon, which alone downloads. Of: root, pod. */}}
{{- define "vmlet.node-proxy" -}}
{{- $proxy := .root.Values.node.proxy }}
{{- $env := list }}
{{- range $name, $value := dict "HTTP_PROXY" $proxy.http "HTTPS_PROXY" $proxy.https "NO_PROXY" $proxy.exceptions }}
{{- if $value }}
{{- $env = append $env (dict "name" $name "value" $value) }}
{{- end }}
{{- end }}
{{- range .pod.containers }}
{{- if and $env (eq .name "daemon") }}
{{- $_ := set . "env" (concat (.env | default list) $env) }}
{{- end }}
{{- end }}
{{- end }}

{{/* Settings that the pod has by itself, as flags, variables or mounts, are no values. Of: root, pod. */}}
{{- define "vmlet.agent-env" -}}
{{- $container := first .pod.containers }}
{{- $fixed := list "VMLET_AGENT_NODE_ENDPOINT" "VMLET_AGENT_PROXY_ENDPOINT" }}
{{- range $container.env }}
{{- $fixed = append $fixed .name }}
{{- end }}
{{- range $container.command }}
{{- if hasPrefix "--" . }}
{{- $flag := splitList "=" . | first | trimPrefix "--" | replace "-" "_" | upper }}
{{- $fixed = append $fixed (printf "VMLET_AGENT_%s" $flag) }}
{{- end }}
{{- end }}
{{- $env := $container.env }}
{{- range $name, $value := .root.Values.agent.env }}
{{- if has $name $fixed }}
{{- fail (printf "agent.env: the DaemonSet sets %s" $name) }}
{{- end }}
{{- $env = append $env (dict "name" $name "value" $value) }}
{{- end }}
{{- $_ := set $container "env" $env }}
{{- end }}
